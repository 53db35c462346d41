/* tests/results/test_store_file.c -- the file of the store: missing, foreign, newer, read-only, on a full disk. */
#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"
#include "results/rows.h"
#include "results/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

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
    chmod(temp.dir, 0755);
    temp_close(&temp);
    return 0;
}

static void run_sql(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* A store with one run of `n` samples. */
static enum status fill(const char *path, int n)
{
    struct store *store = NULL;
    int64_t run = 0;
    TRY(store_open(path, STORE_WRITE, &store));
    enum status status = store_run_begin(store, "bench", "sptune", "one", "m", 1, &run);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        struct sample sample = row_exchange(i + 1, "packed", 100);
        status = store_put(store, run, &sample);
        sample_free(&sample);
    }
    store_close(store);
    return status;
}

static int samples_in(const char *path)
{
    struct store *store = NULL;
    struct store_run run = {0};
    int n = -1;
    if (store_open(path, STORE_READ, &store) == STATUS_OK && store_resolve(store, "@last", &run) == STATUS_OK)
        n = run.samples;
    store_run_free(&run);
    store_close(store);
    return n;
}

static enum status open_both(const char *path, enum store_mode mode)
{
    struct store *store = NULL;
    enum status status = store_open(path, mode, &store);
    store_close(store);
    return status;
}

static void reading_creates_nothing(void **state)
{
    (void)state;
    CHECK_FAILS(STATUS_NODATA, "no store here", open_both(temp_path(&temp, "missing.db"), STORE_READ));
    CHECK_FAILS(STATUS_NODATA, "no store here", open_both(temp_path(&temp, "no/such/dir/missing.db"), STORE_READ));
    assert_int_equal(temp_count(temp.dir), 0);
    temp_put(&temp, "empty.db", "");
    CHECK_FAILS(STATUS_NODATA, "empty", open_both(temp_path(&temp, "empty.db"), STORE_READ));
    run_sql(temp_path(&temp, "wal.db"), "PRAGMA journal_mode=WAL"); /* as a kill right after creation leaves it */
    CHECK_FAILS(STATUS_NODATA, "empty", open_both(temp_path(&temp, "wal.db"), STORE_READ));
    CHECK_OK(fill(temp_path(&temp, "empty.db"), 1));
    CHECK_OK(fill(temp_path(&temp, "wal.db"), 1));
    assert_int_equal(samples_in(temp_path(&temp, "empty.db")), 1);
    assert_int_equal(temp_count(temp.dir), 2); /* and readers take their shared memory away with them */
}

static void a_reader_cannot_write(void **state)
{
    (void)state;
    struct store *store = NULL;
    struct sample sample = row_exchange(64, "packed", 100);
    int64_t run = 1;
    json_t *document = json_object();
    CHECK_OK(fill(temp_path(&temp, "a.db"), 2));
    CHECK_OK(store_open(temp_path(&temp, "a.db"), STORE_READ, &store));
    CHECK_FAILS(STATUS_USAGE, "reading only", store_put(store, 1, &sample));
    CHECK_FAILS(STATUS_USAGE, "reading only", store_run_begin(store, "bench", "", NULL, "", 1, &run));
    CHECK_FAILS(STATUS_USAGE, "reading only", store_run_end(store, 1));
    CHECK_FAILS(STATUS_USAGE, "reading only", store_forget(store, 1));
    CHECK_FAILS(STATUS_USAGE, "reading only", store_put_document(store, 1, "x", document));
    CHECK_FAILS(STATUS_USAGE, "reading only", store_remember(store, "a", "b"));
    store_close(store);
    json_decref(document);
    sample_free(&sample);
}

