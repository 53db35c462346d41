/* cli/test_direct.c -- exchange direct where it works, and where ranks cannot map each other's memory, or not enough of it: a row that asks
 * for it by name is waived by rule, with the reason, and the others stand; what was left to sptune takes packed, and says why.
 */
#include "cli/run.h"

#include <sys/mount.h>

#define ROWS "bench exchange --exchange packed,direct --kv-heads 8 --ranks 2 --samples 10 --warmup 1 --progress none"

/* Of exchange `name`: its outcome, rule and reason. */
static void row_is(const json_t *document, const char *name, const char *outcome, const char *rule, const char *why)
{
    json_t *row;
    size_t at;
    json_array_foreach(json_object_get(document, "samples"), at, row)
    {
        const json_t *key = json_object_get(row, "key");
        if (strcmp(json_string_value(json_object_get(key, "exchange")), name) != 0)
            continue;
        assert_string_equal(json_string_value(json_object_get(row, "outcome")), outcome);
        assert_string_equal(json_string_value(json_object_get(row, "rule")), rule);
        run_says(json_string_value(json_object_get(row, "why")), why);
        return;
    }
    fail_msg("no row of exchange %s", name);
}

static void rows_are(const char *options, const char *outcome, const char *rule, const char *why)
{
    struct run run;
    run_do(&run, ROWS " %s --json", options);
    run_expect(&run, 0);
    json_t *document = run_json(&run, "samples");
    row_is(document, "packed", "ok", "ok", "");
    row_is(document, "direct", outcome, rule, why);
    json_decref(document);
    run_free(&run);
    run_nothing_left();
}

static void test_shared_memory(void **state)
{
    (void)state;
    rows_are("--seq 64 --heads 8 --head-dim 32", "ok", "ok", "");
}

static void test_tcp(void **state)
{
    (void)state;
    struct run run;
    rows_are("--seq 64 --heads 8 --head-dim 32 --transport tcp", "waived", "exchange_cannot", "not by shared memory");
    run_do(&run,
           "bench layer --exchange direct --heads 4 --kv-heads 2 --head-dim 32 --seq 64 --ranks 2 --transport tcp "
           "--progress none");
    run_expect(&run, 2);
    run_says(run.err, "rule exchange_cannot");
    run_says(run.out, "waived exchange_cannot");
    run_free(&run);
    run_do(&run, "check --ranks 2 --transport tcp --progress none");
    run_expect(&run, 0);
    run_says(run.out, "waived  exchange   direct sp=2");
    run_says(run.out, "waived  plan       ulysses sp=2 direct cpu");
    run_says(run.out, "not by shared memory");
    run_free(&run);
}

/* Room for UCX, and not for 2 x 17 MB of buffers. */
static void test_small_dev_shm(void **state)
{
    (void)state;
    if (!run_alone) {
        printf("no mount namespace here\n");
        skip();
    }
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=48m"), 0);
    rows_are("--seq 2k --heads 32 --head-dim 128", "waived", "exchange_cannot", "of /dev/shm together");
    rows_are("--seq 64 --heads 8 --head-dim 32", "ok", "ok", "");
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=50%"), 0);
}

static void trains_with(const char *options, const char *exchange, const char *why)
{
    struct run run;
    char plan[40];
    snprintf(plan, sizeof plan, "tp=1 %s cpu", exchange);
    run_do(&run, "train --ranks 2 --steps 1 --seq 64 --progress none %s", options);
    run_expect(&run, 0);
    run_says(run.out, plan);
    run_says(run.err, why);
    run_free(&run);
}

static void test_train(void **state)
{
    (void)state;
    struct run run;
    trains_with("--micro-batch 2", "direct", "");
    trains_with("--micro-batch 2 --transport tcp", "packed", "exchange packed: ranks reach each other by ucx tcp");
    temp_put(&run_temp, "plan.json", "{\"plan\": {\"text\": \"ulysses sp=2 direct cpu\"}}");
    trains_with("--plan plan.json --transport tcp", "packed", "exchange packed: ranks reach each other by ucx tcp");
    trains_with("--plan plan.json --sp 1 --transport tcp", "direct", ""); /* nothing is exchanged */
    run_do(&run, "train --ranks 2 --steps 1 --exchange direct --transport tcp --progress none");
    run_expect(&run, 2);
    run_says(run.err,
             "--exchange direct: ranks reach each other by ucx tcp, not by shared memory; leave it out, and packed");
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
    run_nothing_left();
}

/* Room for UCX; a layer of 4,096 tokens has 16 MiB of buffers on each rank, and without checkpointing every layer has them. */
static void test_train_small_dev_shm(void **state)
{
    (void)state;
    if (!run_alone) {
        printf("no mount namespace here\n");
        skip();
    }
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=36m"), 0);
    trains_with("--micro-batch 2", "direct", "");
    trains_with("--micro-batch 64", "packed", "exchange packed: 2 ranks need");
    trains_with("--micro-batch 16", "direct", "");
    trains_with("--micro-batch 16 --checkpointing none", "packed", "of /dev/shm together");
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=50%"), 0);
    run_nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_memory),       cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_small_dev_shm),       cmocka_unit_test(test_train),
        cmocka_unit_test(test_train_small_dev_shm),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
