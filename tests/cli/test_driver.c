/* cli/test_driver.c -- drivers that are there and do not serve, played by a library in the place of CUDA's: one line, exit 2, at once. */
#include "cli/run.h"

#include <string.h>

static const struct {
    const char *driver, *says;
    bool absent; /* no GPU at all: auto goes on with the CPU */
} rows[] = {
    {"old", "the driver supports CUDA 11.4, this build needs", false},
    {"none", "the CUDA driver sees no GPU", true},
    {"broken", "the CUDA driver is here but fails", false},
};

static void play(const char *driver)
{
    run_env("LD_LIBRARY_PATH", FAKE_CUDA_DIR);
    run_env("SPTUNE_TEST_CUDA", driver);
}

static void test_cuda_by_name(void **state)
{
    static const char *const commands[] = {"check --device cuda --ranks 2", "bench link --device cuda --ranks 2",
                                           "tune --model llama-3-8b --seq 4k --device cuda --ranks 2"};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(rows); i++)
        for (int c = 0; c < CHECK_COUNT(commands); c++) {
            struct run run;
            play(rows[i].driver);
            run_do(&run, "%s", commands[c]);
            run_expect(&run, 2);
            run_says(run.err, rows[i].says);
            assert_int_equal(run_lines(run.err), 1);
            assert_string_equal(run.out, "");
            run_free(&run);
        }
}

static void test_auto(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct run run;
        play(rows[i].driver);
        run_do(&run, "bench link --bytes 64k --ranks 1 --budget 2s");
        run_expect(&run, rows[i].absent ? 0 : 2);
        if (!rows[i].absent)
            run_says(run.err, rows[i].says);
        run_free(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_by_name),
        cmocka_unit_test(test_auto),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
