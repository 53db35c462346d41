/* cli/test_bench.c -- `sptune bench`: lists, waived rows, more ranks than CPUs, forms of output, resuming.
 * Two ranks are oversubscribed here (run.h). */
#include "cli/run.h"

#define SMALL "--samples 10 --progress none"
#define SHAPE "--heads 4 --kv-heads 2 --head-dim 32 --seq 64"

static json_t *samples(const struct run *run, json_t **document)
{
    *document = run_json(run, "samples");
    return json_object_get(*document, "samples");
}

static const char *word(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The product of the lists, each cell once. */
static void test_product(void **state)
{
    (void)state;
    struct run run;
    json_t *document, *row;
    size_t at;
    run_do(&run, "bench gemm --m 16,32 --n 16..32*2 --k 8..24+8 --dtype fp32,bf16 --ranks 2 " SMALL " --json");
    run_expect(&run, 0);
    json_t *rows = samples(&run, &document);
    assert_int_equal(json_array_size(rows), 2 * 2 * 3 * 2);
    int m = 0;
    json_array_foreach(rows, at, row)
    {
        assert_string_equal(word(row, "outcome"), "ok");
        m += json_integer_value(json_object_get(json_object_get(row, "key"), "m")) == 16;
    }
    assert_int_equal(m, 12);
    json_decref(document);
    run_free(&run);
}

static void test_every_subject(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "link --op memcpy,memcpy_one,peer --bytes 100,64k",
        "collective --op alltoall,allgather,reduce_scatter,allreduce,sendrecv --bytes 4k",
        "exchange --op whole,in,out,one --buffers hot,used " SHAPE,
        "attention --direction fwd,bwd --docs fixed:20 " SHAPE,
        "layer --direction fwd,bwd --chunks 1,2 " SHAPE,
        "layer --direction fwd,bwd --method ring --docs fixed:20 " SHAPE,
        "layer --span attention,block --direction fwd,bwd --ffn 80 " SHAPE,
        "layer --span attention,block --hidden 48,64 --ffn 64,80,96 " SHAPE, /* attention once: it has none of them */
        "layer --method ulysses,ring --ring 1,2 " SHAPE,
        "layer --span block --direction fwd,bwd --hidden 48 --method ring,split_gather --docs fixed:20 " SHAPE,
        "gemm --m 16 --n 16 --k 16 --timing stream,loop"};
    static const int rows[] = {6, 5, 8, 2, 4, 2, 4, 7, 2, 4, 2};
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        json_t *document, *row;
        size_t at;
        run_do(&run, "bench %s --ranks 2 " SMALL " --json", lines[i]);
        run_expect(&run, 0);
        json_t *all = samples(&run, &document);
        assert_int_equal(json_array_size(all), rows[i]);
        json_array_foreach(all, at, row)
        {
            if (strcmp(word(row, "outcome"), "ok") != 0 || !json_is_true(json_object_get(row, "verified")))
                fail_msg("%s: %s", lines[i], word(row, "why"));
            assert_true(json_array_size(json_object_get(row, "times_us")) > 0);
        }
        json_decref(document);
        run_free(&run);
        run_do(&run, "results show");
        run_expect(&run, 0);
        run_fits(run.out, true);
        run_free(&run);
    }
}

