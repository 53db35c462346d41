/* tests/cli/test_ranks_device.c -- devices of ranks before there are ranks: fewer GPUs than ranks, CPUs near a GPU. */
#include "cli/ranks_device.h"
#include "cli/run.h"

static void test_fewer_gpus_than_ranks(void **state)
{
    (void)state;
    const struct topo none = {0};
    struct ranks_options how = {.n = 4, .kind = DEV_CUDA, .devices = 2};
    assert_int_equal(ranks_check_devices(&none, &how), STATUS_USAGE);
    assert_int_equal(status_exit_code(STATUS_USAGE), 2);
    assert_non_null(strstr(status_last()->what, "4 ranks"));
    assert_non_null(strstr(status_last()->what, "shows 2"));
    assert_non_null(strstr(status_last()->hint, "--ranks 2"));
    how.n = 2;
    assert_int_equal(ranks_check_devices(&none, &how), STATUS_OK);
    how = (struct ranks_options){.n = 4, .kind = DEV_CPU, .devices = 1};
    assert_int_equal(ranks_check_devices(&none, &how), STATUS_OK);
}

/* Two nodes of two CPUs; CUDA counts its GPUs from the second node. */
static void machine(struct topo *topo)
{
    static struct topo_host hosts[1];
    static struct topo_numa numas[2] = {{.cpus = "0-1"}, {.cpus = "2-3"}};
    static struct topo_core cores[4];
    static struct topo_gpu gpus[3];
    for (int i = 0; i < 4; i++) {
        cores[i] = (struct topo_core){.numa = i / 2, .l3 = i / 2, .pus = 1};
        cores[i].cpus[0] = (char)('0' + i);
    }
    for (int i = 0; i < 3; i++)
        gpus[i] = (struct topo_gpu){.numa = i == 2 ? -1 : i, .cuda = i == 2 ? 2 : 1 - i};
    *topo = (struct topo){.nhosts = 1,
                          .hosts = hosts,
                          .nnumas = 2,
                          .numas = numas,
                          .ncores = 4,
                          .cores = cores,
                          .ngpus = 3,
                          .gpus = gpus};
}

static void test_cpus_near_the_gpu(void **state)
{
    (void)state;
    struct topo topo;
    char **slots = NULL;
    struct ranks_options how = {.n = 3, .kind = DEV_CUDA, .devices = 3};
    machine(&topo);
    assert_int_equal(ranks_cpus(&topo, &how, &slots), STATUS_OK);
    assert_string_equal(slots[0], "2-3");
    assert_string_equal(slots[1], "0-1");
    assert_string_equal(slots[2], ""); /* nobody knows where that GPU is: bound to nothing */
    topo_free_slots(slots, 3);
    snprintf(topo.gpus[0].cpus, sizeof topo.gpus[0].cpus, "1"); /* PCI tells more than the node */
    how.n = 2;
    assert_int_equal(ranks_cpus(&topo, &how, &slots), STATUS_OK);
    assert_string_equal(slots[0], "2-3");
    assert_string_equal(slots[1], "1");
    topo_free_slots(slots, 2);
    how = (struct ranks_options){.n = 3, .kind = DEV_CUDA, .devices = 2, .oversubscribe = true};
    assert_int_equal(ranks_cpus(&topo, &how, &slots), STATUS_OK);
    assert_string_equal(slots[1], "1");
    assert_string_equal(slots[2], slots[0]); /* the third is on the first's GPU */
    topo_free_slots(slots, 3);
    how = (struct ranks_options){.n = 2, .kind = DEV_CPU, .devices = 1};
    assert_int_equal(ranks_cpus(&topo, &how, &slots), STATUS_OK);
    char **plain = NULL;
    assert_int_equal(topo_cpu_slots(&topo, 2, &plain), STATUS_OK);
    for (int r = 0; r < 2; r++)
        assert_string_equal(slots[r], plain[r]);
    topo_free_slots(plain, 2);
    topo_free_slots(slots, 2);
}

/* This machine as it would be with the GPUs that a library in the driver's place plays. */
static void machine_with(const char *gpus, const char *visible, struct topo *out)
{
    setenv("SPTUNE_NVML", FAKE_NVML, 1);
    setenv("SPTUNE_TEST_NVML", gpus, 1);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    assert_int_equal(topo_open("local", out), STATUS_OK);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("SPTUNE_TEST_NVML");
    unsetenv("SPTUNE_NVML");
}

