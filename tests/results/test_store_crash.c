/* tests/results/test_store_crash.c -- writers that are killed, writers at the same time; all of it also on a disk that says it is a network
 * file system, where the journal is another. */
#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"
#include "results/rows.h"
#include "results/store_private.h"

#include <signal.h>
#include <sys/statfs.h>
#include <sys/wait.h>

static struct temp temp;
static char path[1024];
static bool on_network;

/* The program's only view of what kind of file system this is. */
int __real_statfs(const char *file, struct statfs *out);
int __wrap_statfs(const char *file, struct statfs *out);
int __wrap_statfs(const char *file, struct statfs *out)
{
    enum { NFS = 0x6969 };
    int code = __real_statfs(file, out);
    if (code == 0 && on_network)
        out->f_type = NFS;
    return code;
}

static int open_temp(void **state)
{
    (void)state;
    temp_open(&temp);
    strcpy(path, temp_path(&temp, "results.db"));
    return 0;
}

static int open_network(void **state)
{
    on_network = true;
    return open_temp(state);
}

static int close_temp(void **state)
{
    (void)state;
    on_network = false;
    temp_close(&temp);
    return 0;
}

/* Write samples for ever; a byte goes out after each that store_put called committed. */
static void write_for_ever(int acknowledge)
{
    struct store *store = NULL;
    int64_t run = 0;
    if (store_open(path, STORE_WRITE, &store) != STATUS_OK ||
        store_run_begin(store, "bench", "killed", NULL, "m", 1, &run) != STATUS_OK)
        _exit(1);
    for (int64_t seq = 1;; seq++) {
        struct sample sample = row_exchange(seq, "packed", 100);
        if (store_put(store, run, &sample) != STATUS_OK || write(acknowledge, "x", 1) != 1)
            _exit(1);
        sample_free(&sample);
    }
}

static enum status check_order(void *arg, int64_t run, const struct sample *sample)
{
    int *seen = arg;
    (void)run;
    if (sample->n != 20 || sample->key.seq != *seen + 1)
        return FAIL(STATUS_CHECK, "sample %d is wrong", *seen + 1);
    ++*seen;
    return STATUS_OK;
}

/* Kill a writer after about `enough` acknowledged samples; whatever was acknowledged must be there, whole and in order. */
static void kill_one(int enough)
{
    int pipes[2], acknowledged = 0, seen = 0, ended;
    char byte;
    struct store *store = NULL;
    struct store_run run;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        close(pipes[0]);
        write_for_ever(pipes[1]);
    }
    close(pipes[1]);
    while (acknowledged < enough && read(pipes[0], &byte, 1) == 1)
        acknowledged++;
    kill(child, SIGKILL);
    while (read(pipes[0], &byte, 1) == 1)
        acknowledged++;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended));
    CHECK_OK(store_open(path, STORE_READ, &store));
    if (acknowledged) {
        CHECK_OK(store_resolve(store, "@last", &run));
        assert_false(run.finished);
        CHECK_OK(store_each(store, run.id, check_order, &seen));
        assert_true(seen == acknowledged || seen == acknowledged + 1); /* one more when killed between the two */
        store_run_free(&run);
    }
    store_close(store);
}

static void a_kill_loses_nothing_committed(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++)
        kill_one(1 + round * 7 % 23);
    struct store *store = NULL; /* and the store goes on */
    int64_t run = 0;
    struct sample sample = row_exchange(64, "packed", 100);
    CHECK_OK(store_open(path, STORE_WRITE, &store));
    CHECK_OK(store_run_begin(store, "bench", "after", NULL, "m", 1, &run));
    CHECK_OK(store_put(store, run, &sample));
    sample_free(&sample);
    store_close(store);
}

/* A writer killed while it creates the file leaves something that the next one completes. */
static void a_kill_during_creation_is_mended(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        int ended;
        struct store *store = NULL;
        pid_t child = fork();
        if (child == 0) {
            if (store_open(path, STORE_WRITE, &store) != STATUS_OK)
                _exit(1);
            pause();
        }
        usleep((useconds_t)(round * 700));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_true(WIFSIGNALED(ended));
        CHECK_OK(store_open(path, STORE_WRITE, &store));
        int64_t run = 0;
        CHECK_OK(store_run_begin(store, "bench", "", NULL, "m", 1, &run));
        store_close(store);
        assert_int_equal(unlink(path), 0);
    }
}

static int write_some(int writer, int n)
{
    struct store *store = NULL;
    int64_t run = 0;
    char name[16];
    snprintf(name, sizeof name, "writer%d", writer);
    enum status status = store_open(path, STORE_WRITE, &store);
    if (status == STATUS_OK)
        status = store_run_begin(store, "bench", "", name, "m", 1, &run);
    for (int64_t seq = 1; seq <= n && status == STATUS_OK; seq++) {
        struct sample sample = row_exchange(seq, "packed", 100);
        sample.versions = strdup(writer % 2 ? "{\"v\": 1}" : "{\"v\": 2}");
        status = store_put(store, run, &sample);
        sample_free(&sample);
    }
    if (status == STATUS_OK)
        status = store_run_end(store, run);
    if (status != STATUS_OK)
        fprintf(stderr, "writer %d: %s\n", writer, status_last()->what);
    store_close(store);
    return status != STATUS_OK;
}

