/* bench/data.c -- elements from where they belong, and exact comparison. */
#include "bench/data.h"

#include "base/rng.h"
#include "base/text.h"

#include <string.h>

enum { LANES_MAX = 4096 }; /* a row is made in pieces of this size */

const char *data_tensor_name(enum data_tensor tensor)
{
    static const char *const names[] = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "a", "b", "x", "dy"};
    return names[tensor];
}

static uint64_t row_key(uint64_t seed, enum data_tensor tensor, int64_t batch, int64_t position, int head, int copy)
{
    uint64_t key = rng_hash(seed, (uint64_t)tensor);
    key = rng_hash(key, (uint64_t)batch);
    key = rng_hash(key, (uint64_t)position);
    return rng_hash(key, (uint64_t)head << 20 | (uint64_t)copy);
}

/* Four lanes from each hash: 16 bits each, between the grid's points so that none is 0. */
static void lanes_make(uint64_t key, int64_t first, int n, float *out)
{
    for (int i = 0; i < n; i += 4) {
        uint64_t bits = rng_hash(key, (uint64_t)(first + i));
        for (int l = 0; l < 4 && i + l < n; l++, bits >>= 16)
            out[i + l] = ((float)(bits & 0xffff) - 32767.5f) * (1.7320508f / 32768.0f);
    }
}

static void lanes_round(enum dtype dtype, float *lanes, int n)
{
    if (dtype == DTYPE_FP32)
        return;
    for (int i = 0; i < n; i++) {
        uint16_t narrow;
        dtype_set(dtype, &narrow, 0, lanes[i]);
        lanes[i] = dtype_get(dtype, &narrow, 0);
    }
}

void data_row(uint64_t seed, enum data_tensor tensor, int64_t batch, int64_t position, int head, int copy, enum dtype dtype,
              int dim, float *out)
{
    lanes_make(row_key(seed, tensor, batch, position, head, copy), 0, dim, out);
    lanes_round(dtype, out, dim);
}

static char *side_row(const struct data_side *side, int64_t b, int64_t t, int h)
{
    int64_t element = (b * side->seq + t) * side->token_stride + (int64_t)h * side->dim;
    return (char *)side->base + element * dtype_bytes(side->dtype);
}

void data_fill(uint64_t seed, enum data_tensor tensor, const struct data_side *side)
{
    float lanes[LANES_MAX];
    for (int64_t b = 0; b < side->batch; b++)
        for (int64_t t = 0; t < side->seq; t++)
            for (int h = 0; h < side->heads; h++) {
                uint64_t key = row_key(seed, tensor, side->batch_first + b, side->position_first + t, side->head_first + h,
                                       side->copy);
                char *row = side_row(side, b, t, h);
                for (int d = 0; d < side->dim; d += LANES_MAX) {
                    int n = side->dim - d < LANES_MAX ? side->dim - d : LANES_MAX;
                    lanes_make(key, d, n, lanes);
                    dtype_store(side->dtype, lanes, row + (int64_t)d * dtype_bytes(side->dtype), n);
                }
            }
}

/* What lanes first..first+n of a row must hold. */
static void row_expect(uint64_t seed, enum data_tensor tensor, const struct data_side *side, int copies, int64_t b, int64_t t,
                       int h, int first, int n, float *out)
{
    float part[LANES_MAX];
    for (int c = 0; c < copies; c++) {
        int copy = copies > 1 ? c : side->copy;
        lanes_make(row_key(seed, tensor, side->batch_first + b, side->position_first + t, side->head_first + h, copy), first, n,
                   part);
        lanes_round(side->dtype, part, n);
        for (int i = 0; i < n; i++)
            out[i] = c == 0 ? part[i] : out[i] + part[i];
    }
    lanes_round(side->dtype, out, n);
}

void data_compare(uint64_t seed, enum data_tensor tensor, const struct data_side *side, int copies, struct data_errors *out)
{
    float want[LANES_MAX], got[LANES_MAX];
    *out = (struct data_errors){.elements = side->batch * side->seq * side->heads * side->dim};
    for (int64_t b = 0; b < side->batch; b++)
        for (int64_t t = 0; t < side->seq; t++)
            for (int h = 0; h < side->heads; h++)
                for (int d = 0; d < side->dim; d += LANES_MAX) {
                    int n = side->dim - d < LANES_MAX ? side->dim - d : LANES_MAX;
                    row_expect(seed, tensor, side, copies, b, t, h, d, n, want);
                    dtype_load(side->dtype, side_row(side, b, t, h) + (int64_t)d * dtype_bytes(side->dtype), got, n);
                    if (memcmp(want, got, (size_t)n * sizeof *want) == 0)
                        continue;
                    for (int i = 0; i < n; i++) {
                        if (memcmp(&want[i], &got[i], sizeof *want) == 0)
                            continue;
                        if (out->wrong++ == 0) {
                            out->batch = side->batch_first + b;
                            out->position = side->position_first + t;
                            out->head = side->head_first + h;
                            out->lane = d + i;
                            out->got = got[i];
                            out->want = want[i];
                        }
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
