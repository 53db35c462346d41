/* cli/test_suite.c -- `bench suite`: its rows are the same in every run, whole, interrupted and resumed, or cut short. Two ranks are oversubscribed
 * here (run.h). */
#include "cli/run.h"

#include <signal.h>

enum { ROWS = 39 };
#if SPTUNE_CUDNN
enum { LISTED = 11 }; /* the suite, and its lines */
#else
enum { LISTED = 10 };
#endif

static void test_list(void **state)
{
    (void)state;
    static const char *const words[] = {
        "ci link", "ci collective",    "ci exchange on CPUs",   "ci exchange on GPUs", "ci attention on CPUs",
        "ci gemm", "ci layer on CPUs", "packed-separate,direct"};
    struct run run;
    run_do(&run, "bench suite --suite list");
    run_expect(&run, 0);
    for (int i = 0; i < CHECK_COUNT(words); i++)
        run_says(run.out, words[i]);
    run_fits(run.out, true);
    run_free(&run);
    run_do(&run, "bench suite --suite list --json");
    run_expect(&run, 0);
    json_t *document = run_json(&run, "list");
    assert_int_equal(json_array_size(json_object_get(document, "items")), LISTED);
    json_decref(document);
    run_free(&run);
}

static void test_wrong(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"bench suite cj", "did you mean ci?"},
        {"bench suite --suite nothing", "bench suite does not know 'nothing'"},
        {"bench suite ci --suite cj", "contradict each other"},
        {"bench suite ci --seq 4k", "bench suite ci has no --seq: its lists are fixed"},
        {"bench suite --docs fixed:8", "has no --docs"},
        {"bench gemm ci", "unexpected argument 'ci'"},
        {"bench gemm --suite ci", "bench gemm has no --suite"},
        {"bench suit", "did you mean suite?"},
        {"bench suite ci more", "unexpected argument 'more'"},
    };
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        run_do(&run, "%s", lines[i][0]);
        run_expect(&run, 2);
        run_says(run.err, lines[i][1]);
        run_free(&run);
    }
}

/* The keys of a document's rows, each once; *ok counts rows that are. A new reference. */
static json_t *keys_of(const struct run *run, int *ok)
{
    json_t *document = run_json(run, "samples"), *keys = json_object(), *row;
    size_t at;
    *ok = 0;
    json_array_foreach(json_object_get(document, "samples"), at, row)
    {
        char *text = json_dumps(json_object_get(row, "key"), JSON_SORT_KEYS);
        assert_non_null(text);
        if (json_object_get(keys, text) != NULL)
            fail_msg("twice: %s", text);
        json_object_set_new(keys, text, json_true());
        const char *outcome = json_string_value(json_object_get(row, "outcome"));
        *ok += strcmp(outcome, "ok") == 0;
        if (strcmp(outcome, "failed") == 0)
            fail_msg("%s: %s", text, json_string_value(json_object_get(row, "why")));
        free(text);
    }
    json_decref(document);
    return keys;
}

static void test_resume(void **state)
{
    (void)state;
    static const char line[] = "bench suite ci --ranks 2 --samples 10 --progress none";
    struct run run;
    int ok, before;
    size_t shown;
    run_begin(&run, "%s --budget 100s --jsonl --name whole", line);
    assert_true(run_wait(&run, 1, "\n", 4));
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    run_free(&run);
    run_do(&run, "results show whole --json");
    run_expect(&run, 0);
    json_t *part = keys_of(&run, &before);
    shown = json_object_size(part);
    assert_true(shown >= 4 && shown < ROWS);
    json_decref(part);
    run_free(&run);
    run_do(&run, "%s --budget 2s --json --resume", line);
    run_expect(&run, 0);
    run_says_not(run.err, "nothing to resume");
    json_t *whole = keys_of(&run, &ok);
    assert_int_equal(json_object_size(whole), ROWS);
    assert_true(ok >= before);
    run_free(&run);
    run_do(&run, "%s --budget 1s --json", line); /* waived rows, which had no time, keep their keys */
    if (run.code != 3)
        run_expect(&run, 0);
    json_t *again = keys_of(&run, &ok);
    assert_true(json_equal(whole, again));
    run_free(&run);
    json_decref(again);
    json_decref(whole);
    run_nothing_left();
}

/* A waived row that is waived again, or measured, when the command is resumed is not there twice. */
static void test_resume_waived(void **state)
{
    (void)state;
    static const char line[] =
        "bench attention --sp 3,2 --seq 2k --heads 8 --kv-heads 8 --head-dim 64 --ranks 2 --effort full "
        "--progress none";
    struct run run;
    int ok;
    run_begin(&run, "%s --budget 100s --jsonl --name waived", line);
    assert_true(run_wait(&run, 1, "\n", 1));
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    run_free(&run);
    run_do(&run, "%s --budget 2s --json --resume", line);
    run_says_not(run.err, "nothing to resume");
    json_t *keys = keys_of(&run, &ok);
    assert_int_equal(json_object_size(keys), 2);
    json_decref(keys);
    run_free(&run);
}

/* A budget that ends before the first row leaves all of them out; the run is the same until each has its samples. */
static void test_resume_after_budget(void **state)
{
    (void)state;
    static const char line[] = "bench gemm --m 16 --n 16 --k 8..32+8 --ranks 2 --samples 10 --progress none";
    struct run run;
    int ok;
    run_do(&run, "%s --budget 1us --name cut", line);
    run_expect(&run, 3);
    run_says(run.err, "4 of 4 rows had their samples: the same command with --resume goes on");
    run_free(&run);
    run_do(&run, "%s --budget 1h --resume", line);
    run_expect(&run, 0);
    run_says_not(run.err, "resume");
    run_free(&run);
    run_do(&run, "results show cut --json");
    run_expect(&run, 0);
    json_decref(keys_of(&run, &ok));
    assert_int_equal(ok, 4);
    run_free(&run);
    run_do(&run, "%s --budget 1h --resume", line);
    run_expect(&run, 0);
    run_says(run.err, "nothing to resume");
    run_free(&run);
    run_do(&run, "bench suite ci --ranks 2 --samples 10 --progress none --seed 2 --budget 1us");
    run_expect(&run, 3);
    run_free(&run);
    run_do(&run, "bench suite ci --ranks 2 --samples 10 --progress none --seed 2 --budget 2s --json --resume");
    run_says_not(run.err, "nothing to resume");
    json_decref(keys_of(&run, &ok));
    run_free(&run);
    run_nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_waived),
        cmocka_unit_test(test_resume_after_budget),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
