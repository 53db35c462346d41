/* tests/topo/test_nvml.c -- what the NVIDIA driver tells, on machines that a library in its place plays. */
#include "topo/make.h"
#include "topo/nvml.h"

#include "base/mem.h"

static void play(const char *machine, const char *visible)
{
    setenv("SPTUNE_NVML", FAKE_NVML, 1);
    setenv("SPTUNE_TEST_NVML", machine, 1);
    unsetenv("CUDA_DEVICE_ORDER");
    if (visible)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
}

/* As PCI shows n NVIDIA GPUs from bus 0x10 on: two NUMA nodes, the first half on node 0. */
static struct topo on_pci(int n)
{
    int numa[NVML_GPUS_MAX];
    for (int i = 0; i < n; i++)
        numa[i] = 2 * i >= n;
    struct topo topo = make_gpus(n, numa);
    for (int i = 0; i < n; i++)
        snprintf(topo.gpus[i].name, sizeof topo.gpus[i].name, "10de:2335");
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            topo_join(&topo, a, b,
                      (struct topo_link){numa[a] == numa[b] ? TOPO_LINK_NODE : TOPO_LINK_SYS, 1, -1.0, "hwloc"});
    return topo;
}

static struct topo asked(const char *machine, const char *visible, int on_bus)
{
    struct topo topo = on_pci(on_bus);
    play(machine, visible);
    CHECK_OK(nvml_apply(&topo));
    CHECK_OK(topo_finish(&topo));
    return topo;
}

static bool warns(const struct topo *topo, const char *words)
{
    for (int i = 0; i < topo->nwarnings; i++)
        if (strstr(topo->warnings[i], words))
            return true;
    return false;
}

static void check_warns(const struct topo *topo, const char *words)
{
    if (warns(topo, words))
        return;
    for (int i = 0; i < topo->nwarnings; i++)
        print_message("warning: %s\n", topo->warnings[i]);
    fail_msg("no warning says '%s'", words);
}

static int islands(const struct topo *topo)
{
    int island_of[NVML_GPUS_MAX], count = 0;
    CHECK_OK(topo_islands(topo, island_of, &count));
    return count;
}

/* machine, GPUs, and between GPUs 0-1 and 0-2 (if there is one): class, count, GB/s; NVLinks of GPU 0; islands */
static void test_machines(void **state)
{
    (void)state;
    static const struct {
        const char *machine;
        int gpus;
        enum topo_link_class near, far;
        int count;
        double GBps;
        int nvlinks, islands, p2p;
    } rows[] = {
        {"hgx", 8, TOPO_LINK_NVSWITCH, TOPO_LINK_NVSWITCH, 18, 18 * 20.6, 18, 1, 1},
        {"pair", 2, TOPO_LINK_NVLINK, TOPO_LINK_COUNT, 18, 18 * 20.6, 18, 1, 1},
        {"bridges", 4, TOPO_LINK_NVLINK, TOPO_LINK_SYS, 12, 12 * 20.6, 12, 2, 1},
        {"guest", 2, TOPO_LINK_NVLINK, TOPO_LINK_COUNT, 18, 18 * 20.6, 18, 1, 1},
        {"guest4", 4, TOPO_LINK_NVSWITCH, TOPO_LINK_NVSWITCH, 18, 18 * 20.6, 18, 1, 1},
        {"apart", 8, TOPO_LINK_NODE, TOPO_LINK_NODE, 1, -1.0, 18, 2, 1},
        {"pcie", 4, TOPO_LINK_NODE, TOPO_LINK_SYS, 1, -1.0, 0, 2, 0},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct topo topo = asked(rows[i].machine, NULL, rows[i].gpus);
        const struct topo_link *near = topo_link_at(&topo, 0, 1);
        if (topo.ngpus != rows[i].gpus || near->link != rows[i].near || near->count != rows[i].count ||
            near->GBps < rows[i].GBps - 1e-6 || near->GBps > rows[i].GBps + 1e-6 ||
            topo.gpus[0].nvlinks != rows[i].nvlinks || islands(&topo) != rows[i].islands ||
            topo.p2p[1] != rows[i].p2p || topo.p2p[0] != 1)
            fail_msg("%s: %d GPUs, %s x%d %g GB/s, %d NVLinks, %d islands, p2p %d", rows[i].machine, topo.ngpus,
                     topo_link_name(near->link), near->count, near->GBps, topo.gpus[0].nvlinks, islands(&topo),
                     topo.p2p[1]);
        if (rows[i].far != TOPO_LINK_COUNT && topo_link_at(&topo, 2, 0)->link != rows[i].far)
            fail_msg("%s: GPUs 0 and 2 by %s", rows[i].machine, topo_link_name(topo_link_at(&topo, 2, 0)->link));
        for (int g = 0; g < topo.ngpus; g++) {
            assert_true(topo.gpus[g].driver && !topo.gpus[g].mig);
            assert_int_equal(topo.gpus[g].cuda, g);
            assert_int_equal(topo.gpus[g].others, 0); /* this process itself does not count */
            assert_int_equal(topo.gpus[g].numa, 2 * g >= topo.ngpus);
            assert_int_equal(strncmp(topo.gpus[g].name, "NVIDIA ", 7), 0);
        }
        topo_free(&topo);
    }
}

