/* cli/test_bad_input.c -- wrong input of every kind: exit 2 and one line that names it; under --json one sptune.error/1
 * instead. */
#include "cli/run.h"

struct bad {
    const char *line, *says;
};

#if SPTUNE_CUDA
#define NO_CUDA "CUDA driver" /* none, or none that shows a GPU */
#else
#define NO_CUDA "no support for cuda"
#endif

static void check_document(const struct run *run, const char *says)
{
    json_t *document = run_json(run, "error");
    char all[2048];
    snprintf(all, sizeof all, "%s: %s; %s", json_string_value(json_object_get(document, "where")),
             json_string_value(json_object_get(document, "what")),
             json_string_value(json_object_get(document, "hint")));
    run_says(all, says);
    assert_true(strlen(json_string_value(json_object_get(document, "status"))) > 0);
    const char *where = json_string_value(json_object_get(document, "where")), *semicolon = strstr(where, "; ");
    const char *what = json_string_value(json_object_get(document, "what"));
    assert_true(strlen(what) > 0);
    /* A place is named once. */
    if ((where[0] != '\0' && strncmp(what, where, strlen(where)) == 0) ||
        (semicolon != NULL && strncmp(where, semicolon + 2, (size_t)(semicolon - where)) == 0))
        fail_msg("said twice: '%s' '%s'", where, what);
    assert_true(json_is_null(json_object_get(document, "rank")));
    json_decref(document);
}

static void refuse(const struct bad *bad, int n)
{
    for (int i = 0; i < n; i++) {
        struct run run;
        run_do(&run, "%s", bad[i].line);
        run_expect(&run, 2);
        assert_string_equal(run.out, "");
        run_says(run.err, bad[i].says);
        if (run_lines(run.err) != 1)
            fail_msg("%s: not one line: %s", bad[i].line, run.err);
        run_free(&run);
        run_do(&run, "%s --json", bad[i].line);
        run_expect(&run, 2);
        check_document(&run, bad[i].says);
        run_free(&run);
    }
    assert_false(access(temp_path(&run_temp, "store.db"), F_OK) ==
                 0); /* nothing was measured: no store came into being */
    assert_false(access(temp_path(&run_temp, "sptune-out"), F_OK) == 0);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"model llama-3-8b --world 0", "--world"},
        {"model llama-3-8b --world -1", "negative"},
        {"model llama-3-8b --world ''", "a value is missing"},
        {"model llama-3-8b --world eight", "'eight' is not a whole number"},
        {"model llama-3-8b --world 2.5", "'2.5' is not a whole number"},
        {"model llama-3-8b --world 1000000000000000000", "use 65536 or less"},
        {"model llama-3-8b --world 1000000000000000000000000000000", "too large"},
        {"model llama-3-8b --seq 0", "--seq: 0 is too small"},
        {"model llama-3-8b --seq 1000000000000000000000000000000", "too large"},
        {"model llama-3-8b --seq 4k,8k", "'4k,8k'"},
        {"topo --seed -1", "--seed"},
        {"topo --seed 1000000000000000000000000000000", "too large"},
        {"check --ranks 0", "--ranks: 0 is too small"},
        {"check --ranks -2", "negative"},
        {"check --ranks ''", "a value is missing"},
        {"check --ranks many", "'many'"},
        {"check --ranks 2,4", "'2,4' is not a whole number"},
        {"check --ranks 1000000000000000000", "usable CPUs, or 4096 in all; use"},
        {"bench gemm --m 0", "--m: 0 is too small"},
        {"bench gemm --m 1000000000000000000000000000000", "too large"},
        {"bench gemm --samples 9", "use 10 or more"},
        {"bench gemm --samples 1000000000000000000", "too large"},
        {"bench gemm --warmup 0", "--warmup"},
        {"bench gemm --budget 0s", "--budget: 0s is too small"},
        {"bench gemm --budget 5", "'5' is not a duration"},
        {"bench gemm --budget -5s", "negative"},
        {"bench gemm --budget 9000h", "up to a year"},
        {"bench gemm --budget 1000000000000000000h", "too large"},
        {"bench exchange --sp 0", "--sp: 0"},
        {"bench exchange --heads 0", "--heads: 0"},
        {"bench exchange --heads 65537", "use 65536 or less"},
        {"bench exchange --head-dim 0", "--head-dim"},
        {"bench exchange --seq 0", "--seq"},
        {"bench exchange --batch 0", "--batch"},
        {"bench attention --causal 2", "use 1 or less"},
        {"bench attention --window -1", "negative"},
        {"bench attention --docs fixed:0", "--docs"},
        {"bench attention --docs fixed:x", "'x'"},
        {"bench attention --docs /nowhere/lengths", "--docs"},
        {"bench collective --bytes 0", "--bytes"},
        {"bench collective --bytes 1000000000000000000", "too large"},
        {"bench layer --chunks 0", "--chunks"},
    };
    refuse(bad, CHECK_COUNT(bad));
}

