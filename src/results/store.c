/* results/store.c -- open, create, check and close the store; transactions and error texts for the other store_*.c.
 *
 * Schema 1 (application_id "sptn", user_version 1):
 *   runs       one row per command; ended is NULL while it runs, and for ever when it was killed
 *   versions   the distinct sets of software versions and allowed environment, as canonical JSON
 *   samples    one row per measurement; times are little-endian IEEE doubles in microseconds, key is sample_key_text
 *   documents  whole JSON documents (recommendations) of a run
 *   facts      small remembered things ("checked:<build>:<machine>:<what>")
 * A later schema raises STORE_SCHEMA and adds its step to create(); an older program refuses the file.
 *
 * Local disks: WAL, so that readers and one writer work side by side. File systems shared between hosts: rollback journal,
 * because WAL needs memory that all its users share. synchronous=FULL in both: a commit outlives a power cut.
 */
#include "results/store_private.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static const char schema_sql[] =
    "CREATE TABLE runs ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT," /* a number is never given twice, not even after forget */
    "  name TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, verb TEXT NOT NULL, command TEXT NOT NULL,"
    "  machine TEXT NOT NULL, seed INTEGER NOT NULL) STRICT;"
    "CREATE TABLE versions (id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE) STRICT;"
    "CREATE TABLE samples ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,"
    "  key TEXT NOT NULL, machine TEXT NOT NULL, outcome TEXT NOT NULL, rule TEXT NOT NULL, why TEXT NOT NULL,"
    "  times BLOB NOT NULL, bytes INTEGER NOT NULL, flops REAL NOT NULL, ranks INTEGER NOT NULL,"
    "  ceiling_GBps REAL NOT NULL, ceiling_tflops REAL NOT NULL, transport TEXT NOT NULL, kernel TEXT NOT NULL,"
    "  verified INTEGER NOT NULL, scaled INTEGER NOT NULL, scale REAL NOT NULL, conditions TEXT,"
    "  versions INTEGER NOT NULL REFERENCES versions(id), measured_at TEXT NOT NULL) STRICT;"
    "CREATE INDEX samples_by_key ON samples(key, machine, outcome);"
    "CREATE INDEX samples_by_run ON samples(run);"
    "CREATE TABLE documents ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,"
    "  kind TEXT NOT NULL, json TEXT NOT NULL) STRICT;"
    "CREATE INDEX documents_by_run ON documents(run, kind);"
    "CREATE TABLE facts (fact TEXT PRIMARY KEY, value TEXT NOT NULL, remembered TEXT NOT NULL) STRICT;";

static enum status no_descriptor(int error, const char *path)
{
    return HINT(WHERE(FAIL(STATUS_MACHINE, "cannot open the store: %s", strerror(error)), "%s", path),
                error == EMFILE ? "ulimit -n is the limit of this process" : "fs.file-max is the limit of this machine");
}

enum status store_failure(sqlite3 *db, const char *path, const char *doing)
{
    int code = db ? sqlite3_extended_errcode(db) : SQLITE_NOMEM;
    const char *text = db ? sqlite3_errmsg(db) : "out of memory";
    int error;
    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return WHERE(FAIL(STATUS_NOMEM, "cannot %s: out of memory", doing), "%s", path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return HINT(WHERE(FAIL(STATUS_BUSY, "cannot %s: another process has held the store for %d s", doing,
                               STORE_WAIT_MS / 1000),
                          "%s", path),
                    "wait for it to end, or use another --store");
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return HINT(WHERE(FAIL(STATUS_USAGE, "not a store of sptune, or damaged: %s", text), "%s", path),
                    "name another file with --store; this one is left as it is");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
        error = db ? sqlite3_system_errno(db) : 0;
        if (error == EMFILE || error == ENFILE)
            return no_descriptor(error, path);
        return HINT(WHERE(FAIL(STATUS_USAGE, "cannot %s: %s", doing, text), "%s", path),
                    "its directory must be writable too; or name another file with --store");
    case SQLITE_FULL:
        return HINT(WHERE(FAIL(STATUS_IO, "cannot %s: the disk is full", doing), "%s", path),
                    "what was committed before is safe; free some space and go on with --resume");
    case SQLITE_IOERR:
        return WHERE(FAIL(STATUS_IO, "cannot %s: %s", doing, text), "%s", path);
    default:
        return WHERE(FAIL(STATUS_IO, "cannot %s: %s (SQLite error %d)", doing, text, code), "%s", path);
    }
}

