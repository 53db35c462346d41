/* results/store_sample.c -- samples in and out of the store. */
#include "results/store_private.h"

#include "base/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_COLUMNS                                                                                                 \
    "SELECT s.run, s.key, s.machine, s.outcome, s.rule, s.why, s.times, s.bytes, s.flops, s.ranks, s.ceiling_GBps,"    \
    " s.ceiling_tflops, s.transport, s.kernel, s.verified, s.scaled, s.scale, s.conditions, v.json, s.measured_at"     \
    " FROM samples s JOIN versions v ON v.id = s.versions "

/* ---- writing ---- */

/* Doubles as eight bytes, lowest first, so that a store can be read on any machine. */
static void times_encode(const double *times, int n, unsigned char *out)
{
    for (int i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &times[i], sizeof bits);
        for (int byte = 0; byte < 8; byte++)
            *out++ = (unsigned char)(bits >> 8 * byte);
    }
}

static void times_decode(const unsigned char *in, int n, double *out)
{
    for (int i = 0; i < n; i++) {
        uint64_t bits = 0;
        for (int byte = 0; byte < 8; byte++)
            bits |= (uint64_t)*in++ << 8 * byte;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static enum status versions_id(struct store *store, const char *canonical, int64_t *out)
{
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store, "INSERT INTO versions(json) VALUES (?) ON CONFLICT DO NOTHING", &stmt));
    store_bind(stmt, 1, canonical);
    enum status status = store_step(store, stmt, "write a sample", &row);
    sqlite3_finalize(stmt);
    stmt = NULL;
    if (status == STATUS_OK)
        status = store_prepare(store, "SELECT id FROM versions WHERE json = ?", &stmt);
    if (status == STATUS_OK) {
        store_bind(stmt, 1, canonical);
        status = store_step(store, stmt, "write a sample", &row);
    }
    if (status == STATUS_OK)
        *out = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return status;
}

static void bind_sample(sqlite3_stmt *stmt, const struct sample *sample)
{
    store_bind(stmt, 3, sample->machine);
    store_bind(stmt, 4, sample_outcome_name(sample->outcome));
    store_bind(stmt, 5, rule_code(sample->rule));
    store_bind(stmt, 6, sample->why);
    sqlite3_bind_int64(stmt, 8, sample->bytes);
    sqlite3_bind_double(stmt, 9, sample->flops);
    sqlite3_bind_int(stmt, 10, sample->group);
    sqlite3_bind_double(stmt, 11, sample->ceiling_GBps);
    sqlite3_bind_double(stmt, 12, sample->ceiling_tflops);
    store_bind(stmt, 13, sample->transport);
    store_bind(stmt, 14, sample->kernel);
    sqlite3_bind_int(stmt, 15, sample->verified);
    sqlite3_bind_int(stmt, 16, sample->scaled);
    sqlite3_bind_double(stmt, 17, sample->scale);
    if (sample->conditions)
        store_bind(stmt, 18, sample->conditions);
    store_bind(stmt, 20, sample->measured_at);
}

