/* cli/test_environment.c -- machines that are short of something: shared memory, /proc, a writable disk, a steady clock.
 * docs/faults.md has the table that these tests hold to.
 */
#include "cli/run.h"

#include "base/clock.h"

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define CELLS "bench collective --op alltoall --bytes 64,256k --samples 10 --warmup 1 --ranks 2 --progress none"

/* Rows of the document on stdout, all of them ok; the transport that they name. */
static void rows_ok(const struct run *run, size_t rows, char *transport, size_t size)
{
    json_t *document = run_json(run, "samples"), *row, *time;
    size_t at, i;
    assert_int_equal(json_array_size(json_object_get(document, "samples")), rows);
    json_array_foreach(json_object_get(document, "samples"), at, row)
    {
        assert_string_equal(json_string_value(json_object_get(row, "outcome")), "ok");
        snprintf(transport, size, "%s", json_string_value(json_object_get(row, "transport")));
        json_array_foreach(json_object_get(row, "times_us"), i, time)
        {
            double us = json_number_value(time);
            assert_true(us > 0 && us < RUN_LIMIT_S * 1e6);
        }
    }
    json_decref(document);
}

static void need_namespace(void)
{
    if (!run_alone) {
        printf("no mount namespace here\n");
        skip();
    }
}

/* ---- shared memory ---- */

/* Too small for UCX's segments, which would end in SIGBUS: System V segments carry the data, and the row says so. */
static void test_small_dev_shm(void **state)
{
    (void)state;
    static const char *const sizes[] = {"size=64k", "size=512k", "size=2m"};
    need_namespace();
    for (int i = 0; i < CHECK_COUNT(sizes); i++) {
        struct run run;
        char transport[48];
        assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, sizes[i]), 0);
        run_do(&run, CELLS " --json");
        run_expect(&run, 0);
        rows_ok(&run, 2, transport, sizeof transport);
        assert_string_equal(transport, "ucx sysv shm");
        run_free(&run);
        run_nothing_left();
    }
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=50%"), 0);
}

/* A full one says why, and memory is still shared when that is asked for by name. */
static void test_full_dev_shm(void **state)
{
    (void)state;
    static char page[4096];
    char transport[48];
    struct run run;
    need_namespace();
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=32m"), 0);
    FILE *file = fopen("/dev/shm/filler", "w");
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    while (fwrite(page, 1, sizeof page, file) == sizeof page)
        continue;
    fclose(file);
    run_do(&run, CELLS " --transport shm --json");
    unlink("/dev/shm/filler");
    run_expect(&run, 0);
    run_says(run.err, "/dev/shm has no room");
    rows_ok(&run, 2, transport, sizeof transport);
    assert_string_equal(transport, "ucx sysv shm");
    run_free(&run);
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "size=50%"), 0);
    run_nothing_left();
}

/* ---- /proc ---- */

/* As somebody who is not root, where /proc hides what is not his: run by a child, whose exit code is the program's. */
static int run_as_nobody(void)
{
    struct run run;
    const gid_t nobody = 65534;
    if (mount("proc", "/proc", "proc", 0, "hidepid=2") != 0 || setgroups(0, NULL) != 0 ||
        setresgid(nobody, nobody, nobody) != 0 || setresuid(nobody, nobody, nobody) != 0)
        return -1;
    if (access(SPTUNE_PROGRAM, X_OK) != 0)
        return -1; /* below a directory that is not open to all */
    run_env("SPTUNE_STORE", temp_path(&run_temp, "nobody.db"));
    run_do(&run, CELLS " --json");
    bool fine = run.code == 0 && strstr(run.out, "\"ucx posix shm\"") != NULL;
    if (!fine)
        fprintf(stderr, "exit %d\n%s%.3000s\n", run.code, run.err, run.out);
    return fine ? 0 : 1;
}

