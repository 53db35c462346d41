/* tests/topo/test_local.c -- the machine that this test runs on: whatever it is, the answers hang together. */
#include "topo/make.h"

#include <sched.h>
#include <unistd.h>

static void test_opens(void **state)
{
    (void)state;
    struct topo topo = make_topo("local");
    const struct topo_host *host = &topo.hosts[0];
    assert_int_equal(topo.nhosts, 1);
    assert_true(host->name[0] != '\0');
    assert_true(host->packages >= 1 && host->cores >= 1 && host->pus >= host->cores);
    assert_true(host->pus_allowed >= 1 && host->pus_allowed <= host->pus);
    assert_int_equal(topo.ncores, host->cores);
    assert_true(host->memory_bytes > INT64_C(64) << 20);
    assert_true(host->cpu_quota < 0 ? host->quota_version == 0 : host->quota_version == 1 || host->quota_version == 2);
    assert_true(host->memory_limit_bytes == -1 || host->memory_limit_bytes > 0);
    assert_true(topo.nnumas >= 1);
    assert_true(topo_usable_cpus(&topo) >= 1 && topo_usable_cpus(&topo) <= host->pus_allowed);
    assert_memory_equal(topo.source, "local: hwloc 2", 14);
    for (int i = 0; i < topo.ngpus; i++)
        assert_int_equal(strlen(topo.gpus[i].busid) >= 12, 1);
    topo_free(&topo);
}

static void test_default_is_local(void **state)
{
    (void)state;
    struct topo named = make_topo("local"), empty = make_topo(""), none = {0};
    CHECK_OK(topo_open(NULL, &none));
    assert_string_equal(named.fingerprint, empty.fingerprint);
    assert_string_equal(named.fingerprint, none.fingerprint);
    topo_free(&named);
    topo_free(&empty);
    topo_free(&none);
}

/* taskset, a launcher's binding: fewer CPUs to use, the same machine. */
static void test_binding(void **state)
{
    (void)state;
    cpu_set_t before, one;
    struct topo whole = make_topo("local");
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct topo bound = make_topo("local");
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(bound.hosts[0].pus_allowed, 1);
    assert_int_equal(bound.hosts[0].pus, whole.hosts[0].pus);
    assert_string_equal(bound.fingerprint, whole.fingerprint);
    char **slots = NULL, expected[16];
    CHECK_OK(topo_cpu_slots(&bound, 2, &slots));
    snprintf(expected, sizeof expected, "%zu", cpu);
    assert_string_equal(slots[0], expected);
    assert_string_equal(slots[1], expected);
    topo_free_slots(slots, 2);
    topo_free(&whole);
    topo_free(&bound);
}

/* Opening a topology moves no thread and leaves the environment alone. */
static void test_no_traces(void **state)
{
    (void)state;
    extern char **environ;
    cpu_set_t before, after;
    size_t variables = 0, later = 0;
    for (char **at = environ; *at; at++)
        variables++;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    struct topo topo = make_topo("local");
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    for (char **at = environ; *at; at++)
        later++;
    assert_int_equal(later, variables);
    topo_free(&topo);
}

/* hwloc obeys its own variables; then it is another machine, and the answer says so. */
static void test_hwloc_environment(void **state)
{
    (void)state;
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "package:2 numa:1 core:8 pu:2", 1), 0);
    struct topo topo = make_topo("local");
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
    assert_int_equal(topo.hosts[0].pus, 32);
    assert_int_equal(topo.hosts[0].pus_allowed, 32);
    assert_int_equal(topo.hosts[0].quota_version, 0);
    assert_int_equal(topo.nwarnings, 1);
    assert_non_null(strstr(topo.warnings[0], "another machine"));
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens),     cmocka_unit_test(test_default_is_local),  cmocka_unit_test(test_binding),
        cmocka_unit_test(test_no_traces), cmocka_unit_test(test_hwloc_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