static enum status insert(struct store *store, int64_t run, const struct sample *sample, const char *key,
                          const char *canonical, const unsigned char *times)
{
    bool row = false;
    int64_t versions = 0;
    sqlite3_stmt *stmt = NULL;
    TRY(versions_id(store, canonical, &versions));
    TRY(store_prepare(store,
                      "INSERT INTO samples(run, key, machine, outcome, rule, why, times, bytes, flops, ranks, ceiling_GBps,"
                      " ceiling_tflops, transport, kernel, verified, scaled, scale, conditions, versions, measured_at)"
                      " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                      &stmt));
    sqlite3_bind_int64(stmt, 1, run);
    store_bind(stmt, 2, key);
    bind_sample(stmt, sample);
    sqlite3_bind_blob64(stmt, 7, times, (sqlite3_uint64)sample->n * 8, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 19, versions);
    enum status status = store_step(store, stmt, "write a sample", &row);
    int code = sqlite3_extended_errcode(store->db);
    if (status != STATUS_OK && code == SQLITE_CONSTRAINT_FOREIGNKEY)
        status = WHERE(FAIL(STATUS_USAGE, "there is no run %lld to write to: it was forgotten while it was measured",
                            (long long)run),
                       "%s", store->path);
    else if (status != STATUS_OK && (code & 0xff) == SQLITE_CONSTRAINT)
        status = WHERE(FAIL(STATUS_USAGE, "a number of a sample is not finite"), "%s", store->path);
    sqlite3_finalize(stmt);
    return status;
}

static enum status check_sample(const struct sample *sample)
{
    if (!*sample->key.subject)
        return FAIL(STATUS_USAGE, "a sample without a subject cannot be stored");
    for (int i = 0; i < sample->n; i++)
        if (!isfinite(sample->times_us[i]) || sample->times_us[i] < 0)
            return FAIL(STATUS_USAGE, "time %d of a sample is %g us", i + 1, sample->times_us[i]);
    return STATUS_OK;
}

enum status store_put(struct store *store, int64_t run, const struct sample *sample)
{
    char *key = NULL, *canonical = NULL, *conditions = NULL;
    unsigned char *times = NULL;
    enum status status = STATUS_OK;
    TRY_OUT(check_sample(sample));
    TRY_OUT(store_canonical(sample->versions, "versions", &canonical));
    TRY_OUT(store_canonical(sample->conditions, "conditions", &conditions));
    key = sample_key_text(&sample->key);
    times = malloc((size_t)sample->n * 8 + 1);
    if (!key || !times) {
        status = FAIL(STATUS_NOMEM, "no memory to write a sample");
        goto out;
    }
    times_encode(sample->times_us, sample->n, times);
    TRY_OUT(store_begin(store));
    status = store_end(store, insert(store, run, sample, key, canonical, times));
out:
    free(key);
    free(canonical);
    free(conditions);
    free(times);
    return status;
}

/* ---- reading ---- */

static enum status damaged(struct store *store, const char *what)
{
    return WHERE(FAIL(STATUS_USAGE, "a sample in the store is damaged: %s", what), "%s", store->path);
}

static bool read_outcome(sqlite3_stmt *stmt, struct sample *out)
{
    const char *outcome = store_column(stmt, 3);
    for (int i = SAMPLE_OK; i <= SAMPLE_FAILED; i++) {
        if (strcmp(outcome, sample_outcome_name((enum sample_outcome)i)) == 0) {
            out->outcome = (enum sample_outcome)i;
            return true;
        }
    }
    return false;
}

static bool read_rule(sqlite3_stmt *stmt, struct sample *out)
{
    const char *rule = store_column(stmt, 4);
    for (int i = 0; i < RULE_COUNT; i++) {
        if (strcmp(rule, rule_code((enum rule)i)) == 0) {
            out->rule = (enum rule)i;
            return true;
        }
    }
    return false;
}

static enum status read_times(struct store *store, sqlite3_stmt *stmt, struct sample *out)
{
    int size = sqlite3_column_bytes(stmt, 6);
    if (size % 8 != 0)
        return damaged(store, "its times are cut short");
    if (!size)
        return STATUS_OK;
    out->times_us = malloc((size_t)size);
    if (!out->times_us)
        return FAIL(STATUS_NOMEM, "no memory to read a sample");
    out->n = size / 8;
    times_decode(sqlite3_column_blob(stmt, 6), out->n, out->times_us);
    for (int i = 0; i < out->n; i++)
        if (!isfinite(out->times_us[i]) || out->times_us[i] < 0)
            return damaged(store, "a time is not a number");
    return STATUS_OK;
}

static enum status read_owned(sqlite3_stmt *stmt, int column, char **out)
{
    if (sqlite3_column_type(stmt, column) == SQLITE_NULL)
        return STATUS_OK;
    *out = strdup(store_column(stmt, column));
    return *out ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory to read a sample");
}

static void read_plain(sqlite3_stmt *stmt, struct sample *out)
{
    text_print(out->machine, sizeof out->machine, "%s", store_column(stmt, 2));
    text_print(out->why, sizeof out->why, "%s", store_column(stmt, 5));
    text_print(out->transport, sizeof out->transport, "%s", store_column(stmt, 12));
    text_print(out->kernel, sizeof out->kernel, "%s", store_column(stmt, 13));
    text_print(out->measured_at, sizeof out->measured_at, "%s", store_column(stmt, 19));
    out->bytes = sqlite3_column_int64(stmt, 7);
    out->flops = sqlite3_column_double(stmt, 8);
    out->group = sqlite3_column_int(stmt, 9);
    out->ceiling_GBps = sqlite3_column_double(stmt, 10);
    out->ceiling_tflops = sqlite3_column_double(stmt, 11);
    out->verified = sqlite3_column_int(stmt, 14) != 0;
    out->scaled = sqlite3_column_int(stmt, 15) != 0;
    out->scale = sqlite3_column_double(stmt, 16);
}

static enum status read_sample(struct store *store, sqlite3_stmt *stmt, struct sample *out)
{
    struct sample sample;
    sample_init(&sample);
    read_plain(stmt, &sample);
    enum status status = STATUS_OK;
    if (sample_key_parse(store_column(stmt, 1), &sample.key) != STATUS_OK)
        TRY_OUT(damaged(store, "its key cannot be read"));
    if (!read_outcome(stmt, &sample) || !read_rule(stmt, &sample))
        TRY_OUT(damaged(store, "its outcome is unknown"));
    TRY_OUT(read_times(store, stmt, &sample));
    TRY_OUT(read_owned(stmt, 17, &sample.conditions));
    TRY_OUT(read_owned(stmt, 18, &sample.versions));
    *out = sample;
    return STATUS_OK;
out:
    sample_free(&sample);
    return status;
}

/* The newest ok sample of a key; canonical NULL: under any versions. */
static enum status newest(struct store *store, const char *key, const char *machine, const char *canonical, int64_t run,
                          struct sample *out, bool *found)
{
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store,
                      SAMPLE_COLUMNS "WHERE s.key = ?1 AND s.machine = ?2 AND s.outcome = 'ok'"
                                     " AND (?3 IS NULL OR v.json = ?3) AND (?4 < 0 OR s.run = ?4)"
                                     " ORDER BY s.id DESC LIMIT 1",
                      &stmt));
    store_bind(stmt, 1, key);
    store_bind(stmt, 2, machine);
    if (canonical)
        store_bind(stmt, 3, canonical);
    sqlite3_bind_int64(stmt, 4, run);
    enum status status = store_step(store, stmt, "look for a sample", found);
    if (status == STATUS_OK && *found)
        status = read_sample(store, stmt, out);
    sqlite3_finalize(stmt);
    return status;
}

