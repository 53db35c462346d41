/* train/data.c -- open a file of tokens: what the options and the file allow, how many steps that is, and which window is whose. */
#include "train/data_private.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Streams of the seed that must not meet. */
enum { STREAM_ORDER, STREAM_SEQ, STREAM_OFFSET };

static enum status positive(int64_t value, const char *what)
{
    return value >= 1 ? STATUS_OK : FAIL(STATUS_USAGE, "%s is %lld, 1 or more is expected", what, (long long)value);
}

static enum status check_seq(const struct data_options *o, int64_t seq)
{
    TRY(positive(seq, "a row's length"));
    if (seq > INT32_MAX - o->pad_to)
        return FAIL(STATUS_USAGE, "a row of %lld tokens; positions are 32 bits wide", (long long)seq);
    return STATUS_OK;
}

static enum status check_options(const struct data_options *o)
{
    TRY(positive(o->vocab, "the vocabulary"));
    if (o->vocab > INT32_MAX)
        return FAIL(STATUS_USAGE, "a vocabulary of %lld; ids are 32 bits wide", (long long)o->vocab);
    TRY(positive(o->n_seqs, "the number of lengths"));
    TRY(positive(o->pad_to, "what rows are padded to a multiple of"));
    if (o->pad_to > INT32_MAX)
        return FAIL(STATUS_USAGE, "rows padded to a multiple of %lld; positions are 32 bits wide",
                    (long long)o->pad_to);
    for (int i = 0; i < o->n_seqs; i++)
        TRY(check_seq(o, o->seqs[i]));
    TRY(positive(o->micro_batch, "micro_batch"));
    TRY(positive(o->accumulate, "accumulate"));
    TRY(positive(o->groups, "the number of data-parallel groups"));
    TRY(positive(o->epochs, "the number of epochs"));
    for (int i = 0; i < o->separator.n; i++)
        if (o->separator.token[i] >= o->vocab)
            return FAIL(STATUS_USAGE, "the separator's token %ld is beyond the vocabulary of %lld",
                        (long)o->separator.token[i], (long long)o->vocab);
    return STATUS_OK;
}

static enum status count_tokens(struct data *data, int64_t bytes)
{
    int each = data_token_bytes(data->o.form);
    if (bytes % each != 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "%lld bytes are no whole number of %s tokens", (long long)bytes,
                               data_form_name(data->o.form)),
                          "%s", data->o.name),
                    "%d bytes each; was the file cut, or is it of another form?", each);
    data->tokens = bytes / each;
    return STATUS_OK;
}

/* A window needs the token after it for its last label, unless rows are packed: there a file may end where a row does. */
static enum status count_steps(struct data *data)
{
    const struct data_options *o = &data->o;
    int64_t after = o->separator.n > 0 ? 0 : 1, needed = 0;
    TRY(mem_mul(o->micro_batch, o->accumulate, "rows per step", &data->rows_per_step));
    TRY(mem_mul(data->rows_per_step, o->groups, "rows per step", &data->rows_per_step));
    TRY(mem_mul(data->rows_per_step, data->stride, "tokens per step", &needed));
    data->windows = data->tokens > after ? (data->tokens - after) / data->stride : 0;
    data->steps_per_epoch = data->windows / data->rows_per_step;
    if (data->steps_per_epoch == 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "%lld tokens, %lld are needed for one step: %lld rows of %lld%s",
                               (long long)data->tokens, (long long)needed + after, (long long)data->rows_per_step,
                               (long long)data->stride, after ? " and the token after them" : ""),
                          "%s", o->name),
                    "a larger file, shorter rows, or fewer of them per step");
    return mem_mul(data->steps_per_epoch, o->epochs, "steps", &data->steps);
}

static enum status copy_options(const struct data_options *from, struct data *data)
{
    size_t bytes = (size_t)from->n_seqs * sizeof *from->seqs;
    data->o = *from;
    data->o.path = NULL;
    data->o.name = data->name = strdup(from->name != NULL ? from->name : from->path);
    data->o.seqs = data->seqs = malloc(bytes);
    if (!data->seqs || !data->name)
        return FAIL(STATUS_NOMEM, "no memory for the options of data");
    memcpy(data->seqs, from->seqs, bytes);
    return STATUS_OK;
}

