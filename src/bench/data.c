/* bench/data.c -- elements from where they belong, and exact comparison. */
#include "bench/data.h"

#include "base/rng.h"
#include "base/text.h"

#include <string.h>

enum {
    LANES_MAX = 4096, /* a row is made in pieces of this size */
    BLOCK = 32        /* lanes made at once: loops of known length become vectors */
};

const char *data_tensor_name(enum data_tensor tensor)
{
    static const char *const names[] = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "a", "b", "x", "dy"};
    return names[tensor];
}

static uint64_t token_key(uint64_t seed, enum data_tensor tensor, int64_t batch, int64_t position)
{
    uint64_t key = rng_hash(seed, (uint64_t)tensor);
    key = rng_hash(key, (uint64_t)batch);
    return rng_hash(key, (uint64_t)position);
}

static uint64_t row_key(uint64_t token, int head, int copy)
{
    return rng_hash(token, (uint64_t)head << 20 | (uint64_t)copy);
}

/* Four lanes from each hash: 16 bits each, between the grid's points so that none is 0. */
static inline void block_make(uint64_t key, int64_t first, float out[BLOCK])
{
    uint16_t grid[BLOCK];
    for (int i = 0; i < BLOCK; i += 4) {
        uint64_t bits = rng_hash(key, (uint64_t)(first + i));
        for (int l = 0; l < 4; l++)
            grid[i + l] = (uint16_t)(bits >> 16 * l);
    }
    for (int i = 0; i < BLOCK; i++)
        out[i] = ((float)grid[i] - 32767.5f) * (1.7320508f / 32768.0f);
}

static void lanes_make(uint64_t key, int64_t first, int n, float *out)
{
    int i = 0;
    for (; i <= n - BLOCK; i += BLOCK)
        block_make(key, first + i, out + i);
    if (i < n) {
        float last[BLOCK];
        block_make(key, first + i, last);
        memcpy(out + i, last, (size_t)(n - i) * sizeof *out);
    }
}

static void lanes_round(enum dtype dtype, float *lanes, int n)
{
    uint16_t narrow[LANES_MAX];
    if (dtype == DTYPE_FP32)
        return;
    dtype_store(dtype, lanes, narrow, n);
    dtype_load(dtype, narrow, lanes, n);
}

static int piece_lanes(int dim, int first)
{
    return dim - first < LANES_MAX ? dim - first : LANES_MAX;
}

void data_row(uint64_t seed, enum data_tensor tensor, int64_t batch, int64_t position, int head, int copy, enum dtype dtype,
              int dim, float *out)
{
    uint64_t key = row_key(token_key(seed, tensor, batch, position), head, copy);
    for (int d = 0; d < dim; d += LANES_MAX) {
        lanes_make(key, d, piece_lanes(dim, d), out + d);
        lanes_round(dtype, out + d, piece_lanes(dim, d));
    }
}

/* Lanes first..first+n of a row as they are stored: of one copy, or the sum of several in fp32. */
static void row_store(enum dtype dtype, uint64_t token, int head, int copy, int copies, int first, int n, void *out)
{
    float sum[LANES_MAX], part[LANES_MAX];
    lanes_make(row_key(token, head, copy), first, n, sum);
    for (int c = 1; c < copies; c++) {
        if (c == 1)
            lanes_round(dtype, sum, n);
        lanes_make(row_key(token, head, copy + c), first, n, part);
        lanes_round(dtype, part, n);
        for (int i = 0; i < n; i++)
            sum[i] += part[i];
    }
    dtype_store(dtype, sum, out, n);
}

static char *side_row(const struct data_side *side, int64_t b, int64_t t, int h)
{
    int64_t element = (b * side->seq + t) * side->token_stride + (int64_t)h * side->dim;
    return (char *)side->base + element * dtype_bytes(side->dtype);
}

void data_fill(uint64_t seed, enum data_tensor tensor, const struct data_side *side)
{
    for (int64_t b = 0; b < side->batch; b++)
        for (int64_t t = 0; t < side->seq; t++) {
            uint64_t token = token_key(seed, tensor, side->batch_first + b, side->position_first + t);
            for (int h = 0; h < side->heads; h++) {
                char *row = side_row(side, b, t, h);
                for (int d = 0; d < side->dim; d += LANES_MAX)
                    row_store(side->dtype, token, side->head_first + h, side->copy, 1, d, piece_lanes(side->dim, d),
                              row + (int64_t)d * dtype_bytes(side->dtype));
            }
        }
}

