/* cli/test_store.c -- verbs that read the store: none, empty, foreign, newer or closed to us; and what they do with a
 * good one. */
#include "cli/run.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static const char *const readers[] = {"results list",
                                      "results show",
                                      "results show 1",
                                      "results export --export csv=x.csv",
                                      "results forget 1",
                                      "results predict 1 --ranks 4",
                                      "explain @last",
                                      "tune --heads 8 --seq 4k --device-memory 80GiB --replay"};
enum { NO_REPLAY = CHECK_COUNT(readers) - 1 };

/* The same exit code, status and word from every reader, plain and as a document; the store is left as it was. */
static void read_some(int n, const char *store, int code, const char *status, const char *says)
{
    for (int i = 0; i < n; i++) {
        struct run run;
        const char *option = strstr(readers[i], "--replay") != NULL ? "" : "--store";
        run_do(&run, "%s %s %s", readers[i], option, store);
        run_expect(&run, code);
        assert_string_equal(run.out, "");
        assert_int_equal(run_lines(run.err), 1);
        run_says(run.err, says);
        run_free(&run);
        run_do(&run, "%s %s %s --json", readers[i], option, store);
        run_expect(&run, code);
        json_t *document = run_json(&run, "error");
        assert_string_equal(json_string_value(json_object_get(document, "status")), status);
        json_decref(document);
        run_free(&run);
    }
}

static void read_all(const char *store, int code, const char *status, const char *says)
{
    read_some(CHECK_COUNT(readers), store, code, status, says);
}

static char *content_of(const char *name, size_t *len)
{
    static char bytes[1 << 20];
    FILE *file = fopen(temp_path(&run_temp, name), "r");
    assert_non_null(file);
    *len = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return bytes;
}

static void check_unchanged(const char *name, int code, const char *status, const char *says)
{
    size_t before = 0, after = 0;
    char *copy = malloc(1 << 20);
    assert_non_null(copy);
    memcpy(copy, content_of(name, &before), 1 << 20);
    int files = temp_count(run_temp.dir);
    read_all(name, code, status, says);
    assert_memory_equal(copy, content_of(name, &after), before);
    assert_int_equal(before, after);
    assert_int_equal(temp_count(run_temp.dir), files); /* no log, no journal, no other file */
    free(copy);
}

static void test_missing(void **state)
{
    (void)state;
    read_some(NO_REPLAY, "nowhere/deep/store.db", 3, "nodata", "there is no store here yet");
    assert_int_not_equal(access(temp_path(&run_temp, "nowhere"), F_OK), 0);
    int files = temp_count(run_temp.dir);
    read_some(NO_REPLAY, "none.db", 3, "nodata", "there is no store here yet");
    struct run run; /* a file named as input that is not there is a wrong name */
    run_do(&run, "%s none.db", readers[NO_REPLAY]);
    run_expect(&run, 2);
    run_says(run.err, "--replay: there is no store none.db");
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
    assert_int_equal(temp_count(run_temp.dir), files);
}

static void test_empty(void **state)
{
    (void)state;
    temp_put(&run_temp, "empty.db", "");
    check_unchanged("empty.db", 3, "nodata", "the store is empty");
}

