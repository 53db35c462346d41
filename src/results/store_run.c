/* results/store_run.c -- runs: begin, end, list, resolve a REF, forget. */
#include "results/store_private.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RUN_COLUMNS                                                                                                    \
    "SELECT r.id, r.name, r.started, r.verb, r.machine, r.seed, r.command, r.ended IS NOT NULL,"                       \
    " (SELECT count(*) FROM samples s WHERE s.run = r.id),"                                                            \
    " (SELECT count(*) FROM samples s WHERE s.run = r.id AND s.outcome = 'failed'),"                                   \
    " (SELECT count(*) FROM samples s WHERE s.run = r.id AND s.outcome = 'waived')"                                    \
    " FROM runs r "

void store_run_free(struct store_run *run)
{
    if (!run)
        return;
    free(run->command);
    run->command = NULL;
}

static bool all_digits(const char *text)
{
    return *text && !text[strspn(text, "0123456789")];
}

/* A name must not be mistaken for a number, @last, or an option, and must fit a line. */
enum status store_check_name(const char *name)
{
    struct store_run run;
    if (!*name)
        return STATUS_OK;
    char clean[sizeof run.name];
    if (!text_print(clean, sizeof clean, "%s", name))
        return WHERE(FAIL(STATUS_USAGE, "the name of a run has at most %zu characters", sizeof clean - 1), "--name");
    text_clean(clean);
    if (strcmp(clean, name) != 0 || all_digits(name) || *name == '@' || *name == '-')
        return HINT(WHERE(FAIL(STATUS_USAGE, "'%s' cannot name a run", clean), "--name"),
                    "printable characters, not a number, and not beginning with @ or -");
    return STATUS_OK;
}

enum status store_run_begin(struct store *store, const char *verb, const char *command, const char *name, const char *machine,
                            int64_t seed, int64_t *out_run)
{
    char now[32];
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    if (name)
        TRY(store_check_name(name));
    TRY(store_writable(store));
    TRY(store_prepare(store, "INSERT INTO runs(name, started, verb, command, machine, seed) VALUES (?,?,?,?,?,?)", &stmt));
    clock_iso(now);
    store_bind(stmt, 1, name);
    store_bind(stmt, 2, now);
    store_bind(stmt, 3, verb);
    store_bind(stmt, 4, command);
    store_bind(stmt, 5, machine);
    sqlite3_bind_int64(stmt, 6, seed);
    enum status status = store_step(store, stmt, "begin a run", &row);
    sqlite3_finalize(stmt);
    if (status == STATUS_OK)
        *out_run = sqlite3_last_insert_rowid(store->db);
    return status;
}

static enum status no_such_run(const struct store *store, int64_t run)
{
    return HINT(WHERE(FAIL(STATUS_USAGE, "there is no run %lld", (long long)run), "%s", store->path),
                "`sptune results list` shows the runs");
}

enum status store_run_end(struct store *store, int64_t run)
{
    char now[32];
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    TRY(store_writable(store));
    TRY(store_prepare(store, "UPDATE runs SET ended = ? WHERE id = ?", &stmt));
    clock_iso(now);
    store_bind(stmt, 1, now);
    sqlite3_bind_int64(stmt, 2, run);
    enum status status = store_step(store, stmt, "end a run", &row);
    sqlite3_finalize(stmt);
    return status == STATUS_OK && sqlite3_changes(store->db) == 0 ? no_such_run(store, run) : status;
}

static enum status read_run(sqlite3_stmt *stmt, struct store_run *out)
{
    struct store_run run = {
        .id = sqlite3_column_int64(stmt, 0),
        .seed = sqlite3_column_int64(stmt, 5),
        .finished = sqlite3_column_int(stmt, 7) != 0,
        .samples = sqlite3_column_int(stmt, 8),
        .failed = sqlite3_column_int(stmt, 9),
        .waived = sqlite3_column_int(stmt, 10),
        .command = strdup(store_column(stmt, 6)),
    };
    if (!run.command)
        return FAIL(STATUS_NOMEM, "no memory to list the runs");
    text_print(run.name, sizeof run.name, "%s", store_column(stmt, 1));
    text_print(run.started, sizeof run.started, "%s", store_column(stmt, 2));
    text_print(run.verb, sizeof run.verb, "%s", store_column(stmt, 3));
    text_print(run.machine, sizeof run.machine, "%s", store_column(stmt, 4));
    *out = run;
    return STATUS_OK;
}

/* The first run that `stmt` finds; *found false when there is none. */
static enum status one_run(struct store *store, sqlite3_stmt *stmt, struct store_run *out, bool *found)
{
    enum status status = store_step(store, stmt, "read the runs", found);
    if (status == STATUS_OK && *found)
        status = read_run(stmt, out);
    sqlite3_finalize(stmt);
    return status;
}