static void test_lists(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"bench gemm --ranks 0", "--ranks: 0 is too small"},
        {"bench gemm --ranks ,", "empty place"},
        {"bench gemm --ranks 2,,4", "empty place"},
        {"bench gemm --ranks 4..2", "ends below its start"},
        {"bench gemm --ranks 1..1000000000000000000", "more than 4096 values"},
        {"bench gemm --m 1..1000000", "more than 4096 values"},
        {"bench gemm --m 1..4096 --n 1..4096", "too many cells"},
        {"bench gemm --dtype fp32,", "--dtype: the list has an empty place"},
        {"bench gemm --dtype ''", "--dtype: a value is missing"},
        {"bench collective --bytes ''", "--bytes: a value is missing"},
        {"bench layer --attention cpu,reference --chunks 1..64", "too many variants"},
        {"tune --heads , --seq 4k", "--heads: the list has an empty place"},
        {"tune --heads 8,16 --kv-heads 8,4,2 --seq 4k", "--kv-heads has 3 entries for 2"},
        {"tune --heads 8 --seq ''", "--seq: a value is missing"},
        {"tune --heads 8 --seq 1..4096", "4096 cells are too many"},
        {"tune --heads 8 --seq 4k --zero ''", "--zero: a value is missing"},
        {"tune --heads 8 --seq 4k --sp ,", "--sp: the list has an empty place"},
    };
    refuse(bad, CHECK_COUNT(bad));
}

static void test_words(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"check --device cuda", NO_CUDA},
        {"check --area plan --rows nix", "no row that is checked here has 'nix' in it"},
        {"check --rows ''", "1 to 63 characters"},
        {"bench gemm --dtype fp64", "'fp64' is not a data type"},
        {"bench gemm --timing now", "--timing does not know 'now'"},
        {"bench gemm --buffers warm", "one of: hot, cold, used"},
        {"bench gemm --heads 8", "bench gemm has no --heads"},
        {"bench exchange --docs none", "bench exchange has no --docs"},
        {"bench layer --direction up", "one of: fwd, bwd"},
        {"bench wire", "bench SUBJECT does not know 'wire'"},
        {"bench gemm --export csv", "--export csv names no file"},
        {"bench gemm --export csv=", "--export csv names no file"},
        {"bench gemm --export csv=/nowhere/x.csv", "/nowhere/x.csv cannot be written"},
        {"bench gemm --export csv=.", "cannot be written: Is a directory"},
        {"tune --heads 8 --seq 4k --zero 4", "one of: 0, 1, 2, 3"},
        {"tune --heads 8 --seq 4k --checkpointing some", "none, full, offload"},
        {"tune --heads 8 --seq 4k --offload gpu", "one of: none, optimizer, params"},
        {"tune --heads 8 --seq 4k --loss huge", "one of: plain, tiled, fused"},
        {"tune --heads 8 --seq 4k --attention eager", "one of: sdpa, flash_attention_2, flash_attention_3"},
        {"tune --heads 8 --seq 4k --exchange fast", "'fast'"},
        {"tune --heads 8 --seq 4k --objective fun", "one of: tokens-per-gpu, step-time"},
        {"tune --heads 8 --seq 4k --method star", "one of: ulysses, ring, split_gather"},
        {"tune --heads 8 --seq 4k --method ring", "accelerate does not execute method ring"},
        {"tune --heads 8 --seq 4k --target sptune --method split_gather --ranks 2 --sp 2", "a number of heads alone"},
        {"tune --heads 2 --seq 4k --world 4 --sp 4 --target sptune --method ulysses", "method ring splits no heads"},
        {"tune --heads 8 --seq 4k --effort lots", "one of: estimate, quick, normal, full"},
        {"tune --heads 8 --seq 4k --dtype int8", "'int8' is not a data type"},
        {"tune --heads 8 --seq 4k --device cuda", NO_CUDA},
        {"tune --heads 8 --seq 4k --docs fixed:0", "0 is too small"},
    };
    refuse(bad, CHECK_COUNT(bad));
}