static void test_hidden_proc(void **state)
{
    (void)state;
    enum { CANNOT = 77 };
    int status = 0;
    need_namespace();
    assert_int_equal(chmod(run_temp.dir, 0777), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) != 0)
            _exit(CANNOT);
        int code = run_as_nobody();
        _exit(code < 0 ? CANNOT : code);
    }
    while (waitpid(pid, &status, 0) < 0)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT) {
        printf("no /proc with hidepid, or no other user, here\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- disks ---- */

/* Root may write everywhere but to a file system that is mounted read-only. */
static void test_read_only_disk(void **state)
{
    (void)state;
    struct run run;
    need_namespace();
    const char *dir = temp_path(&run_temp, "fixed");
    mkdir(dir, 0777);
    assert_int_equal(mount("tmpfs", dir, "tmpfs", 0, "size=4m"), 0);
    run_do(&run, CELLS " --store fixed/s.db -q");
    run_expect(&run, 0);
    run_free(&run);
    assert_int_equal(mount("tmpfs", temp_path(&run_temp, "fixed"), "tmpfs", MS_REMOUNT | MS_RDONLY, ""), 0);
    run_do(&run, CELLS " --store fixed/s.db");
    run_expect(&run, 2);
    run_says(run.err, "fixed/s.db");
    run_free(&run);
    run_do(&run, CELLS " --store fixed/new.db");
    run_expect(&run, 2);
    run_free(&run);
    run_do(&run, "results show --store fixed/s.db --json"); /* what is there can be read */
    run_expect(&run, 0);
    json_decref(run_json(&run, "samples"));
    run_free(&run);
    run_do(&run, "topo --svg fixed/t.svg");
    run_expect(&run, 2);
    run_free(&run);
    umount(temp_path(&run_temp, "fixed"));
    run_nothing_left();
}

/* ---- the clock ---- */

/* Only dates come from the wall clock. Were a time or a deadline taken from it, a step of hours would show in the rows or
 * end the budget. */
static void test_stepping_clock(void **state)
{
    (void)state;
    enum { TO_THE_HOUR = 13 };
    struct run run;
    char transport[48], now[32];
    run_env("LD_PRELOAD", CLOCK_STEP);
    run_env("ASAN_OPTIONS", "verify_asan_link_order=0");
    run_do(&run, "version");
    bool loads = run.code == 0 && run.err[0] == '\0';
    run_free(&run);
    if (loads)
        run_do(&run, CELLS " --budget 60s --json");
    run_env("LD_PRELOAD", NULL);
    run_env("ASAN_OPTIONS", NULL);
    if (!loads) {
        printf("no LD_PRELOAD with this build\n");
        skip();
    }
    run_expect(&run, 0);
    rows_ok(&run, 2, transport, sizeof transport);
    json_t *document = run_json(&run, "samples");
    clock_iso(now);
    assert_int_not_equal(strncmp(now, json_string_value(json_object_get(document, "started")), TO_THE_HOUR), 0);
    json_decref(document);
    run_free(&run);
    run_nothing_left();
}

/* OpenBLAS's threads then look for memory without end, and the library's exit waits for them. */
static void test_no_room_for_threads(void **state)
{
    (void)state;
    struct rlimit was, small;
    struct run run = {0};
    cpu_set_t one, all;
    memset(&all, 0xff, sizeof all);
    assert_int_equal(sched_getaffinity(0, sizeof one, &one), 0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CHECK_SANITIZED ||
        CPU_COUNT(&all) < 2) { /* sanitizers map far more than that; OpenBLAS starts no thread more than CPUs */
        printf("sanitized, or one CPU\n");
        skip();
    }
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    small = (struct rlimit){.rlim_cur = 200u << 20, .rlim_max = was.rlim_max};
    run_env("OPENBLAS_NUM_THREADS", "2");
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    run_begin(&run, "help exit");
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    run_end(&run);
    run_env("OPENBLAS_NUM_THREADS", NULL);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(run.code, 4);
    assert_non_null(strstr(run.err, "200 MiB of addresses are allowed (ulimit -v)"));
    assert_non_null(strstr(run.err, "OPENBLAS_NUM_THREADS=1"));
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_dev_shm),  cmocka_unit_test(test_full_dev_shm),
        cmocka_unit_test(test_hidden_proc),    cmocka_unit_test(test_read_only_disk),
        cmocka_unit_test(test_stepping_clock), cmocka_unit_test(test_no_room_for_threads),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
