/* tests/base/test_mem.c -- checked sizes, alignment, and the limits of control groups. */
#include "base/cgroup.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/temp.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct temp temp;

static int open_temp(void **state)
{
    (void)state;
    temp_open(&temp);
    return 0;
}

static int close_temp(void **state)
{
    (void)state;
    temp_close(&temp);
    return 0;
}

static void memory_is_aligned_and_zero(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        unsigned char *memory = NULL;
        CHECK_OK(mem_alloc(bytes, "test", (void **)&memory));
        assert_int_equal((uintptr_t)memory % MEM_ALIGN, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(memory[i], 0);
        free(memory);
    }
}

static void unset_memory_is_aligned_and_ours(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 100000, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (33 << 20) + 13};
    for (int i = 0; i < CHECK_COUNT(sizes); i++) {
        unsigned char *memory = NULL, *beside = NULL;
        CHECK_OK(mem_alloc_unset(sizes[i], "test", (void **)&memory));
        CHECK_OK(mem_alloc_unset(sizes[i], "test", (void **)&beside));
        assert_int_equal((uintptr_t)memory % MEM_ALIGN, 0);
        memset(memory, 1, sizes[i]);
        memset(beside, 2, sizes[i]);
        for (size_t at = 0; at < sizes[i]; at++)
            if (memory[at] != 1)
                fail_msg("byte %zu of %zu is %d", at, sizes[i], memory[at]);
        free(memory);
        free(beside);
    }
}

static void absurd_sizes_are_refused_and_named(void **state)
{
    (void)state;
    void *memory = &temp;
    CHECK_FAILS(STATUS_NOMEM, "attention workspace", mem_alloc(SIZE_MAX, "attention workspace", &memory));
    CHECK_FAILS(STATUS_NOMEM, "1000000000000000000", mem_alloc(1000000000000000000u, "x", &memory));
    CHECK_FAILS(STATUS_NOMEM, "a host copy", mem_alloc_unset(SIZE_MAX, "a host copy", &memory));
    CHECK_FAILS(STATUS_NOMEM, "1000000000000000000", mem_alloc_unset(1000000000000000000u, "x", &memory));
    assert_ptr_equal(memory, &temp);
}