static void test_tune(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"tune", "needs --model or --heads"},
        {"tune --seq 4k", "needs --model or --heads"},
        {"tune --model llama-3-8b", "needs --seq"},
        {"tune --model llama-3-8b --heads 8 --seq 4k", "contradict"},
        {"tune --model llama-3-8b --kv-heads 8 --seq 4k", "come from the model"},
        {"tune --model nothing-7b --seq 4k", "no model \"nothing-7b\""},
        {"tune --model llama-3-8b --seq 0", "--seq: 0"},
        {"tune --model llama-3-8b --seq -4", "negative"},
        {"tune --model llama-3-8b --seq 1000000000000000000", "too large"},
        {"tune --model llama-3-8b --seq 1000000000000000000000000000000", "too large"},
        {"tune --model llama-3-8b --seq 4k --ranks 0", "--ranks: 0"},
        {"tune --model llama-3-8b --seq 4k --ranks 4 --world 2", "--world 2 is smaller than the 4 ranks"},
        {"tune --model llama-3-8b --seq 4k --ranks 4 --nodes 1 --gpus-per-node 2",
         "--nodes x --gpus-per-node = 2 is smaller than the 4 ranks"},
        {"tune --model llama-3-8b --seq 4k --world 0", "--world: 0"},
        {"tune --model llama-3-8b --seq 4k --sp 0", "--sp: 0"},
        {"tune --model llama-3-8b --seq 4k --micro-batch 0", "--micro-batch: 0"},
        {"tune --model llama-3-8b --seq 4k --global-batch 0", "--global-batch: 0"},
        {"tune --model llama-3-8b --seq 4k --global-batch -1", "negative"},
        {"tune --model llama-3-8b --seq 4k --global-batch tok", "--global-batch"},
        {"tune --model llama-3-8b --seq 4k --global-batch 1000000000000000000", "too large"},
        {"tune --model llama-3-8b --seq 4k --device-memory 80", "say which unit"},
        {"tune --model llama-3-8b --seq 4k --device-memory 80G", "say which unit"},
        {"tune --model llama-3-8b --seq 4k --device-memory 0GiB", "no memory at all"},
        {"tune --model llama-3-8b --seq 4k --device-memory -1GiB", "negative"},
        {"tune --model llama-3-8b --seq 4k --device-memory 1000000000000000000GiB", "too large"},
        {"tune --model llama-3-8b --seq 4k --host-memory 0GiB", "no memory at all"},
        {"tune --model llama-3-8b --seq 4k --use-memory 50", "percentage"},
        {"tune --model llama-3-8b --seq 4k --use-memory 0%", "nothing to measure with"},
        {"tune --model llama-3-8b --seq 4k --use-memory 200%", "percentage"},
        {"tune --model llama-3-8b --seq 4k --budget 0s", "--budget: 0s"},
        {"tune --model llama-3-8b --seq 4k --out /dev/null/x", "--out: /dev/null/x cannot be written"},
        {"tune --model llama-3-8b --seq 4k --out ''", "--out: a directory is missing"},
        {"tune --model llama-3-8b --seq 4k --replay store.db", "give --device-memory"},
        {"tune --heads 0 --seq 4k", "--heads: 0"},
        {"tune --heads 1000000000000000000 --seq 4k", "too large"},
        {"tune --heads 8 --kv-heads 3 --seq 4k", "cannot share 3 KV heads"},
        {"tune --heads 8 --head-dim 0 --seq 4k", "--head-dim: 0"},
    };
    refuse(bad, CHECK_COUNT(bad));
}