static void test_facts(void **state)
{
    (void)state;
    struct topo topo = asked("hgx", NULL, 8);
    assert_int_equal(topo.gpus[3].memory_bytes, INT64_C(143771) << 20);
    assert_string_equal(topo.gpus[3].uuid, "GPU-3aaaaaaa-0000-0000-0000-000000000000");
    assert_string_equal(topo.gpus[3].busid, "0000:13:00.0");
    assert_string_equal(topo_link_at(&topo, 0, 7)->from, "nvml");
    assert_int_equal(topo.nwarnings, 0);
    topo_free(&topo);
    topo = asked("pcie", NULL, 4);
    assert_string_equal(topo_link_at(&topo, 0, 1)->from, "hwloc"); /* the driver has nothing better */
    check_warns(&topo, "6 pairs of GPUs (first 0 and 1) cannot reach each other's memory");
    topo_free(&topo);
    topo = asked("apart", NULL, 8);
    assert_int_equal(topo.nwarnings, 0);
    topo_free(&topo);
}

/* value, GPUs of the list in CUDA's order ("-" for an instance), as CUDA itself reads it */
static void test_visible(void **state)
{
    (void)state;
    static const struct {
        const char *machine, *value, *listed;
    } rows[] = {
        {"hgx", NULL, "0 1 2 3 4 5 6 7"},
        {"hgx", "", ""},
        {"hgx", "5,2", "5 2"},
        {"hgx", " 5 , 2 ", "5 2"},
        {"hgx", "0,1,9,2", "0 1"}, /* ends at what is not there */
        {"hgx", "3,-1,2", "3"},
        {"hgx", "-1", ""},
        {"hgx", "1x,2", "1 2"},
        {"hgx", "none", ""},
        {"hgx", "1,1", ""}, /* twice */
        {"hgx", "1,,2", "1"},
        {"hgx", "GPU-6aaaaaaa-0000-0000-0000-000000000000,GPU-1", "6 1"},
        {"hgx", "GPU-6AAA", "6"},
        {"hgx", "GPU-", ""}, /* fits all */
        {"hgx", "GPU-9", ""},
        {"lost", NULL, "0 1 2 4 5 6 7"},
        {"lost", "3", "4"}, /* CUDA does not count the lost one */
        {"mig", NULL, "0:0"},
        {"mig", "MIG-11bbbbbb-0000-0000-0000-000000000000", "1:1"},
        {"mig", "MIG-11,MIG-00", "1:1"}, /* one instance for one process */
        {"mig", "1", "1:0"},
        {"mig", "GPU-1", "1:0"},
        {"mig", "MIG-2", ""},
        {"halfmig", NULL, "1"},
        {"halfmig", "GPU-1,MIG-00", "1"},
        {"none", "0", ""},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct nvml_machine machine = {0};
        struct nvml_visible list[NVML_GPUS_MAX];
        char text[128] = "";
        bool ordered;
        play(rows[i].machine, NULL);
        CHECK_OK(nvml_read(NVML_DEADLINE_MS, &machine));
        assert_string_equal(machine.why, "");
        int n = nvml_list(&machine, rows[i].value, NULL, list, &ordered);
        for (int k = 0; k < n; k++) {
            size_t at = strlen(text);
            snprintf(text + at, sizeof text - at, "%s%d", k ? " " : "", list[k].gpu);
            at = strlen(text);
            if (list[k].instance >= 0)
                snprintf(text + at, sizeof text - at, ":%d", list[k].instance);
        }
        if (strcmp(text, rows[i].listed) != 0)
            fail_msg("%s, CUDA_VISIBLE_DEVICES=%s: '%s', expected '%s'", rows[i].machine,
                     rows[i].value ? rows[i].value : "(unset)", text, rows[i].listed);
        nvml_free(&machine);
    }
}

