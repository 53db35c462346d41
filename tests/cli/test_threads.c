/* cli/test_threads.c -- ranks share the CPUs they have in common; --threads; rows say how many there were. */
#include "cli/run.h"
#include "cli/threads.h"

#include <sched.h>

/* Rows of two bytes: CPUs 0 .. 15. */
static int share(const char *const *masks, const char *here, int mine, double quota)
{
    unsigned char bits[8 * 2] = {0}, is_here[8] = {0};
    int n = 0;
    for (; masks[n] != NULL; n++) {
        is_here[n] = here[n] == 'h';
        for (int cpu = 0; masks[n][cpu] != '\0'; cpu++)
            if (masks[n][cpu] == '1')
                bits[n * 2 + cpu / 8] = (unsigned char)(bits[n * 2 + cpu / 8] | 1 << cpu % 8);
    }
    return threads_of(bits, is_here, n, 2, mine, quota);
}

static void test_shares(void **state)
{
    (void)state;
    const char *const alone[] = {"111111", NULL}, *const bound[] = {"11110000", "00001111", NULL};
    const char *const free[] = {"1111111111", "1111111111", "1111111111", NULL};
    const char *const thirds[] = {"111", "111", "111", NULL}, *const mixed[] = {"1111", "0011", "0011", NULL};
    const char *const none[] = {"0", "1", NULL};
    assert_int_equal(share(alone, "h", 0, -1), 6);
    assert_int_equal(share(alone, "h", 0, 2.5), 2);
    assert_int_equal(share(alone, "h", 0, 0.3), 1);
    assert_int_equal(share(bound, "hh", 0, -1), 4);
    assert_int_equal(share(bound, "hh", 1, -1), 4);
    assert_int_equal(share(bound, "hh", 1, 6), 3);   /* the quota is for both */
    assert_int_equal(share(free, "hhh", 1, -1), 3);  /* 10 by 3 */
    assert_int_equal(share(free, "hxx", 0, -1), 10); /* the others are elsewhere */
    assert_int_equal(share(free, "hxx", 0, 4), 4);
    assert_int_equal(share(thirds, "hhh", 2, -1), 1); /* three thirds make one */
    assert_int_equal(share(mixed, "hhh", 0, -1), 2);  /* two of its own, two thirds of what all have */
    assert_int_equal(share(mixed, "hhh", 1, -1), 1);
    assert_int_equal(share(none, "hh", 0, -1), 1); /* unknown */
}

static int cpus(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static void row_has(const struct run *run, int threads)
{
    json_t *document = run_json(run, "samples"), *row = json_array_get(json_object_get(document, "samples"), 0);
    static const char *const where[] = {"conditions", "versions"};
    for (int i = 0; i < 2; i++)
        assert_int_equal(json_integer_value(json_object_get(json_object_get(row, where[i]), "threads")), threads);
    json_decref(document);
}

/* More ranks than CPUs: nothing is bound, and nothing is judged by the state of CPUs that other programs use too. */
static void test_rows_say_how_many(void **state)
{
    (void)state;
    static const char line[] = "bench attention --ranks %d --sp 1 --heads 2 --kv-heads 2 --seq 600 --head-dim 32 --direction fwd,bwd "
                               "--samples 10 --json %s";
    struct run run;
    run_do(&run, line, cpus() + 1, "");
    run_expect(&run, 0);
    row_has(&run, 1);
    run_free(&run);
    if (cpus() < 2) {
        print_message("[  SKIPPED ] two threads: there is one CPU\n");
        return;
    }
    run_do(&run, line, cpus() + 1, "--threads 2");
    run_expect(&run, 0);
    row_has(&run, 2);
    run_free(&run);
    run_nothing_left();
}

static void test_counts_are_refused(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench gemm --ranks 1 --m 8 --n 8 --k 8 --samples 10 --threads %d", cpus() + 1);
    run_expect(&run, 2);
    run_says(run.err, "threads, but a rank has");
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
    static const char *const wrong[] = {"0", "-1", "many", "1025"};
    for (int i = 0; i < CHECK_COUNT(wrong); i++) {
        run_do(&run, "check --threads %s", wrong[i]);
        run_expect(&run, 2);
        run_says(run.err, "--threads");
        run_free(&run);
    }
    run_nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_rows_say_how_many),
        cmocka_unit_test(test_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, run_place, run_leave);
}
