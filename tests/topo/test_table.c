/* tests/topo/test_table.c -- the table for a terminal: 80 columns whatever the machine, and the facts are in it. */
#include "topo/make.h"

static const char *const machines[] = {
    "local",
    "synth:1xL4",
    "synth:8xH200,nvlink=18,nic=8x400G",
    "synth:2x8xH200,nvlink=18,nic=8x400G",
    "synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7",
    "synth:128x8xH200,nvlink=18,nic=64x400G,numa=8,cpus=512",
    "synth:64xH200,nvlink=18",
    "synth:4096xcpu,numa=64",
    "synth:3x7xcpu,numa=3,nic=1x0.1G",
};

static void check_width(const char *what, const char *table)
{
    for (const char *line = table; *line;) {
        size_t len = strcspn(line, "\n"), columns = 0;
        for (size_t i = 0; i < len; i++)
            columns += ((unsigned char)line[i] & 0xc0) != 0x80;
        if (columns > 80)
            fail_msg("%s: %zu columns: %.*s", what, columns, (int)len, line);
        if (len && line[len - 1] == ' ')
            fail_msg("%s: blanks at the end of '%.*s'", what, (int)len, line);
        if (line[len] == '\0')
            fail_msg("%s: the last line does not end", what);
        line += len + 1;
    }
}

static void test_width(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_COUNT(machines); i++) {
        struct topo topo = make_topo(machines[i]);
        char *table = NULL;
        CHECK_OK(topo_to_table(&topo, &table));
        check_width(machines[i], table);
        assert_non_null(strstr(table, topo.fingerprint));
        free(table);
        topo_free(&topo);
    }
}

static void expect(const char *machine, const char *const *words, int n)
{
    struct topo topo = make_topo(machine);
    char *table = NULL;
    CHECK_OK(topo_to_table(&topo, &table));
    for (int i = 0; i < n; i++)
        if (!strstr(table, words[i]))
            fail_msg("%s: '%s' is not in\n%s", machine, words[i], table);
    free(table);
    topo_free(&topo);
}

static void test_facts(void **state)
{
    (void)state;
    static const char *const pairs[] = {"islands  {0,4} {1,5} {2,6} {3,7}", "sp 2     nvlink    0,4 | 1,5 | 2,6 | 3,7",
                                        "0000:14:00.0 A6000 48.0 GiB", "nv4     4 pairs: direct NVLinks, 48 GB/s",
                                        "12 pairs: between NUMA nodes"};
    static const char *const hosts[] = {"host0 x2",
                                        "host0 and 1 more hosts like it",
                                        "net     64 pairs: between hosts, 50 GB/s",
                                        "sp 8     nvswitch  0-7 | 8-15",
                                        "nic7 0000:67:00.0",
                                        "371 GB/s",
                                        "of NVLinks what NCCL counts on, which is below the raw rate"};
    static const char *const cpus[] = {"no GPUs: ranks run on CPUs, 8 usable here", "0-3", "4-7"};
    static const char *const doubts[] = {"warning: no nvlink= was given"};
    expect("synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7", pairs, CHECK_COUNT(pairs));
    expect("synth:2x8xH200,nvlink=18,nic=8x400G", hosts, CHECK_COUNT(hosts));
    expect("synth:8xcpu,numa=2", cpus, CHECK_COUNT(cpus));
    expect("synth:8xH200", doubts, CHECK_COUNT(doubts));
}

/* Names that come from machines: too long, not UTF-8 after all, full of blanks. */
static void test_odd_names(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:8xH200,nvlink=18,nic=1x1G");
    memset(topo.hosts[0].name, 'n', sizeof topo.hosts[0].name - 1);
    memset(topo.hosts[0].cpu_model, 'c', sizeof topo.hosts[0].cpu_model - 1);
    memset(topo.gpus[0].name, 'g', sizeof topo.gpus[0].name - 1);
    memset(topo.nics[0].name, 'i', sizeof topo.nics[0].name - 1);
    memset(topo.numas[0].cpus, '1', sizeof topo.numas[0].cpus - 1);
    memset(topo.source, 's', sizeof topo.source - 1);
    CHECK_OK(topo_warn(&topo, "%0200d", 7));
    char *table = NULL;
    CHECK_OK(topo_to_table(&topo, &table));
    check_width("odd names", table);
    free(table);
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_width),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_odd_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
