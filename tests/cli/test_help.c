/* cli/test_help.c -- help, topics, lists; unknown verbs, options and words get the nearest name. */
#include "cli/run.h"

static const char *const verbs[] = {"topo", "model", "check", "bench", "tune", "train", "explain", "results", "help"};
static const char *const topics[] = {"units", "sizes", "synth", "exit", "env", "ulysses"};

static void test_bare(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "%s", "");
    run_expect(&run, 0);
    run_says(run.out, "sptune tune --model");
    run_says(run.out, "sptune topo");
    run_says(run.out, "sptune model");
    run_fits(run.out, true);
    assert_string_equal(run.err, "");
    run_free(&run);
}

static void test_help_names_everything(void **state)
{
    (void)state;
    static const char *const ways[] = {"help", "--help", "-h", "help -v"};
    for (int w = 0; w < CHECK_COUNT(ways); w++) {
        struct run run;
        run_do(&run, "%s", ways[w]);
        run_expect(&run, 0);
        run_fits(run.out, true);
        for (int i = 0; i < CHECK_COUNT(verbs); i++)
            run_says(run.out, verbs[i]);
        for (int i = 0; i < CHECK_COUNT(topics); i++)
            run_says(run.out, topics[i]);
        run_free(&run);
    }
}

/* `VERB --help` is `help VERB`, and every line of it fits. */
static void test_verbs(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_COUNT(verbs); i++) {
        struct run long_way, short_way;
        run_do(&long_way, "help %s", verbs[i]);
        run_do(&short_way, "%s --help", verbs[i]);
        run_expect(&long_way, 0);
        run_expect(&short_way, 0);
        assert_string_equal(long_way.out, short_way.out);
        run_fits(long_way.out, true);
        run_says(long_way.out, "usage: sptune ");
        run_says(long_way.out, "--json");
        run_says(long_way.out, "--seed N");
        run_free(&long_way);
        run_free(&short_way);
    }
}

static void test_topics(void **state)
{
    (void)state;
    static const char *const words[] = {"131,072", "dp_shard_size", "synth:", "130", "SPTUNE_STORE", "all-to-all"};
    for (int i = 0; i < CHECK_COUNT(topics); i++) {
        struct run run;
        run_do(&run, "help %s", topics[i]);
        run_expect(&run, 0);
        run_says(run.out, words[i]);
        run_fits(run.out, true);
        run_free(&run);
    }
}

static void test_json(void **state)
{
    (void)state;
    static const char *const ways[] = {"help --json", "help units --json", "tune --json --help", "help help --json"};
    for (int i = 0; i < CHECK_COUNT(ways); i++) {
        struct run run;
        run_do(&run, "%s", ways[i]);
        run_expect(&run, 0);
        json_t *document = run_json(&run, "help");
        assert_true(json_string_length(json_object_get(document, "text")) > 100);
        json_decref(document);
        run_free(&run);
    }
}

static void test_version(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "--version");
    run_expect(&run, 0);
    assert_true(strncmp(run.out, "sptune ", 7) == 0);
    assert_int_equal(run_lines(run.out), 1);
    run_free(&run);
}

/* Tables of this program: every name of the list is taken where the list was asked for. */
static void test_lists(void **state)
{
    (void)state;
    static const char *const ways[][2] = {{"tune --target list", "accelerate"},
                                          {"tune --emit list", "accelerate"},
                                          {"bench exchange --exchange list", "packed"},
                                          {"tune --exchange list", "packed"},
                                          {"tune --attention list", "flash_attention_2"},
                                          {"tune --attention list --target sptune", "cpu"},
                                          {"bench layer --attention list", "reference"},
                                          {"bench gemm --export list", "csv"},
                                          {"results export --export list", "svg"},
                                          {"model list", "llama-3-8b"},
                                          {"bench --exchange list", "packed"},
                                          {"bench --attention list", "reference"},
                                          {"bench --suite list", "ci"},
                                          {"bench --export list", "csv"}};
    for (int i = 0; i < CHECK_COUNT(ways); i++) {
        struct run run;
        run_do(&run, "%s", ways[i][0]);
        run_expect(&run, 0);
        run_says(run.out, ways[i][1]);
        run_fits(run.out, true);
        run_free(&run);
        run_do(&run, "%s --json", ways[i][0]);
        run_expect(&run, 0);
        json_t *document = run_json(&run, "list"), *item;
        size_t at;
        bool found = false;
        json_array_foreach(json_object_get(document, "items"), at, item) found =
            found || strcmp(json_string_value(json_object_get(item, "name")), ways[i][1]) == 0;
        assert_true(found);
        json_decref(document);
        run_free(&run);
    }
}

