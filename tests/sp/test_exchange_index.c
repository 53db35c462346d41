/* tests/sp/test_exchange_index.c -- blocks of exchanges cut as GPUs take them (moves of threads, planes of copy engines): every small
 * shape, every pair of ranks, every cell where it belongs, stored once, and nothing beside. */
#include "sp/sp_test.h"

#include "kernels/copy_split.h"
#include "sp/exchange_block.h"

#include <stdlib.h>

enum { BYTES = 1 << 12, POISON = 0x5a, RANKS = 4 };

struct trial {
    struct exchange_shape shape;
    struct exchange_tensor tensor;
    enum exchange_direction direction;
    int size;
    char seq[RANKS][BYTES], head[RANKS][BYTES]; /* of every rank */
    unsigned char stored[BYTES];
};

static int64_t elem(const struct trial *t)
{
    return dtype_bytes(t->shape.dtype);
}

/* Byte offsets of an element, from the definition in exchange.h. */
static int64_t seq_at(const struct trial *t, int64_t b, int64_t token, int head, int lane)
{
    return (((b * t->shape.seq_local + token) * t->tensor.heads + head) * t->tensor.dim + lane) * elem(t);
}

static int64_t head_at(const struct trial *t, int64_t b, int64_t token, int local, int lane)
{
    int64_t row = b * t->shape.seq_local * t->size + token;
    return (row * t->tensor.head_stride + (int64_t)(local - t->tensor.first) * t->tensor.dim + lane) * elem(t);
}

static struct exchange_tensor tensor_of(struct trial *t, int rank)
{
    struct exchange_tensor tensor = t->tensor;
    tensor.seq = t->seq[rank];
    tensor.head = t->head[rank];
    return tensor;
}

static struct copy_job job_between(struct trial *t, int from, int to)
{
    struct exchange_tensor at_from = tensor_of(t, from), at_to = tensor_of(t, to);
    bool in = t->direction == EXCHANGE_TO_HEADS;
    struct exchange_block a = in ? exchange_block_seq(&t->shape, &at_from, t->size, to)
                                 : exchange_block_head(&t->shape, &at_from, t->size, to);
    struct exchange_block b = in ? exchange_block_head(&t->shape, &at_to, t->size, from)
                                 : exchange_block_seq(&t->shape, &at_to, t->size, from);
    assert_true(a.row_bytes == b.row_bytes && a.batch == b.batch && a.seq == b.seq);
    return (struct copy_job){.src = a.base,
                             .dst = b.base,
                             .n = {1, a.batch, a.seq},
                             .src_stride = {0, a.batch_stride, a.token_stride},
                             .dst_stride = {0, b.batch_stride, b.token_stride},
                             .row_bytes = (size_t)a.row_bytes};
}

/* What `from` gave to `to`: all of it, once, and no byte more. */
static void look(struct trial *t, int from, int to)
{
    bool in = t->direction == EXCHANGE_TO_HEADS;
    const char *dst = in ? t->head[to] : t->seq[to], *src = in ? t->seq[from] : t->head[from];
    int64_t moved = 0, stored = 0;
    int sender = in ? from : to, keeper = in ? to : from; /* whose tokens, whose heads */
    for (int64_t b = 0; b < t->shape.batch; b++)
        for (int64_t s = 0; s < t->shape.seq_local; s++)
            for (int l = t->tensor.first; l < t->tensor.first + t->tensor.count; l++)
                for (int lane = 0; lane < t->tensor.dim; lane++, moved += elem(t)) {
                    int64_t seq = seq_at(t, b, s, model_kv_first(t->tensor.heads, t->size, keeper) + l, lane);
                    int64_t head = head_at(t, b, sender * t->shape.seq_local + s, l, lane);
                    assert_memory_equal(dst + (in ? head : seq), src + (in ? seq : head), (size_t)elem(t));
                    for (int64_t i = 0; i < elem(t); i++)
                        assert_int_equal(t->stored[(in ? head : seq) + i], 1);
                }
    for (int i = 0; i < BYTES; i++)
        stored += t->stored[i];
    assert_int_equal(stored, moved);
}