static void what_is_not_a_store_is_left_alone(void **state)
{
    (void)state;
    char path[1024], before[65] = "", after[65] = "", *text = NULL;
    size_t len = 0;
    temp_put(&temp, "notes.txt", "Dear diary, this is a text of mine and no database at all, although it is long enough "
                                 "that one could take its first hundred bytes for a header.\n");
    run_sql(temp_path(&temp, "other.db"), "CREATE TABLE mine(x); INSERT INTO mine VALUES (1)");
    run_sql(temp_path(&temp, "app.db"), "PRAGMA application_id=1234; PRAGMA user_version=7");
    run_sql(temp_path(&temp, "zero.db"), "PRAGMA application_id=1936749678"); /* ours, without a schema */
    static const char *const names[] = {"notes.txt", "other.db", "app.db", "zero.db"};
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        strcpy(path, temp_path(&temp, names[i]));
        CHECK_OK(file_read(path, 1 << 20, &text, &len));
        file_sha256(text, len, before);
        free(text);
        CHECK_FAILS(STATUS_USAGE, i ? "of another program" : "not a store of sptune", open_both(path, STORE_READ));
        CHECK_FAILS(STATUS_USAGE, i ? "of another program" : "not a store of sptune", open_both(path, STORE_WRITE));
        assert_string_equal(status_last()->where, path);
        CHECK_OK(file_read(path, 1 << 20, &text, &len));
        file_sha256(text, len, after);
        free(text);
        assert_string_equal(before, after);
    }
    assert_int_equal(temp_count(temp.dir), CHECK_COUNT(names)); /* no journal or log beside them */
}

static void places_that_cannot_hold_a_store(void **state)
{
    (void)state;
    char inside[1100];
    mkdir(temp_path(&temp, "dir"), 0755);
    CHECK_FAILS(STATUS_USAGE, "a directory", open_both(temp_path(&temp, "dir"), STORE_READ));
    CHECK_FAILS(STATUS_USAGE, "a directory", open_both(temp_path(&temp, "dir"), STORE_WRITE));
    mkfifo(temp_path(&temp, "fifo"), 0644); /* opening one would wait for ever */
    CHECK_FAILS(STATUS_USAGE, "device, pipe", open_both(temp_path(&temp, "fifo"), STORE_WRITE));
    CHECK_FAILS(STATUS_USAGE, "device, pipe", open_both("/dev/full", STORE_WRITE));
    temp_put(&temp, "file", "x");
    snprintf(inside, sizeof inside, "%s/results.db", temp_path(&temp, "file"));
    CHECK_FAILS(STATUS_USAGE, "cannot use this store", open_both(inside, STORE_WRITE));
    char *long_path = malloc(8192);
    memset(long_path, 'x', 8191);
    long_path[8191] = '\0';
    CHECK_FAILS(STATUS_USAGE, "", open_both(long_path, STORE_WRITE));
    free(long_path);
}

static void names_mean_nothing_to_sqlite(void **state)
{
    (void)state;
    static const char *const names[] = {":memory:", "file:x.db?mode=memory", "a?b#c%41 d.db", "-x", "\xff\xfe.db"};
    char back[1024];
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(temp.dir), 0);
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        CHECK_OK(fill(names[i], 1));
        assert_true(file_exists(names[i]));
        assert_int_equal(samples_in(temp_path(&temp, names[i])), 1);
    }
    assert_int_equal(temp_count(temp.dir), CHECK_COUNT(names));
    assert_int_equal(chdir(back), 0);
}

static void newer_schemas_are_refused(void **state)
{
    (void)state;
    char path[1024];
    strcpy(path, temp_path(&temp, "a.db"));
    CHECK_OK(fill(path, 1));
    run_sql(path, "PRAGMA user_version=9");
    for (int mode = STORE_READ; mode <= STORE_WRITE; mode++)
        CHECK_FAILS(STATUS_USAGE, "schema 9, this sptune knows schema 1", open_both(path, (enum store_mode)mode));
    assert_non_null(strstr(status_last()->hint, "newer"));
}

