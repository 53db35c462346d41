/* cli/test_tune.c -- `sptune tune` and `explain`: the answer, its files, lists, more ranks than CPUs, interruption.
 *
 * The first run measures; the store then answers the others. Two ranks are oversubscribed here (run.h).
 */
#include "base/text.h"
#include "cli/run.h"

#include <math.h>
#include <signal.h>

#define MODEL "tune --model " CLI_DATA "/qwen2-0.5b.json --seq 4096 --ranks 2"
#define FAST  "--oversubscribe --effort estimate --budget 1h --progress none"

static json_t *recommend(const char *options, int code)
{
    struct run run;
    run_do(&run, "%s --json", options);
    run_expect(&run, code);
    json_t *document = run_json(&run, "recommendation");
    run_free(&run);
    return document;
}

static int size_of(json_t *document, const char *key)
{
    return (int)json_integer_value(json_object_get(json_object_get(document, "plan"), key));
}

static int64_t peak_of(json_t *document, int sp)
{
    json_t *row;
    size_t at;
    json_array_foreach(json_object_get(document, "candidates"), at,
                       row) if (json_integer_value(json_object_get(json_object_get(row, "plan"), "sp_size")) ==
                                sp) return json_integer_value(json_object_get(row, "peak_bytes"));
    fail_msg("sp %d is no candidate", sp);
    return 0;
}

static const char *planned(json_t *document)
{
    return json_string_value(json_object_get(json_object_get(document, "problem"), "planned_device"));
}

/* Of 2 processes; with one sequence a step only sp 2 will do, and so with a memory that sp 1 exceeds. */
static void test_sizes(void **state)
{
    (void)state;
    char line[512];
    json_t *any = recommend(MODEL " --device-memory 80GiB " FAST, 0);
    assert_int_equal(size_of(any, "sp_size") * size_of(any, "dp_shard_size") * size_of(any, "dp_replicate_size"), 2);
    int64_t peak1 = peak_of(any, 1), peak2 = peak_of(any, 2);
    assert_true(peak1 > peak2);
    json_t *batch = recommend(MODEL " --device-memory 80GiB --global-batch 4096tok " FAST, 0);
    assert_int_equal(size_of(batch, "sp_size"), 2);
    /* 80 % of it lies between the peaks */
    snprintf(line, sizeof line, MODEL " --device-memory %lldKiB " FAST,
             (long long)((peak1 + peak2) / 2 * 10 / 8 / 1024));
    json_t *memory = recommend(line, 0);
    assert_int_equal(size_of(memory, "sp_size"), 2);
    assert_string_equal(json_string_value(json_object_get(memory, "verdict")), "fits");
    /* a limit given by hand is a GPU's, whose context is larger than a process's */
    json_t *ranks = recommend(MODEL " --device-memory 80GiB --device cpu " FAST, 0);
    assert_string_equal(planned(any), "cuda");
    assert_string_equal(planned(ranks), "cpu");
    assert_true(peak_of(ranks, 1) < peak1 && peak_of(ranks, 2) < peak2);
    json_decref(ranks);
    json_decref(any);
    json_decref(batch);
    json_decref(memory);
    run_nothing_left();
}

static void test_nothing_fits(void **state)
{
    (void)state;
    struct run run;
    json_t *document = recommend(MODEL " --device-memory 1GiB --out nofit " FAST, 1);
    assert_string_equal(json_string_value(json_object_get(document, "verdict")), "does_not_fit");
    assert_true(strlen(json_string_value(json_object_get(document, "fits_if"))) > 0);
    json_decref(document);
    assert_int_equal(access(temp_path(&run_temp, "nofit/accelerate.yaml"), F_OK),
                     -1); /* no files for a plan that does not fit */
    run_do(&run, MODEL " --device-memory 1GiB --out nofit " FAST " -q");
    run_expect(&run, 1);
    run_says(run.err, "no plan fits");
    assert_int_equal(run_lines(run.err), 1);
    run_fits(run.out, false);
    run_free(&run);
}

static void test_screen(void **state)
{
    (void)state;
    for (int ascii = 0; ascii < 2; ascii++) {
        struct run run;
        run_env("LC_ALL", ascii ? "C" : "C.UTF-8");
        run_do(&run, MODEL " --device-memory 80GiB " FAST);
        run_env("LC_ALL", "C.UTF-8");
        run_expect(&run, 0);
        run_says(run.out, "USE  sp_size=");
        run_says(run.out, "next cd ./sptune-out && ./launch.sh");
        run_fits(run.out, ascii);
        run_free(&run);
    }
}

