/* tests/sp/test_exchange.c -- every exchange moves every cell to where it belongs: forked ranks, data that carries its
 * origin.
 *
 * A cell's value is its origin (tensor, batch, position, head, lane) as bits of the storage type; buffers are poisoned
 * first, so that what must not be touched is seen too. Sums of copies are compared bit by bit with sums in rank order.
 */
#include "sp/sp_test.h"

#include "base/rng.h"
#include "comm/ranks.h"
#include "model/model.h"
#include "sp/exchange.h"

#include <stdlib.h>

enum { POISON = 0xee };

struct shape {
    int heads, kv_heads, dim, dim_v;
    int64_t batch, seq_local;
    enum dtype dtype;
    int first, count; /* of q's local heads; -1: all */
    int gap;          /* unused lanes at the end of each token of the head side */
    int n;            /* 1: one tensor alone, 3: q, k, v */
    bool kv_alone;    /* that one has kv_heads */
};

struct side_pair { /* the two sides of one tensor on this rank */
    struct exchange_tensor t;
    size_t seq_bytes, head_bytes;
};

/* Origin as an unsigned integer; small problems only, so that it fits 16 bits. */
static uint32_t origin(const struct shape *s, const struct exchange_tensor *t, int size, int tensor, int64_t b,
                       int64_t pos, int head, int lane)
{
    int64_t tokens = s->seq_local * size;
    return (uint32_t)((((b * tokens + pos) * t->heads + head) * t->dim + lane) * 3 + tensor);
}

static void cell_set(enum dtype dtype, void *base, int64_t index, uint32_t value)
{
    if (dtype == DTYPE_FP32)
        memcpy((char *)base + index * 4, &value, 4);
    else
        memcpy((char *)base + index * 2, &(uint16_t){(uint16_t)value}, 2);
}

static uint32_t cell_get(enum dtype dtype, const void *base, int64_t index)
{
    uint32_t wide = 0;
    memcpy(&wide, (const char *)base + index * dtype_bytes(dtype), (size_t)dtype_bytes(dtype));
    return wide;
}

static uint32_t poison(enum dtype dtype)
{
    return dtype == DTYPE_FP32 ? 0xeeeeeeeeu : 0xeeeeu;
}

static int64_t seq_index(const struct exchange_tensor *t, const struct shape *s, int64_t b, int64_t token, int head,
                         int lane)
{
    return ((b * s->seq_local + token) * t->heads + head) * t->dim + lane;
}

/* From the start of the wide buffer, by local head. */
static int64_t head_index(const struct exchange_tensor *t, int64_t tokens, int64_t b, int64_t pos, int local, int lane)
{
    return (b * tokens + pos) * t->head_stride + (int64_t)local * t->dim + lane;
}

struct bench { /* one exchange open on one shape */
    const struct exchange *exchange;
    void *state;
    const struct shape *shape;
    int rank, size;
    struct side_pair pair[EXCHANGE_TENSORS_MAX];
    char *wide[EXCHANGE_TENSORS_MAX]; /* head sides from local head 0 */
};

static enum status tensor_open(struct bench *bench, int i, int heads, int dim, int first, int count)
{
    const struct shape *s = bench->shape;
    struct side_pair *pair = &bench->pair[i];
    int elem = dtype_bytes(s->dtype), local = model_kv_local(heads, bench->size);
    pair->t = (struct exchange_tensor){.heads = heads,
                                       .first = first,
                                       .count = count < 0 ? local : count,
                                       .dim = dim,
                                       .head_stride = (int64_t)local * dim + s->gap,
                                       .sum = true};
    pair->seq_bytes = (size_t)(s->batch * s->seq_local * heads * dim * elem);
    pair->head_bytes = (size_t)(s->batch * s->seq_local * bench->size * pair->t.head_stride * elem);
    TRY(bench->exchange->alloc(bench->state, pair->seq_bytes, "seq", &pair->t.seq));
    TRY(bench->exchange->alloc(bench->state, pair->head_bytes, "head", (void **)&bench->wide[i]));
    pair->t.head = bench->wide[i] + (int64_t)first * dim * elem;
    return STATUS_OK;
}