static void damaged_rows_are_named(void **state)
{
    (void)state;
    static const char *const damage[] = {"times = x'0102'", "times = x'000000000000f87f'", "key = 'seq=x'",
                                         "outcome = 'fine'", "rule = 'because'"};
    char path[1024], sql[128];
    strcpy(path, temp_path(&temp, "a.db"));
    for (int i = 0; i < CHECK_COUNT(damage); i++) {
        struct store *store = NULL;
        CHECK_OK(fill(path, 1));
        snprintf(sql, sizeof sql, "UPDATE samples SET %s", damage[i]);
        run_sql(path, sql);
        CHECK_OK(store_open(path, STORE_READ, &store));
        CHECK_FAILS(STATUS_USAGE, "damaged", store_each(store, -1, NULL, NULL));
        store_close(store);
        assert_int_equal(unlink(path), 0);
    }
}

static void cut_files_are_refused(void **state)
{
    (void)state;
    char path[1024], *text = NULL;
    size_t len = 0;
    strcpy(path, temp_path(&temp, "a.db"));
    CHECK_OK(fill(path, 60));
    CHECK_OK(file_read(path, 1 << 22, &text, &len));
    static const double keep[] = {0.9, 0.5, 0.1, 0.001};
    for (int i = 0; i < CHECK_COUNT(keep); i++) {
        struct store *store = NULL;
        int rows = 0;
        assert_int_equal(truncate(path, (off_t)((double)len * keep[i])), 0);
        enum status status = store_open(path, STORE_READ, &store);
        if (status == STATUS_OK) {
            struct store_run *runs = NULL;
            status = store_runs(store, &runs, &rows);
            for (int r = 0; r < rows && status == STATUS_OK; r++)
                store_run_free(&runs[r]);
            free(runs);
        }
        store_close(store);
        assert_int_equal(status, STATUS_USAGE);
    }
    free(text);
}

/* ---- permissions and space, in a child ---- */

enum { CHILD_FINE = 0, CHILD_WRONG = 1, CHILD_CANNOT = 2 };

static void in_child(int (*work)(const char *dir), const char *cannot)
{
    int ended;
    pid_t child = fork();
    if (child == 0)
        _exit(work(temp.dir));
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    if (WEXITSTATUS(ended) == CHILD_CANNOT) {
        print_message("skipped: %s\n", cannot);
        skip();
    }
    assert_int_equal(WEXITSTATUS(ended), CHILD_FINE);
}

#define CHILD_CHECK(condition)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s; last: %s\n", __LINE__, #condition, status_last()->what);                     \
            return CHILD_WRONG;                                                                                        \
        }                                                                                                              \
    } while (0)

/* Root may write anywhere, so the checks are made as somebody else. */
static bool become_nobody(void)
{
    return geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0);
}

static int use_read_only(const char *dir)
{
    char path[128];
    snprintf(path, sizeof path, "%s/a.db", dir);
    if (!become_nobody())
        return CHILD_CANNOT;
    CHILD_CHECK(open_both(path, STORE_WRITE) == STATUS_USAGE && strstr(status_last()->what, "for writing"));
    CHILD_CHECK(samples_in(path) == 3); /* without a log beside it the file alone is the store */
    snprintf(path, sizeof path, "%s/new.db", dir);
    CHILD_CHECK(open_both(path, STORE_WRITE) == STATUS_USAGE && strstr(status_last()->what, "cannot create the store"));
    snprintf(path, sizeof path, "%s/deeper/new.db", dir);
    CHILD_CHECK(open_both(path, STORE_WRITE) != STATUS_OK && strstr(status_last()->what, "cannot"));
    snprintf(path, sizeof path, "%s/secret.db", dir);
    CHILD_CHECK(open_both(path, STORE_READ) == STATUS_USAGE && strstr(status_last()->what, "for reading"));
    return CHILD_FINE;
}