static void test_topo(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"topo --from ''", "--from: a source is missing"},
        {"topo --from nothing", "'nothing' is no source"},
        {"topo --from synth:", "how many devices is missing"},
        {"topo --from synth:0xH100", "a count must be from 1"},
        {"topo --from synth:1000000000000000000xH100", "a count must be from 1"},
        {"topo --from synth:1000000000000000000000000000000xH100", "count"},
        {"topo --from synth:4xH100,nvlink=-1", "nvlink must be a whole number"},
        {"topo --from synth:4xH100,nvlink=4,pairs=0-9", "GPU 9 of a pair does not exist"},
        {"topo --from synth:4xH100 --sp 3", "does not divide the 4 devices"},
        {"topo --from synth:4xcpu --sp 2", "there are none here"},
        {"topo --from synth:4xH100 --sp 0", "--sp: 0"},
        {"topo --svg ''", "--svg: a file name is missing"},
        {"topo --svg /nowhere/x.svg", "--svg: /nowhere/x.svg cannot be written"},
    };
    refuse(bad, CHECK_COUNT(bad));
}

static void test_models(void **state)
{
    (void)state;
    static const struct {
        const char *name, *content;
        struct bad bad;
    } files[] = {
        {"empty.json", "", {"model empty.json", "empty"}},
        {"comma.json",
         "{\n  \"model_type\": \"llama\",\n  \"hidden_size\": ,\n}\n",
         {"model comma.json", "comma.json line 3 column"}},
        {"cut.json", "{\"model_type\": \"llama\", \"hidden", {"model cut.json", "cut.json line 1 column"}},
        {"list.json", "[1, 2]", {"model list.json", "list.json"}},
        {"null.json", "null", {"model null.json", "null.json"}},
        {"type.json", "{\"model_type\": \"llamma\"}", {"model type.json", "llamma"}},
        {"heads.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 512, \"num_attention_heads\": 7, \"num_hidden_layers\": 2, "
         "\"vocab_size\": 100, "
         "\"intermediate_size\": 64, \"num_key_value_heads\": 2}",
         {"model heads.json", "heads.json"}},
        {"huge.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 1000000000000000000, \"num_attention_heads\": 8, "
         "\"num_hidden_layers\": 2, "
         "\"vocab_size\": 100, \"intermediate_size\": 64}",
         {"model huge.json", "hidden_size"}},
        {"float.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 1e30, \"num_attention_heads\": 8, \"num_hidden_layers\": 2, "
         "\"vocab_size\": 100, "
         "\"intermediate_size\": 64}",
         {"model float.json", "hidden_size"}},
        {"minus.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 512, \"num_attention_heads\": 8, \"num_hidden_layers\": -2, "
         "\"vocab_size\": 100, "
         "\"intermediate_size\": 64}",
         {"model minus.json", "num_hidden_layers"}},
        {"half.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 512, \"num_attention_heads\": 8, \"num_hidden_layers\": 2.5, "
         "\"vocab_size\": 100, "
         "\"intermediate_size\": 64}",
         {"model half.json", "half.json, key num_hidden_layers: \"num_hidden_layers\" is 2.5"}},
        {"tied.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 512, \"num_attention_heads\": 8, \"num_hidden_layers\": 2, "
         "\"vocab_size\": 100, \"tie_word_embeddings\": 7, "
         "\"intermediate_size\": 64}",
         {"model tied.json", "\"tie_word_embeddings\" is an integer, true or false is expected"}},
        {"null_in_name.json", "{\"model_type\": \"lla\\u0000ma\"}", {"model null_in_name.json", "\\u0000"}},
        {"missing.json", "{\"model_type\": \"llama\", \"hidden_size\": 512}", {"model missing.json", "missing.json"}},
    };
    struct bad bad[CHECK_COUNT(files) + 5];
    int n = 0;
    for (; n < CHECK_COUNT(files); n++) {
        temp_put(&run_temp, files[n].name, files[n].content);
        bad[n] = files[n].bad;
    }
    char deep[8192];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    temp_put(&run_temp, "deep.json", deep);
    mkdir(temp_path(&run_temp, "bare"), 0777);
    bad[n++] = (struct bad){"model deep.json", "deep.json line 1 column 65"};
    bad[n++] = (struct bad){"model /nowhere/config.json", "no model \"/nowhere/config.json\""};
    bad[n++] = (struct bad){"model llama-3-9b", "did you mean llama-3-8b?"};
    bad[n++] = (struct bad){"model ''", "no model is named"};
    bad[n++] = (struct bad){"model bare", "the directory has no config.json"};
    refuse(bad, n);
}

