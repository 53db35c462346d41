/* tests/cli/test_train_options.c -- which kernel `train` takes on GPUs where nobody names one. No device is opened. */
#include "base/check.h"
#include "base/temp.h"
#include "cli/train_options.h"
#include "model/model.h"

#include <stdlib.h>

/* The kernel of a run of so many words on one GPU. */
static void plan_of(int argc, char **argv, struct run_options *out)
{
    static const struct opt *const tables[] = {train_options, NULL};
    static struct train_plan planned;
    struct cli cli = {.device = DEV_CUDA, .seed = 1};
    CHECK_OK(opt_parse(argc, argv, tables, &cli.opts));
    CHECK_OK(train_options_read(&cli, &planned, out));
    CHECK_OK(train_options_plan(&cli, &planned, 1, 1, DEV_CUDA, out));
}

/* A plan of CPUs names no kernel of GPUs, so the usual one takes its place. */
static void test_without_cudnn(void **state)
{
    static const char cpus[] =
        "{\"schema\": \"sptune.recommendation/1\", \"plan\": {\"text\": \"ulysses sp=1 dp_shard=1 "
        "dp_replicate=1 tp=1 packed cpu chunks=1 zero=3 mb=1 acc=1 ckpt=full offload=none "
        "loss=tiled mlp=plain\"}}";
    static struct run_options options;
    struct temp temp;
    char train[] = "train", model[] = "--model", name[] = "llama-3.2-1b", plan[] = "--plan", file[1024];
    char *words[] = {train, model, name, plan, file, NULL};
    (void)state;
    temp_open(&temp);
    snprintf(file, sizeof file, "%s", temp_path(&temp, "plan.json"));
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fputs(cpus, out);
    fclose(out);
    setenv("SPTUNE_CUDNN", "/there/is/none", 1);
    plan_of(3, words, &options);
    assert_string_equal(options.trainer.plan.attention, "flash2");
    plan_of(5, words, &options);
    assert_string_equal(options.trainer.plan.attention, "flash2");
    assert_string_equal(options.trainer.plan.exchange, "push");
    temp_close(&temp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_cudnn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