static void read_only_stores_can_be_read(void **state)
{
    (void)state;
    char path[1024];
    CHECK_OK(fill(temp_path(&temp, "secret.db"), 1));
    chmod(temp_path(&temp, "secret.db"), 0);
    strcpy(path, temp_path(&temp, "a.db"));
    CHECK_OK(fill(path, 3));
    chmod(path, 0444);
    chmod(temp.dir, 0555);
    in_child(use_read_only, "this process cannot become another user");
}

static int fill_small_disk(const char *dir)
{
    char path[128];
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return CHILD_CANNOT;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", dir, "tmpfs", 0, "size=256k") != 0)
        return CHILD_CANNOT;
    snprintf(path, sizeof path, "%s/a.db", dir);
    CHILD_CHECK(fill(path, 5) == STATUS_OK);
    CHILD_CHECK(fill(path, 1000) == STATUS_IO && strstr(status_last()->what, "full"));
    CHILD_CHECK(strcmp(status_last()->where, path) == 0);
    int kept = samples_in(path);
    CHILD_CHECK(kept >= 0);
    struct store *store = NULL;
    struct store_run run;
    CHILD_CHECK(store_open(path, STORE_READ, &store) == STATUS_OK && store_resolve(store, "1", &run) == STATUS_OK);
    CHILD_CHECK(run.samples == 5);
    store_run_free(&run);
    store_close(store);
    snprintf(path, sizeof path, "%s/second.db", dir); /* creating one on the full disk */
    FILE *filler = fopen(temp_path(&temp, "filler"), "w");
    while (filler && fputc('x', filler) != EOF && fflush(filler) == 0)
        ;
    CHILD_CHECK(open_both(path, STORE_WRITE) == STATUS_IO && strcmp(status_last()->where, path) == 0);
    CHILD_CHECK(open_both(path, STORE_READ) == STATUS_NODATA);
    return CHILD_FINE;
}

static void a_full_disk_keeps_what_was_committed(void **state)
{
    (void)state;
    in_child(fill_small_disk, "this process may not mount a small tmpfs");
}

/* Where nothing may be mounted: a limit on file sizes stops writes as well. */
static int fill_to_the_limit(const char *dir)
{
    char path[128];
    snprintf(path, sizeof path, "%s/a.db", dir);
    struct rlimit limit = {1024 * 1024, 1024 * 1024};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return CHILD_CANNOT;
    CHILD_CHECK(fill(path, 5) == STATUS_OK);
    CHILD_CHECK(fill(path, 2000) == STATUS_IO && strcmp(status_last()->where, path) == 0);
    CHILD_CHECK(samples_in(path) > 0);
    return CHILD_FINE;
}

static void a_failed_write_keeps_what_was_committed(void **state)
{
    (void)state;
    in_child(fill_to_the_limit, "file sizes cannot be limited here");
}

/* ---- where, and which journal ---- */

static void network_file_systems_are_known(void **state)
{
    (void)state;
    static const long long remote[] = {0x6969, 0xff534d42, 0xfe534d42, 0x517b, 0x0bd00bd0, 0x47504653, 0x65735546,
                                       (int)0xff534d42 /* f_type is signed on some machines */};
    static const long long local[] = {0xef53, 0x9123683e, 0x58465342, 0x01021994, 0x794c7630, 0};
    for (int i = 0; i < CHECK_COUNT(remote); i++)
        assert_true(store_type_is_remote(remote[i]));
    for (int i = 0; i < CHECK_COUNT(local); i++)
        assert_false(store_type_is_remote(local[i]));
}

static void local_stores_use_a_log(void **state)
{
    (void)state;
    struct store *store = NULL;
    CHECK_OK(store_open(temp_path(&temp, "a.db"), STORE_WRITE, &store));
    assert_true(file_exists(temp_path(&temp, "a.db-wal")));
    store_close(store);
    assert_false(file_exists(temp_path(&temp, "a.db-wal"))); /* one file when nobody is at it */
}