/* An illegal cell is a waived row with its rule; the command fails only when no cell is legal. */
static void test_illegal_cells(void **state)
{
    (void)state;
    struct run run;
    json_t *document;
    run_do(&run, "bench exchange --sp 1,2,3,4 " SHAPE " --ranks 2 " SMALL " --json");
    run_expect(&run, 0);
    json_t *rows = samples(&run, &document);
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *row = json_array_get(rows, i);
        assert_string_equal(word(row, "outcome"), i < 2 ? "ok" : "waived");
        assert_string_equal(word(row, "rule"), i < 2 ? "ok" : "world");
        assert_int_equal(strlen(word(row, "why")) > 0, i >= 2);
    }
    json_decref(document);
    run_free(&run);
    run_do(&run, "bench layer --method split_gather " SHAPE " --ranks 2 " SMALL);
    run_expect(&run, 2);
    run_says(run.err, "span block times what it gathers and cuts");
    run_free(&run);
    run_do(&run, "bench attention --buffers used " SHAPE " --ranks 2 " SMALL);
    run_expect(&run, 2);
    run_says(run.err, "no cell could run: attention has no buffers used; link and exchange have");
    run_free(&run);
    run_do(&run, "bench layer --hidden 64 " SHAPE " --ranks 2 " SMALL);
    run_expect(&run, 2);
    run_says(run.err, "add --span block");
    run_free(&run);
    int lock = run_lock(); /* nothing is measured, so nobody is waited for */
    run_do(&run, "bench exchange --sp 3,4 " SHAPE " --ranks 2 " SMALL);
    run_expect(&run, 2);
    run_says(run.err, "no cell could run: sp 3 does not divide the 2 ranks; rule world");
    run_says(run.out, "waived world");
    run_fits(run.out, true);
    run_free(&run);
    close(lock);
    run_do(&run, "bench exchange --sp 3,4 " SHAPE " --ranks 2 " SMALL " --json");
    run_expect(&run, 2);
    assert_int_equal(json_array_size(samples(&run, &document)), 2); /* one document: the rows, which say why */
    json_decref(document);
    run_free(&run);
}

/* Peers that cannot be stored to are no link; the rows that need none stand. */
static void test_link_over_sockets(void **state)
{
    (void)state;
    struct run run;
    json_t *document;
    run_do(&run, "bench link --bytes 4k --transport tcp --ranks 2 " SMALL " --json");
    run_expect(&run, 0);
    json_t *rows = samples(&run, &document);
    assert_int_equal(json_array_size(rows), 2);
    assert_string_equal(word(json_array_get(rows, 0), "outcome"), "ok");
    assert_string_equal(word(json_array_get(rows, 1), "rule"), "exchange_cannot");
    assert_non_null(strstr(word(json_array_get(rows, 1), "why"), "tcp"));
    json_decref(document);
    run_free(&run);
}

/* What no memory can hold is waived before it is touched. */
static void test_absurd_cells(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "attention --seq 1024G", "exchange --seq 1024G --batch 1M --heads 65536 --kv-heads 65536",
        "gemm --m 1024G --n 1024G --k 1024G", "collective --bytes 1024G", "layer --seq 1024G"};
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        run_do(&run, "bench %s --ranks 2 " SMALL, lines[i]);
        run_expect(&run, 2);
        run_says(run.out, "waived");
        run_says(run.err, "no cell could run");
        run_fits(run.out, true);
        run_free(&run);
    }
    run_nothing_left();
}

/* A value that is given twice is measured once. */
static void test_repeats(void **state)
{
    (void)state;
    struct run run;
    json_t *document;
    run_do(&run, "bench gemm --m 16 --n 16 --k 1k,16,1024,16 --dtype fp32,fp32 --ranks 1,1 " SMALL " --json");
    json_t *rows = samples(&run, &document);
    assert_int_equal(json_array_size(rows), 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_array_get(rows, 0), "key"), "k")), 1024);
    json_decref(document);
    run_free(&run);
    run_do(&run, "bench layer --attention cpu,reference,cpu --chunks 1,1 " SHAPE " --ranks 1 " SMALL " --json");
    assert_int_equal(json_array_size(samples(&run, &document)), 2);
    json_decref(document);
    run_free(&run);
}

