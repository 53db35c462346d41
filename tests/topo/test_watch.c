/* tests/topo/test_watch.c -- what a GPU does meanwhile, on machines that a library in the driver's place plays. */
#include "base/check.h"
#include "topo/gpu_watch.h"

#include <stdio.h>
#include <stdlib.h>

static void play(const char *machine, const char *doing)
{
    setenv("SPTUNE_NVML", FAKE_NVML, 1);
    setenv("SPTUNE_TEST_NVML", machine, 1);
    if (doing)
        setenv("SPTUNE_TEST_GPU", doing, 1);
    else
        unsetenv("SPTUNE_TEST_GPU");
}

static void test_facts(void **state)
{
    struct gpu_facts facts;
    (void)state;
    play("pair", "1980,3201,54,612500,4,7000,90,0");
    struct gpu_watch *watch = gpu_watch_open("0000:11:00.0");
    assert_non_null(watch);
    gpu_watch_read(watch, &facts);
    assert_int_equal(facts.sm_mhz, 1980);
    assert_int_equal(facts.memory_mhz, 3201);
    assert_int_equal(facts.celsius, 54);
    assert_true(facts.watts > 612.4 && facts.watts < 612.6);
    assert_int_equal(facts.held, GPU_HELD_POWER);
    assert_int_equal(facts.power_held_ns, 7000);
    assert_int_equal(facts.heat_held_ns, 90);
    assert_int_equal(facts.others, 0);
    char driver[32];
    gpu_watch_driver(watch, driver, sizeof driver);
    assert_string_equal(driver, "580.0");
    gpu_watch_driver(NULL, driver, sizeof driver);
    assert_string_equal(driver, "");
    gpu_watch_close(watch);
}

static void test_what_holds_the_clocks(void **state)
{
    static const struct {
        const char *bits;
        int held;
    } rows[] = {{"0", 0}, /* nothing */
                {"1", 0}, /* idle */
                {"2", 0}, /* clocks that somebody asked for */
                {"4", GPU_HELD_POWER},
                {"32", GPU_HELD_HEAT},
                {"64", GPU_HELD_HEAT},
                {"8", GPU_HELD_HARDWARE},
                {"128", GPU_HELD_HARDWARE},
                {"108", GPU_HELD_POWER | GPU_HELD_HEAT | GPU_HELD_HARDWARE}};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        char doing[64];
        struct gpu_facts facts;
        snprintf(doing, sizeof doing, "1980,3201,54,612500,%s,0,0,0", rows[i].bits);
        play("pair", doing);
        struct gpu_watch *watch = gpu_watch_open("0000:10:00.0");
        gpu_watch_read(watch, &facts);
        if (facts.held != rows[i].held)
            fail_msg("bits %s: held %d", rows[i].bits, facts.held);
        gpu_watch_close(watch);
    }
}

/* Processes that were there are known; those that come are counted until they are known too. */
static void test_others(void **state)
{
    struct gpu_facts facts;
    (void)state;
    play("shared", "1980,3201,54,612500,0,0,0,0");
    struct gpu_watch *watch = gpu_watch_open("0000:10:00.0");
    gpu_watch_read(watch, &facts);
    assert_int_equal(facts.others, 0);
    play("shared", "1980,3201,54,612500,0,0,0,2");
    gpu_watch_read(watch, &facts);
    assert_int_equal(facts.others, 2);
    gpu_watch_settle(watch);
    gpu_watch_read(watch, &facts);
    assert_int_equal(facts.others, 0);
    play("shared", "1980,3201,54,612500,0,0,0,0"); /* they went */
    gpu_watch_read(watch, &facts);
    assert_int_equal(facts.others, 0);
    gpu_watch_close(watch);
}

/* A driver that answers none of it; no driver; no such GPU; nothing to ask about. */
static void test_nothing_is_told(void **state)
{
    struct gpu_facts facts;
    (void)state;
    play("pair", NULL);
    struct gpu_watch *watch = gpu_watch_open("0000:10:00.0");
    assert_non_null(watch);
    gpu_watch_read(watch, &facts);
    assert_true(facts.sm_mhz == -1 && facts.memory_mhz == -1 && facts.celsius == -1 && facts.watts < 0 &&
                facts.held == -1);
    assert_true(facts.power_held_ns == -1 && facts.heat_held_ns == -1);
    gpu_watch_close(watch);
    assert_null(gpu_watch_open("0000:77:00.0"));
    assert_null(gpu_watch_open(""));
    play("mismatch", NULL);
    assert_null(gpu_watch_open("0000:10:00.0"));
    setenv("SPTUNE_NVML", "/nowhere/libnvml.so", 1);
    assert_null(gpu_watch_open("0000:10:00.0"));
    gpu_watch_read(NULL, &facts);
    assert_true(facts.sm_mhz == -1 && facts.others == -1);
    gpu_watch_settle(NULL);
    gpu_watch_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_what_holds_the_clocks),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_nothing_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