/* --device limits a list to what runs there. */
static void test_lists_of_a_device(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says, *says_not;
    } ways[] = {{"bench layer --attention list --device cpu", "on cpu", "on cuda"},
                {"bench layer --exchange list --device cpu", "packed-separate", "nccl"},
                {"tune --attention list --device cpu", "kernel cpu on cpu", "on cuda"},
                {"tune --exchange list --device cpu", "packed-separate", "nccl"},
                {"tune --attention list --device cuda", "sdpa", "on cpu"}};
    static const char *const either[][2] = {{"bench layer --attention list --device cuda", "on cpu"},
                                            {"bench layer --exchange list --device cuda", "packed-separate"}};
    struct run run;
    for (int i = 0; i < CHECK_COUNT(ways); i++) {
        run_do(&run, "%s", ways[i].line);
        run_expect(&run, 0);
        run_says(run.out, ways[i].says);
        run_says_not(run.out, ways[i].says_not);
        run_free(&run);
    }
    for (int i = 0; i < CHECK_COUNT(either); i++) {
        run_do(&run, "%s", either[i][0]);
        run_says_not(run.out, either[i][1]);
        if (run.code != 0) { /* a build without CUDA says so, and lists nothing else */
            run_expect(&run, 2);
            run_says(run.err, "this build has no ");
        }
        run_free(&run);
    }
    run_do(&run, "tune --attention list --device gpu");
    run_expect(&run, 2);
    run_free(&run);
}

/* One line on stderr that names the word and what was probably meant; the same in the document. */
static void test_did_you_mean(void **state)
{
    (void)state;
    static const struct {
        const char *line, *wrong, *meant;
    } slips[] = {
        {"tuen", "unknown verb 'tuen'", "did you mean tune?"},
        {"modle llama-3-8b", "unknown verb 'modle'", "did you mean model?"},
        {"xyzzy", "unknown verb 'xyzzy'", "topo model check bench tune train explain results help"},
        {"''", "unknown verb ''", "topo model"},
        {"-q topo", "option -q stands before the verb", "sptune VERB [options]"},
        {"help unit", "no verb or topic 'unit'", "did you mean units?"},
        {"topo --frm synth:4xH100", "unknown option --frm", "did you mean --from?"},
        {"topo --fro synth:4xH100", "unknown option --fro",
         "did you mean --from?"}, /* no prefixes: scripts would depend on them */
        {"tune --sequ=4k", "unknown option --sequ=4k", "did you mean --seq?"},
        {"topo -x", "unknown option -x", "sptune help topo"},
        {"topo -qx", "unknown option -x", "sptune help topo"},
        {"topo --json=yes", "--json takes no value", "write --json alone"},
        {"topo --from", "--from needs a value", "sptune help topo"},
        {"tune --model --seq 4k", "--model needs a value, but --seq follows", "--model=--seq"},
        {"topo here", "unexpected argument 'here'", "usage: sptune topo"},
        {"model", "needs an argument", "usage: sptune model CONFIG"},
        {"bench", "needs an argument", "usage: sptune bench link|"},
        {"bench exchnage", "does not know 'exchnage'", "did you mean exchange?"},
        {"bench exchange --exchange pakced", "does not know 'pakced'", "did you mean packed?"},
        {"bench layer --attention cup", "does not know 'cup'", "did you mean cpu?"},
        {"bench exchange --op hole", "does not know 'hole'", "did you mean whole?"},
        {"bench gemm --effort quik", "does not know 'quik'", "did you mean quick?"},
        {"bench gemm --export cvs=x", "does not know 'cvs'", "did you mean csv?"},
        {"tune --target acelerate --heads 8 --seq 4k", "does not know 'acelerate'", "did you mean accelerate?"},
        {"tune --emit acelerate --heads 8 --seq 4k", "does not know 'acelerate'", "did you mean accelerate?"},
        {"check --transport smh", "does not know 'smh'", "did you mean shm?"},
        {"results shwo", "does not know 'shwo'", "did you mean show?"},
        {"topo --progress som", "does not know 'som'", "one of: auto, plain, none"},
    };
    for (int i = 0; i < CHECK_COUNT(slips); i++) {
        struct run run;
        run_do(&run, "%s", slips[i].line);
        run_expect(&run, 2);
        assert_string_equal(run.out, "");
        run_says(run.err, slips[i].wrong);
        run_says(run.err, slips[i].meant);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bare),         cmocka_unit_test(test_help_names_everything),
        cmocka_unit_test(test_verbs),        cmocka_unit_test(test_topics),
        cmocka_unit_test(test_json),         cmocka_unit_test(test_version),
        cmocka_unit_test(test_lists),        cmocka_unit_test(test_lists_of_a_device),
        cmocka_unit_test(test_did_you_mean),
    };
    return cmocka_run_group_tests(tests, run_place, run_leave);
}
