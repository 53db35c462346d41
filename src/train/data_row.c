/* train/data_row.c -- one row out of the file, its labels, positions and documents; then the part of it that a rank holds. */
#include "train/data_private.h"

#include "base/file.h"
#include "base/interrupt.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- out of the file ---- */

/* bytes: of a token */
static uint32_t token_at(const void *raw, int bytes, int64_t i)
{
    const unsigned char *byte = (const unsigned char *)raw + i * bytes;
    if (bytes == 1)
        return byte[0];
    uint32_t low = (uint32_t)byte[0] | (uint32_t)byte[1] << 8;
    return bytes == 2 ? low : low | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24;
}

/* The file's tokens from `first` on. */
static enum status check_tokens(const struct data *data, const void *raw, int64_t first, int64_t n)
{
    const int bytes = data_token_bytes(data->o.form);
    const uint32_t vocab = (uint32_t)data->o.vocab;
    int64_t i = 0;
    while (i < n && token_at(raw, bytes, i) < vocab)
        i++;
    if (i == n)
        return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "token %lld is %lu, the vocabulary has %lld", (long long)(first + i),
                           (unsigned long)token_at(raw, bytes, i), (long long)data->o.vocab),
                      "%s, read as %s", data->o.name, data_form_name(data->o.form)),
                "tokens below it; is it the tokenizer of this model, and this form of file?");
}

static enum status check_range(struct data *data, int64_t first, int64_t end, int64_t most, void *raw)
{
    const int bytes = data_token_bytes(data->o.form);
    for (int64_t n; first < end; first += n) {
        n = end - first < most ? end - first : most;
        TRY(interrupt_status());
        TRY(file_read_at(data->fd, data->o.name, first * bytes, raw, (size_t)(n * bytes)));
        TRY(check_tokens(data, raw, first, n));
    }
    return STATUS_OK;
}

int data_check_rounds(const struct data *data, int ranks)
{
    const int bytes = data_token_bytes(data->o.form);
    const int64_t most = (INT64_C(128) << 20) / bytes * ranks; /* tokens; seconds on a slow disk, within a deadline of ranks */
    return data->o.vocab >> 8 * bytes > 0 ? 0 : (int)((data->tokens + most - 1) / most);
}

enum status data_check(struct data *data, int part, int parts)
{
    const int64_t most = 256 << 10; /* tokens at a time, which stay in a cache */
    const int bytes = data_token_bytes(data->o.form);
    int64_t each = data->tokens / parts, more = data->tokens % parts;
    int64_t first = each * part + (part < more ? part : more), end = first + each + (part < more);
    void *raw = NULL;
    TRY(mem_alloc((size_t)(most * bytes), "a part of the file", &raw));
    enum status status = check_range(data, first, end, most, raw);
    free(raw);
    return status;
}

enum status data_load(struct data *data, int64_t first, int64_t seq, struct data_row *out)
{
    int bytes = data_token_bytes(data->o.form);
    int64_t looked_back = data->o.separator.n > 0 ? data->o.separator.n - 1 : 0;
    int64_t before = first < looked_back ? first : looked_back, ahead = first + seq < data->tokens;
    int64_t n = before + seq + ahead;
    TRY(file_read_at(data->fd, data->o.name, (first - before) * bytes, data->raw, (size_t)(n * bytes)));
    TRY(check_tokens(data, data->raw, first - before, n));
    for (int64_t i = 0; i < n; i++)
        data->tokens_of_row[i] = (int32_t)token_at(data->raw, bytes, i);
    *out = (struct data_row){.at = data->tokens_of_row + before, .seq = seq, .before = before, .ahead = ahead};
    return STATUS_OK;
}

enum status data_head(struct data *data, int64_t n, int32_t *out)
{
    struct data_row row;
    TRY(data_load(data, 0, n, &row));
    memcpy(out, row.at, (size_t)n * sizeof *out);
    return STATUS_OK;
}

/* ---- labels ---- */

/* Does a document end between at[-1] and at[0]? After the last of several separators, so that no document is a bare one. */
static bool ends_at(const struct data_separator *separator, const int32_t *at, int64_t before, bool ahead)
{
    size_t n = (size_t)separator->n, bytes = n * sizeof *at;
    if (before < separator->n || memcmp(at - n, separator->token, bytes) != 0)
        return false;
    return !ahead || memcmp(at - n + 1, separator->token, bytes) != 0;
}

int data_label(const struct data_row *row, const struct data_separator *separator, int32_t *labels, int32_t *positions,
               int64_t *doc_len, int64_t *out_valid)
{
    int docs = 0;
    int64_t begin = 0, valid = 0;
    bool packed = separator->n > 0, rest = false;
    for (int64_t i = 0; i < row->seq; i++) {
        int64_t next = i + 1;
        bool there = next < row->seq || row->ahead, last = next == row->seq;
        bool end = packed && !rest && ends_at(separator, row->at + next, row->before + next, there);
        bool counts = there && !end && !rest;
        labels[i] = counts ? row->at[next] : DATA_IGNORED;
        positions[i] = (int32_t)(i - begin);
        valid += counts;
        if (packed && (end || last)) {
            doc_len[docs++] = next - begin;
            begin = next;
            rest = docs == PROBLEM_MAX_DOCS - 2; /* one more for what is left, one for padding */
        }
    }
    *out_valid = valid;
    return docs;
}

