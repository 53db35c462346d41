/* cli/test_train_kept.c -- `sptune train`: what an interrupt, a full disk and a resumed run leave, and weights that are not what they should be. */
#include "cli/train_run.h"

#include <math.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* Three more steps after three are the last three of six, to the bit; under another split to rounding. */
static void test_resume(void **state)
{
    (void)state;
    struct run run;
    double whole[6], rest[3];
    char step6[1100];
    run_do(&run, TINY "--steps 6 --save kept --every 3 --jsonl");
    run_expect(&run, 0);
    losses_of(&run, whole, 6);
    run_free(&run);
    snprintf(step6, sizeof step6, "%s", temp_path(&run_temp, "kept/step-6"));
    for (int other = 0; other < 2; other++) {
        assert_int_equal(rename(step6, temp_path(&run_temp, other ? "second" : "first")), 0);
        run_do(&run, TINY "--micro-batch %d --sp %d --steps 6 --save kept --resume --jsonl",
               other ? 1 : 2, other ? 1 : 2);
        run_expect(&run, 0);
        assert_int_equal(losses_of(&run, rest, 3), 4);
        if (!other)
            assert_memory_equal(rest, whole + 3, sizeof rest);
        for (int i = 0; i < 3; i++)
            assert_true(fabs(rest[i] - whole[3 + i]) < 1e-4);
        run_free(&run);
        assert_true(exists("kept/step-6/model.safetensors"));
    }
}

/* Where nothing can be written is known before the first step. */
static void test_save_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"/proc/here", "/dev/null", "plain", "plain/below", "astray", "astray/below"};
    put("plain", "", 0);
    assert_int_equal(symlink("nowhere/at/all", temp_path(&run_temp, "astray")), 0);
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        struct run run;
        run_do(&run, TINY "--steps 1 --save %s --jsonl", bad[i]);
        run_expect(&run, 2);
        run_says(run.err, "cannot be written");
        run_says(run.err, "--save");
        assert_string_equal(run.out, "");
        run_free(&run);
    }
    run_nothing_left();
}

/* A run goes on from its own steps, and says where that is not so. */
static void test_resume_of_another(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
        int code;
    } runs[] = {
        {"--steps 2 --save own --resume", "no checkpoint in own, this run begins anew", 0},
        {"--steps 2 --save own", "--save own holds checkpoints of a run, step 2 the last; --resume, or another folder",
         2},
        {"--steps 0 --sample 2 --save own", "--resume, or another folder", 2},
        {"--steps 2 --save own --resume", "2 steps are done, of 2 that were asked for", 0},
        {"--steps 3 --save own --resume --seed 5",
         "own/step-2 was trained with --seed 1, this run goes on with --seed 5", 0},
    };
    struct run run;
    for (int i = 0; i < CHECK_COUNT(runs); i++) {
        run_do(&run, TINY "%s", runs[i].line);
        run_expect(&run, runs[i].code);
        run_says(run.err, runs[i].says);
        run_free(&run);
    }
    static const struct {
        const char *text, *says;
    } bad[] = {{"\1\2 no JSON", "own/step-3/train.json"},
               {"[]", "own/step-3/train.json"},
               {"{\"schema\": \"other/1\"}", "its schema is 'other/1'"},
               {"{\"schema\": \"sptune.checkpoint/1\", \"step\": 3}", "\"seed\" is missing"},
               {"{\"schema\": \"sptune.checkpoint/1\", \"step\": 7, \"seed\": 1}",
                "it is of step 7, its directory of step 3"}};
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        put("own/step-3/train.json", bad[i].text, strlen(bad[i].text));
        run_do(&run, TINY "--steps 4 --save own --resume -q");
        run_expect(&run, 2);
        run_says(run.err, bad[i].says);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
    assert_false(exists("own/step-4"));
    run_nothing_left();
}

