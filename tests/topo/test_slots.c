/* tests/topo/test_slots.c -- CPU sets of ranks: whole cores, spread over NUMA nodes, under quotas, oversubscribed. */
#include "topo/make.h"

/* One host: node[i], threads and first CPU of each core; thread t of core c is CPU c + t * cores, as x86 numbers them.
 */
static struct topo make_cores(int cores, int threads, int nodes)
{
    struct topo topo = {0};
    CHECK_OK(topo_reserve(&topo, (struct topo_sizes){.hosts = 1, .numas = nodes, .cores = cores}));
    topo.hosts[0] =
        (struct topo_host){.cores = cores, .pus = cores * threads, .pus_allowed = cores * threads, .cpu_quota = -1.0};
    for (int i = 0; i < cores; i++) {
        topo.cores[i] = (struct topo_core){.numa = i * nodes / cores, .l3 = -1, .pus = threads};
        for (int t = 0; t < threads; t++)
            snprintf(topo.cores[i].cpus + strlen(topo.cores[i].cpus), 8, "%s%d", t ? "," : "", i + t * cores);
    }
    return topo;
}

/* `expected`: lists separated by blanks. */
static void check_slots(const struct topo *topo, int n, const char *expected)
{
    char **slots = NULL, text[1024] = "";
    CHECK_OK(topo_cpu_slots(topo, n, &slots));
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", slots[i]);
    topo_free_slots(slots, n);
    if (strcmp(text, expected) != 0)
        fail_msg("%d cores, %d ranks: '%s', expected '%s'", topo->ncores, n, text, expected);
}

static void test_plain(void **state)
{
    (void)state;
    struct topo topo = make_cores(8, 1, 2);
    check_slots(&topo, 1, "0-7");
    check_slots(&topo, 2, "0-3 4-7");
    check_slots(&topo, 3, "0-1 2-3 4-5"); /* equal shares inside nodes; the rest idles */
    check_slots(&topo, 4, "0-1 2-3 4-5 6-7");
    check_slots(&topo, 5, "0 1 2 4 5"); /* three ranks on one node, two on the other */
    check_slots(&topo, 8, "0 1 2 3 4 5 6 7");
    check_slots(&topo, 16, "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7");
    topo_free(&topo);
}

static void test_threads(void **state)
{
    (void)state;
    struct topo topo = make_cores(4, 2, 2); /* cores 0,4 1,5 | 2,6 3,7 */
    check_slots(&topo, 1, "0-7");
    check_slots(&topo, 2, "0-1,4-5 2-3,6-7");
    check_slots(&topo, 4, "0,4 1,5 2,6 3,7");
    check_slots(&topo, 8, "0 1 4 5 2 3 6 7"); /* more ranks than cores */
    check_slots(&topo, 6, "0 1 4 2 3 6");     /* second threads only when the first are taken */
    topo_free(&topo);
}

static void test_quota(void **state)
{
    (void)state;
    struct topo topo = make_cores(8, 2, 2);
    topo.hosts[0].cpu_quota = 4.9; /* 4 CPUs: one thread of two cores of each node */
    check_slots(&topo, 1, "0-1,4-5");
    check_slots(&topo, 2, "0-1 4-5");
    check_slots(&topo, 4, "0 1 4 5");
    check_slots(&topo, 8, "0 0 1 1 4 4 5 5");
    topo.hosts[0].cpu_quota = 0.5;
    check_slots(&topo, 2, "0 0");
    topo.hosts[0].cpu_quota = 12; /* more than cores, less than threads: still one thread each */
    check_slots(&topo, 2, "0-3 4-7");
    topo.hosts[0].cpu_quota = 100;
    check_slots(&topo, 2, "0-3,8-11 4-7,12-15");
    topo_free(&topo);
}

static void test_cpuset(void **state)
{
    (void)state;
    struct topo topo = make_cores(8, 1, 2);
    for (int i = 0; i < 3; i++)
        topo.cores[i].cpus[0] = '\0'; /* core 3 is all that is left of node 0 */
    topo.hosts[0].pus_allowed = 5;
    check_slots(&topo, 1, "3-7");
    check_slots(&topo, 2, "4-5 6-7"); /* two equal shares of two, rather than one on each node of one */
    check_slots(&topo, 3, "3 4 5");
    topo_free(&topo);
}

static void test_odd_nodes(void **state)
{
    (void)state;
    struct topo topo = make_cores(9, 1, 3);
    check_slots(&topo, 2, "0-2 3-5");
    check_slots(&topo, 3, "0-2 3-5 6-8");
    check_slots(&topo, 4, "0 1 3 6");
    topo_free(&topo);

    /* Cores listed mixed, nodes unknown for some: units of a node are still kept together. */
    topo = make_cores(4, 1, 2);
    topo.cores[0].numa = 1;
    topo.cores[1].numa = -1;
    topo.cores[2].numa = 1;
    topo.cores[3].numa = -1;
    check_slots(&topo, 2, "1,3 0,2");
    topo_free(&topo);
}

static void test_refusals(void **state)
{
    (void)state;
    struct topo topo = make_cores(2, 1, 1), none = {0};
    char **slots = NULL;
    CHECK_FAILS(STATUS_USAGE, "CPUs for 0 ranks", topo_cpu_slots(&topo, 0, &slots));
    CHECK_FAILS(STATUS_USAGE, "CPUs for -1 ranks", topo_cpu_slots(&topo, -1, &slots));
    CHECK_FAILS(STATUS_UNSUPPORTED, "which CPUs", topo_cpu_slots(&none, 1, &slots));
    assert_null(slots);
    topo_free_slots(NULL, 3);
    topo_free(&topo);
}

/* Any machine, any number of ranks: every list is there, and shares nothing with its neighbours while there is enough.
 */
static void test_all_counts(void **state)
{
    (void)state;
    struct topo topo = make_cores(12, 2, 3);
    for (int quota = 0; quota < 26; quota++) {
        topo.hosts[0].cpu_quota = quota ? quota : -1;
        for (int n = 1; n <= 40; n++) {
            char **slots = NULL;
            hwloc_bitmap_t all = hwloc_bitmap_alloc(), one = hwloc_bitmap_alloc();
            int sum = 0;
            CHECK_OK(topo_cpu_slots(&topo, n, &slots));
            for (int i = 0; i < n; i++) {
                assert_int_equal(hwloc_bitmap_list_sscanf(one, slots[i]), 0);
                assert_true(hwloc_bitmap_weight(one) >= 1);
                sum += hwloc_bitmap_weight(one);
                hwloc_bitmap_or(all, all, one);
            }
            if (n <= topo_usable_cpus(&topo) && n <= 24) {
                if (sum != hwloc_bitmap_weight(all) || sum > topo_usable_cpus(&topo))
                    fail_msg("quota %d, %d ranks: %d CPUs given, %d different, %d usable", quota, n, sum,
                             hwloc_bitmap_weight(all), topo_usable_cpus(&topo));
            }
            hwloc_bitmap_free(all);
            hwloc_bitmap_free(one);
            topo_free_slots(slots, n);
        }
    }
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),      cmocka_unit_test(test_threads),   cmocka_unit_test(test_quota),
        cmocka_unit_test(test_cpuset),     cmocka_unit_test(test_odd_nodes), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_all_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