static void the_path_has_an_order(void **state)
{
    (void)state;
    char path[256], small[4];
    setenv("SPTUNE_STORE", "/env/store.db", 1);
    CHECK_OK(store_path("/option.db", path, sizeof path));
    assert_string_equal(path, "/option.db");
    CHECK_OK(store_path(NULL, path, sizeof path));
    assert_string_equal(path, "/env/store.db");
    CHECK_FAILS(STATUS_USAGE, "too long", store_path(NULL, small, sizeof small));
    CHECK_FAILS(STATUS_USAGE, "no name", store_path("", path, sizeof path));
    setenv("SPTUNE_STORE", "", 1);
    setenv("XDG_DATA_HOME", "/data", 1);
    CHECK_OK(store_path(NULL, path, sizeof path));
    assert_string_equal(path, "/data/sptune/results.db");
    unsetenv("SPTUNE_STORE");
    unsetenv("XDG_DATA_HOME");
}

static void differences_are_short(void **state)
{
    (void)state;
    char *text = NULL;
    CHECK_OK(store_differences("{\"a\":1}", "{\"a\":1}", &text));
    assert_true(!text || !*text);
    free(text);
    CHECK_OK(store_differences(NULL, "{\"1\":1,\"2\":2,\"3\":3,\"4\":4,\"5\":5,\"6\":6,\"7\":7,\"8\":8}", &text));
    assert_non_null(strstr(text, "6 unset -> 6 and 2 more"));
    free(text);
}

#define IN_TEMP(test) cmocka_unit_test_setup_teardown(test, open_temp, close_temp)

/* The machine is out of descriptors: nothing is wrong with the file. */
static void no_descriptors_are_the_machines_fault(void **state)
{
    (void)state;
    struct store *store = NULL;
    struct rlimit before, few;
    const char *path = temp_path(&temp, "many.db");
    assert_int_equal(fill(path, 1), STATUS_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(STDIN_FILENO);
    close(next);
    few = before;
    few.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum status write = store_open(path, STORE_WRITE, &store), read = store_open(path, STORE_READ, &store);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(write, STATUS_MACHINE);
    assert_int_equal(read, STATUS_MACHINE);
    assert_non_null(strstr(status_last()->what, strerror(EMFILE)));
    assert_null(store);
}

/* A run that was forgotten while it was measured takes no more samples, and says why. */
static void a_forgotten_run_takes_no_samples(void **state)
{
    (void)state;
    struct store *store = NULL;
    int64_t run = 0;
    CHECK_OK(store_open(temp_path(&temp, "gone.db"), STORE_WRITE, &store));
    CHECK_OK(store_run_begin(store, "bench", "sptune", "", "m", 1, &run));
    CHECK_OK(store_forget(store, run));
    struct sample sample = row_exchange(1, "packed", 100);
    assert_int_equal(store_put(store, run, &sample), STATUS_USAGE);
    assert_non_null(strstr(status_last()->what, "forgotten while it was measured"));
    sample_free(&sample);
    store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(reading_creates_nothing),
        IN_TEMP(a_reader_cannot_write),
        IN_TEMP(what_is_not_a_store_is_left_alone),
        IN_TEMP(places_that_cannot_hold_a_store),
        IN_TEMP(names_mean_nothing_to_sqlite),
        IN_TEMP(newer_schemas_are_refused),
        IN_TEMP(damaged_rows_are_named),
        IN_TEMP(cut_files_are_refused),
        IN_TEMP(read_only_stores_can_be_read),
        IN_TEMP(a_full_disk_keeps_what_was_committed),
        IN_TEMP(a_failed_write_keeps_what_was_committed),
        cmocka_unit_test(network_file_systems_are_known),
        IN_TEMP(local_stores_use_a_log),
        cmocka_unit_test(the_path_has_an_order),
        cmocka_unit_test(differences_are_short),
        IN_TEMP(no_descriptors_are_the_machines_fault),
        IN_TEMP(a_forgotten_run_takes_no_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