static void test_oversubscribed(void **state)
{
    (void)state;
    struct run run;
    json_t *document, *row;
    size_t at;
    run_do(&run, "bench collective --bytes 1k --ranks 1,2,3 " SMALL " --json");
    run_expect(&run, 0);
    run_says(run.err, "3 ranks on 1 usable CPUs: rows are marked oversubscribed");
    json_t *rows = samples(&run, &document);
    assert_int_equal(json_array_size(rows), 3); /* all jobs of the list, in one document */
    json_array_foreach(rows, at, row)
    {
        int ranks = (int)json_integer_value(json_object_get(json_object_get(row, "key"), "ranks"));
        json_t *conditions = json_object_get(row, "conditions");
        assert_int_equal(ranks, at + 1);
        assert_int_equal(json_is_true(json_object_get(conditions, "oversubscribed")), ranks > 1);
    }
    assert_true(json_array_size(json_object_get(document, "warnings")) > 0);
    json_decref(document);
    run_free(&run);
}

static void test_jsonl(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench gemm --m 16 --n 16 --k 8,16,24 --ranks 2 " SMALL " --jsonl");
    run_expect(&run, 0);
    assert_int_equal(run_lines(run.out), 3);
    for (char *line = run.out, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        assert_true(strncmp(word(row, "schema"), "sptune.", 7) == 0);
        assert_string_equal(word(row, "outcome"), "ok");
        json_decref(row);
    }
    run_free(&run);
}

static void test_export(void **state)
{
    (void)state;
    struct run run;
    run_do(&run,
           "bench gemm --m 16 --n 16 --k 8,16,24 --ranks 2 " SMALL " --export csv=b.csv --export json=b.json --json");
    run_expect(&run, 0);
    json_decref(run_json(&run, "samples"));
    run_says(run.err, "wrote b.csv");
    run_says(run.err, "wrote b.json");
    assert_int_equal(access(temp_path(&run_temp, "b.csv"), R_OK), 0);
    assert_int_equal(access(temp_path(&run_temp, "b.json"), R_OK), 0);
    run_free(&run);
    run_do(&run, "results export --export svg=b.svg");
    if (run.code == 2 && strstr(run.err, "gnuplot") != NULL) {
        run_free(&run);
        skip(); /* no gnuplot here: said, not guessed */
    }
    run_expect(&run, 0);
    assert_int_equal(access(temp_path(&run_temp, "b.svg"), R_OK), 0);
    run_free(&run);
}

/* Tables on stdout, log and progress on stderr, colour nowhere. */
static void test_streams(void **state)
{
    (void)state;
    static const char line[] = "bench gemm --m 16 --n 16 --k 8,16 --ranks 2 --samples 10";
    struct run run;
    run_do(&run, "%s -q", line);
    run_expect(&run, 0);
    run_says(run.err, "oversubscribed"); /* warnings stay */
    assert_int_equal(run_lines(run.err), 1);
    assert_null(strchr(run.out, '\033'));
    run_free(&run);
    run_do(&run, "%s -v --progress none", line);
    run_expect(&run, 0);
    run_says(run.err, "fork of 2 ranks");
    run_says_not(run.err, " of 2 k=16");
    run_free(&run);
    run_do(&run, "%s --progress plain", line);
    run_expect(&run, 0);
    run_says(run.err, "gemm 1 of 2 k=16");
    assert_null(strchr(run.err, '\033'));
    run_says_not(run.out, "1 of 2");
    run_free(&run);
    run_do(&run, "bench attention --sp 3 " SHAPE " --ranks 2 -v --progress none");
    run_expect(&run, 2);
    run_says(run.err, "[usage, cli/verb_bench.c:"); /* -v says where in the source */
    run_free(&run);
}

static void test_resume_without_cause(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench gemm --m 16 --n 16 --k 40 --ranks 2 " SMALL " --resume");
    run_expect(&run, 0);
    run_says(run.err, "nothing to resume");
    run_free(&run);
    run_do(&run, "bench gemm --m 16 --n 16 --k 40 --ranks 2 " SMALL " --resume"); /* the run before is finished */
    run_expect(&run, 0);
    run_says(run.err, "nothing to resume");
    run_free(&run);
}

