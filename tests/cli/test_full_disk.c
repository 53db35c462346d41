/* cli/test_full_disk.c -- no room: exit 4, what was written before is whole, what was not is not there. */
#include "cli/run.h"

#include <sys/mount.h>
#include <sys/resource.h>

enum { ROOM_BYTES = 1 << 20 };

/* A file system of its own, so small that a few rows fill it; nothing else of the machine is full. */
static void small_disk(void)
{
    char options[64];
    if (!run_alone) {
        printf("no mount namespace here\n");
        skip();
    }
    const char *dir = temp_path(&run_temp, "small");
    mkdir(dir, 0777);
    umount(dir);
    snprintf(options, sizeof options, "size=%d,mode=777", ROOM_BYTES);
    assert_int_equal(mount("tmpfs", dir, "tmpfs", 0, options), 0);
}

/* Take all but `left` bytes, a page at a time. */
static void fill(int64_t left)
{
    static const char page[4096];
    char path[1100];
    snprintf(path, sizeof path, "%s", temp_path(&run_temp, "small/filler"));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    int64_t size = 0;
    while (fwrite(page, 1, sizeof page, file) == sizeof page)
        size += (int64_t)sizeof page;
    fclose(file);
    assert_int_equal(truncate(path, size > left ? size - left : 0), 0);
}

static void say_full(const struct run *run)
{
    run_expect(run, 4);
    if (strstr(run->err, "No space left") == NULL && strstr(run->err, "disk is full") == NULL)
        fail_msg("nothing about the disk in: %s", run->err);
}

static int entries_but_filler(void)
{
    return temp_count(temp_path(&run_temp, "small")) - 1;
}

static void test_files(void **state)
{
    (void)state;
    static const char *const lines[] = {"topo --svg small/t.svg",
                                        "results export --export csv=small/x.csv --export json=small/x.json"};
    struct run run;
    small_disk();
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 100 -q");
    run_expect(&run, 0);
    run_free(&run);
    fill(0);
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        run_do(&run, "%s", lines[i]);
        say_full(&run);
        run_free(&run);
        assert_int_equal(entries_but_filler(), 0);
        run_do(&run, "%s --json", lines[i]);
        say_full(&run);
        json_t *document = json_loads(run.out, 0, NULL); /* the answer that was printed, or the error: one document */
        assert_non_null(document);
        json_decref(document);
        run_free(&run);
    }
}

static void test_no_room_for_a_store(void **state)
{
    (void)state;
    struct run run;
    small_disk();
    fill(0);
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 10 --store small/s.db --json");
    say_full(&run);
    json_t *document = run_json(&run, "error");
    assert_string_equal(json_string_value(json_object_get(document, "status")), "io");
    json_decref(document);
    run_free(&run);
    run_nothing_left();
}

/* The rows that were committed stay; with room again --resume measures the others. */
static void test_full_while_measuring(void **state)
{
    (void)state;
    enum { ROWS = 64 };
    static const char cells[] =
        "bench gemm --m 8 --n 8 --k 8..512+8 --ranks 2 --samples 100 --warmup 1 --store small/s.db --progress none";
    struct run run;
    small_disk();
    run_do(&run, "bench gemm --m 8 --n 8 --k 8 --ranks 2 --samples 10 --store small/s.db -q");
    run_expect(&run, 0);
    run_free(&run);
    fill(300 << 10);
    run_do(&run, "%s --jsonl", cells);
    say_full(&run);
    int shown = run_lines(run.out);
    assert_in_range(shown, 1, ROWS - 1);
    run_free(&run);
    run_nothing_left();
    run_do(&run, "results show --store small/s.db --json"); /* on the disk that is still full */
    run_expect(&run, 0);
    json_t *document = run_json(&run, "samples");
    assert_true((int)json_array_size(json_object_get(document, "samples")) >= shown);
    json_decref(document);
    run_free(&run);
    assert_int_equal(truncate(temp_path(&run_temp, "small/filler"), 0), 0);
    char larger[64];
    snprintf(larger, sizeof larger, "size=%d", 8 * ROOM_BYTES);
    assert_int_equal(mount("tmpfs", temp_path(&run_temp, "small"), "tmpfs", MS_REMOUNT, larger), 0);
    run_do(&run, "%s --resume --json", cells);
    run_expect(&run, 0);
    run_says_not(run.err, "nothing to resume");
    document = run_json(&run, "samples");
    assert_int_equal(json_array_size(json_object_get(document, "samples")), ROWS);
    json_decref(document);
    run_free(&run);
}

/* What was measured is worth printing even when a file cannot be written. */
static void test_tune(void **state)
{
    (void)state;
    struct run run;
    small_disk();
    fill(0);
    for (int json = 0; json < 2; json++) {
        run_do(&run,
               "tune --heads 4 --head-dim 32 --seq 256 --ranks 2 --device-memory 80GiB --oversubscribe --effort "
               "estimate --budget 30s "
               "--out small/out %s",
               json ? "--json" : "");
        say_full(&run);
        assert_true(entries_but_filler() == 0 || temp_count(temp_path(&run_temp, "small/out")) == 0);
        if (json)
            json_decref(run_json(&run, "recommendation"));
        else
            run_says(run.out, "USE  sp_size=");
        run_free(&run);
    }
}

static void test_stdout(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "help", "topo", "topo --json", "model llama-3-8b", "model list --json", "help units --json"};
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        run_stdout = "/dev/full";
        run_do(&run, "%s", lines[i]);
        run_stdout = NULL;
        say_full(&run);
        run_says(run.err, "stdout");
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
}

/* A file that may not grow is like a full disk: an error of the write, not the end of a rank. */
static void test_file_size_limit(void **state)
{
    (void)state;
    struct rlimit before;
    struct run run;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {.rlim_cur = 8 << 10, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 10 --store limited.db -q");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    run_expect(&run, 4);
    run_says_not(run.err, "signal");
    run_says(run.err, "limited.db");
    run_free(&run);
    run_nothing_left();
}

/* No file and no socket takes the place of a stdout that is closed. */
static void test_closed_stdout(void **state)
{
    (void)state;
    static const char *const lines[] = {"help", "topo --json",
                                        "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 10 -q"};
    struct run run;
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        run_stdout = "";
        run_do(&run, "%s", lines[i]);
        run_stdout = NULL;
        run_expect(&run, 4);
        run_says(run.err, "cannot write to stdout");
        run_free(&run);
    }
    run_do(&run, "results show"); /* the row is there, and the store is whole */
    run_expect(&run, 0);
    run_free(&run);
}

static int leave(void **state)
{
    umount(temp_path(&run_temp, "small"));
    return run_leave(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stdout),
        cmocka_unit_test(test_closed_stdout),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_no_room_for_a_store),
        cmocka_unit_test(test_full_while_measuring),
        cmocka_unit_test(test_tune),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, leave);
}