static enum status bench_open(struct bench *bench, const struct exchange *exchange, const struct shape *s,
                              struct comm *comm)
{
    *bench = (struct bench){.exchange = exchange, .shape = s, .rank = comm_rank(comm), .size = comm_size(comm)};
    int64_t row = 0;
    int kv = model_kv_local(s->kv_heads, bench->size);
    row += (int64_t)model_kv_local(s->heads, bench->size) * (s->dim > s->dim_v ? s->dim : s->dim_v);
    row += (int64_t)kv * (s->dim + s->dim_v);
    struct exchange_shape shape = {
        .batch = s->batch, .seq_local = s->seq_local, .dtype = s->dtype, .row_elems_max = row};
    struct verdict verdict = exchange->supports(&shape, comm);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY(exchange->create(&shape, comm, &bench->state));
    if (s->n == 1 && s->kv_alone)
        return tensor_open(bench, 0, s->kv_heads, s->dim, 0, -1);
    TRY(tensor_open(bench, 0, s->heads, s->dim, s->first, s->count));
    if (s->n == 1)
        return STATUS_OK;
    TRY(tensor_open(bench, 1, s->kv_heads, s->dim, kv > 1 ? 1 : 0,
                    kv > 1 ? kv - 1 : 1)); /* a part of them where there are several */
    return tensor_open(bench, 2, s->kv_heads, s->dim_v, 0, -1);
}

static void bench_close(struct bench *bench)
{
    for (int i = 0; i < bench->shape->n; i++) {
        bench->exchange->free(bench->state, bench->wide[i]);
        bench->exchange->free(bench->state, bench->pair[i].t.seq);
    }
    bench->exchange->destroy(bench->state);
}

static enum status bench_run(struct bench *bench, enum exchange_direction direction, struct dev_queue *queue)
{
    struct exchange_tensor tensors[EXCHANGE_TENSORS_MAX];
    for (int i = 0; i < bench->shape->n; i++)
        tensors[i] = bench->pair[i].t;
    return bench->exchange->run(bench->state, direction, tensors, bench->shape->n, queue);
}

static void seq_fill(struct bench *bench)
{
    const struct shape *s = bench->shape;
    for (int i = 0; i < s->n; i++) {
        struct exchange_tensor *t = &bench->pair[i].t;
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t token = 0; token < s->seq_local; token++)
                for (int head = 0; head < t->heads; head++)
                    for (int lane = 0; lane < t->dim; lane++)
                        cell_set(s->dtype, t->seq, seq_index(t, s, b, token, head, lane),
                                 origin(s, t, bench->size, i, b, bench->rank * s->seq_local + token, head, lane));
        memset(bench->wide[i], POISON, bench->pair[i].head_bytes);
    }
}

/* Every cell of the head side: what moved has its origin, everything else is still poison. */
static int head_check(const struct bench *bench)
{
    const struct shape *s = bench->shape;
    int64_t tokens = s->seq_local * bench->size;
    for (int i = 0; i < s->n; i++) {
        const struct exchange_tensor *t = &bench->pair[i].t;
        int base = model_kv_first(t->heads, bench->size, bench->rank);
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t pos = 0; pos < tokens; pos++)
                for (int64_t at = 0; at < t->head_stride; at++) {
                    int local = (int)(at / t->dim), lane = (int)(at % t->dim);
                    bool moved = local >= t->first && local < t->first + t->count;
                    uint32_t want = moved ? origin(s, t, bench->size, i, b, pos, base + local, lane) : poison(s->dtype);
                    RANK_CHECK(cell_get(s->dtype, bench->wide[i], (b * tokens + pos) * t->head_stride + at) ==
                               (s->dtype == DTYPE_FP32 ? want : (uint16_t)want));
                }
    }
    return 0;
}

