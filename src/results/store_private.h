/* results/store_private.h -- what the files of the store share: the handle, statements, error texts. */
#ifndef SPTUNE_RESULTS_STORE_PRIVATE_H
#define SPTUNE_RESULTS_STORE_PRIVATE_H

#include "base/status.h"
#include "results/store.h"

#include <sqlite3.h>
#include <stdbool.h>

enum { STORE_SCHEMA = 1, STORE_APPLICATION = 0x7370746e /* "sptn" */, STORE_WAIT_MS = 10 * 1000 };

struct store {
    sqlite3 *db;
    char *path; /* owned, for messages */
    enum store_mode mode;
};

/* The status of what SQLite just said, with the path; `doing` completes "cannot ...". */
enum status store_failure(sqlite3 *db, const char *path, const char *doing);
enum status store_exec(struct store *store, const char *sql, const char *doing);
/* Compile; finalise with sqlite3_finalize, which accepts NULL. */
enum status store_prepare(struct store *store, const char *sql, sqlite3_stmt **out);
/* One row: *row says whether there is one. */
enum status store_step(struct store *store, sqlite3_stmt *stmt, const char *doing, bool *row);
enum status store_writable(const struct store *store);
/* Everything between begin and end is committed together, or nothing of it. end passes `status` on. */
enum status store_begin(struct store *store);
enum status store_end(struct store *store, enum status status);

/* Text of a column, never NULL; borrowed until the next step. */
const char *store_column(sqlite3_stmt *stmt, int column);
void store_bind(sqlite3_stmt *stmt, int index, const char *text);

/* Whether a file system of this statfs type is shared between hosts, so that WAL's shared memory cannot work on it. */
bool store_type_is_remote(long long type);
/* A JSON object in the one form that equal objects share; NULL reads as {}. */
enum status store_canonical(const char *json, const char *what, char **out);

#endif