static void file_says(const char *name, const char *words)
{
    char *text = NULL;
    size_t room = 0;
    FILE *file = fopen(temp_path(&run_temp, name), "r");
    assert_non_null(file);
    assert_true(getdelim(&text, &room, '\0', file) > 0);
    run_says(text, words);
    fclose(file);
    free(text);
}

/* Hosts that are not here: files, explanation and what-if go by them; without a word what runs here is taken for one. */
static void test_hosts(void **state)
{
    (void)state;
    struct run run;
    json_t *document =
        recommend(MODEL " --device-memory 80GiB --nodes 2 --gpus-per-node 4 --host-memory 1TiB --out hosts " FAST, 0);
    const json_t *problem = json_object_get(document, "problem");
    assert_int_equal(json_integer_value(json_object_get(problem, "world")), 8);
    assert_int_equal(json_integer_value(json_object_get(problem, "ranks_per_host")), 4);
    json_decref(document);
    file_says("hosts/accelerate.yaml", "num_machines: 2");
    file_says("hosts/launch.slurm", "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n");
    run_do(&run, "explain hosts");
    run_expect(&run, 0);
    run_says(run.out, "8 processes on 2 hosts");
    run_says_not(run.out, "gpus_per_node");
    run_free(&run);
    run_do(&run, MODEL " --device-memory 80GiB --world 8 --gpus-per-node 8 --out hosts " FAST);
    run_expect(&run, 0);
    run_says_not(run.out, "gpus_per_node");
    run_says(run.out, "./launch.sh");
    run_free(&run);
    file_says("hosts/accelerate.yaml", "num_machines: 1");
    run_do(&run, MODEL " --device-memory 80GiB --world 8 --out hosts " FAST);
    run_expect(&run, 0);
    run_says(run.out, "gpus_per_node=2");
    run_free(&run);
    file_says("hosts/accelerate.yaml", "num_machines: 4");
    static const char *const wrong[][2] = {
        {"--world 10 --gpus-per-node 8", "--world 8 or 16, or --gpus-per-node 5"},
        {"--world 8 --nodes 3", "--world 6 or 9"},
        {"--world 8 --nodes 2 --gpus-per-node 8", "--nodes 1, or leave --world out"},
        {"--nodes 0", "--nodes: 0 is too small"},
        {"--gpus-per-node 1", "--ranks 1 or fewer"}};
    for (int i = 0; i < CHECK_COUNT(wrong); i++) {
        run_do(&run, MODEL " --device-memory 80GiB %s " FAST, wrong[i][0]);
        run_expect(&run, 2);
        run_says(run.err, wrong[i][1]);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
}

static void append(const char *name, const char *text)
{
    FILE *file = fopen(temp_path(&run_temp, name), "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Written as a whole; what somebody edited since is not replaced unless asked for. */
static void test_files(void **state)
{
    (void)state;
    static const char *const names[] = {"accelerate.yaml", "ds_config.json", "train.py", "launch.sh",
                                        "recommendation.json"};
    char path[64];
    struct run run;
    run_do(&run, MODEL " --device-memory 80GiB --out files " FAST " -q");
    run_expect(&run, 0);
    run_free(&run);
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        snprintf(path, sizeof path, "files/%s", names[i]);
        assert_int_equal(access(temp_path(&run_temp, path), R_OK), 0);
    }
    run_do(&run, MODEL " --device-memory 80GiB --out files " FAST " -q"); /* ours: replaced without a word */
    run_expect(&run, 0);
    run_free(&run);
    append("files/accelerate.yaml", "# mine\n");
    run_do(&run, MODEL " --device-memory 80GiB --out files " FAST " -q");
    run_expect(&run, 2);
    run_says(run.err, "accelerate.yaml");
    run_says(run.err, "--force");
    run_says(run.out, "USE  sp_size="); /* the answer is worth printing all the same */
    run_free(&run);
    run_do(&run, MODEL " --device-memory 80GiB --out files " FAST " -q --json");
    run_expect(&run, 2);
    json_decref(run_json(&run, "recommendation"));
    run_free(&run);
    run_do(&run, MODEL " --device-memory 80GiB --out files --force " FAST " -q");
    run_expect(&run, 0);
    run_free(&run);
    char *text = NULL;
    size_t room = 0;
    FILE *file = fopen(temp_path(&run_temp, "files/accelerate.yaml"), "r");
    assert_non_null(file);
    assert_true(getdelim(&text, &room, '\0', file) > 0);
    run_says_not(text, "# mine");
    fclose(file);
    free(text);
}

static void test_oversubscribed(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, MODEL " --device-memory 80GiB --json");
    run_expect(&run, 3);
    json_t *document = run_json(&run, "error");
    assert_string_equal(json_string_value(json_object_get(document, "status")), "nodata");
    run_says(json_string_value(json_object_get(document, "hint")), "--oversubscribe");
    json_decref(document);
    run_free(&run);
}

/* A cell that makes no problem is named and waived; exit 2 only when no cell is left. */
static void test_lists(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "tune --heads 4,5,8 --kv-heads 4,2,8 --head-dim 32 --seq 256,512 --ranks 2 --device-memory 80GiB "
                 "--out lists " FAST " --json");
    run_expect(&run, 0);
    run_says(run.err, "heads 5, seq 256: ");
    json_t *document = run_json(&run, "plans");
    assert_int_equal(json_array_size(json_object_get(document, "answers")), 4);
    json_decref(document);
    run_free(&run);
    assert_int_equal(access(temp_path(&run_temp, "lists/plans.json"), R_OK), 0);
    run_do(&run, "tune --heads 4,8 --head-dim 32 --seq 256,512 --ranks 2 --device-memory 80GiB --out lists " FAST);
    run_expect(&run, 0);
    run_fits(run.out, false);
    run_says(run.out, "512");
    run_free(&run);
    run_do(&run, "tune --heads 4,4 --head-dim 32 --seq 256,256 --ranks 2 --device-memory 80GiB --out once " FAST);
    run_expect(&run, 0); /* one cell, however often it is named */
    run_says(run.out, "4/4 heads of 32 | seq 256");
    run_says(run.out, " remembered)"); /* the runs above checked it */
    run_says_not(run.out, "checked 0 of 0");
    run_free(&run);
    run_do(&run, "tune --heads 5,7 --kv-heads 2,3 --seq 256,512 --ranks 2 --device-memory 80GiB " FAST);
    run_expect(&run, 2);
    assert_int_equal(run_lines(run.err), 1);
    run_says(run.err, "5 query heads cannot share 2 KV heads");
    run_free(&run);
}