/* What a command with so many ranks is told; visible: as CUDA_VISIBLE_DEVICES names GPUs, by index, UUID and UUID of an instance. */
static void test_gpus_that_ranks_cannot_share(void **state)
{
    (void)state;
    static const struct {
        const char *gpus, *visible;
        int ranks, devices; /* devices: as CUDA would count */
        enum status status;
        const char *what, *hint;
    } rows[] = {
        {"hgx", "0,1", 2, 2, STATUS_OK, "", ""},
        {"mig", "0", 1, 1, STATUS_OK, "", ""},
        {"mig", "0", 2, 1, STATUS_UNSUPPORTED, "GPU 0 (0000:10:00.0) is in MIG mode", "--device cpu"},
        {"mig", "MIG-10", 2, 1, STATUS_UNSUPPORTED, "GPU 0 (0000:11:00.0) is in MIG mode", "--device cpu"},
        {"halfmig", "GPU-1,GPU-0", 2, 1, STATUS_USAGE, "2 ranks need as many GPUs, the driver shows 1", "--ranks 1"},
        {"shared", "0,1", 2, 2, STATUS_BUSY, "GPU 0 (0000:10:00.0) is shared: 3 other processes",
         "CUDA_VISIBLE_DEVICES"},
        {"shared", "1,0", 2, 2, STATUS_BUSY, "GPU 0 (0000:10:00.0) is shared: 3 other processes",
         "CUDA_VISIBLE_DEVICES"},
        {"shared", "0", 1, 1, STATUS_OK, "", ""},
        {"shared", "GPU-1", 1, 1, STATUS_OK, "", ""},
        {"pair", "0,1", 3, 2, STATUS_USAGE, "3 ranks need as many GPUs, the driver shows 2", "--ranks 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ranks_options how = {.n = rows[i].ranks, .kind = DEV_CUDA, .devices = rows[i].devices};
        struct topo topo;
        machine_with(rows[i].gpus, rows[i].visible, &topo);
        status_clear();
        enum status status = ranks_check_devices(&topo, &how);
        if (status != rows[i].status || strstr(status_last()->what, rows[i].what) == NULL ||
            strstr(status_last()->hint, rows[i].hint) == NULL)
            fail_msg("%s, %s visible, %d ranks: status %d, '%s', '%s'", rows[i].gpus, rows[i].visible, rows[i].ranks,
                     (int)status, status_last()->what, status_last()->hint);
        how.oversubscribe = true; /* any number, but on GPUs that are whole and theirs */
        assert_int_equal(ranks_check_devices(&topo, &how), rows[i].status == STATUS_USAGE ? STATUS_OK : rows[i].status);
        topo_free(&topo);
    }
    assert_int_equal(status_exit_code(STATUS_UNSUPPORTED), 2);
    assert_int_equal(status_exit_code(STATUS_BUSY), 3);
}

/* A launcher gives all ranks all GPUs of a host, or each its own. */
static void test_which_gpu_under_a_launcher(void **state)
{
    (void)state;
    const struct launch third = {.rank = 10, .size = 16, .local_rank = 2, .local_size = 8};
    struct ranks_options how = {.n = 16, .kind = DEV_CUDA, .devices = 8};
    assert_int_equal(ranks_device_index(&how, &third), 2);
    how.devices = 1;
    assert_int_equal(ranks_device_index(&how, &third), 0);
    how.devices = 2; /* fewer than ranks: the third has none, which opening it says; or shares the first */
    assert_int_equal(ranks_device_index(&how, &third), 2);
    how.oversubscribe = true;
    assert_int_equal(ranks_device_index(&how, &third), 0);
}

/* No driver here: auto is the CPU (test_bad_input asks for cuda by name). */
static void test_auto_without_a_gpu(void **state)
{
    (void)state;
    if (access("/dev/nvidiactl", F_OK) == 0) {
        print_message("skipped: there is a GPU here\n");
        skip();
    }
    struct cli cli = {0};
    struct ranks_devices devices = {.kind = DEV_CUDA};
    assert_int_equal(ranks_device(&cli, &devices), STATUS_OK);
    assert_string_equal(devices.word, "auto");
    assert_int_equal(devices.kind, DEV_CPU);
    assert_int_equal(devices.n, 1);
    assert_int_equal(devices.memory_bytes, 0);
    assert_int_equal(status_last()->code, STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fewer_gpus_than_ranks),
        cmocka_unit_test(test_cpus_near_the_gpu),
        cmocka_unit_test(test_gpus_that_ranks_cannot_share),
        cmocka_unit_test(test_which_gpu_under_a_launcher),
        cmocka_unit_test(test_auto_without_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