static void arrays_grow_and_keep(void **state)
{
    (void)state;
    int *array = NULL;
    size_t cap = 0;
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(mem_grow((void **)&array, &cap, (size_t)i + 1, sizeof *array));
        array[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(array[i], i);
    assert_true(cap >= 1000 && cap < 4000);
    size_t before = cap;
    CHECK_FAILS(STATUS_NOMEM, "too large", mem_grow((void **)&array, &cap, SIZE_MAX / 2, sizeof *array));
    assert_int_equal(cap, before);
    free(array);
}

static void products_never_wrap(void **state)
{
    (void)state;
    int64_t out = -1;
    CHECK_OK(mem_mul(3000000000, 3000000000, "tokens", &out));
    assert_int_equal(out, 9000000000000000000);
    CHECK_OK(mem_mul(INT64_MAX, 0, "tokens", &out));
    assert_int_equal(out, 0);
    out = -1;
    CHECK_FAILS(STATUS_USAGE, "score bytes", mem_mul(INT64_MAX / 2 + 1, 2, "score bytes", &out));
    CHECK_FAILS(STATUS_USAGE, "negative", mem_mul(-1, 2, "heads", &out));
    assert_int_equal(out, -1);
}

static void this_machine_answers(void **state)
{
    (void)state;
    int64_t available = 0, total = 0;
    CHECK_OK(mem_available(&available));
    CHECK_OK(mem_total(&total));
    assert_true(available > 0 && available <= total);
}

static const char meminfo[] = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable:     800 kB\n";
static const char v1_mount[] = "30 23 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                               "35 30 0:31 / /cg/memory rw shared:9 - cgroup cgroup rw,memory\n";
static const char v2_mount[] = "30 23 0:30 / /cg rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

static void expect(int64_t available_kib, int64_t total_kib)
{
    int64_t available = -1, total = -1;
    CHECK_OK(mem_limits_at(temp.dir, &available, &total));
    assert_int_equal(available, available_kib * 1024);
    assert_int_equal(total, total_kib * 1024);
}

static void without_groups_the_machine_decides(void **state)
{
    (void)state;
    int64_t available, total;
    CHECK_FAILS(STATUS_MACHINE, "meminfo", mem_limits_at(temp.dir, &available, &total));
    temp_put(&temp, "proc/meminfo", meminfo);
    expect(800, 1000);
    temp_put(&temp, "proc/self/cgroup", "garbage\n::\n4\n");
    temp_put(&temp, "proc/self/mountinfo", "- - -\nx - cgroup2\n");
    expect(800, 1000);
}

static void version_1_counts_use_without_cache(void **state)
{
    (void)state;
    temp_put(&temp, "proc/meminfo", meminfo);
    temp_put(&temp, "proc/self/cgroup", "5:cpu,cpuacct:/other\n4:hugetlb,memory:/job\n0::/x\n");
    temp_put(&temp, "proc/self/mountinfo", v1_mount);
    temp_put(&temp, "cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    temp_put(&temp, "cg/memory/job/memory.limit_in_bytes", "512000\n"); /* 500 KiB */
    temp_put(&temp, "cg/memory/job/memory.usage_in_bytes", "307200\n"); /* 300 KiB */
    temp_put(&temp, "cg/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 102400\n");
    expect(300, 500);
    temp_put(&temp, "cg/memory/job/memory.usage_in_bytes", "30720000\n");
    expect(0, 500);
}

static void version_2_takes_the_tightest_ancestor(void **state)
{
    (void)state;
    struct cgroup group;
    temp_put(&temp, "proc/meminfo", meminfo);
    temp_put(&temp, "proc/self/cgroup", "0::/slice/job\n");
    temp_put(&temp, "proc/self/mountinfo", v2_mount);
    temp_put(&temp, "cg/slice/memory.max", "409600\n"); /* 400 KiB on the parent */
    temp_put(&temp, "cg/slice/memory.current", "102400\n");
    temp_put(&temp, "cg/slice/job/memory.max", "max\n");
    temp_put(&temp, "cg/slice/job/memory.current", "1024\n");
    expect(300, 400);
    temp_put(&temp, "cg/slice/job/memory.high", "204800\n");
    expect(199, 200);
    assert_true(cgroup_find(temp.dir, "cpu", &group));
    assert_int_equal(group.version, 2);
    assert_true(cgroup_up(&group) && cgroup_up(&group));
    assert_false(cgroup_up(&group));
}

static void a_container_sees_part_of_the_tree(void **state)
{
    (void)state;
    temp_put(&temp, "proc/meminfo", meminfo);
    temp_put(&temp, "proc/self/cgroup", "4:memory:/docker/abc\n");
    temp_put(&temp, "proc/self/mountinfo", "35 30 0:31 /docker/abc /cg/memory ro - cgroup cgroup rw,memory\n");
    temp_put(&temp, "cg/memory/memory.limit_in_bytes", "512000\n");
    expect(500, 500);
    temp_put(&temp, "proc/self/cgroup", "4:memory:/../sibling\n");
    temp_put(&temp, "proc/self/mountinfo", v1_mount);
    expect(500, 500);
}

static void a_number_beyond_64_bits_is_no_limit(void **state)
{
    (void)state;
    temp_put(&temp, "proc/meminfo", meminfo);
    temp_put(&temp, "proc/self/cgroup", "0::/\n");
    temp_put(&temp, "proc/self/mountinfo", v2_mount);
    temp_put(&temp, "cg/memory.max", "1000000000000000000000000000000\n");
    temp_put(&temp, "cg/memory.current", "1024\n");
    expect(800, 1000);
}

/* Pages made to be shared that a second process maps are half its own; those that a fork leaves in common are this process's. */
static void shared_pages_are_shared_out(void **state)
{
    (void)state;
    enum { MIB = 1 << 20, SHARED = 64 * MIB };
    int ready[2], done[2];
    char byte = 0;
    if (access("/proc/self/smaps", R_OK) != 0)
        skip();
    char *pages = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    memset(pages, 1, SHARED);
    void *own;
    CHECK_OK(mem_alloc(SHARED, "test", &own));
    memset(own, 1, SHARED);
    int64_t alone = mem_resident();
    assert_true(alone >= 2 * SHARED);
    assert_int_equal(pipe(ready) + pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        memset(pages, 2, SHARED);
        _exit(write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1 ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    int64_t with_child = mem_resident();
    assert_int_equal(write(done[1], &byte, 1), 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(with_child <= alone - SHARED / 2 + MIB);
    assert_true(with_child >= alone - SHARED / 2);
    assert_true(mem_resident() >= alone);
    munmap(pages, SHARED);
    free(own);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
}

static void what_was_resident_is_forgotten(void **state)
{
    (void)state;
    enum { BYTES = 64 << 20 };
    void *own;
    if (access("/proc/self/clear_refs", W_OK) != 0 || CHECK_SANITIZED)
        skip(); /* a sanitizer keeps what is freed */
    CHECK_OK(mem_alloc(BYTES, "test", &own));
    memset(own, 1, BYTES);
    int64_t with = mem_resident();
    free(own);
    assert_true(mem_resident() >= with);
    mem_resident_restart();
    assert_true(mem_resident() <= with - BYTES / 2);
}

#define IN_TEMP(test) cmocka_unit_test_setup_teardown(test, open_temp, close_temp)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unset_memory_is_aligned_and_ours),
        cmocka_unit_test(memory_is_aligned_and_zero),
        cmocka_unit_test(absurd_sizes_are_refused_and_named),
        cmocka_unit_test(arrays_grow_and_keep),
        cmocka_unit_test(products_never_wrap),
        cmocka_unit_test(this_machine_answers),
        IN_TEMP(without_groups_the_machine_decides),
        IN_TEMP(version_1_counts_use_without_cache),
        IN_TEMP(version_2_takes_the_tightest_ancestor),
        IN_TEMP(a_container_sees_part_of_the_tree),
        IN_TEMP(a_number_beyond_64_bits_is_no_limit),
        cmocka_unit_test(shared_pages_are_shared_out),
        cmocka_unit_test(what_was_resident_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