/* Digits to a number; one that no run can have when they are too many. */
static int64_t parse_digits(const char *digits)
{
    errno = 0;
    long long value = strtoll(digits, NULL, 10);
    return errno ? INT64_MAX : value;
}

static enum status find_number(struct store *store, int64_t id, struct store_run *out, bool *found)
{
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store, RUN_COLUMNS "WHERE r.id = ?", &stmt));
    sqlite3_bind_int64(stmt, 1, id);
    return one_run(store, stmt, out, found);
}

static enum status find_name(struct store *store, const char *name, struct store_run *out, bool *found)
{
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store, RUN_COLUMNS "WHERE r.name = ? AND r.name <> '' ORDER BY r.id DESC LIMIT 1", &stmt));
    store_bind(stmt, 1, name);
    return one_run(store, stmt, out, found);
}

static enum status find_last(struct store *store, int64_t back, struct store_run *out, bool *found)
{
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store, RUN_COLUMNS "ORDER BY r.id DESC LIMIT 1 OFFSET ?", &stmt));
    sqlite3_bind_int64(stmt, 1, back);
    return one_run(store, stmt, out, found);
}

/* @last is the newest run, @last~N the one N before it. */
static bool parse_last(const char *ref, int64_t *back)
{
    if (strncmp(ref, "@last", 5) != 0)
        return false;
    if (!ref[5]) {
        *back = 0;
        return true;
    }
    if (ref[5] != '~' || !all_digits(ref + 6))
        return false;
    *back = parse_digits(ref + 6);
    return true;
}

static enum status not_found(struct store *store, const char *ref)
{
    struct store_run *runs = NULL;
    int n = 0;
    TRY(store_runs(store, &runs, &n));
    const char **names = malloc(((size_t)n + 1) * sizeof *names);
    size_t named = 0;
    for (int i = 0; names && i < n; i++)
        if (*runs[i].name)
            names[named++] = runs[i].name;
    if (names)
        names[named++] = "@last";
    const char *nearest = names ? text_nearest(ref, names, named) : NULL;
    enum status status;
    if (n == 0)
        status = HINT(WHERE(FAIL(STATUS_NODATA, "the store holds no runs yet"), "%s", store->path),
                      "bench and tune fill it");
    else if (nearest)
        status = HINT(WHERE(FAIL(STATUS_USAGE, "no run is called '%s'", ref), "%s", store->path), "did you mean %s?",
                      nearest);
    else
        status = HINT(WHERE(FAIL(STATUS_USAGE, "no run is called '%s'; there are %d, the newest is number %lld", ref, n,
                                 (long long)runs[0].id),
                            "%s", store->path),
                      "a number, a name, @last or @last~1; `sptune results list` shows the runs");
    free(names);
    for (int i = 0; i < n; i++)
        store_run_free(&runs[i]);
    free(runs);
    return status;
}

enum status store_resolve(struct store *store, const char *ref, struct store_run *out)
{
    bool found = false;
    int64_t back = 0;
    if (parse_last(ref, &back))
        TRY(find_last(store, back, out, &found));
    else if (all_digits(ref))
        TRY(find_number(store, parse_digits(ref), out, &found));
    else
        TRY(find_name(store, ref, out, &found));
    return found ? STATUS_OK : not_found(store, ref);
}

enum status store_runs(struct store *store, struct store_run **out, int *out_n)
{
    sqlite3_stmt *stmt = NULL;
    void *runs = NULL;
    size_t cap = 0;
    int n = 0;
    enum status status = STATUS_OK;
    TRY_OUT(store_prepare(store, RUN_COLUMNS "ORDER BY r.id DESC", &stmt));
    for (;;) {
        bool row = false;
        TRY_OUT(store_step(store, stmt, "read the runs", &row));
        if (!row)
            break;
        TRY_OUT(mem_grow(&runs, &cap, (size_t)n + 1, sizeof(struct store_run)));
        TRY_OUT(read_run(stmt, (struct store_run *)runs + n));
        n++;
    }
    sqlite3_finalize(stmt);
    *out = runs;
    *out_n = n;
    return STATUS_OK;
out:
    sqlite3_finalize(stmt);
    for (int i = 0; i < n; i++)
        store_run_free((struct store_run *)runs + i);
    free(runs);
    return status;
}

static enum status forget(struct store *store, int64_t run)
{
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store, "DELETE FROM runs WHERE id = ?", &stmt));
    sqlite3_bind_int64(stmt, 1, run);
    enum status status = store_step(store, stmt, "forget a run", &row);
    sqlite3_finalize(stmt);
    TRY(status);
    if (sqlite3_changes(store->db) == 0)
        return no_such_run(store, run);
    return store_exec(store, "DELETE FROM versions WHERE id NOT IN (SELECT versions FROM samples)", "forget a run");
}

enum status store_forget(struct store *store, int64_t run)
{
    TRY(store_begin(store));
    return store_end(store, forget(store, run));
}