enum status store_exec(struct store *store, const char *sql, const char *doing)
{
    return sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK ? STATUS_OK
                                                                       : store_failure(store->db, store->path, doing);
}

enum status store_prepare(struct store *store, const char *sql, sqlite3_stmt **out)
{
    return sqlite3_prepare_v2(store->db, sql, -1, out, NULL) == SQLITE_OK
               ? STATUS_OK
               : store_failure(store->db, store->path, "read the store");
}

enum status store_step(struct store *store, sqlite3_stmt *stmt, const char *doing, bool *row)
{
    int code = sqlite3_step(stmt);
    *row = code == SQLITE_ROW;
    return code == SQLITE_ROW || code == SQLITE_DONE ? STATUS_OK : store_failure(store->db, store->path, doing);
}

enum status store_writable(const struct store *store)
{
    return store->mode == STORE_WRITE
               ? STATUS_OK
               : WHERE(FAIL(STATUS_USAGE, "the store is open for reading only"), "%s", store->path);
}

/* IMMEDIATE takes the write lock now: a transaction that read first could not wait for another writer. */
enum status store_begin(struct store *store)
{
    TRY(store_writable(store));
    return store_exec(store, "BEGIN IMMEDIATE", "write to the store");
}

enum status store_end(struct store *store, enum status status)
{
    if (status == STATUS_OK)
        status = store_exec(store, "COMMIT", "write to the store");
    if (status != STATUS_OK && !sqlite3_get_autocommit(store->db)) {
        struct status_message first = *status_last();
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
        status_restore(&first);
    }
    return status;
}

const char *store_column(sqlite3_stmt *stmt, int column)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);
    return text ? (const char *)text : "";
}

void store_bind(sqlite3_stmt *stmt, int index, const char *text)
{
    sqlite3_bind_text(stmt, index, text ? text : "", -1, SQLITE_STATIC);
}

/* ---- opening ---- */

enum status store_path(const char *option, char *buf, size_t size)
{
    char dir[PATH_MAX];
    const char *variable = getenv("SPTUNE_STORE");
    bool fits;
    if (option && !*option)
        return HINT(WHERE(FAIL(STATUS_USAGE, "the store has no name"), "--store"), "give a file name");
    if (option || (variable && *variable)) {
        fits = text_print(buf, size, "%s", option ? option : variable);
    } else {
        TRY(file_data_dir(dir, sizeof dir));
        fits = text_print(buf, size, "%s/results.db", dir);
    }
    return fits ? STATUS_OK
                : WHERE(FAIL(STATUS_USAGE, "the path of the store is too long"), "%s",
                        option ? "--store" : "SPTUNE_STORE or the data directory");
}

bool store_type_is_remote(long long type)
{
    static const unsigned remote[] = {
        0x6969,     /* nfs */
        0x517b,     /* smb */
        0xfe534d42, /* smb2 */
        0xff534d42, /* cifs */
        0x0bd00bd0, /* lustre */
        0x47504653, /* gpfs */
        0x65735546, /* fuse: sshfs, glusterfs, BeeGFS and others; local ones merely lose a little speed */
        0x19830326, /* beegfs */
        0x00c36400, /* ceph */
        0x20030528, /* orangefs */
        0x5346414f, /* afs */
        0x01021997, /* 9p: the other side may be another machine */
    };
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        if ((unsigned)type == remote[i])
            return true;
    return false;
}

static bool is_remote(const char *path)
{
    struct statfs info;
    return statfs(path, &info) == 0 && store_type_is_remote((long long)info.f_type);
}