/* After moving back what came: the heads that moved are there again, the others were never written. */
static int back_check(const struct bench *bench)
{
    const struct shape *s = bench->shape;
    for (int i = 0; i < s->n; i++) {
        const struct exchange_tensor *t = &bench->pair[i].t;
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t token = 0; token < s->seq_local; token++)
                for (int head = 0; head < t->heads; head++)
                    for (int lane = 0; lane < t->dim; lane++) {
                        int local = head % model_kv_local(t->heads, bench->size);
                        bool moved = local >= t->first && local < t->first + t->count;
                        uint32_t want =
                            moved ? origin(s, t, bench->size, i, b, bench->rank * s->seq_local + token, head, lane)
                                  : poison(s->dtype);
                        RANK_CHECK(cell_get(s->dtype, t->seq, seq_index(t, s, b, token, head, lane)) ==
                                   (s->dtype == DTYPE_FP32 ? want : (uint16_t)want));
                    }
    }
    return 0;
}

static int there_and_back(struct bench *bench, struct dev_queue *queue)
{
    seq_fill(bench);
    RANK_TRY(bench_run(bench, EXCHANGE_TO_HEADS, queue));
    int failed = head_check(bench);
    if (failed)
        return failed;
    for (int i = 0; i < bench->shape->n; i++) {
        bench->pair[i].t.sum = false; /* one of the copies, not their sum */
        memset(bench->pair[i].t.seq, POISON, bench->pair[i].seq_bytes);
    }
    RANK_TRY(bench_run(bench, EXCHANGE_TO_SEQ, queue));
    return back_check(bench);
}

/* A gradient as `rank` holds it; sizes differ by 2^20 between ranks, so that another order of summing gives another
 * sum. */
static float gradient(const struct shape *s, int tensor, int rank, int64_t b, int64_t pos, int head, int lane)
{
    uint64_t at =
        ((((uint64_t)tensor * 7 + (uint64_t)b) * 1000 + (uint64_t)pos) * 100 + (uint64_t)head) * 100 + (uint64_t)lane;
    float unit = (float)((double)(rng_hash(at, (uint64_t)rank) >> 40) / 16777216.0 - 0.5);
    static const float scales[] = {1048576.0f, 1.0f, -1048576.0f, 3.0f, 0.001f};
    uint16_t bits;
    float value = unit * scales[rank % 5];
    if (s->dtype == DTYPE_FP32)
        return value;
    if (s->dtype == DTYPE_FP16)
        value = unit * (rank % 2 ? 1.0f : 900.0f);
    dtype_set(s->dtype, &bits, 0, value);
    return dtype_get(s->dtype, &bits, 0);
}

static int sums_in_rank_order(struct bench *bench, struct dev_queue *queue)
{
    const struct shape *s = bench->shape;
    int64_t tokens = s->seq_local * bench->size;
    for (int i = 0; i < s->n; i++) {
        struct exchange_tensor *t = &bench->pair[i].t;
        int base = model_kv_first(t->heads, bench->size, bench->rank);
        t->sum = true;
        memset(t->seq, POISON, bench->pair[i].seq_bytes);
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t pos = 0; pos < tokens; pos++)
                for (int local = 0; local < model_kv_local(t->heads, bench->size); local++)
                    for (int lane = 0; lane < t->dim; lane++)
                        dtype_set(s->dtype, bench->wide[i], head_index(t, tokens, b, pos, local, lane),
                                  gradient(s, i, bench->rank, b, pos, base + local, lane));
    }
    RANK_TRY(bench_run(bench, EXCHANGE_TO_SEQ, queue));
    for (int i = 0; i < s->n; i++) {
        const struct exchange_tensor *t = &bench->pair[i].t;
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t token = 0; token < s->seq_local; token++)
                for (int head = 0; head < t->heads; head++)
                    for (int lane = 0; lane < t->dim; lane++) {
                        int local = head % model_kv_local(t->heads, bench->size);
                        int64_t at = seq_index(t, s, b, token, head, lane), pos = bench->rank * s->seq_local + token;
                        if (local < t->first || local >= t->first + t->count) {
                            RANK_CHECK(cell_get(s->dtype, t->seq, at) == poison(s->dtype));
                            continue;
                        }
                        float sum = 0;
                        bool any = false;
                        for (int rank = 0; rank < bench->size; rank++) {
                            int first = model_kv_first(t->heads, bench->size, rank);
                            if (head < first || head >= first + model_kv_local(t->heads, bench->size))
                                continue;
                            float next = gradient(s, i, rank, b, pos, head, lane);
                            sum = any ? sum + next : next;
                            any = true;
                        }
                        uint32_t want = 0;
                        dtype_set(s->dtype, &want, 0, sum);
                        RANK_CHECK(cell_get(s->dtype, t->seq, at) == want);
                    }
    }
    return 0;
}