/* The store alone decides again, and the same. */
static void test_replay(void **state)
{
    (void)state;
    json_t *first = recommend(MODEL " --device-memory 80GiB " FAST, 0);
    json_t *again = recommend(MODEL " --device-memory 80GiB --effort estimate --out again --replay store.db", 0);
    assert_int_equal(size_of(first, "sp_size"), size_of(again, "sp_size"));
    assert_true(json_equal(json_object_get(first, "memory"), json_object_get(again, "memory")));
    json_decref(first);
    json_decref(again);
    struct run run;
    run_do(&run, MODEL " --device-memory 80GiB --effort estimate --out again --replay store.db");
    run_expect(&run, 0);
    run_says(run.out, "replay: nothing measured or checked");
    run_free(&run);
    run_do(&run, "tune --heads 4 --head-dim 64 --seq 64k --device-memory 80GiB --ranks 2 --replay store.db --json");
    run_expect(&run, 3); /* never measured */
    json_decref(run_json(&run, "error"));
    run_free(&run);
}

static void test_explain(void **state)
{
    (void)state;
    static const char *const refs[] = {"sptune-out", "sptune-out/recommendation.json", "named"};
    struct run run;
    run_do(&run, MODEL " --device-memory 80GiB --name named " FAST " -q");
    run_expect(&run, 0);
    run_free(&run);
    for (int i = 0; i < CHECK_COUNT(refs); i++) {
        run_do(&run, "explain %s", refs[i]);
        run_expect(&run, 0);
        run_says(run.out, "USE  sp_size=");
        run_fits(run.out, false);
        run_free(&run);
        run_do(&run, "explain %s --json", refs[i]);
        run_expect(&run, 0);
        json_decref(run_json(&run, "explanation"));
        run_free(&run);
    }
    static const char *const questions[][2] = {{"states", "of device memory"},
                                               {"gemm", "of the step"},
                                               {"loss", "plain"},
                                               {"--why-not sp=2", "sp 2"},
                                               {"--what-if loss=fused", "loss=fused"}};
    for (int i = 0; i < CHECK_COUNT(questions); i++) {
        run_do(&run, "explain sptune-out %s", questions[i][0]);
        run_expect(&run, 0);
        run_says(run.out, questions[i][1]);
        run_fits(run.out, false);
        run_free(&run);
        run_do(&run, "explain sptune-out %s --json", questions[i][0]);
        run_expect(&run, 0);
        json_decref(run_json(&run, "explanation"));
        run_free(&run);
    }
    temp_put(&run_temp, "other.json", "{\"schema\": \"sptune.topo/1\"}");
    temp_put(&run_temp, "broken.json", "{\"plan\": \n }");
    temp_put(&run_temp, "bare.json", "{\"plan\": {}}");
    temp_put(&run_temp, "null.json", "{\"plan\": \"a\\u0000b\"}");
    static const char *const wrong[][2] = {
        {"explain other.json", "this is no recommendation but 'sptune.topo/1'"},
        {"explain broken.json", "broken.json line 2"},
        {"explain nowhere.json", "nowhere.json"},
        {"explain sptune-out satets", "there is no term 'satets'"},
        {"explain sptune-out --why-not sp=x", "'x'"},
        {"explain sptune-out --what-if colour=red", "--what-if: does not know 'colour'"},
        {"explain sptune-out --why-not colour=red", "--why-not: does not know 'colour'"},
        {"explain bare.json", "bare.json: this is no recommendation: it has no \"schema\""},
        {"explain null.json", "a string with the character \\u0000 in it"},
        {"explain nobody", "no run is called 'nobody'"},
        {"explain .", "the directory that `tune` wrote"}};
    for (int i = 0; i < CHECK_COUNT(wrong); i++) {
        run_do(&run, "%s", wrong[i][0]);
        run_expect(&run, 2);
        run_says(run.err, wrong[i][1]);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
}

/* Both directions of a class, with the heads of one rank at sp 1 and 2; flash_attention_3 takes a tenth of sdpa's time. */
static void put_rows(const char *name, const char *schema, const char *subject, const char *const *classes, int n)
{
    static const char *const directions[] = {"fwd", "bwd"};
    struct text all = {0};
    text_add(&all, "{\"schema\": \"%s\", \"samples\": [", schema);
    for (int i = 0; i < 4 * n; i++) {
        const char *class = classes[i / 4], *direction = directions[i % 2];
        int sp = i / 2 % 2 + 1;
        double us = (strcmp(class, "sdpa") == 0 ? 200000 : 20000) * (i % 2 == 1 ? 2.5 : 1) / sp;
        text_add(&all,
                 "%s{\"machine\": \"elsewhere\", \"key\": {\"subject\": \"%s\", \"heads\": %d, \"kv_heads\": %d, "
                 "\"head_dim\": 64, \"seq\": 4096, \"batch\": 1, \"dtype\": \"bf16\", \"attention\": \"%s\", "
                 "\"direction\": \"%s\", \"causal\": 1}, \"times_us\": [%g, %g, %g], \"verified\": true, "
                 "\"kernel\": \"a kernel\"}",
                 i > 0 ? ", " : "", subject, 14 / sp, 2 / sp, class, direction, us, us * 1.01, us * 0.99);
    }
    text_add(&all, "]}");
    temp_put(&run_temp, name, text_get(&all));
    text_free(&all);
}

/* Rows of installed packages rank the classes, say where they are from, and explain reads the answer; files that are no
 * such rows are one line and exit 2. */
static void test_samples(void **state)
{
    (void)state;
    static const char *const classes[] = {"sdpa", "flash_attention_3"}, *const unknown[] = {"flex_attention"};
    struct run run;
    put_rows("rows.json", "sptune.samples/1", "attention", classes, 2);
    put_rows("compare.json", "sptune.compare/1", "attention", classes, 2);
    put_rows("layers.json", "sptune.samples/1", "layer", classes, 2);
    put_rows("unknown.json", "sptune.samples/1", "attention", unknown, 1);
    json_t *document = recommend(MODEL " --device-memory 80GiB --samples rows.json --out samples " FAST, 0), *a;
    json_t *plan = json_object_get(document, "plan");
    assert_string_equal(json_string_value(json_object_get(plan, "attention_class")), "flash_attention_3");
    size_t at, named = 0;
    json_array_foreach(json_object_get(document, "assumptions"), at,
                       a) if (strcmp(json_string_value(json_object_get(a, "value")), "rows.json") == 0)
    {
        run_says(json_string_value(json_object_get(a, "from")), "a kernel, measured on another machine");
        named++;
    }
    assert_int_equal(named, 2);
    json_decref(document);
    run_do(&run, MODEL " --device-memory 80GiB --samples rows.json --out samples " FAST);
    run_expect(&run, 0);
    run_says(run.out, "flash_attention_3");
    run_says(run.out, "sdpa=rows.json");
    run_says(run.out, "not measured here: flash_attention_2");
    run_fits(run.out, false);
    run_free(&run);
    run_do(&run, "explain samples --why-not attention=sdpa");
    run_expect(&run, 0);
    run_free(&run);
    static const char *const wrong[][3] = {
        {"nowhere.json", "", "nowhere.json"},
        {"compare.json", "", "this is no sptune.samples/1 but 'sptune.compare/1'"},
        {"layers.json", "", "it has no attention rows"},
        {"unknown.json", "", "accelerate has no attention 'flex_attention'"},
        {"rows.json,", "", "the list has an empty place"},
        {"rows.json", "--target sptune", "sptune runs kernels of its own"},
        {"rows.json", "--dtype fp16", "--samples has no sdpa forward of 14/2 heads of 64, fp16"},
        {"rows.json", "--attention sdpa --dtype fp32", "leave --samples out"}};
    for (int i = 0; i < CHECK_COUNT(wrong); i++) {
        run_do(&run, MODEL " --device-memory 80GiB --samples %s %s " FAST, wrong[i][0], wrong[i][1]);
        run_expect(&run, 2);
        run_says(run.err, wrong[i][2]);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
}

/* Winner and runner-up are trained for some steps; what the harness does not do is said, not run. */
static void test_prove(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":512,\"num_attention_heads\":8,"
        "\"num_key_value_heads\":4,\"head_dim\":64,\"intermediate_size\":1408,\"vocab_size\":256}";
    temp_put(&run_temp, "wide.json", config);
    char line[512];
    snprintf(
        line, sizeof line,
        "tune --model %s --seq 512 --ranks 2 --threads 1 --dtype fp32 --target sptune --method ulysses --prove " FAST,
        CHECK_SANITIZED ? CLI_DATA "/tiny-llama.json" : "wide.json"); /* a sanitizer has memory of its own */
    json_t *document = recommend(line, 0);
    const json_t *proofs = json_object_get(document, "proofs");
    assert_int_equal(json_array_size(proofs), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *proof = json_array_get(proofs, i);
        assert_true(json_number_value(json_object_get(proof, "predicted_us")) > 0);
        assert_true(json_number_value(json_object_get(proof, "measured_us")) > 0);
        double taken = (double)json_integer_value(json_object_get(proof, "measured_bytes"));
        double said = (double)json_integer_value(json_object_get(proof, "predicted_peak_bytes"));
        assert_true(taken > 0);
        if (!CHECK_SANITIZED && fabs(said / taken - 1) > 0.05)
            fail_msg("proof %zu: %.0f bytes taken, %.0f predicted", i, taken, said);
    }
    json_decref(document);
    document = recommend("tune --model " CLI_DATA "/tiny-llama.json --seq 256 --ranks 2 --world 4 --prove " FAST, 0);
    const char *why = json_string_value(json_object_get(json_array_get(json_object_get(document, "proofs"), 0), "why"));
    assert_non_null(strstr(why, "larger than what runs here"));
    json_decref(document);
}

/* Once the estimate stands there is an answer to end with. */
static void test_interrupted(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, MODEL
              " --device-memory 80GiB --oversubscribe --effort normal --budget 100s --out cut --json --progress none");
    assert_true(run_wait(&run, 2, "<-", 1));
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    json_t *document = run_json(&run, "recommendation");
    assert_true(json_is_true(json_object_get(document, "interrupted")));
    assert_int_equal(
        size_of(document, "sp_size") * size_of(document, "dp_shard_size") * size_of(document, "dp_replicate_size"), 2);
    json_decref(document);
    run_free(&run);
    run_nothing_left();
}

/* From tune to train without a word more. */
static void test_trained(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "tune --model toy --seq 96 --ranks 2 --sp 2 --out toyed -q " FAST);
    run_expect(&run, 0);
    run_free(&run);
    run_do(&run, "train --plan toyed/recommendation.json --steps 1 --json");
    run_expect(&run, 0);
    json_t *document = run_json(&run, "train");
    assert_string_equal(json_string_value(json_object_get(document, "model")), "toy");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(document, "seq"), 0)), 96);
    run_says(json_string_value(json_object_get(document, "plan")), " sp=2 ");
    run_says_not(run.err, "this run has");
    json_decref(document);
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_nothing_fits),   cmocka_unit_test(test_screen),
        cmocka_unit_test(test_files),   cmocka_unit_test(test_oversubscribed), cmocka_unit_test(test_lists),
        cmocka_unit_test(test_replay),  cmocka_unit_test(test_explain),        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_samples), cmocka_unit_test(test_prove),          cmocka_unit_test(test_trained),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
