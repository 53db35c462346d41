/* bench/spot.c -- which rows are checked, and the identities. */
#include "bench/spot.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/team.h"
#include "base/text.h"
#include "bench/data.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 10, KEY_PAIRS_MAX = 1 << 16, IDENTITY_US = 120 * 1000 * 1000 };

struct row {
    int64_t token, segment;
    struct oracle_query query;
    bool taken; /* by a pass */
};

/* Rows of one segment and kv head that share a pass over its keys. */
struct pass {
    int row[ROWS], n, kv;
    int64_t segment;
    struct oracle_query queries[ROWS];
    struct oracle_scale scale;
    enum status status;
    struct status_message message;
};

struct passes {
    const struct spot *spot;
    struct pass *pass; /* [n] */
    int n;
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

static void passes_plan(struct passes *passes, struct row rows[ROWS])
{
    const struct attention_shape *shape = passes->spot->shape;
    for (int i = 0; i < ROWS; i++) {
        struct pass *pass = &passes->pass[passes->n];
        pass->segment = rows[i].segment;
        pass->kv = attention_kv_head(shape, rows[i].query.head);
        for (int j = i; j < ROWS; j++) {
            if (rows[j].taken || rows[j].segment != pass->segment ||
                attention_kv_head(shape, rows[j].query.head) != pass->kv)
                continue;
            rows[j].taken = true;
            pass->row[pass->n] = j;
            pass->queries[pass->n++] = rows[j].query;
        }
        passes->n += pass->n > 0;
    }
}

static void pass_run(void *arg, int64_t task, int thread)
{
    const struct passes *passes = arg;
    struct pass *pass = &passes->pass[task];
    struct oracle_source source = spot_source(passes->spot);
    (void)thread;
    pass->status =
        oracle_run(passes->spot->shape, &source, pass->segment, pass->kv, pass->queries, pass->n, NULL, &pass->scale);
    if (pass->status != STATUS_OK)
        pass->message = *status_last(); /* of this thread */
}

static enum status check_rows(const struct spot *spot, struct row rows[ROWS],
                              struct oracle_error errors[ORACLE_OUTPUTS], struct oracle_scale *scale)
{
    struct passes passes = {.spot = spot};
    TRY(mem_alloc(ROWS * sizeof *passes.pass, "passes of a check", (void **)&passes.pass));
    passes_plan(&passes, rows);
    struct team *team = team_or_alone(spot->threads < passes.n ? spot->threads : passes.n);
    team_run(team, passes.n, pass_run, &passes);
    team_destroy(team);
    enum status status = STATUS_OK;
    for (int p = 0; p < passes.n && status == STATUS_OK; p++) {
        const struct pass *pass = &passes.pass[p];
        status = pass->status;
        if (status != STATUS_OK)
            status_restore(&pass->message);
        oracle_scale_join(scale, &pass->scale);
        for (int a = 0; a < pass->n; a++)
            rows[pass->row[a]].query = pass->queries[a];
    }
    for (int i = 0; i < ROWS && status == STATUS_OK; i++)
        compare_row(spot, &rows[i], errors);
    free(passes.pass);
    return status;
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

enum { SUM_DV_V, SUM_DO_O, SUM_DQ_Q, SUM_DK_K, SUMS = 4 };
struct sums {
    double sum[SUMS], squares[SUMS];
};

/* Sums are those of slices, in order, each of a few interleaved ones: the same on any number of threads. */
enum { SLICES = 64, PIECE = 1024, LANES = 8 };

struct product {
    const void *a, *b;
    int64_t n;
    double sum[SLICES], squares[SLICES];
};

struct products {
    enum dtype dtype;
    struct product of[SUMS];
};

/* <a, b> and the sum of the squares of its terms: how much the sum of rounded terms may wander. */
static void inner(enum dtype dtype, const char *a, const char *b, int64_t n, double *out_sum, double *out_squares)
{
    float x[PIECE], y[PIECE];
    double sum[LANES] = {0}, squares[LANES] = {0};
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        dtype_load(dtype, a + i * dtype_bytes(dtype), x, m);
        dtype_load(dtype, b + i * dtype_bytes(dtype), y, m);
        for (; m % LANES != 0; m++)
            x[m] = y[m] = 0;
        for (int64_t t = 0; t < m; t += LANES)
            for (int l = 0; l < LANES; l++) {
                double term = (double)x[t + l] * (double)y[t + l];
                sum[l] += term;
                squares[l] += term * term;
            }
    }
    for (int l = 0; l < LANES; l++) {
        *out_sum += sum[l];
        *out_squares += squares[l];
    }
}

static void slice_run(void *arg, int64_t task, int thread)
{
    struct products *products = arg;
    struct product *p = &products->of[task / SLICES];
    int64_t slice = task % SLICES, each = (p->n / SLICES / PIECE + 1) * PIECE, first = slice * each;
    int64_t n = p->n - first < each ? p->n - first : each, bytes = dtype_bytes(products->dtype);
    (void)thread;
    if (n > 0)
        inner(products->dtype, (const char *)p->a + first * bytes, (const char *)p->b + first * bytes, n,
              &p->sum[slice], &p->squares[slice]);
}

static void sums_here(const struct spot *spot, struct sums *out)
{
    const struct attention_shape *shape = spot->shape;
    int64_t tokens = rows_of_batch(spot) * spot->shard.local;
    int64_t q = tokens * shape->heads, k = tokens * shape->kv_heads;
    struct products products = {.dtype = shape->dtype,
                                .of = {[SUM_DV_V] = {.a = spot->dv, .b = spot->v, .n = k * shape->head_dim_v},
                                       [SUM_DO_O] = {.a = spot->d_o, .b = spot->o, .n = q * shape->head_dim_v},
                                       [SUM_DQ_Q] = {.a = spot->dq, .b = spot->q, .n = q * shape->head_dim},
                                       [SUM_DK_K] = {.a = spot->dk, .b = spot->k, .n = k * shape->head_dim}}};
    struct team *team = team_or_alone(spot->threads);
    team_run(team, (int64_t)SUMS * SLICES, slice_run, &products);
    team_destroy(team);
    *out = (struct sums){0};
    for (int i = 0; i < SUMS; i++)
        for (int slice = 0; slice < SLICES; slice++) {
            out->sum[i] += products.of[i].sum[slice];
            out->squares[i] += products.of[i].squares[slice];
        }
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