static int phases_are_times(const struct bench *bench)
{
    double pack, transfer, unpack;
    bench->exchange->phases(bench->state, &pack, &transfer, &unpack);
    RANK_CHECK(pack >= 0 && transfer >= 0 && unpack >= 0);
    RANK_CHECK(bench->size == 1 || transfer > 0);
    if (bench->size == 1 && bench->exchange->staging_bytes != NULL)
        RANK_CHECK(bench->exchange->staging_bytes(bench->state) == 0);
    return 0;
}

static int run_shape(const struct exchange *exchange, const struct shape *shape, struct comm *comm,
                     struct dev_queue *queue)
{
    struct bench bench;
    RANK_TRY(bench_open(&bench, exchange, shape, comm));
    int failed = there_and_back(&bench, queue);
    if (!failed)
        failed = sums_in_rank_order(&bench, queue);
    if (!failed)
        failed = phases_are_times(&bench);
    if (failed)
        fprintf(stderr,
                "%s: heads %d/%d dims %d/%d batch %lld x %lld %s first %d count %d gap %d n %d, rank %d of %d\n",
                exchange->name, shape->heads, shape->kv_heads, shape->dim, shape->dim_v, (long long)shape->batch,
                (long long)shape->seq_local, dtype_name(shape->dtype), shape->first, shape->count, shape->gap, shape->n,
                bench.rank, bench.size);
    bench_close(&bench);
    return failed;
}

/* Every head count that `size` ranks can share, crossed with what changes the paths through the code. */
static int run_all(struct comm *comm, struct dev_queue *queue)
{
    const int pairs[][2] = {{12, 12}, {12, 4}, {12, 3}, {12, 2}, {12, 1}, {8, 2}, {10, 5}, {10, 1}, {5, 5}, {15, 3}};
    int size = comm_size(comm), n = 0;
    for (int p = 0; p < CHECK_COUNT(pairs); p++) {
        struct verdict verdict = model_sp_heads(pairs[p][0], pairs[p][1], size, 0);
        int local = pairs[p][0] / size;
        if (!verdict_ok(&verdict))
            continue;
        for (int variant = 0; variant < 24; variant++) {
            struct shape s = {.heads = pairs[p][0],
                              .kv_heads = pairs[p][1],
                              .dim = 4,
                              .dim_v = variant % 3 == 0 ? 4 : 2,
                              .batch = 1 + variant % 2,
                              .seq_local = variant % 4 == 3   ? 0
                                           : variant % 4 == 2 ? 1
                                                              : 5,
                              .dtype = (enum dtype)(variant / 2 % DTYPE_COUNT),
                              .first = 0,
                              .count = -1,
                              .gap = variant / 3 % 2 ? 3 : 0,
                              .n = variant / 4 % 2 ? 1 : 3,
                              .kv_alone = variant / 8 % 2 != 0};
            if (variant >= 12 && local > 1) { /* a chunk in the middle or at the end */
                s.first = 1;
                s.count = variant % 2 ? 1 : local - 1;
            }
            for (int e = 0; exchanges[e] != NULL; e++, n++) {
                if (exchanges[e]->dev != DEV_CPU)
                    continue;
                int failed = run_shape(exchanges[e], &s, comm, queue);
                if (failed)
                    return failed;
            }
        }
    }
    RANK_CHECK(n > 0);
    return 0;
}

