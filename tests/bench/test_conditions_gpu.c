/* tests/bench/test_conditions_gpu.c -- facts about a GPU become conditions; which of them spoil a block, and what that does to a row. */
#include "base/check.h"
#include "bench/bench_test.h"
#include "bench/conditions_gpu.h"
#include "bench/measure.h"
#include "bench/odd_device.h"
#include "bench/subject.h"

#include <math.h>
#include <stdlib.h>

static const struct gpu_facts quiet = {.sm_mhz = 1980, .memory_mhz = 3201, .celsius = 50, .watts = 400};

static void test_what_disturbs(void **state)
{
    static const struct {
        const char *what;
        struct gpu_facts from, to; /* of 10 ms */
        bool disturbed;
    } rows[] = {
        {"quiet", {.sm_mhz = 1980}, {.sm_mhz = 1980}, false},
        {"power", {.power_held_ns = 0}, {.held = GPU_HELD_POWER, .power_held_ns = 10000000}, false},
        {"a little heat", {.heat_held_ns = 1000}, {.heat_held_ns = 301000}, false},
        {"heat for long", {.heat_held_ns = 1000}, {.heat_held_ns = 901000}, true},
        {"heat now", {.heat_held_ns = -1}, {.held = GPU_HELD_HEAT, .heat_held_ns = -1}, true},
        {"a little heat, still there", {.heat_held_ns = 0}, {.held = GPU_HELD_HEAT, .heat_held_ns = 50000}, false},
        {"the board", {.held = 0}, {.held = GPU_HELD_HARDWARE}, true},
        {"somebody else", {.others = 0}, {.others = 1}, true},
        {"nothing told", {-1, -1, -1, -1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1, -1, -1, -1}, false},
    };
    (void)state;
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        double gpu[CONDITIONS_GPU];
        conditions_gpu_between(&rows[i].from, &rows[i].to, 10000, gpu);
        if (conditions_gpu_disturbed(gpu) != rows[i].disturbed)
            fail_msg("%s: disturbed is not %d", rows[i].what, rows[i].disturbed);
    }
}

/* Of two GPUs the worse counts, whether one counts its heat or not. */
static void test_worse_of_two(void **state)
{
    const struct gpu_facts from = {.heat_held_ns = 0}, little = {.heat_held_ns = 300000}, untold = {.heat_held_ns = -1},
                           hot = {.held = GPU_HELD_HEAT, .heat_held_ns = -1};
    double worst[CONDITIONS_GPU], other[CONDITIONS_GPU];
    (void)state;
    conditions_gpu_between(&untold, &hot, 10000, worst);
    conditions_gpu_between(&from, &little, 10000, other);
    conditions_gpu_add(worst, other, false);
    assert_true(conditions_gpu_disturbed(worst));
}

static double number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return value != NULL ? json_number_value(value) : -1;
}

/* The worst of all blocks: lowest clocks, highest everything else; what nobody told is left out. */
static void test_what_is_noted(void **state)
{
    double row[CONDITIONS_GPU], block[CONDITIONS_GPU];
    struct gpu_facts slow = quiet, untold = {-1, -1, -1, -1, -1, -1, -1, -1};
    (void)state;
    slow.sm_mhz = 1410;
    slow.celsius = 81;
    slow.power_held_ns = 2500000;
    conditions_gpu_between(&quiet, &quiet, 10000, block);
    conditions_gpu_add(row, block, true);
    conditions_gpu_between(&quiet, &slow, 10000, block);
    conditions_gpu_add(row, block, false);
    json_t *c = json_object();
    conditions_gpu_note(row, c);
    assert_true(number(c, "sm_mhz") == 1410 && number(c, "memory_mhz") == 3201);
    assert_true(number(c, "gpu_celsius") == 81 && number(c, "gpu_watts") == 400);
    assert_true(fabs(number(c, "held_by_power") - 0.25) < 1e-9);
    assert_true(number(c, "held_by_heat") == -1 && number(c, "held_by_board") == -1 && number(c, "gpu_others") == -1);
    json_decref(c);
    conditions_gpu_between(&untold, &untold, 10000, block);
    conditions_gpu_add(row, block, true);
    c = json_object();
    conditions_gpu_note(row, c);
    assert_int_equal(json_object_size(c), 0);
    json_decref(c);
}

/* One rank on a device that counts as a GPU at 0000:10:00.0 of the played machine. */
static int measured(const struct launch *launch, void *arg)
{
    const char *doing = arg;
    struct bench_env env = {0};
    struct boot *boot = NULL;
    struct bench_case c = bench_test_case("collective", launch->size, launch->size);
    struct bench_options options = bench_test_options();
    struct sample sample;
    setenv("SPTUNE_NVML", FAKE_NVML, 1);
    setenv("SPTUNE_TEST_NVML", "pair", 1);
    setenv("SPTUNE_TEST_GPU", doing, 1);
    RANK_TRY(boot_open(launch, INT64_MAX, &boot));
    env.dev = odd_device();
    env.usable_cpus = 1;
    RANK_TRY(comm_open(boot, env.dev, "ucx", NULL, &env.world));
    snprintf(c.op, sizeof c.op, "alltoall");
    c.bytes = 4096;
    options.repeats = 1;
    RANK_TRY(bench_run(&env, &c, 1, &options, &sample));
    if (launch->rank == 0) {
        bool hot = strstr(doing, ",64,") != NULL;
        RANK_CHECK(sample.outcome == (hot ? SAMPLE_WAIVED : SAMPLE_OK));
        RANK_CHECK(!hot || (sample.rule == RULE_TAINTED && strstr(sample.why, "a GPU was slowed down") != NULL));
        RANK_CHECK(strstr(sample.conditions, "\"sm_mhz\":1755") != NULL);
        RANK_CHECK((strstr(sample.conditions, "\"tainted\"") != NULL) == hot);
        sample_free(&sample);
    }
    char *versions = bench_versions(&env); /* samples of another driver are not reused */
    RANK_CHECK(versions != NULL && strstr(versions, "\"driver\":\"580.0\"") != NULL);
    free(versions);
    comm_close(env.world);
    boot_close(boot);
    return 0;
}

static void test_rows(void **state)
{
    static char quiet_one[] = "1755,3201,54,612500,4,0,0,0", hot_one[] = "1755,3201,94,612500,64,0,0,0";
    (void)state;
    ranks_pass(1, measured, quiet_one);
    ranks_pass(2, measured, hot_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_disturbs),
        cmocka_unit_test(test_worse_of_two),
        cmocka_unit_test(test_what_is_noted),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
