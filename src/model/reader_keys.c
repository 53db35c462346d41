/* model/reader_keys.c -- single keys of a config.json: typed, limited, named in messages. */
#include "model/reader.h"

enum status reader_where(const struct reader *r, const char *key, enum status status)
{
    return WHERE(status, "%s, key %s%s", r->where, r->outer != NULL ? "text_config." : "", key);
}

const json_t *reader_get(const struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->object, key);
    return json_is_null(value) ? NULL : value;
}

static enum status refuse_list(const struct reader *r, const char *key)
{
    enum status s = FAIL(STATUS_USAGE, "%s is a list: sizes that differ from layer to layer are not modelled", key);
    return reader_where(r, key, HINT(s, "models whose layers all have the same attention shape are read"));
}

static enum status refuse_range(const struct reader *r, const char *key, int64_t value, int64_t min, int64_t max)
{
    enum status s = FAIL(STATUS_USAGE, "%s is %lld", key, (long long)value);
    return reader_where(r, key, HINT(s, "it must be from %lld to %lld", (long long)min, (long long)max));
}

enum status reader_int(const struct reader *r, const char *key, int64_t fallback, int64_t min, int64_t max,
                       int64_t *out)
{
    const json_t *value = reader_get(r, key);
    if (value == NULL && fallback == READER_REQUIRED) {
        enum status s = FAIL(STATUS_USAGE, "%s is missing", key);
        return reader_where(r, key, HINT(s, "a %s config.json needs it", r->family->type));
    }
    if (value == NULL) {
        *out = fallback;
        return STATUS_OK;
    }
    if (json_is_array(value) || json_is_object(value))
        return refuse_list(r, key);
    int64_t n = 0;
    enum status s = json_int(r->object, key, "", fallback, &n); /* reader_where says where */
    if (s != STATUS_OK)
        return reader_where(r, key,
                            HINT(s, "it must be a whole number from %lld to %lld", (long long)min, (long long)max));
    if (n < min || n > max)
        return refuse_range(r, key, n, min, max);
    *out = n;
    return STATUS_OK;
}

enum status reader_size(const struct reader *r, const char *key, int64_t fallback, int64_t max, int64_t *out)
{
    return reader_int(r, key, fallback, 1, max, out);
}

enum status reader_either(const struct reader *r, const char *key, const char *other, int64_t fallback, int64_t max,
                          int64_t *out)
{
    if (other == NULL || reader_get(r, other) == NULL)
        return reader_size(r, key, fallback, max, out);
    int64_t n = 0, m = 0;
    TRY(reader_size(r, other, READER_REQUIRED, max, &n));
    TRY(reader_size(r, key, n, max, &m));
    if (n != m) {
        enum status s = FAIL(STATUS_USAGE, "%s is %lld but %s, the same size by another name, is %lld", key,
                             (long long)m, other, (long long)n);
        return reader_where(r, key, HINT(s, "keep the right one"));
    }
    *out = n;
    return STATUS_OK;
}

enum status reader_bool(const struct reader *r, const char *key, bool fallback, bool *out)
{
    enum status s = json_bool(r->object, key, "", fallback, out);
    return s == STATUS_OK ? s : reader_where(r, key, HINT(s, "it must be true or false"));
}
