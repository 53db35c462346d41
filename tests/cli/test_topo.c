/* cli/test_topo.c -- `sptune topo`: this machine and described ones, as table, document and picture. */
#include "cli/run.h"

static const char eight_all[] = "synth:8xH100,nvlink=18", eight_pairs[] = "synth:8xH100,nvlink=4,pairs=0-4,1-5,2-6,3-7";

static void test_this_machine(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "topo");
    run_expect(&run, 0);
    run_says(run.out, "fingerprint");
    run_fits(run.out, false);
    assert_string_equal(run.err, "");
    run_free(&run);
    run_do(&run, "topo --json");
    run_expect(&run, 0);
    json_t *document = run_json(&run, "topo");
    assert_int_equal(json_string_length(json_object_get(document, "fingerprint")), 32);
    assert_string_equal(json_string_value(json_object_get(document, "fingerprint")),
                        json_string_value(json_object_get(document, "machine")));
    json_decref(document);
    run_free(&run);
}

static void order_of(const char *source, int sp, int order[8])
{
    struct run run;
    run_do(&run, "topo --from %s --sp %d --json", source, sp);
    run_expect(&run, 0);
    json_t *document = run_json(&run, "topo"), *list = json_object_get(document, "rank_order");
    bool seen[8] = {false};
    assert_int_equal(json_array_size(list), 8);
    assert_int_equal(json_integer_value(json_object_get(document, "rank_order_sp")), sp);
    for (size_t i = 0; i < 8; i++) {
        order[i] = (int)json_integer_value(json_array_get(list, i));
        assert_in_range(order[i], 0, 7);
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
    }
    json_decref(document);
    run_free(&run);
}

/* With NVLink in pairs the two of a group of 2 are a pair; with switches any two are as good, and the order stays. */
static void test_rank_orders_differ(void **state)
{
    (void)state;
    int all[8], pairs[8];
    order_of(eight_all, 2, all);
    order_of(eight_pairs, 2, pairs);
    assert_memory_not_equal(all, pairs, sizeof all);
    for (int i = 0; i < 8; i += 2) {
        int distance = pairs[i] - pairs[i + 1];
        assert_int_equal(distance < 0 ? -distance : distance, 4);
    }
    struct run run;
    run_do(&run, "topo --from %s --sp 2", eight_pairs);
    run_expect(&run, 0);
    run_says(run.out, "rank order for sp=2:");
    run_fits(run.out, false);
    run_free(&run);
}

static void test_screens_fit(void **state)
{
    (void)state;
    static const char *const sources[] = {"synth:2x8xH200,nvlink=18,nic=8x400G",
                                          "synth:8xA100,nvlink=4,pairs=0-4,1-5,2-6,3-7,numa=2", "synth:4xcpu",
                                          "synth:16x8xH100,nvlink=18,nic=8x400G,mem=80GiB,hostmem=2TiB,cpus=96"};
    for (int i = 0; i < CHECK_COUNT(sources); i++) {
        for (int ascii = 0; ascii < 2; ascii++) {
            struct run run;
            run_env("LC_ALL", ascii ? "C" : "C.UTF-8");
            run_do(&run, "topo --from %s", sources[i]);
            run_env("LC_ALL", "C.UTF-8");
            run_expect(&run, 0);
            run_fits(run.out, ascii);
            run_free(&run);
        }
    }
}

static void test_picture(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "topo --from %s --svg t.svg --seed 7", eight_pairs);
    run_expect(&run, 0);
    run_says(run.err, "wrote t.svg");
    run_free(&run);
    char *content = NULL;
    size_t room = 0;
    FILE *file = fopen(temp_path(&run_temp, "t.svg"), "r");
    assert_non_null(file);
    assert_true(getdelim(&content, &room, '\0', file) > 500);
    run_says(content, "<svg");
    run_says(content, "</svg>");
    run_says(content, "<metadata>sptune ");
    run_says(content, " | seed 7 | sptune topo --from synth:8xH100"); /* where it came from */
    free(content);
    fclose(file);
    run_do(&run, "topo --from %s --svg t.svg -q", eight_pairs);
    run_expect(&run, 0);
    assert_string_equal(run.err, ""); /* -q: no log */
    run_free(&run);
}

/* `sptune ... | head -1`: nobody reads on, and that is no failure. */
static void test_closed_pipe(void **state)
{
    (void)state;
    static const char *const lines[] = {"topo", "topo --json", "model llama-3-8b", "model list", "help", "help tune"};
    int fds[2];
    char path[64];
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fds[1]);
    run_stdout = path;
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        run_do(&run, "%s", lines[i]);
        run_expect(&run, 0);
        assert_string_equal(run.err, "");
        run_free(&run);
    }
    run_stdout = NULL;
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_rank_orders_differ),
        cmocka_unit_test(test_screens_fit),
        cmocka_unit_test(test_picture),
        cmocka_unit_test(test_closed_pipe),
    };
    return cmocka_run_group_tests(tests, run_place, run_leave);
}