static void fill(struct trial *t, int from, int to)
{
    bool in = t->direction == EXCHANGE_TO_HEADS;
    char *src = in ? t->seq[from] : t->head[from];
    memset(in ? t->head[to] : t->seq[to], POISON, BYTES);
    memset(t->stored, 0, BYTES);
    for (int i = 0; i < BYTES; i++)
        src[i] = (char)(i * 37 + i / 256 * 11 + from);
}

static void every_pair(struct trial *t)
{
    for (int from = 0; from < t->size; from++)
        for (int to = 0; to < t->size; to++)
            for (int way = 0; way < SPLIT_WAYS; way++) {
                struct copy_job job = job_between(t, from, to);
                struct split split = {.dst = t->direction == EXCHANGE_TO_HEADS ? t->head[to] : t->seq[to],
                                      .stored = t->stored};
                fill(t, from, to);
                split_run(&split, &job, way);
                look(t, from, to);
            }
}

/* All chunks of the local heads, both directions. */
static void every_chunk(struct trial *t, int gap)
{
    int local = model_kv_local(t->tensor.heads, t->size);
    for (t->tensor.first = 0; t->tensor.first < local; t->tensor.first++)
        for (t->tensor.count = 1; t->tensor.count <= local - t->tensor.first; t->tensor.count++)
            for (int direction = 0; direction < 2; direction++) {
                t->direction = (enum exchange_direction)direction;
                t->tensor.head_stride = (int64_t)t->tensor.count * t->tensor.dim + gap;
                every_pair(t);
            }
}

static void every_shape(void **state)
{
    (void)state;
    struct trial *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
    assert_non_null(t);
    int n = 0;
    for (int size = 1; size <= RANKS; size++)
        for (int heads = 1; heads <= 3 * size; heads++)
            for (int64_t batch = 1; batch <= 3; batch++)
                for (int64_t seq = 0; seq <= 3; seq++)
                    for (int dim = 1; dim <= 3; dim++)
                        for (int gap = 0; gap <= 2; gap++) {
                            if (heads % size != 0 && size % heads != 0)
                                continue;
                            t->size = size;
                            t->shape = (struct exchange_shape){
                                .batch = batch, .seq_local = seq, .dtype = n++ % 2 ? DTYPE_BF16 : DTYPE_FP32};
                            t->tensor = (struct exchange_tensor){.heads = heads, .dim = dim};
                            every_chunk(t, gap);
                        }
    assert_true(n > 1000);
    free(t);
}

/* Tensors of more than 2^32 elements on both sides: where a block begins and how far apart its rows are. Nothing is touched. */
static void beyond_32_bits(void **state)
{
    (void)state;
    struct trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->size = RANKS;
    t->shape = (struct exchange_shape){.batch = 3, .seq_local = INT64_C(1) << 20, .dtype = DTYPE_BF16};
    t->tensor = (struct exchange_tensor){.heads = 64, .first = 3, .count = 5, .dim = 128};
    t->tensor.head_stride = 16 * 128;
    for (int peer = 0; peer < RANKS; peer++) {
        struct exchange_tensor tensor = tensor_of(t, 0);
        struct exchange_block seq = exchange_block_seq(&t->shape, &tensor, t->size, peer),
                              head = exchange_block_head(&t->shape, &tensor, t->size, peer);
        int64_t batch = 2, token = t->shape.seq_local - 1;
        assert_int_equal(seq.base - t->seq[0] + batch * seq.batch_stride + token * seq.token_stride,
                         seq_at(t, batch, token, peer * 16 + 3, 0));
        assert_int_equal(head.base - t->head[0] + batch * head.batch_stride + token * head.token_stride,
                         head_at(t, batch, peer * t->shape.seq_local + token, 3, 0));
        assert_true(batch * seq.batch_stride > INT64_C(1) << 33 && batch * head.batch_stride > INT64_C(1) << 33);
    }
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shape), cmocka_unit_test(beyond_32_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