/* Devices stay in bus order; cuda says which number CUDA gives them. */
static void test_visible_in_topo(void **state)
{
    (void)state;
    struct topo topo = asked("hgx", "6,1,5", 8);
    static const int cuda[3] = {1, 2, 0};
    static const char *const busids[3] = {"0000:11:00.0", "0000:15:00.0", "0000:16:00.0"};
    assert_int_equal(topo.ngpus, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(topo.gpus[i].busid, busids[i]);
        assert_int_equal(topo.gpus[i].cuda, cuda[i]);
    }
    assert_int_equal(topo.gpus[0].numa, 0);
    assert_int_equal(topo.gpus[1].numa, 1);
    assert_int_equal(topo_link_at(&topo, 0, 2)->link, TOPO_LINK_NVSWITCH);
    check_warns(&topo, "CUDA_VISIBLE_DEVICES=6,1,5 shows 3 of 8 GPUs");
    topo_free(&topo);
    topo = asked("hgx", "", 8);
    assert_int_equal(topo.ngpus, 0);
    check_warns(&topo, "shows 0 of 8 GPUs");
    topo_free(&topo);
}

/* CUDA lists the fastest first unless told otherwise: which that is only CUDA knows. */
static void test_kinds(void **state)
{
    (void)state;
    struct topo topo = asked("kinds", NULL, 3);
    assert_int_equal(topo.ngpus, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(topo.gpus[i].cuda, -1);
    check_warns(&topo, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
    topo_free(&topo);
    topo = on_pci(3);
    play("kinds", NULL);
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    CHECK_OK(nvml_apply(&topo));
    assert_int_equal(topo.gpus[2].cuda, 2);
    assert_int_equal(topo.nwarnings, 0);
    topo_free(&topo);
    topo = asked("kinds", "GPU-2,GPU-0", 3);
    assert_int_equal(topo.gpus[0].cuda, 1);
    assert_int_equal(topo.gpus[1].cuda, 0);
    topo_free(&topo);
}

static void test_lost(void **state)
{
    (void)state;
    struct topo whole = asked("hgx", NULL, 8), topo = asked("lost", NULL, 8);
    assert_int_equal(topo.ngpus, 7);
    for (int i = 0; i < topo.ngpus; i++)
        assert_string_not_equal(topo.gpus[i].busid, "0000:13:00.0");
    assert_int_equal(topo.gpus[3].cuda, 3);
    check_warns(&topo, "the driver's GPU 3 (bus id unknown) does not answer");
    check_warns(&topo, "1 NVIDIA GPU is on PCI (first 0000:13:00.0)");
    assert_string_not_equal(topo.fingerprint, whole.fingerprint);
    topo_free(&whole);
    topo_free(&topo);
}

static void test_mig(void **state)
{
    (void)state;
    struct topo topo = asked("mig", "MIG-10", 2);
    static const int order[2] = {0, 0};
    assert_int_equal(topo.ngpus, 1);
    assert_true(topo.gpus[0].mig);
    assert_string_equal(topo.gpus[0].busid, "0000:11:00.0");
    assert_string_equal(topo.gpus[0].name, "NVIDIA A100-SXM4-80GB MIG 3g.40gb");
    assert_int_equal(topo.gpus[0].memory_bytes, INT64_C(81920) << 19);
    assert_int_equal(topo.gpus[0].nvlinks, 0);
    check_warns(&topo, "2 of 2 GPUs are in MIG mode");
    struct verdict one = topo_ranks_together(&topo, order, 1), two = topo_ranks_together(&topo, order, 2);
    assert_true(verdict_ok(&one));
    assert_int_equal(two.rule, RULE_EXCHANGE_CANNOT);
    assert_non_null(strstr(two.why, "GPU 0 (0000:11:00.0) is in MIG mode"));
    topo_free(&topo);
}

static void test_shared(void **state)
{
    (void)state;
    static const int order[2] = {1, 0};
    struct topo topo = asked("shared", NULL, 2);
    struct verdict two = topo_ranks_together(&topo, order, 2);
    assert_int_equal(topo.gpus[0].others, 3);
    assert_int_equal(topo.gpus[1].others, 0);
    check_warns(&topo, "GPU 0 (0000:10:00.0) is shared: 3 other processes compute on it (pid 40000");
    assert_int_equal(two.rule, RULE_TAINTED);
    assert_non_null(strstr(two.why, "3 other processes"));
    topo_free(&topo);
    topo = asked("crowd", NULL, 2); /* more than are asked for by name */
    assert_int_equal(topo.gpus[0].others, 101);
    topo_free(&topo);
    topo = asked("hgx", NULL, 2);
    two = topo_ranks_together(&topo, order, 2);
    assert_true(verdict_ok(&two));
    topo_free(&topo);
}

/* A container sees more on PCI than the driver gives it; a sandbox sees nothing there. Another maker's GPU stays. */
static void test_bus_and_driver_differ(void **state)
{
    (void)state;
    struct topo topo = asked("pair", NULL, 8);
    assert_int_equal(topo.ngpus, 2);
    check_warns(&topo, "6 NVIDIA GPUs are on PCI (first 0000:12:00.0)");
    topo_free(&topo);
    topo = asked("hgx", NULL, 0);
    assert_int_equal(topo.ngpus, 8);
    assert_string_equal(topo.gpus[7].busid, "0000:17:00.0");
    assert_int_equal(topo.gpus[7].numa, -1);
    assert_int_equal(topo_link_at(&topo, 0, 7)->link, TOPO_LINK_NVSWITCH);
    topo_free(&topo);
    topo = on_pci(3);
    snprintf(topo.gpus[1].name, sizeof topo.gpus[1].name, "1002:740f");
    play("pcie", "0,2");
    CHECK_OK(nvml_apply(&topo));
    assert_int_equal(topo.ngpus, 3);
    assert_string_equal(topo.gpus[1].name, "1002:740f");
    assert_int_equal(topo.p2p[1], -1);
    assert_int_equal(topo_link_at(&topo, 1, 0)->link, TOPO_LINK_NODE);
    topo_free(&topo);
}

/* No answer: what PCI shows stays, and a line says why. */
static void test_no_answer(void **state)
{
    (void)state;
    struct topo topo = asked("mismatch", NULL, 2);
    assert_int_equal(topo.ngpus, 2);
    assert_false(topo.gpus[0].driver);
    assert_int_equal(topo.gpus[0].memory_bytes, -1);
    check_warns(&topo, "2 GPUs seen on PCI (first 10de:2335 at 0000:10:00.0), the NVIDIA driver in the kernel and its "
                       "libraries are of different versions");
    topo_free(&topo);
    topo = asked("mismatch", NULL, 0);
    check_warns(&topo, "different versions");
    topo_free(&topo);
    topo = asked("none", NULL, 1);
    check_warns(&topo, "the NVIDIA driver shows no GPU: memory and NVLinks are unknown");
    topo_free(&topo);
    topo = on_pci(1);
    setenv("SPTUNE_NVML", "/nowhere/libnvml.so", 1);
    CHECK_OK(nvml_apply(&topo));
    check_warns(&topo, "SPTUNE_NVML names a library that cannot be loaded: /nowhere/libnvml.so");
    topo_free(&topo);
    topo = on_pci(0);
    setenv("SPTUNE_NVML", "libm.so.6", 1);
    CHECK_OK(nvml_apply(&topo));
    check_warns(&topo, "library has no function nvmlInit_v2");
    topo_free(&topo);
}

static void test_deadline(void **state)
{
    (void)state;
    struct nvml_machine machine = {0};
    play("slow", NULL);
    CHECK_OK(nvml_read(20, &machine));
    assert_string_equal(machine.why, "the NVIDIA driver did not answer in 20 ms");
    assert_int_equal(machine.n, 0);
    nvml_free(&machine);
    CHECK_OK(nvml_read(NVML_DEADLINE_MS, &machine)); /* the thread that was left behind has its own memory */
    assert_int_equal(machine.n, 1);
    nvml_free(&machine);
}

/* The whole way, as `topo` goes it on a machine whose PCI does not show these GPUs. */
static void test_local(void **state)
{
    (void)state;
    play("hgx", "0,1,2,3");
    struct topo topo = make_topo("local");
    char *table = NULL;
    int seen = 0;
    for (int i = 0; i < topo.ngpus; i++)
        seen += strcmp(topo.gpus[i].name, "NVIDIA H200") == 0 && topo.gpus[i].nvlinks == 18;
    assert_int_equal(seen, 4);
    CHECK_OK(topo_to_table(&topo, &table));
    assert_non_null(strstr(table, "0000:13:00.0"));
    assert_non_null(strstr(table, "NVIDIA H200"));
    free(table);
    json_t *root = topo_to_json(&topo, NULL);
    assert_non_null(root);
    json_t *link = json_array_get(json_object_get(root, "links"), 0);
    assert_string_equal(json_string_value(json_object_get(link, "from")), "nvml");
    assert_true(json_is_true(json_object_get(link, "p2p")));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(json_object_get(root, "gpus"), 2), "cuda")), 2);
    json_decref(root);
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_visible),
        cmocka_unit_test(test_visible_in_topo),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_mig),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_bus_and_driver_differ),
        cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_local),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