/* Missing and empty files hold no data yet; anything but a regular file could hang or harm (a FIFO, a device). */
static enum status check_file(const char *path, enum store_mode mode)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno != ENOENT)
            return WHERE(FAIL(STATUS_USAGE, "cannot use this store: %s", strerror(errno)), "%s", path);
        return mode == STORE_WRITE ? STATUS_OK
                                   : HINT(WHERE(FAIL(STATUS_NODATA, "there is no store here yet"), "%s", path),
                                          "bench and tune make one; --store names another");
    }
    if (!S_ISREG(info.st_mode))
        return HINT(WHERE(FAIL(STATUS_USAGE, "the store is %s, not a file",
                               S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket"),
                          "%s", path),
                    "name a file, such as %s/results.db", S_ISDIR(info.st_mode) ? path : ".");
    if (access(path, mode == STORE_WRITE ? R_OK | W_OK : R_OK) != 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "cannot open the store for %s: %s",
                               mode == STORE_WRITE ? "writing" : "reading", strerror(errno)),
                          "%s", path),
                    "name another file with --store");
    if (mode == STORE_READ && info.st_size == 0)
        return HINT(WHERE(FAIL(STATUS_NODATA, "the store is empty"), "%s", path), "bench and tune fill it");
    return STATUS_OK;
}

static enum status make_parent(const char *path)
{
    char dir[PATH_MAX];
    if (!text_print(dir, sizeof dir, "%s", path))
        return WHERE(FAIL(STATUS_USAGE, "the path of the store is too long"), "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash || slash == dir)
        return STATUS_OK;
    *slash = '\0';
    return file_make_dirs(dir);
}

/* A percent-encoded file: URI, so that no character of the path means anything to SQLite (":memory:", "file:", '?'). */
static enum status uri_of(const char *path, const char *query, char **out)
{
    struct text uri = {0};
    text_add(&uri, "file:%s", *path == '/' ? "//" : "./");
    for (const char *c = path; *c; c++)
        text_add(&uri, strchr("%?#", *c) || (unsigned char)*c <= ' ' ? "%%%02X" : "%c", (unsigned char)*c);
    text_add(&uri, "%s", query);
    *out = uri.s;
    return text_status(&uri);
}

static enum status connect(struct store *store, const char *query)
{
    /* Readers too open for writing where they may (query_only keeps them from it): the last one out then takes the log and the
     * shared memory away, and a log that a killed writer left is brought home. */
    int flags = SQLITE_OPEN_URI | SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_READWRITE |
                (store->mode == STORE_WRITE ? SQLITE_OPEN_CREATE : 0);
    char *uri = NULL;
    TRY(uri_of(store->path, query, &uri));
    int code = sqlite3_open_v2(uri, &store->db, flags, NULL);
    free(uri);
    if (code != SQLITE_OK)
        return store_failure(store->db, store->path, store->mode == STORE_WRITE ? "create the store" : "open the store");
    sqlite3_busy_timeout(store->db, STORE_WAIT_MS);
    return store->mode == STORE_READ ? store_exec(store, "PRAGMA query_only=ON", "open the store") : STATUS_OK;
}

/* *fresh: a file without anything in it, ours to fill. One statement, so that all three are of one moment: another process
 * may be creating the store right now. */
static enum status check_owner(struct store *store, bool *fresh)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    int64_t application = 0, schema = 0, things = 0;
    enum status status = store_prepare(store,
                                       "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)"
                                       " FROM pragma_application_id, pragma_user_version",
                                       &stmt);
    if (status == STATUS_OK)
        status = store_step(store, stmt, "open the store", &row);
    if (status == STATUS_OK && row) {
        application = sqlite3_column_int64(stmt, 0);
        schema = sqlite3_column_int64(stmt, 1);
        things = sqlite3_column_int64(stmt, 2);
    }
    sqlite3_finalize(stmt);
    TRY(status);
    *fresh = !application && !schema && !things;
    if (*fresh)
        return STATUS_OK;
    if (application != STORE_APPLICATION || schema < 1)
        return HINT(WHERE(FAIL(STATUS_USAGE, "an SQLite file of another program, not a store of sptune"), "%s",
                          store->path),
                    "name another file with --store; this one is left as it is");
    if (schema > STORE_SCHEMA)
        return HINT(WHERE(FAIL(STATUS_USAGE, "the store has schema %lld, this sptune knows schema %d",
                               (long long)schema, STORE_SCHEMA),
                          "%s", store->path),
                    "use the newer sptune that wrote it, or another --store");
    return STATUS_OK;
}