/* --verify hears Ctrl-C before it runs the rows whole. */
static void test_verify_interrupted(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, TINY "--verify -v");
    assert_true(run_wait(&run, 2, "fork of 2 ranks", 1));
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    run_says(run.err, "interrupted: ends after this row; again stops at once");
    run_says(run.err, "sptune: interrupted [interrupted");
    assert_string_equal(run.out, "");
    run_free(&run);
    run_nothing_left();
}

/* Nor do ranks that do not hear it read half a terabyte each: data whose tokens are looked at for minutes. */
static void test_reading_interrupted(void **state)
{
    (void)state;
    struct run run;
    put("wide.u32", "", 0);
    assert_int_equal(truncate(temp_path(&run_temp, "wide.u32"), INT64_C(1) << 40), 0); /* all holes */
    run_begin(&run, TINY "--data wide.u32");
    assert_true(run_wait(&run, 2, "reading all of wide.u32 for a token beyond the vocabulary", 1));
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    run_says(run.err, "sptune: interrupted\n");
    assert_string_equal(run.out, "");
    run_free(&run);
    run_nothing_left();
}

/* Of a run that Ctrl-C ends, each step that was reported is kept. */
static void test_interrupt(void **state)
{
    (void)state;
    static const int sigs[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        struct run run;
        char dir[64];
        run_begin(&run, TINY "--steps 100000 --jsonl --save cut%d", i);
        assert_true(run_wait(&run, 1, "\n", 3));
        run_kill(&run, run.pid, sigs[i]);
        run_end(&run);
        run_expect(&run, 128 + sigs[i]);
        int steps = run_lines(run.out) - 1; /* the last row is of the run */
        snprintf(dir, sizeof dir, "cut%d/step-%d", i, steps);
        if (!exists(dir))
            fail_msg("%d steps were reported; there is no %s", steps, dir);
        run_free(&run);
        run_nothing_left();
    }
}

/* Nor does a sample of thousands of tokens keep it up: what was drawn is said. */
static void test_sample_interrupted(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, TINY "--steps 1 --sample 100000 --jsonl");
    assert_true(run_wait(&run, 1, "\n", 1)); /* of the step; the sample comes after it */
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    run_says(run.out, "{\"sample\":");
    assert_int_equal(run_lines(run.out), 3);
    run_free(&run);
    run_nothing_left();
}

/* What a killed run left of a checkpoint is neither part of the next one nor stays beside it. */
static void test_left_behind(void **state)
{
    (void)state;
    struct run run;
    mkdir(temp_path(&run_temp, "again"), 0777);
    mkdir(temp_path(&run_temp, "again/step-1.unfinished"), 0777);
    mkdir(temp_path(&run_temp, "again/step-7.unfinished"), 0777);
    put("again/step-1.unfinished/.sptune-0123456789ab.tmp", "half", 4);
    put("again/step-7.unfinished/model.safetensors", "half", 4);
    put("again/notes.unfinished", "", 0);
    run_do(&run, TINY "--steps 1 --save again --resume -q");
    run_expect(&run, 0);
    run_free(&run);
    assert_int_equal(temp_count(temp_path(&run_temp, "again/step-1")), 4);
    assert_int_equal(temp_count(temp_path(&run_temp, "again")), 2); /* the other is nothing of ours */
}

static void test_bad_weights(void **state)
{
    (void)state;
    struct run run;
    size_t n;
    plant();
    char *bytes = read_file(temp_path(&run_temp, "seedling/step-1/model.safetensors"), &n);
    put("short.safetensors", bytes, n - 1000);
    run_do(&run, TINY "--from short.safetensors -q");
    run_expect(&run, 2);
    run_says(run.err, "short.safetensors");
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
    static const char wide[] = "{\"model_type\":\"llama\",\"num_hidden_layers\":4,\"hidden_size\":128,"
                               "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":512,"
                               "\"vocab_size\":256,\"head_dim\":32,\"tie_word_embeddings\":true}";
    put("wide.json", wide, sizeof wide - 1);
    run_do(&run, TINY "--from seedling/step-1 --steps 1 --model wide.json -q");
    run_expect(&run, 2);
    run_says(run.err, "model.layers.0.mlp.");
    run_says(run.err, "512");
    run_free(&run);
    free(bytes);
}