static void test_garbage(void **state)
{
    (void)state;
    char text[5000];
    memset(text, 'g', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    temp_put(&run_temp, "garbage.db", text);
    check_unchanged("garbage.db", 2, "usage", "not a store of sptune");
}

static void execute(const char *name, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(temp_path(&run_temp, name), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void test_of_another_program(void **state)
{
    (void)state;
    execute("other.db", "CREATE TABLE runs (id INTEGER); INSERT INTO runs VALUES (1)");
    check_unchanged("other.db", 2, "usage", "of another program");
}

static void test_newer(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 1 --samples 10 --store newer.db -q");
    run_free(&run);
    execute("newer.db", "PRAGMA user_version = 99");
    check_unchanged("newer.db", 2, "usage", "schema 99");
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 1 --samples 10 --store newer.db -q");
    run_expect(&run, 2); /* writers refuse it too */
    run_says(run.err, "schema 99");
    run_free(&run);
}

static void test_not_a_file(void **state)
{
    (void)state;
    mkdir(temp_path(&run_temp, "dir.db"), 0777);
    mkfifo(temp_path(&run_temp, "fifo.db"), 0666);
    read_all("dir.db", 2, "usage", "the store is a directory");
    read_all("fifo.db", 2, "usage", "the store is a device, pipe or socket");
    read_all("/dev/zero", 2, "usage", "the store is a device, pipe or socket");
}

/* Root reads everything, so the run is made as somebody else. */
static void test_unreadable(void **state)
{
    (void)state;
    temp_put(&run_temp, "closed.db", "x");
    assert_int_equal(chmod(temp_path(&run_temp, "closed.db"), 0), 0);
    if (geteuid() != 0) {
        read_all("closed.db", 2, "usage", "cannot open the store");
        return;
    }
    enum { NOBODY = 65534, CANNOT = 77 };
    chmod(run_temp.dir, 0777);
    pid_t pid = fork();
    if (pid == 0) {
        /* A user namespace may know no other user, and the program may lie where nobody else may look. */
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0 ||
            access(SPTUNE_PROGRAM, X_OK) != 0)
            _exit(CANNOT);
        read_all("closed.db", 2, "usage", "cannot open the store");
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT)
        skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- a good one ---- */

static int runs_in_list(void)
{
    struct run run;
    run_do(&run, "results list --json");
    run_expect(&run, 0);
    json_t *document = run_json(&run, "runs");
    int n = (int)json_array_size(json_object_get(document, "runs"));
    json_decref(document);
    run_free(&run);
    return n;
}

static int samples_of(const char *ref)
{
    struct run run;
    run_do(&run, "results show %s --json", ref);
    run_expect(&run, 0);
    json_t *document = run_json(&run, "samples");
    int n = (int)json_array_size(json_object_get(document, "samples"));
    json_decref(document);
    run_free(&run);
    return n;
}

static void test_list_show_forget(void **state)
{
    (void)state;
    struct run run;
    /* CPUs that are not ours waive rows; they are kept all the same. */
    run_do(&run, "bench gemm --m 16 --n 16 --k 16,32,48 --ranks 1 --samples 10 --name 'first one' -q");
    run_free(&run);
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 1 --samples 10 -q");
    run_free(&run);
    assert_int_equal(runs_in_list(), 2);
    assert_int_equal(samples_of("@last"), 1);
    assert_int_equal(samples_of("@last~1"), 3);
    assert_int_equal(samples_of("1"), 3);
    assert_int_equal(samples_of("'first one'"), 3);
    static const char *const lines[] = {"results list", "results show 1"};
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        run_env("LC_ALL", "C");
        run_do(&run, "%s", lines[i]);
        run_env("LC_ALL", "C.UTF-8");
        run_expect(&run, 0);
        run_fits(run.out, true);
        run_says(run.out, i == 0 ? "first one" : "gemm");
        run_free(&run);
    }
    run_do(&run, "results show 'frist one'");
    run_expect(&run, 2);
    run_says(run.err, "did you mean first one?");
    run_free(&run);
    run_do(&run, "results forget 1");
    run_expect(&run, 0);
    run_says(run.err, "forgot run 1 with 3 samples");
    run_free(&run);
    run_do(&run, "results show 1");
    run_expect(&run, 2);
    run_free(&run);
    run_do(&run, "results forget 2 --json");
    run_expect(&run, 0);
    json_decref(run_json(&run, "forgotten"));
    run_free(&run);
    assert_int_equal(runs_in_list(), 0);
    run_do(&run, "results show");
    run_expect(&run, 3);
    run_says(run.err, "holds no runs yet");
    run_free(&run);
}

/* A run that has not ended may be the one that is measured now. */
static void test_forget_while_measuring(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, "bench gemm --m 16 --n 16 --k 8..3200+8 --samples 10 --ranks 1 --budget 100s --jsonl -q");
    assert_true(run_wait(&run, 1, "\n", 2));
    struct run other;
    run_do(&other, "results forget @last");
    run_expect(&other, 3);
    run_says(other.err, "another sptune is measuring");
    run_free(&other);
    run_kill(&run, run.pid, SIGKILL);
    run_end(&run);
    run_free(&run);
    run_nothing_left();
    run_do(&run, "results forget @last");
    run_expect(&run, 0);
    run_free(&run);
}

/* Without --store and SPTUNE_STORE: the user's data directory, made when something is measured and not before. */
static void test_default_place(void **state)
{
    (void)state;
    struct run run;
    run_env("SPTUNE_STORE", NULL);
    run_do(&run, "results list");
    run_expect(&run, 3);
    run_says(run.err, "data/sptune/results.db");
    run_free(&run);
    assert_int_not_equal(access(temp_path(&run_temp, "data"), F_OK), 0);
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 1 --samples 10 -q");
    run_free(&run);
    run_do(&run, "results list");
    run_env("SPTUNE_STORE", temp_path(&run_temp, "store.db"));
    run_expect(&run, 0);
    run_free(&run);
    assert_int_equal(access(temp_path(&run_temp, "data/sptune/results.db"), R_OK), 0);
}

static void test_wrong_words(void **state)
{
    (void)state;
    static const char *const lines[][2] = {{"results forget", "needs a run"},
                                           {"results export", "needs --export FORMAT=FILE"},
                                           {"results list 5", "`sptune results show 5`"},
                                           {"results list --export csv=x", "has no --export"},
                                           {"results show --sp 2", "has no --sp"},
                                           {"results predict", "needs --ranks"},
                                           {"results list --store ''", "the store has no name"}};
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        run_do(&run, "%s", lines[i][0]);
        run_expect(&run, 2);
        run_says(run.err, lines[i][1]);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
}

static void test_exports(void **state)
{
    (void)state;
    struct run run;
    size_t len = 0;
    run_do(&run, "bench gemm --m 16 --n 16 --k 16..64*2 --ranks 1 --samples 10 -q");
    run_free(&run);
    run_do(&run, "results export --export csv=rows.csv --export json=rows.json --export jsonl=rows.jsonl");
    run_expect(&run, 0);
    assert_string_equal(run.out, "");
    run_says(run.err, "wrote rows.jsonl");
    run_free(&run);
    char *text = content_of("rows.csv", &len);
    text[len] = '\0';
    assert_int_equal(run_lines(text), 4); /* header and rows */
    json_error_t error;
    json_t *document = json_load_file(temp_path(&run_temp, "rows.json"), 0, &error);
    assert_int_equal(json_array_size(json_object_get(document, "samples")), 3);
    json_decref(document);
    text = content_of("rows.jsonl", &len);
    text[len] = '\0';
    assert_int_equal(run_lines(text), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),     cmocka_unit_test(test_empty),
        cmocka_unit_test(test_garbage),     cmocka_unit_test(test_of_another_program),
        cmocka_unit_test(test_newer),       cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_unreadable),  cmocka_unit_test(test_list_show_forget),
        cmocka_unit_test(test_wrong_words), cmocka_unit_test(test_default_place),
        cmocka_unit_test(test_exports),     cmocka_unit_test(test_forget_while_measuring),
    };
    return cmocka_run_group_tests(tests, run_place, run_leave);
}
