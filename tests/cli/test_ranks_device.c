/* tests/cli/test_ranks_device.c -- devices of ranks before there are ranks: fewer GPUs than ranks, CPUs near a GPU. */
#include "cli/ranks_device.h"
#include "cli/run.h"

static void test_fewer_gpus_than_ranks(void **state)
{
    (void)state;
    struct ranks_options how = {.n = 4, .kind = DEV_CUDA, .devices = 2};
    assert_int_equal(ranks_check_devices(&how), STATUS_USAGE);
    assert_int_equal(status_exit_code(STATUS_USAGE), 2);
    assert_non_null(strstr(status_last()->what, "4 ranks"));
    assert_non_null(strstr(status_last()->what, "shows 2"));
    assert_non_null(strstr(status_last()->hint, "--ranks 2"));
    how.n = 2;
    assert_int_equal(ranks_check_devices(&how), STATUS_OK);
    how = (struct ranks_options){.n = 4, .kind = DEV_CPU, .devices = 1};
    assert_int_equal(ranks_check_devices(&how), STATUS_OK);
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
    machine(&topo);
    assert_int_equal(ranks_cpus(&topo, DEV_CUDA, 3, &slots), STATUS_OK);
    assert_string_equal(slots[0], "2-3");
    assert_string_equal(slots[1], "0-1");
    assert_true(slots[2][0] != '\0'); /* nobody knows where that GPU is: as without one */
    topo_free_slots(slots, 3);
    assert_int_equal(ranks_cpus(&topo, DEV_CPU, 2, &slots), STATUS_OK);
    char **plain = NULL;
    assert_int_equal(topo_cpu_slots(&topo, 2, &plain), STATUS_OK);
    for (int r = 0; r < 2; r++)
        assert_string_equal(slots[r], plain[r]);
    topo_free_slots(plain, 2);
    topo_free_slots(slots, 2);
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
    const char *word = NULL;
    enum dev_kind kind = DEV_CUDA;
    int devices = 0;
    assert_int_equal(ranks_device(&cli, &word, &kind, &devices), STATUS_OK);
    assert_string_equal(word, "auto");
    assert_int_equal(kind, DEV_CPU);
    assert_int_equal(devices, 1);
    assert_int_equal(status_last()->code, STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fewer_gpus_than_ranks),
        cmocka_unit_test(test_cpus_near_the_gpu),
        cmocka_unit_test(test_auto_without_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