static void test_name(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench gemm --m 16 --n 16 --k 8 --ranks 2 " SMALL " --name 12 -q");
    run_expect(&run, 2);
    run_says(run.err, "'12' cannot name a run");
    run_free(&run);
    run_do(&run, "bench gemm --m 16 --n 16 --k 8 --ranks 2 " SMALL " --name nightly -q");
    run_expect(&run, 0);
    run_free(&run);
    run_do(&run, "results show nightly");
    run_expect(&run, 0);
    run_free(&run);
    run_nothing_left();
}

/* Rows of two ranks as four would have them: from a run and from its file alike, told apart from what was measured. */
static void test_predict(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench exchange --seq 256,1k --heads 8 --kv-heads 4 --head-dim 16 --ranks 2 --samples 10 -q "
                 "--export jsonl=two.jsonl");
    run_free(&run);
    run_do(&run, "results predict @last --ranks 8 --sp 2,4");
    run_expect(&run, 0);
    run_says(run.out, " predicted\n");
    run_says(run.err, "predicted, not measured");
    run_free(&run);
    run_do(&run, "results predict two.jsonl --ranks 8 --sp 4 --json --export jsonl=four.jsonl");
    run_expect(&run, 0);
    json_t *document = run_json(&run, "samples"), *all = json_object_get(document, "samples");
    assert_int_equal(json_array_size(all), 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_array_get(all, 0), "key"), "ranks")), 8);
    assert_true(json_is_false(json_object_get(json_array_get(all, 0), "verified")));
    const json_t *row = json_array_get(all, 0), *interval = json_object_get(row, "ci95_us");
    double median = json_number_value(json_object_get(row, "median_us")); /* 35 % both ways, and what was measured */
    assert_true(json_number_value(json_array_get(interval, 0)) <= 0.651 * median);
    assert_true(json_number_value(json_array_get(interval, 1)) >= 1.349 * median);
    json_decref(document);
    run_free(&run);
    run_do(&run, "results predict four.jsonl --ranks 8"); /* nothing is predicted from a prediction */
    run_expect(&run, 3);
    run_says(run.err, "all of these are predictions themselves");
    run_says_not(run.err, "predicted, not measured");
    assert_string_equal(run.out, "");
    run_free(&run);
    run_do(&run, "results predict @last --ranks 8 --sp 3"); /* all waived */
    run_expect(&run, 3);
    run_says_not(run.err, "predicted, not measured");
    run_free(&run);
    run_do(&run, "results predict two.jsonl,four.jsonl,@last --ranks 8 --sp 4"); /* files and runs */
    run_expect(&run, 0);
    run_free(&run);
    temp_put(&run_temp, "rows.txt", "");
    run_do(&run, "results predict rows.txt --ranks 8");
    run_expect(&run, 2);
    run_says(run.err, "must be called rows.txt.jsonl");
    run_free(&run);
    temp_put(&run_temp, "odd.jsonl", "\n{\"schema\": \"sptune.sample/1\", \"key\": {\"subject\": \"layer\", \"ranks\": 2, \"sp\": 3}, "
                                     "\"times_us\": [1]}");
    run_do(&run, "results predict odd.jsonl --ranks 8");
    run_expect(&run, 2);
    run_says(run.err, "odd.jsonl, line 2: \"sp\" is 3 of 2 ranks; right would be a divisor");
    run_free(&run);
    temp_put(&run_temp, "half.jsonl", "{\"schema\": \"sptune.sample/1\", \"key\": {\"subj");
    run_do(&run, "results predict half.jsonl --ranks 8");
    run_expect(&run, 2);
    run_says(run.err, "half.jsonl line 1 column");
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_every_subject),
        cmocka_unit_test(test_illegal_cells),
        cmocka_unit_test(test_link_over_sockets),
        cmocka_unit_test(test_absurd_cells),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_oversubscribed),
        cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_export),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_resume_without_cause),
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_predict),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
