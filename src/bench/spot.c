/* bench/spot.c -- which rows are checked, and the identities. */
#include "bench/spot.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/data.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 10, KEY_PAIRS_MAX = 1 << 16, IDENTITY_US = 120 * 1000 * 1000 };

struct row {
    int64_t token, segment;
    struct oracle_query query;
    bool done;
};

/* The enum of bench/oracle.h and that of bench/data.h name the same inputs. */
static void source_row(void *arg, enum oracle_tensor tensor, int64_t token, int head, float *out)
{
    static const enum data_tensor names[] = {DATA_Q, DATA_K, DATA_V, DATA_DO};
    const struct spot *spot = arg;
    bool of_kv = tensor == ORACLE_K || tensor == ORACLE_V;
    int dim = tensor == ORACLE_Q || tensor == ORACLE_K ? spot->shape->head_dim : spot->shape->head_dim_v;
    data_row(spot->seed, names[tensor], spot->batch_first + token / spot->padded, token % spot->padded,
             head + (of_kv ? spot->kv_first : spot->head_first), 0, spot->shape->dtype, dim, out);
}

struct oracle_source spot_source(const struct spot *spot)
{
    return (struct oracle_source){.row = source_row, .arg = (void *)(uintptr_t)spot};
}

int64_t spot_here(const struct spot *spot, int64_t token)
{
    int64_t index = shard_index(&spot->shard, token % spot->padded);
    return index < 0 ? -1 : token / spot->padded * spot->shard.local + index;
}

static int64_t rows_of_batch(const struct spot *spot)
{
    return spot->shape->docs > 0 ? spot->shape->seq_q / spot->padded : spot->shape->batch;
}