/* A loss that is not finite ends the run with the step, the rank and the layer where that began, and nothing is saved. */
static void test_not_finite(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } bad[] = {
        {TINY "--from layer2.safetensors --save never", "step 1: the loss is nan, by what layer 2 of rank 0 gives"},
        {TINY "--sp 1 --accumulate 2 --from layer2.safetensors", "layer 2 of rank 0"},
        {TINY "--sp 1 --checkpointing offload --from layer2.safetensors", "by what layer 2 of rank 0 gives"},
        {TINY "--from steeper.safetensors", "step 1: the loss is finite, the gradient of layer"},
        {TINY "--sp 2 --method split_gather --from layer2.safetensors", "by what layer 2 of rank 0 gives"},
        {TINY "--verify --from steeper.safetensors", "step 1: the loss is finite, the gradient of layer"},
        /* 64 tokens of 'a' and 'b': rank 1 has the second half, and the token of which nobody knows anything. */
        {"train --ranks 2 --sp 2 --data halves.txt --seq 64 --micro-batch 1 --from byte.safetensors -q --steps 1",
         "step 1: the loss is nan, by what the embedding of rank 1 gives"},
    };
    struct run run;
    char halves[65];
    memset(halves, 'a', 32);
    memset(halves + 32, 'b', 33);
    put("halves.txt", halves, sizeof halves);
    static const char sound[] = "seedling/step-1/model.safetensors";
    spoil(sound, "layer2.safetensors", "model.layers.2.mlp.up_proj.weight", 4000, 4004, NAN);
    spoil(sound, "steep.safetensors", "model.norm.weight", 0, -1, 1e30F);
    spoil("steep.safetensors", "steeper.safetensors", "model.layers.0.input_layernorm.weight", 0, -1, 1e15F);
    spoil(sound, "byte.safetensors", "model.embed_tokens.weight", 'b' * 128 * 4, 'b' * 128 * 4 + 4, NAN);
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        run_do(&run, "%s", bad[i].line);
        run_expect(&run, 1);
        run_says(run.err, bad[i].says);
        run_free(&run);
        run_nothing_left();
    }
    assert_false(exists("never"));
}

/* What a file system of its own holds besides one checkpoint is less than a second one: the first stays whole and a run goes on from it. */
static void test_full_disk(void **state)
{
    (void)state;
    enum { CHECKPOINT = 820352 * 12 };
    char options[64];
    struct run run;
    if (!run_alone) {
        printf("no mount namespace here\n");
        skip();
    }
    const char *dir = temp_path(&run_temp, "small");
    mkdir(dir, 0777);
    snprintf(options, sizeof options, "size=%d,mode=777", CHECKPOINT * 3 / 2);
    assert_int_equal(mount("tmpfs", dir, "tmpfs", 0, options), 0);
    run_do(&run, TINY "--steps 4 --save small --every 2 -q");
    run_expect(&run, 4);
    run_says(run.err, "step-4");
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
    run_nothing_left();
    assert_true(exists("small/step-2/optimizer.safetensors"));
    assert_int_equal(temp_count(temp_path(&run_temp, "small")), 1);
    snprintf(options, sizeof options, "size=%d", CHECKPOINT * 3);
    assert_int_equal(mount("tmpfs", temp_path(&run_temp, "small"), "tmpfs", MS_REMOUNT, options), 0);
    run_do(&run, TINY "--steps 4 --save small --resume --jsonl");
    run_expect(&run, 0);
    double rest[2];
    assert_int_equal(losses_of(&run, rest, 2), 3);
    run_free(&run);
    umount(temp_path(&run_temp, "small"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_of_another),
        cmocka_unit_test(test_save_refused),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_verify_interrupted),
        cmocka_unit_test(test_reading_interrupted),
        cmocka_unit_test(test_sample_interrupted),
        cmocka_unit_test(test_left_behind),
        cmocka_unit_test(test_bad_weights),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, train_place, run_leave);
}