/* Found before anything is waited for: another sptune measures all the while. */
static void test_while_another_measures(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"tune --model llama-3-8b --seq 4k --sp 3", "32 query heads over 3 ranks leave 2 over"},
        {"tune --model llama-3-8b --seq 4k --sp 8", "8 ranks are more than the 2 processes"},
        {"tune --model llama-3-8b --seq 4095 --sp 2", "4094 and 4096 would work"},
        {"tune --model llama-3-8b --seq 4k --sp 3/4", "'3/4'"},
        {"tune --model llama-3-8b --seq 4k --zero 0 --offload params", "no plan is legal"},
        {"tune --model llama-3-8b --seq 4k --global-batch 63tok", "global batch of 63 tokens"},
        {"tune --model llama-3-8b --seq 4k --global-batch 1tok", "global batch of 1 tokens"},
        {"tune --model llama-3-8b --seq 4k --docs fixed:1k --attention sdpa", "no plan is legal"},
        {"tune --heads 3,5 --seq 4k,8k --sp 2", "no plan is legal"},
        {"tune --heads 8 --seq 4k --store .", "the store is a directory"},
        {"tune --heads 8 --seq 4k --store /proc/x.db", "--store: /proc/x.db cannot be written"},
        {"tune --heads 8 --seq 4k --store /dev/null", "the store is a device"},
        {"tune --heads 8 --seq 4k --store garbage.db", "not a store of sptune"},
        {"tune --heads 8 --seq 4k --name 12", "'12' cannot name a run"},
        {"tune --heads 8 --seq 4k --out /proc/x", "--out: /proc/x cannot be written"},
        {"tune --heads 8 --seq 4k --ranks 4096 --oversubscribe", "--ranks: 4096 ranks are more than 64 for each"},
        {"bench gemm --ranks 1,4096", "--ranks: 4096 ranks are more than 64 for each"},
        {"bench gemm --store garbage.db", "not a store of sptune"},
        {"bench gemm --name @x", "'@x' cannot name a run"},
        {"bench gemm --device cuda", NO_CUDA},
        {"bench gemm --export csv=/proc/x.csv", "--export: /proc/x.csv cannot be written"},
        {"bench gemm --export csv=x --export json=./x", "csv=x and json=./x name one file"},
        {"bench layer --transport ib", "one of: ucx, shm, sysv, tcp"},
        {"check --ranks 4096", "--ranks: 4096 ranks are more than 64 for each"},
    };
    struct run run;
    char text[5000];
    int lock = run_lock();
    memset(text, 'g', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    temp_put(&run_temp, "garbage.db", text);
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 1 --samples 10 --budget 100ms --export csv=x --export json=y");
    run_expect(&run, 3); /* a good line waits */
    run_says(run.err, "another sptune is measuring");
    run_free(&run);
    refuse(bad, CHECK_COUNT(bad));
    close(lock);
    run_nothing_left();
}

static void test_two_forms(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench gemm --jsonl --json");
    run_expect(&run, 2);
    check_document(&run, "--json and --jsonl contradict each other");
    run_free(&run);
}

/* Any bytes as an argument: one line, one document, nothing that moves a terminal's cursor. */
static void test_strange_bytes(void **state)
{
    (void)state;
    char word[4096];
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    static const char *const lines[] = {"model \033[2J\377\376 --json", "topo --from '\n\t\001' --json", "\377 --json",
                                        "topo --\302\205 --json"};
    for (int i = 0; i <= CHECK_COUNT(lines); i++) {
        struct run run;
        if (i < CHECK_COUNT(lines))
            run_do(&run, "%s", lines[i]);
        else
            run_do(&run, "model %s --json", word);
        run_expect(&run, 2);
        json_decref(run_json(&run, "error"));
        assert_int_equal(run_lines(run.err), 1);
        assert_null(strchr(run.err, '\033'));
        run_free(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_lists),         cmocka_unit_test(test_words),
        cmocka_unit_test(test_tune),      cmocka_unit_test(test_topo),          cmocka_unit_test(test_models),
        cmocka_unit_test(test_two_forms), cmocka_unit_test(test_strange_bytes), cmocka_unit_test(test_while_another_measures),
    };
    return cmocka_run_group_tests(tests, run_place, run_leave);
}