static enum status explain_miss(struct store *store, const char *key, const char *machine, const char *canonical,
                                int64_t run, char **differs)
{
    struct sample other;
    bool found = false;
    TRY(newest(store, key, machine, NULL, run, &other, &found));
    if (!found)
        return STATUS_OK;
    enum status status = store_differences(other.versions, canonical, differs);
    sample_free(&other);
    return status;
}

enum status store_find(struct store *store, const struct sample_key *key, const char *machine, const char *versions,
                       int64_t run, struct sample *out, char **differs)
{
    char *canonical = NULL, *text = sample_key_text(key);
    bool found = false;
    enum status status = STATUS_OK;
    if (differs)
        *differs = NULL;
    if (!text)
        TRY_OUT(FAIL(STATUS_NOMEM, "no memory to look for a sample"));
    if (versions)
        TRY_OUT(store_canonical(versions, "versions", &canonical));
    TRY_OUT(newest(store, text, machine, canonical, run, out, &found));
    if (!found && versions && differs)
        TRY_OUT(explain_miss(store, text, machine, canonical, run, differs));
    if (!found)
        status = WHERE(FAIL(STATUS_NODATA, "no sample of %s", text), "%s", store->path);
out:
    free(text);
    free(canonical);
    return status;
}

enum status store_each(struct store *store, int64_t run, store_visit visit, void *arg)
{
    sqlite3_stmt *stmt = NULL;
    enum status status = store_prepare(store, SAMPLE_COLUMNS "WHERE ?1 < 0 OR s.run = ?1 ORDER BY s.id", &stmt);
    if (status == STATUS_OK)
        sqlite3_bind_int64(stmt, 1, run);
    while (status == STATUS_OK) {
        bool row = false;
        struct sample sample;
        status = store_step(store, stmt, "read the samples", &row);
        if (status != STATUS_OK || !row)
            break;
        status = read_sample(store, stmt, &sample);
        if (status != STATUS_OK)
            break;
        status = visit(arg, sqlite3_column_int64(stmt, 0), &sample);
        sample_free(&sample);
    }
    sqlite3_finalize(stmt);
    return status;
}