static int misuse_is_refused(struct comm *comm, struct dev_queue *queue)
{
    const struct shape s = {
        .heads = 12, .kv_heads = 12, .dim = 4, .dim_v = 4, .batch = 1, .seq_local = 2, .n = 3, .count = -1};
    struct bench bench;
    RANK_TRY(bench_open(&bench, exchanges[0], &s, comm));
    struct exchange_tensor t[EXCHANGE_TENSORS_MAX + 1] = {bench.pair[0].t, bench.pair[1].t, bench.pair[2].t,
                                                          bench.pair[0].t};
    RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, 0, queue) == STATUS_USAGE);
    RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, EXCHANGE_TENSORS_MAX + 1, queue) == STATUS_USAGE);
    t[0].count = model_kv_local(t[0].heads, bench.size) + 1;
    RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, 1, queue) == STATUS_USAGE);
    t[0] = bench.pair[0].t;
    t[0].first = INT32_MAX;
    RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, 1, queue) == STATUS_USAGE);
    t[0] = bench.pair[0].t;
    t[0].head_stride = 1;
    RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, 1, queue) == STATUS_USAGE);
    t[0] = bench.pair[0].t;
    t[0].heads = 7; /* neither number divides the other: some rank would hold parts of heads */
    t[0].count = 1;
    if (bench.size > 1)
        RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, 1, queue) == STATUS_USAGE);
    t[0] = bench.pair[0].t;
    t[0].dim = 400; /* more than staging was made for */
    t[0].head_stride = 400 * model_kv_local(t[0].heads, bench.size);
    if (bench.size > 1)
        RANK_CHECK(bench.exchange->run(bench.state, EXCHANGE_TO_HEADS, t, 1, queue) == STATUS_USAGE);
    bench_close(&bench);
    struct exchange_shape bad = {.batch = 1, .seq_local = -1, .row_elems_max = 1};
    void *state = NULL;
    RANK_CHECK(exchanges[0]->create(&bad, comm, &state) == STATUS_UNSUPPORTED && state == NULL);
    exchanges[0]->destroy(NULL);
    return 0;
}

static int rank_all(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = run_all(side.comm, side.queue);
    if (!failed)
        failed = misuse_is_refused(side.comm, side.queue);
    side_close(&side);
    return failed;
}

static void every_cell_on_1_to_5_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++)
        ranks_pass(ranks, rank_all, NULL);
}

/* Groups {0,1} and {2,3} of one job: indices are those of the group, not of the job. */
static int rank_in_group(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank / 2, launch->rank, &group));
    int failed = run_all(group, side.queue);
    comm_close(group);
    side_close(&side);
    return failed;
}

static void c09_groups_of_a_larger_job(void **state)
{
    (void)state;
    ranks_pass(4, rank_in_group, NULL);
}

static void table_is_sound(void **state)
{
    (void)state;
    for (int i = 0; exchanges[i] != NULL; i++) {
        const struct exchange *e = exchanges[i];
        assert_ptr_equal(exchange_find(e->name), e);
        assert_in_range(e->tensors_together, 1, EXCHANGE_TENSORS_MAX);
        assert_true(strlen(e->about) > 0 && strlen(e->about) < 80);
    }
    assert_null(exchange_find("pakced"));
    assert_null(exchange_find(NULL));
    struct exchange_shape shape = {.batch = 2, .seq_local = 1000, .dtype = DTYPE_BF16, .row_elems_max = 1};
    assert_int_equal(exchange_bytes(&shape, 4, 8, 128), INT64_C(2) * 1000 * 8 * 128 * 2 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(every_cell_on_1_to_5_ranks),
        cmocka_unit_test(c09_groups_of_a_larger_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