/* Lanes in which any bit differs. Stored bits are the element's, so equal bytes need no look; `at`: where lane 0 belongs. */
static void wrong_count(enum dtype dtype, const void *stored, const void *expected, int n, const struct data_errors *at,
                        struct data_errors *out)
{
    float got[LANES_MAX], want[LANES_MAX];
    dtype_load(dtype, stored, got, n);
    dtype_load(dtype, expected, want, n);
    for (int i = 0; i < n; i++) {
        if (memcmp(&want[i], &got[i], sizeof *want) == 0)
            continue;
        if (out->wrong++ == 0) {
            out->batch = at->batch;
            out->position = at->position;
            out->head = at->head;
            out->lane = at->lane + i;
            out->got = got[i];
            out->want = want[i];
        }
    }
}

void data_compare(uint64_t seed, enum data_tensor tensor, const struct data_side *side, int copies, struct data_errors *out)
{
    float expected[LANES_MAX]; /* as stored */
    int first_copy = copies > 1 ? 0 : side->copy, bytes = dtype_bytes(side->dtype);
    *out = (struct data_errors){.elements = side->batch * side->seq * side->heads * side->dim};
    for (int64_t b = 0; b < side->batch; b++)
        for (int64_t t = 0; t < side->seq; t++) {
            struct data_errors at = {.batch = side->batch_first + b, .position = side->position_first + t};
            uint64_t token = token_key(seed, tensor, at.batch, at.position);
            for (int h = 0; h < side->heads; h++)
                for (int d = 0; d < side->dim; d += LANES_MAX) {
                    int n = piece_lanes(side->dim, d);
                    const char *stored = side_row(side, b, t, h) + (int64_t)d * bytes;
                    at.head = side->head_first + h;
                    at.lane = d;
                    row_store(side->dtype, token, at.head, first_copy, copies, d, n, expected);
                    if (memcmp(stored, expected, (size_t)n * (size_t)bytes) != 0)
                        wrong_count(side->dtype, stored, expected, n, &at, out);
                }
        }
}

bool data_verdict(const struct data_errors *errors, enum data_tensor tensor, const char *where, char why[256])
{
    if (errors->wrong == 0)
        return true;
    text_print(why, 256, "%lld of %lld elements of %s %s are wrong, first at batch %lld, token %lld, head %d, lane %d: %g, not %g",
               (long long)errors->wrong, (long long)errors->elements, data_tensor_name(tensor), where,
               (long long)errors->batch, (long long)errors->position, errors->head, errors->lane, (double)errors->got,
               (double)errors->want);
    return false;
}

static uint64_t block_key(uint64_t seed, int from, int to)
{
    return rng_hash(rng_hash(seed, (uint64_t)from), (uint64_t)to);
}

void data_bytes_fill_part(uint64_t seed, int from, int to, int64_t first, int64_t bytes, void *out)
{
    uint64_t key = block_key(seed, from, to);
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t word = rng_hash(key, (uint64_t)(first + i));
        memcpy((char *)out + i, &word, (size_t)(bytes - i < 8 ? bytes - i : 8));
    }
}

void data_bytes_fill(uint64_t seed, int from, int to, int64_t bytes, void *out)
{
    data_bytes_fill_part(seed, from, to, 0, bytes, out);
}

int64_t data_bytes_wrong(uint64_t seed, int from, int to, int64_t first, int64_t bytes, const void *in, int64_t *first_wrong)
{
    uint64_t key = block_key(seed, from, to);
    int64_t wrong = 0;
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t word = rng_hash(key, (uint64_t)(first + i));
        int64_t n = bytes - i < 8 ? bytes - i : 8;
        for (int64_t j = 0; j < n && memcmp((const char *)in + i, &word, (size_t)n) != 0; j++)
            if (((const char *)in)[i + j] != ((const char *)&word)[j] && wrong++ == 0)
                *first_wrong = first + i + j;
    }
    return wrong;
}

bool data_bytes_verdict(int64_t wrong, int64_t first_wrong, int from, int to, int64_t bytes, const char *where, char why[256])
{
    if (wrong == 0)
        return true;
    text_print(why, 256, "%lld of %lld bytes from rank %d for rank %d%s are wrong, first at byte %lld", (long long)wrong,
               (long long)bytes, from, to, where, (long long)first_wrong);
    return false;
}

bool data_bytes_verify(uint64_t seed, int from, int to, int64_t bytes, const void *in, const char *where, char why[256])
{
    int64_t first = 0, wrong = data_bytes_wrong(seed, from, to, 0, bytes, in, &first);
    return data_bytes_verdict(wrong, first, from, to, bytes, where, why);
}
