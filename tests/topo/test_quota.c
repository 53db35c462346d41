/* tests/topo/test_quota.c -- CPU quotas and memory limits of control groups, version 1 and 2, in trees made here. */
#include "topo/make.h"

#include "base/temp.h"

struct file {
    const char *name, *content;
};

/* A mount line for each kind; only fields 4 and 5 and what follows " - " count. */
#define V2_MOUNT        "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
#define V1_CPU_MOUNT    "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
#define V1_MEMORY_MOUNT "32 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"

static const struct row {
    const char *what;
    double quota;
    int version;
    int64_t memory;
    struct file files[10];
} rows[] = {
    {"nothing mounted",
     -1,
     0,
     -1,
     {{"proc/self/cgroup", "0::/\n"}, {"proc/self/mountinfo", "1 0 0:1 / / rw - ext4 x rw\n"}}},
    {"no /proc at all", -1, 0, -1, {{0}}},
    {"v2 without limits",
     -1,
     0,
     -1,
     {{"proc/self/cgroup", "0::/user\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/user/cpu.max", "max 100000\n"},
      {"sys/fs/cgroup/user/memory.max", "max\n"}}},
    {"v2 own group",
     1.5,
     2,
     1 << 30,
     {{"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"},
      {"sys/fs/cgroup/a/b/memory.max", "1073741824\n"}}},
    {"v2 parent is tighter",
     2,
     2,
     1000,
     {{"proc/self/cgroup", "0::/a/b/c\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
      {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
      {"sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n"},
      {"sys/fs/cgroup/a/memory.max", "1000\n"},
      {"sys/fs/cgroup/a/b/c/memory.max", "2000\n"}}},
    {"v2 child is tighter, other period",
     0.5,
     2,
     -1,
     {{"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
      {"sys/fs/cgroup/a/b/cpu.max", "5000 10000\n"}}},
    {"v2 in a container's own namespace",
     3,
     2,
     -1,
     {{"proc/self/cgroup", "0::/\n"}, {"proc/self/mountinfo", V2_MOUNT}, {"sys/fs/cgroup/cpu.max", "300000 100000\n"}}},
    {"v2 mount shows a subtree",
     4,
     2,
     -1,
     {{"proc/self/cgroup", "0::/docker/abc\n"},
      {"proc/self/mountinfo", "30 1 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
      {"sys/fs/cgroup/cpu.max", "400000 100000\n"}}},
    {"v2 path above the namespace",
     5,
     2,
     -1,
     {{"proc/self/cgroup", "0::/../../other\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/cpu.max", "500000 100000\n"}}},
    {"v2 nonsense",
     -1,
     0,
     -1,
     {{"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/cpu.max", "-7 0\n"},
      {"sys/fs/cgroup/a/memory.max", "plenty\n"}}},
    {"v2 period zero",
     -1,
     0,
     -1,
     {{"proc/self/cgroup", "0::/a\n"}, {"proc/self/mountinfo", V2_MOUNT}, {"sys/fs/cgroup/a/cpu.max", "100000 0\n"}}},
    {"v1 without limits",
     -1,
     0,
     -1,
     {{"proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n"},
      {"proc/self/mountinfo", V1_CPU_MOUNT V1_MEMORY_MOUNT},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"},
      {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"}}},
    {"v1 own group",
     2.5,
     1,
     4096,
     {{"proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n"},
      {"proc/self/mountinfo", V1_CPU_MOUNT V1_MEMORY_MOUNT},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "250000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"},
      {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096\n"}}},
    {"v1 parent is tighter",
     1,
     1,
     -1,
     {{"proc/self/cgroup", "3:cpu,cpuacct:/x/y\n"},
      {"proc/self/mountinfo", V1_CPU_MOUNT},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "100000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/y/cpu.cfs_quota_us", "400000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/y/cpu.cfs_period_us", "100000\n"}}},
    {"v1 in a container: the path is what the mount shows",
     6,
     1,
     -1,
     {{"proc/self/cgroup", "3:cpu,cpuacct:/docker/abc\n"},
      {"proc/self/mountinfo", "31 1 0:27 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "600000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}},
    {"both versions: the cpu controller is with v1",
     7,
     1,
     8192,
     {{"proc/self/cgroup", "3:cpu,cpuacct:/x\n0::/x\n"},
      {"proc/self/mountinfo", V2_MOUNT V1_CPU_MOUNT},
      {"sys/fs/cgroup/x/memory.max", "8192\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "700000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"}}},
};

static void test_trees(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct temp temp;
        double quota;
        int version;
        temp_open(&temp);
        for (int k = 0; k < CHECK_COUNT(rows[i].files) && rows[i].files[k].name; k++)
            temp_put(&temp, rows[i].files[k].name, rows[i].files[k].content);
        topo_read_quota(temp.dir, &quota, &version);
        int64_t memory = topo_read_memory_limit(temp.dir);
        temp_close(&temp);
        if (quota < rows[i].quota || quota > rows[i].quota || version != rows[i].version || memory != rows[i].memory)
            fail_msg("%s: quota %g (version %d), memory %lld; expected %g (version %d), %lld", rows[i].what, quota,
                     version, (long long)memory, rows[i].quota, rows[i].version, (long long)rows[i].memory);
    }
}

static void test_usable(void **state)
{
    (void)state;
    static const struct {
        int allowed;
        double quota;
        int usable;
    } cases[] = {
        {8, -1, 8}, {8, 3.0, 3}, {8, 2.999, 2}, {8, 0.1, 1},  {8, 0.0, 1},
        {8, 64, 8}, {1, 0.5, 1}, {0, -1, 1},    {8, 1e30, 8},
    };
    struct topo topo = make_topo("synth:8xcpu");
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        topo.hosts[0].pus_allowed = cases[i].allowed;
        topo.hosts[0].cpu_quota = cases[i].quota;
        if (topo_usable_cpus(&topo) != cases[i].usable)
            fail_msg("%d allowed, quota %g: %d usable, expected %d", cases[i].allowed, cases[i].quota,
                     topo_usable_cpus(&topo), cases[i].usable);
    }
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trees), cmocka_unit_test(test_usable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