/* The segment of a token, and its index within it. */
static int64_t segment_of(const struct attention_shape *shape, int64_t token, int64_t *index)
{
    int64_t low = 0, high = shape->docs;
    if (shape->docs == 0) {
        *index = token % shape->seq_q;
        return token / shape->seq_q;
    }
    while (high - low > 1) { /* the last document that starts at or before the token: empty ones before it do not hold it */
        int64_t middle = (low + high) / 2;
        if (shape->cu_q[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    *index = token - shape->cu_q[low];
    return low;
}

/* First and last token, around the start of a document, the rest anywhere; first and last head, the rest any. */
static void pick(const struct spot *spot, struct rng *rng, struct row rows[ROWS])
{
    int64_t batch = rows_of_batch(spot), last = spot->shard.local - 1;
    for (int i = 0; i < ROWS; i++) {
        int64_t b = i == 1 ? batch - 1 : rng_below(rng, batch);
        int64_t at = i == 0 ? 0 : i == 1 ? last : rng_below(rng, spot->shard.local);
        int64_t token = b * spot->padded + shard_position(&spot->shard, at), index;
        segment_of(spot->shape, token, &index);
        if ((i == 2 || i == 3) && index > 0 && spot_here(spot, token - index) >= 0) /* its document's first token */
            token -= index;
        rows[i] = (struct row){.token = token, .segment = segment_of(spot->shape, token, &index)};
        rows[i].query.i = index;
        rows[i].query.head = i % 2 == 0 ? 0 : i < 4 ? spot->shape->heads - 1 : (int)rng_below(rng, spot->shape->heads);
    }
}

static void compare_row(const struct spot *spot, const struct row *row, struct oracle_error errors[ORACLE_OUTPUTS])
{
    const struct attention_shape *shape = spot->shape;
    const struct oracle_query *q = &row->query;
    int64_t at = spot_here(spot, row->token) * shape->heads + q->head;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    for (int t = 0; t < dim_v; t++)
        oracle_compare(&errors[ORACLE_O], (double)dtype_get(shape->dtype, spot->o, at * dim_v + t), q->o[t], q->o[dim_v + t],
                       row->token, q->head);
    for (int t = 0; spot->backward && t < dim; t++)
        oracle_compare(&errors[ORACLE_DQ], (double)dtype_get(shape->dtype, spot->dq, at * dim + t), q->dq[t], q->dq[dim + t],
                       row->token, q->head);
    if (spot->lse != NULL) {
        int64_t b = shape->docs > 0 ? 0 : row->token / shape->seq_q, t = row->token - b * shape->seq_q;
        oracle_compare(&errors[ORACLE_LSE], (double)spot->lse[(b * shape->heads + q->head) * shape->seq_q + t], q->lse,
                       q->plain_lse, row->token, q->head);
    }
}

/* Rows of one segment and kv head share the pass over its keys. */
static enum status check_rows(const struct spot *spot, struct row *rows, struct oracle_error errors[ORACLE_OUTPUTS],
                              struct oracle_scale *scale)
{
    struct oracle_source source = spot_source(spot);
    for (int i = 0; i < ROWS; i++) {
        struct oracle_query queries[ROWS];
        int from[ROWS], n = 0, kv = attention_kv_head(spot->shape, rows[i].query.head);
        for (int j = i; j < ROWS; j++) {
            if (rows[j].done || rows[j].segment != rows[i].segment || attention_kv_head(spot->shape, rows[j].query.head) != kv)
                continue;
            rows[j].done = true;
            from[n] = j;
            queries[n++] = rows[j].query;
        }
        if (n == 0)
            continue;
        TRY(oracle_run(spot->shape, &source, rows[i].segment, kv, queries, n, NULL, scale));
        for (int a = 0; a < n; a++) {
            rows[from[a]].query = queries[a];
            compare_row(spot, &rows[from[a]], errors);
        }
    }
    return STATUS_OK;
}

/* Every query of a segment for one kv head, for the gradients of its keys. */
static enum status check_keys(const struct spot *spot, int64_t segment, int kv, struct oracle_error errors[ORACLE_OUTPUTS],
                              struct oracle_scale *scale)
{
    const struct attention_shape *shape = spot->shape;
    struct oracle_source source = spot_source(spot);
    struct oracle_truth truth;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    enum status status = oracle_truth_make(shape, &source, segment, kv, spot->copies > 1 ? spot->copies : 1, &truth, scale);
    int64_t seq_k = truth.segment.seq_k;
    const double *dk = truth.keys.dk, *dv = truth.keys.dv;
    for (int64_t j = 0; j < seq_k && status == STATUS_OK; j++) {
        int64_t token = attention_k_token(shape, &truth.segment, j);
        int64_t here = spot_here(spot, token), at = here * shape->kv_heads + kv;
        if (here < 0)
            continue;
        for (int t = 0; t < dim; t++)
            oracle_compare(&errors[ORACLE_DK], (double)dtype_get(shape->dtype, spot->dk, at * dim + t), dk[j * dim + t],
                           dk[(seq_k + j) * dim + t], token, kv);
        for (int t = 0; t < dim_v; t++)
            oracle_compare(&errors[ORACLE_DV], (double)dtype_get(shape->dtype, spot->dv, at * dim_v + t), dv[j * dim_v + t],
                           dv[(seq_k + j) * dim_v + t], token, kv);
    }
    oracle_truth_free(&truth);
    return status;
}

enum status spot_rows(const struct spot *spot, uint64_t draw, bool *ok, char why[256])
{
    const struct attention_shape *shape = spot->shape;
    struct row rows[ROWS];
    struct oracle_error errors[ORACLE_OUTPUTS];
    struct oracle_scale scale = {0};
    struct rng rng;
    double *values = NULL;
    size_t each = 2 * (size_t)(shape->head_dim + shape->head_dim_v);
    *ok = true;
    if (spot->shard.local < 1 || rows_of_batch(spot) < 1)
        return STATUS_OK;
    rng_seed(&rng, spot->seed, draw);
    pick(spot, &rng, rows);
    oracle_errors_init(errors);
    TRY(mem_alloc(ROWS * each * sizeof(double), "rows of a check", (void **)&values));
    for (int i = 0; i < ROWS; i++) {
        rows[i].query.o = values + (size_t)i * each;
        rows[i].query.dq = spot->backward ? rows[i].query.o + 2 * shape->head_dim_v : NULL;
    }
    enum status status = check_rows(spot, rows, errors, &scale);
    bool keys_checked = false;
    for (int i = 0; i < ROWS && spot->backward && !keys_checked && status == STATUS_OK; i++) {
        struct attention_segment s = attention_segment_get(shape, rows[i].segment);
        if ((double)s.seq_q * (double)s.seq_k * shape->group > KEY_PAIRS_MAX)
            continue;
        status = check_keys(spot, rows[i].segment, attention_kv_head(shape, rows[i].query.head), errors, &scale);
        keys_checked = true;
    }
    free(values);
    if (status == STATUS_OK)
        *ok = oracle_all_agree(shape, errors, &scale, why);
    return status;
}

/* <a, b> and the sum of the squares of its terms: how much the sum of rounded terms may wander. */
static void inner(enum dtype dtype, const void *a, const void *b, int64_t n, double *sum, double *squares)
{
    enum { PIECE = 1024 };
    float x[PIECE], y[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        dtype_load(dtype, (const char *)a + i * dtype_bytes(dtype), x, m);
        dtype_load(dtype, (const char *)b + i * dtype_bytes(dtype), y, m);
        for (int64_t t = 0; t < m; t++) {
            double term = (double)x[t] * (double)y[t];
            *sum += term;
            *squares += term * term;
        }
    }
}

enum { SUM_DV_V, SUM_DO_O, SUM_DQ_Q, SUM_DK_K, SUMS = 4 };
struct sums {
    double sum[SUMS], squares[SUMS];
};

static void sums_here(const struct spot *spot, struct sums *out)
{
    const struct attention_shape *shape = spot->shape;
    int64_t tokens = rows_of_batch(spot) * spot->shard.local;
    int64_t q = tokens * shape->heads, k = tokens * shape->kv_heads;
    *out = (struct sums){0};
    inner(shape->dtype, spot->dv, spot->v, k * shape->head_dim_v, &out->sum[SUM_DV_V], &out->squares[SUM_DV_V]);
    inner(shape->dtype, spot->d_o, spot->o, q * shape->head_dim_v, &out->sum[SUM_DO_O], &out->squares[SUM_DO_O]);
    inner(shape->dtype, spot->dq, spot->q, q * shape->head_dim, &out->sum[SUM_DQ_Q], &out->squares[SUM_DQ_Q]);
    inner(shape->dtype, spot->dk, spot->k, k * shape->head_dim, &out->sum[SUM_DK_K], &out->squares[SUM_DK_K]);
}

/* Terms carry independent relative errors of a rounding or two, so the sums differ by a few of them times the root of the sum of their
 * squares; sums over S keys in fp32 add sqrt(S) of its own. fp16 has a smallest number, and gradients get there. */
static bool identity(const struct sums *s, int a, int b, enum dtype dtype, int64_t seq, double elems, const char *name,
                     char why[256])
{
    double root = sqrt(s->squares[a] + s->squares[b]), smallest = dtype == DTYPE_FP16 ? 0x1p-25 : 0;
    double allowed = root * (5 * oracle_roundoff(dtype) + 16 * 0x1p-24 * sqrt((double)seq)) + 8 * smallest * sqrt(elems);
    double off = fabs(s->sum[a] - s->sum[b]);
    if (off <= allowed) /* false for NaN */
        return true;
    text_print(why, 256, "%s: %.9g and %.9g differ by more than the %.3g that rounding explains", name, s->sum[a], s->sum[b],
               allowed);
    return false;
}

enum status spot_identities(struct bench_env *env, const struct spot *spot, const struct group *group, bool *ok, char why[256])
{
    struct sums total;
    sums_here(spot, &total);
    if (group != NULL && group->size > 1) {
        int size = comm_size(env->world);
        struct sums *all = NULL, mine = total;
        enum status status = group_agree(env, mem_alloc((size_t)size * sizeof *all, "sums of a check", (void **)&all));
        if (status == STATUS_OK)
            status = boot_allgather(comm_boot(env->world), &mine, sizeof mine, all, clock_deadline(IDENTITY_US));
        total = (struct sums){0};
        for (int r = 0; r < group->size && status == STATUS_OK; r++)
            for (int i = 0; i < SUMS; i++) {
                total.sum[i] += all[group->index * group->size + r].sum[i];
                total.squares[i] += all[group->index * group->size + r].squares[i];
            }
        free(all);
        TRY(status);
    }
    const struct attention_shape *shape = spot->shape;
    double elems = (double)shape->batch * (double)shape->seq_q * (double)shape->heads * (double)shape->head_dim;
    *ok = identity(&total, SUM_DV_V, SUM_DO_O, shape->dtype, shape->seq_k, elems, "<dV,V> and <dO,O>", why) &&
          identity(&total, SUM_DQ_Q, SUM_DK_K, shape->dtype, shape->seq_k, elems, "<dQ,Q> and <dK,K>", why);
    return STATUS_OK;
}