/* ---- the part of a rank ---- */

static enum status check_ranges(const struct shard *shard, int64_t padded, int64_t *out_local)
{
    int64_t local = 0;
    if (shard->n < 1 || shard->n > SHARD_RANGES_MAX)
        return FAIL(STATUS_USAGE, "%d ranges of a row, 1 to %d are expected", shard->n, SHARD_RANGES_MAX);
    for (int i = 0; i < shard->n; i++) {
        int64_t first = shard->range[i].first, count = shard->range[i].count;
        if (first < 0 || count < 0 || first > padded || count > padded - first)
            return FAIL(STATUS_USAGE, "tokens %lld to %lld of a row of %lld", (long long)first,
                        (long long)(first + count), (long long)padded);
        local += count;
    }
    if (local > padded)
        return FAIL(STATUS_USAGE, "%lld tokens in ranges of a row of %lld", (long long)local, (long long)padded);
    *out_local = local;
    return STATUS_OK;
}

static enum status make_room(const struct data *data, struct data_batch *batch)
{
    bool packed = data->o.separator.n > 0;
    size_t rows = (size_t)batch->rows, tokens = rows * (size_t)batch->local, docs = packed ? rows : 0;
    TRY(mem_grow(&batch->store, &batch->store_cap, docs + 3 * tokens + 1, sizeof(int32_t)));
    TRY(mem_grow(&batch->doc_store, &batch->doc_cap, docs * PROBLEM_MAX_DOCS, sizeof(int64_t)));
    int32_t *store = batch->store;
    batch->ids = store + docs;
    batch->labels = batch->ids + tokens;
    batch->positions = batch->labels + tokens;
    batch->docs = packed ? store : NULL;
    batch->doc_len = packed ? batch->doc_store : NULL;
    return STATUS_OK;
}

/* Tokens [first, first + count) of a padded row: what is there of `row`, then `padding`. */
static void put(const int32_t *row, int64_t seq, int64_t first, int64_t count, int32_t padding, int32_t *to)
{
    int64_t real = first >= seq ? 0 : count < seq - first ? count : seq - first;
    if (real > 0)
        memcpy(to, row + first, (size_t)real * sizeof *to);
    for (int64_t i = real; i < count; i++)
        to[i] = padding;
}

static void put_row(const struct data *data, const struct data_row *row, const struct shard *shard, int64_t at,
                    struct data_batch *out)
{
    for (int i = 0; i < shard->n; i++) {
        int64_t first = shard->range[i].first, count = shard->range[i].count;
        put(row->at, row->seq, first, count, 0, out->ids + at);
        put(data->labels, row->seq, first, count, DATA_IGNORED, out->labels + at);
        put(data->positions, row->seq, first, count, 0, out->positions + at);
        for (int64_t j = first < row->seq ? row->seq - first : 0; j < count; j++)
            out->positions[at + j] = (int32_t)(first + j - row->seq); /* padding is a document of its own */
        at += count;
    }
}

enum status data_read(struct data *data, int64_t step, int micro, int group, const struct shard *shard,
                      struct data_batch *out)
{
    struct data_row row = {0};
    int64_t local = 0;
    if (step < 0 || step >= data->steps)
        return WHERE(FAIL(STATUS_NODATA, "step %lld is asked for, the data lasts for %lld", (long long)step,
                          (long long)data->steps),
                     "%s", data->o.name);
    if (micro < 0 || micro >= data->o.accumulate || group < 0 || group >= data->o.groups)
        return FAIL(STATUS_USAGE, "micro-step %d of %d, group %d of %d", micro, data->o.accumulate, group,
                    data->o.groups);
    int64_t seq = data_seq(data, step), padded = data_padded(data, step);
    TRY(check_ranges(shard, padded, &local));
    out->rows = data->o.micro_batch;
    out->seq = seq;
    out->padded = padded;
    out->local = local;
    out->valid = 0;
    TRY(make_room(data, out));
    for (int r = 0; r < out->rows; r++) {
        int64_t valid = 0, *doc_len = out->doc_len ? out->doc_len + (int64_t)r * PROBLEM_MAX_DOCS : NULL;
        TRY(data_load(data, data_first(data, step, micro, group, r), seq, &row));
        int docs = data_label(&row, &data->o.separator, data->labels, data->positions, doc_len, &valid);
        if (out->docs)
            out->docs[r] = docs;
        out->valid += valid;
        put_row(data, &row, shard, r * local, out);
    }
    return STATUS_OK;
}

void data_batch_free(struct data_batch *batch)
{
    free(batch->store);
    free(batch->doc_store);
    *batch = (struct data_batch){0};
}
