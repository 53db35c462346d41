/* tests/cli/test_sweep.c -- what `bench` measures where nothing but a subject, or a suite, is named: on each kind of device what runs there.
 * No device is opened.
 */
#include "bench/admitted.h"
#include "cli/worklist.h"

/* Every row runs there, but for those of one rank that a lone one has no peer for. */
static int assert_all_run(enum dev_kind device, int ranks, const struct worklist *work)
{
    struct bench_case cases[BENCH_CASES_MAX];
    char why[256];
    int rows = 0;
    for (int w = 0; w < work->n; w++)
        for (int i = 0; i < work->sweeps[w].cells; i++) {
            CHECK_OK(sweep_cell(&work->sweeps[w], i, cases));
            for (int v = 0; v < work->sweeps[w].variants; v++, rows++)
                if (!is_admitted(&cases[v], device, why) && !(ranks == 1 && strstr(why, "of one rank") != NULL))
                    fail_msg("%s %s of %d ranks: %s", cases[v].subject, cases[v].op, ranks, why);
        }
    return rows;
}

static void assert_line_runs(enum dev_kind device, int ranks, int argc, const char *const *argv)
{
    static const struct opt *const tables[] = {sweep_options, NULL};
    struct cli cli = {.device = device};
    struct worklist work;
    char *words[8];
    for (int i = 0; i < argc; i++)
        words[i] = (char *)(uintptr_t)argv[i];
    words[argc] = NULL;
    CHECK_OK(opt_parse(argc, words, tables, &cli.opts));
    CHECK_OK(worklist_open(&cli, argv[0], NULL, ranks, &work));
    assert_true(assert_all_run(device, ranks, &work) > 0);
    worklist_close(&work);
}

/* A subject without a word more, the other methods and the whole block, and the suite. */
static void on_device(enum dev_kind device, int suite_rows)
{
    static const char *const lines[][5] = {{"link"},
                                           {"collective"},
                                           {"exchange"},
                                           {"exchange", "--op", "in,out,one"},
                                           {"attention"},
                                           {"attention", "--window", "0,100"},
                                           {"attention", "--docs", "fixed:300"},
                                           {"gemm"},
                                           {"layer"},
                                           {"layer", "--method", "ulysses,ring"},
                                           {"layer", "--docs", "fixed:300"},
                                           {"layer", "--span", "block", "--direction", "fwd,bwd"},
                                           {"layer", "--span", "block", "--method", "ulysses,ring,split_gather"}};
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int i = 0; i < CHECK_COUNT(lines); i++) {
            int argc = 0;
            while (argc < 5 && lines[i][argc] != NULL)
                argc++;
            assert_line_runs(device, ranks, argc, lines[i]);
        }
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        struct cli cli = {.device = device};
        struct worklist work;
        CHECK_OK(worklist_open(&cli, "suite", suite_find("ci"), ranks, &work));
        assert_int_equal(assert_all_run(device, ranks, &work), suite_rows);
        worklist_close(&work);
    }
}

static void test_cpus(void **state)
{
    (void)state;
    on_device(DEV_CPU, 39);
}

#if SPTUNE_CUDA
static void test_gpus(void **state)
{
    (void)state;
#if SPTUNE_CUDNN
    on_device(DEV_CUDA, 39);
#else
    on_device(DEV_CUDA, 37);
#endif
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpus),
#if SPTUNE_CUDA
        cmocka_unit_test(test_gpus),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