/* Two processes may create the same file at once: the write lock is taken first, then looked again. */
static enum status create(struct store *store)
{
    char sql[96];
    bool fresh = false;
    TRY(store_exec(store, "BEGIN IMMEDIATE", "create the store"));
    enum status status = check_owner(store, &fresh);
    if (status == STATUS_OK && fresh) {
        status = store_exec(store, schema_sql, "create the store");
        text_print(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%d", STORE_APPLICATION, STORE_SCHEMA);
        if (status == STATUS_OK)
            status = store_exec(store, sql, "create the store");
    }
    return store_end(store, status);
}

/* SQLite does not wait for others when the journal mode changes; we do. */
static enum status set_journal(struct store *store, const char *sql)
{
    int64_t deadline = clock_deadline(STORE_WAIT_MS * INT64_C(1000));
    int code;
    while ((code = sqlite3_exec(store->db, sql, NULL, NULL, NULL) & 0xff) == SQLITE_BUSY && !clock_passed(deadline))
        usleep(2000);
    return code == SQLITE_OK ? STATUS_OK : store_failure(store->db, store->path, "open the store");
}

static enum status choose_journal(struct store *store)
{
    bool remote = is_remote(store->path);
    if (remote)
        log_info("the store is on a network file system: rollback journal, one writer at a time (%s)", store->path);
    TRY(set_journal(store, remote ? "PRAGMA journal_mode=DELETE" : "PRAGMA journal_mode=WAL"));
    return store_exec(store, "PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON", "open the store");
}

static enum status open_write(struct store *store)
{
    bool fresh = false;
    TRY(make_parent(store->path));
    TRY(connect(store, ""));
    TRY(check_owner(store, &fresh));
    TRY(choose_journal(store));
    return fresh ? create(store) : STATUS_OK;
}

/* Reading a WAL store takes a shared-memory file beside it. Where none can be made (a read-only directory or medium) and no
 * log waits to be read, nobody can be writing either, and the file alone is the whole store. */
static bool is_whole_alone(const char *path)
{
    char beside[PATH_MAX];
    struct stat info;
    return text_print(beside, sizeof beside, "%s-wal", path) && (stat(beside, &info) != 0 || info.st_size == 0);
}

static enum status open_read(struct store *store)
{
    bool fresh = false;
    TRY(connect(store, ""));
    enum status status = check_owner(store, &fresh);
    int code = sqlite3_errcode(store->db) & 0xff;
    if (status != STATUS_OK && (code == SQLITE_CANTOPEN || code == SQLITE_READONLY) && is_whole_alone(store->path)) {
        sqlite3_close(store->db);
        store->db = NULL;
        status_clear();
        TRY(connect(store, "?immutable=1"));
        status = check_owner(store, &fresh);
    }
    if (status == STATUS_OK && fresh)
        status = HINT(WHERE(FAIL(STATUS_NODATA, "the store is empty"), "%s", store->path), "bench and tune fill it");
    return status;
}

enum status store_open(const char *path, enum store_mode mode, struct store **out)
{
    TRY(check_file(path, mode));
    struct store *store = calloc(1, sizeof *store);
    if (store)
        store->path = strdup(path);
    if (!store || !store->path) {
        free(store);
        return FAIL(STATUS_NOMEM, "no memory to open the store");
    }
    store->mode = mode;
    enum status status = mode == STORE_WRITE ? open_write(store) : open_read(store);
    if (status == STATUS_OK)
        *out = store;
    else
        store_close(store);
    return status;
}

void store_close(struct store *store)
{
    if (!store)
        return;
    sqlite3_close(store->db);
    free(store->path);
    free(store);
}
