/* results/store_document.c -- documents and remembered facts; version sets, compared. */
#include "results/store_private.h"

#include "base/clock.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { DIFFERENCES_SHOWN = 6, JSON_DIGITS = 15 };

/* ---- documents ---- */

static enum status insert_document(struct store *store, int64_t run, const char *kind, const char *json)
{
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    TRY(store_writable(store));
    TRY(store_prepare(store, "INSERT INTO documents(run, kind, json) VALUES (?,?,?)", &stmt));
    sqlite3_bind_int64(stmt, 1, run);
    store_bind(stmt, 2, kind);
    store_bind(stmt, 3, json);
    enum status status = store_step(store, stmt, "write a document", &row);
    if (status != STATUS_OK && (sqlite3_errcode(store->db) & 0xff) == SQLITE_CONSTRAINT)
        status = WHERE(FAIL(STATUS_USAGE, "there is no run %lld to write to", (long long)run), "%s", store->path);
    sqlite3_finalize(stmt);
    return status;
}

enum status store_put_document(struct store *store, int64_t run, const char *kind, const json_t *document)
{
    char *json = NULL;
    TRY(json_format(document, false, &json));
    enum status status = insert_document(store, run, kind, json);
    free(json);
    return status;
}

enum status store_document(struct store *store, int64_t run, const char *kind, json_t **out)
{
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    TRY(store_prepare(store,
                      "SELECT json FROM documents WHERE (?1 < 0 OR run = ?1) AND kind = ?2 ORDER BY id DESC LIMIT 1",
                      &stmt));
    sqlite3_bind_int64(stmt, 1, run);
    store_bind(stmt, 2, kind);
    enum status status = store_step(store, stmt, "read a document", &row);
    if (status == STATUS_OK && !row)
        status = run < 0 ? WHERE(FAIL(STATUS_NODATA, "no run has a %s", kind), "%s", store->path)
                         : WHERE(FAIL(STATUS_NODATA, "run %lld has no %s", (long long)run, kind), "%s", store->path);
    if (status == STATUS_OK) {
        const char *json = store_column(stmt, 0);
        status = json_parse(json, strlen(json), store->path, out);
    }
    sqlite3_finalize(stmt);
    return status;
}

/* ---- facts ---- */

enum status store_remember(struct store *store, const char *fact, const char *value)
{
    char now[32];
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    TRY(store_writable(store));
    TRY(store_prepare(store, "INSERT OR REPLACE INTO facts(fact, value, remembered) VALUES (?,?,?)", &stmt));
    clock_iso(now);
    store_bind(stmt, 1, fact);
    store_bind(stmt, 2, value);
    store_bind(stmt, 3, now);
    enum status status = store_step(store, stmt, "remember a fact", &row);
    sqlite3_finalize(stmt);
    return status;
}

bool store_recall(struct store *store, const char *fact, char *buf, size_t size)
{
    bool row = false;
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v2(store->db, "SELECT value FROM facts WHERE fact = ?", -1, &stmt, NULL) == SQLITE_OK) {
        store_bind(stmt, 1, fact);
        row = sqlite3_step(stmt) == SQLITE_ROW && text_print(buf, size, "%s", store_column(stmt, 0));
    }
    sqlite3_finalize(stmt);
    return row;
}

/* ---- versions ---- */

static enum status parse_object(const char *json, const char *what, json_t **out)
{
    json_t *value = NULL;
    json = json ? json : "{}";
    TRY(json_parse(json, strlen(json), what, &value));
    if (!json_is_object(value)) {
        json_decref(value);
        return FAIL(STATUS_USAGE, "the %s of a sample are not a JSON object", what);
    }
    *out = value;
    return STATUS_OK;
}

enum status store_canonical(const char *json, const char *what, char **out)
{
    json_t *value = NULL;
    TRY(parse_object(json, what, &value));
    char *text = json_dumps(value, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(JSON_DIGITS));
    json_decref(value);
    if (!text)
        return FAIL(STATUS_NOMEM, "no memory for the %s of a sample", what);
    *out = text;
    return STATUS_OK;
}

static void add_value(struct text *text, const json_t *value)
{
    if (!value) {
        text_add(text, "unset");
    } else if (json_is_string(value)) {
        text_add(text, "%s", json_string_value(value));
    } else {
        char *json = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(JSON_DIGITS));
        text_add(text, "%s", json ? json : "?");
        free(json);
    }
}

static void add_difference(struct text *text, const char *name, const json_t *was, const json_t *is, int *count)
{
    if (was && is && json_equal(was, is))
        return;
    if ((*count)++ >= DIFFERENCES_SHOWN)
        return;
    text_add(text, "%s%s ", text->len ? ", " : "", name);
    add_value(text, was);
    text_add(text, " -> ");
    add_value(text, is);
}

enum status store_differences(const char *was, const char *is, char **out)
{
    json_t *a = NULL, *b = NULL;
    struct text text = {0};
    int count = 0;
    enum status status = STATUS_OK;
    TRY_OUT(parse_object(was, "versions", &a));
    TRY_OUT(parse_object(is, "versions", &b));
    for (void *at = json_object_iter(a); at; at = json_object_iter_next(a, at)) {
        const char *name = json_object_iter_key(at);
        add_difference(&text, name, json_object_iter_value(at), json_object_get(b, name), &count);
    }
    for (void *at = json_object_iter(b); at; at = json_object_iter_next(b, at)) {
        const char *name = json_object_iter_key(at);
        if (!json_object_get(a, name))
            add_difference(&text, name, NULL, json_object_iter_value(at), &count);
    }
    if (count > DIFFERENCES_SHOWN)
        text_add(&text, " and %d more", count - DIFFERENCES_SHOWN);
    TRY_OUT(text_status(&text));
    *out = text.s;
    text.s = NULL;
out:
    text_free(&text);
    json_decref(a);
    json_decref(b);
    return status;
}