enum { WRITERS = 4, EACH = 40 };

/* All of them create the file, write at the same time, and a reader looks on. */
static void writers_share_one_store(void **state)
{
    (void)state;
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(write_some(i, EACH));
    }
    for (int looks = 0; looks < 10; looks++) {
        struct store *store = NULL;
        struct store_run *runs = NULL;
        int n = 0;
        usleep(2000);
        enum status status = store_open(path, STORE_READ, &store);
        if (status == STATUS_OK)
            status = store_runs(store, &runs, &n);
        for (int i = 0; i < n; i++)
            store_run_free(&runs[i]);
        free(runs);
        store_close(store);
        assert_true(status == STATUS_OK || status == STATUS_NODATA);
    }
    for (int i = 0; i < WRITERS; i++) {
        int ended;
        assert_int_equal(waitpid(children[i], &ended, 0), children[i]);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    }
    struct store *store = NULL;
    CHECK_OK(store_open(path, STORE_READ, &store));
    for (int i = 0; i < WRITERS; i++) {
        struct store_run run;
        char name[16];
        int seen = 0;
        snprintf(name, sizeof name, "writer%d", i);
        CHECK_OK(store_resolve(store, name, &run));
        assert_true(run.finished);
        CHECK_OK(store_each(store, run.id, check_order, &seen));
        assert_int_equal(seen, EACH);
        store_run_free(&run);
    }
    store_close(store);
}

static void a_held_store_is_busy(void **state)
{
    (void)state;
    struct store *store = NULL, *holder = NULL;
    struct sample sample = row_exchange(64, "packed", 100), found;
    int64_t run = 0;
    CHECK_OK(store_open(path, STORE_WRITE, &store));
    CHECK_OK(store_open(path, STORE_WRITE, &holder));
    CHECK_OK(store_run_begin(store, "bench", "", NULL, "m", 1, &run));
    CHECK_OK(store_begin(holder));
    sqlite3_busy_timeout(store->db, 20);
    CHECK_FAILS(STATUS_BUSY, "another process", store_put(store, run, &sample));
    assert_string_equal(status_last()->where, path);
    CHECK_FAILS(STATUS_NODATA, "no sample", store_find(store, &sample.key, "m", NULL, -1, &found, NULL)); /* reading goes on */
    CHECK_OK(store_end(holder, STATUS_OK));
    CHECK_OK(store_put(store, run, &sample));
    sample_free(&sample);
    store_close(holder);
    store_close(store);
}

/* The visitor may write to the store it is walking: resume does. */
static enum status put_again(void *arg, int64_t run, const struct sample *sample)
{
    return sample->n == 20 && run == 1 ? store_put(arg, 2, sample) : STATUS_OK;
}

static void a_walk_may_write(void **state)
{
    (void)state;
    struct store *store = NULL;
    struct sample sample = row_exchange(64, "packed", 100);
    struct store_run run;
    int64_t id;
    CHECK_OK(store_open(path, STORE_WRITE, &store));
    CHECK_OK(store_run_begin(store, "bench", "", NULL, "m", 1, &id));
    for (int i = 0; i < 5; i++)
        CHECK_OK(store_put(store, id, &sample));
    CHECK_OK(store_run_begin(store, "bench", "", NULL, "m", 1, &id));
    CHECK_OK(store_each(store, 1, put_again, store));
    CHECK_OK(store_resolve(store, "2", &run));
    assert_int_equal(run.samples, 5);
    store_run_free(&run);
    sample_free(&sample);
    store_close(store);
}

static void journal_is(const struct store *store, const char *mode)
{
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(store->db, "PRAGMA journal_mode", -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(stmt, 0), mode);
    sqlite3_finalize(stmt);
}

/* Shared memory of two hosts is not one: no log, also in a store that came from a local disk, and back. */
static void networks_have_no_log(void **state)
{
    (void)state;
    struct store *store = NULL;
    char beside[1100];
    for (int round = 0; round < 4; round++) {
        on_network = round % 2 == 1;
        CHECK_OK(store_open(path, STORE_WRITE, &store));
        journal_is(store, on_network ? "delete" : "wal");
        snprintf(beside, sizeof beside, "%s-shm", path);
        assert_false(on_network && file_exists(beside));
        store_close(store);
        assert_int_equal(write_some(round, 1), 0);
    }
}

#define IN_TEMP(test)    cmocka_unit_test_setup_teardown(test, open_temp, close_temp)
#define ON_NETWORK(test) {"network_" #test, test, open_network, close_temp, NULL}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(a_kill_loses_nothing_committed),
        IN_TEMP(a_kill_during_creation_is_mended),
        IN_TEMP(writers_share_one_store),
        IN_TEMP(a_held_store_is_busy),
        IN_TEMP(a_walk_may_write),
        IN_TEMP(networks_have_no_log),
        ON_NETWORK(a_kill_loses_nothing_committed),
        ON_NETWORK(a_kill_during_creation_is_mended),
        ON_NETWORK(writers_share_one_store),
        ON_NETWORK(a_held_store_is_busy),
        ON_NETWORK(a_walk_may_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
