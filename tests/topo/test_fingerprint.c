/* tests/topo/test_fingerprint.c -- what makes two machines the same, and what does not. */
#include "topo/make.h"

static const char base[] = "synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7";

static void test_other_machines_differ(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7",
        "synth:8xA6000,nvlink=4,pairs=0-1,2-3,4-5,6-7",
        "synth:8xA6000,nvlink=3,pairs=0-4,1-5,2-6,3-7",
        "synth:8xA6000,nvlink=4",
        "synth:8xA6000",
        "synth:4xA6000",
        "synth:8xA40,nvlink=4",
        "synth:8xA6000,cpus=64",
        "synth:8xA6000,numa=4",
        "synth:2x4xA6000",
        "synth:2x4xA6000,nic=1x100G",
        "synth:4xcpu",
        "synth:8xcpu",
        "synth:8xcpu,numa=2",
    };
    struct topo topos[CHECK_COUNT(texts)];
    for (int i = 0; i < CHECK_COUNT(texts); i++) {
        topos[i] = make_topo(texts[i]);
        for (int k = 0; k < i; k++)
            if (strcmp(topos[i].fingerprint, topos[k].fingerprint) == 0)
                fail_msg("%s and %s have one fingerprint", texts[i], texts[k]);
    }
    for (int i = 0; i < CHECK_COUNT(texts); i++)
        topo_free(&topos[i]);
}

/* Memory, NICs inside one host, order of options and case of names make no difference. */
static void test_tolerant(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "synth:8xA6000,pairs=0-4,1-5,2-6,3-7,nvlink=4",
        "synth:8xa6000,nvlink=4,pairs=3-7,2-6,5-1,4-0",
        "synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7,mem=47GiB,hostmem=1TiB",
        "synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7,nic=2x100G",
    };
    struct topo expected = make_topo(base);
    for (int i = 0; i < CHECK_COUNT(texts); i++) {
        struct topo topo = make_topo(texts[i]);
        if (strcmp(topo.fingerprint, expected.fingerprint) != 0)
            fail_msg("%s is another machine than %s", texts[i], base);
        topo_free(&topo);
    }
    topo_free(&expected);
}

static void again(struct topo *topo, const char *expected, bool same, const char *what)
{
    char now[33];
    CHECK_OK(topo_fingerprint(topo, now));
    if ((strcmp(now, expected) == 0) != same)
        fail_msg("%s: the fingerprint must %s", what, same ? "stay" : "change");
}

/* One fact at a time, put back after each. */
#define STAYS(topo, field, value)                                                                                      \
    do {                                                                                                               \
        struct topo_host host_ = (topo).hosts[0];                                                                      \
        struct topo_gpu gpu_ = (topo).gpus[0];                                                                         \
        (topo).field = (value);                                                                                        \
        again(&(topo), expected, true, #field);                                                                        \
        (topo).hosts[0] = host_;                                                                                       \
        (topo).gpus[0] = gpu_;                                                                                         \
    } while (0)
#define CHANGES(topo, field, value)                                                                                    \
    do {                                                                                                               \
        struct topo_host host_ = (topo).hosts[0];                                                                      \
        struct topo_gpu gpu_ = (topo).gpus[0];                                                                         \
        (topo).field = (value);                                                                                        \
        again(&(topo), expected, false, #field);                                                                       \
        (topo).hosts[0] = host_;                                                                                       \
        (topo).gpus[0] = gpu_;                                                                                         \
    } while (0)

static void test_facts(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:2x4xA6000,nvlink=4,nic=1x100G");
    const char *expected = topo.fingerprint;
    STAYS(topo, hosts[0].name[0], 'X');
    STAYS(topo, hosts[0].boot_id[0], 'X');
    STAYS(topo, hosts[0].cpu_quota, 1.5);
    STAYS(topo, hosts[0].pus_allowed, 1);
    STAYS(topo, hosts[0].memory_bytes, 1);
    STAYS(topo, hosts[0].memory_limit_bytes, 1);
    STAYS(topo, gpus[0].uuid[0], 'X');
    STAYS(topo, gpus[0].busid[0], 'X');
    STAYS(topo, gpus[0].memory_bytes, 1);
    CHANGES(topo, hosts[0].cpu_model[0], 'X');
    CHANGES(topo, hosts[0].packages, 7);
    CHANGES(topo, hosts[0].cores, 7);
    CHANGES(topo, hosts[0].pus, 7);
    CHANGES(topo, hosts[0].l1d_bytes, 7);
    CHANGES(topo, hosts[0].l2_bytes, 7);
    CHANGES(topo, hosts[0].l3_bytes, 7);
    CHANGES(topo, hosts[0].l3_count, 7);
    CHANGES(topo, gpus[0].name[0], 'X');
    make_link(&topo, 0, 1, TOPO_LINK_NVSWITCH, 3);
    again(&topo, expected, false, "count of a link");
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_machines_differ),
        cmocka_unit_test(test_tolerant),
        cmocka_unit_test(test_facts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