static enum status make_buffers(struct data *data)
{
    size_t row = (size_t)data->stride, most = row + DATA_SEPARATOR_MAX + 1;
    TRY(mem_alloc(most * (size_t)data_token_bytes(data->o.form), "a row of the file", &data->raw));
    TRY(mem_alloc(most * sizeof(int32_t), "a row of tokens", (void **)&data->tokens_of_row));
    TRY(mem_alloc(row * sizeof(int32_t), "a row of labels", (void **)&data->labels));
    return mem_alloc(row * sizeof(int32_t), "a row of positions", (void **)&data->positions);
}

enum status data_open(const struct data_options *options, struct data **out)
{
    enum status status = STATUS_OK;
    int64_t bytes = 0;
    TRY(check_options(options));
    struct data *data = calloc(1, sizeof *data);
    if (!data)
        return FAIL(STATUS_NOMEM, "no memory for data");
    data->fd = -1;
    TRY_OUT(copy_options(options, data));
    for (int i = 0; i < options->n_seqs; i++)
        data->stride = options->seqs[i] > data->stride ? options->seqs[i] : data->stride;
    TRY_OUT(file_open(options->path, &data->fd, &bytes));
    TRY_OUT(count_tokens(data, bytes));
    TRY_OUT(count_steps(data));
    TRY_OUT(make_buffers(data));
    *out = data;
    return STATUS_OK;
out:
    data_close(data);
    return status;
}

void data_close(struct data *data)
{
    if (!data)
        return;
    if (data->fd >= 0)
        close(data->fd);
    free(data->positions);
    free(data->labels);
    free(data->tokens_of_row);
    free(data->raw);
    free(data->seqs);
    free(data->name);
    free(data);
}

enum status data_sample(const struct data *data, uint64_t *out)
{
    enum { PIECES = 64, BYTES = 4096 };
    unsigned char piece[BYTES] = {0};
    const int64_t all = data->tokens * data_token_bytes(data->o.form), most = all < BYTES ? all : BYTES;
    uint64_t hash = (uint64_t)all;
    for (int i = 0; i < PIECES; i++) {
        int64_t at = (int64_t)((double)(all - most) * i / (PIECES - 1));
        TRY(file_read_at(data->fd, data->o.name, at, piece, (size_t)most));
        for (int64_t b = 0; b < most; b++)
            hash = (hash ^ piece[b]) * UINT64_C(0x100000001b3); /* FNV-1a */
    }
    *out = hash;
    return STATUS_OK;
}

int64_t data_tokens(const struct data *data)
{
    return data->tokens;
}

int64_t data_steps(const struct data *data)
{
    return data->steps;
}

int64_t data_seq(const struct data *data, int64_t step)
{
    uint64_t draw = rng_hash(rng_hash(data->o.seed, STREAM_SEQ), (uint64_t)step);
    return data->o.seqs[draw % (uint64_t)data->o.n_seqs];
}

int64_t data_padded(const struct data *data, int64_t step)
{
    int64_t seq = data_seq(data, step), to = data->o.pad_to;
    return (seq + to - 1) / to * to;
}

int64_t data_first(const struct data *data, int64_t step, int micro, int group, int row)
{
    const struct data_options *o = &data->o;
    int64_t in_step = ((int64_t)micro * o->groups + group) * o->micro_batch + row;
    int64_t epoch = step / data->steps_per_epoch,
            in_epoch = step % data->steps_per_epoch * data->rows_per_step + in_step;
    int64_t window = data_order(rng_hash(o->seed, STREAM_ORDER), epoch, data->windows, in_epoch);
    int64_t spare = data->stride - data_seq(data, step);
    uint64_t draw = rng_hash(rng_hash(o->seed, STREAM_OFFSET), (uint64_t)(step * data->rows_per_step + in_step));
    return window * data->stride + (int64_t)(draw % (uint64_t)(spare + 1));
}
