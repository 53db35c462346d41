/* bench/oracle.c -- rows of attention in double and in the storage type, and the rule that kernels are held to. */
#include "bench/oracle.h"

#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>

/* Scores of a few queries at a time, so that a segment of a million keys takes tens of megabytes, not all there are. */
enum { SCORE_BYTES = 48 * 1024 * 1024 };

struct work {
    const struct attention_shape *shape;
    const struct oracle_source *source;
    struct attention_segment segment;
    int kv;
    int64_t span;             /* keys of the segment */
    double *s, *dp, *ps, *pdp; /* [queries][span]: scores then weights, and their gradients; exact and plain */
    float *q, *d_o;           /* [queries][dim] */
    float *k, *v;             /* one row */
    double *weights;          /* [span] of the queries so far */
    struct oracle_scale *scale;
};

static double rounded(enum dtype dtype, double value)
{
    float narrow = (float)value;
    uint32_t bits = 0;
    dtype_set(dtype, &bits, 0, narrow);
    return (double)dtype_get(dtype, &bits, 0);
}

double oracle_roundoff(enum dtype dtype)
{
    return dtype == DTYPE_FP32 ? 0x1p-24 : dtype == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
}

void oracle_scale_join(struct oracle_scale *all, const struct oracle_scale *part)
{
    all->k_max = fmax(all->k_max, part->k_max);
    all->v_max = fmax(all->v_max, part->v_max);
    all->q_max = fmax(all->q_max, part->q_max);
    all->do_max = fmax(all->do_max, part->do_max);
    all->s_max = fmax(all->s_max, part->s_max);
    all->dp_max = fmax(all->dp_max, part->dp_max);
    all->v_norm = fmax(all->v_norm, part->v_norm);
    all->do_norm = fmax(all->do_norm, part->do_norm);
    all->weight = fmax(all->weight, part->weight);
}

static double dot_exact(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static float dot_plain(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double magnitude(const float *row, int n, double max)
{
    for (int i = 0; i < n; i++)
        max = fmax(max, fabs((double)row[i]));
    return max;
}

static double norm(const float *row, int n, double max)
{
    return fmax(max, sqrt(dot_exact(row, row, n)));
}

static void load(struct work *work, enum oracle_tensor tensor, int64_t index, int head, float *out)
{
    const struct attention_shape *shape = work->shape;
    bool of_query = tensor == ORACLE_Q || tensor == ORACLE_DO;
    int64_t token = of_query ? attention_q_token(shape, &work->segment, index) : attention_k_token(shape, &work->segment, index);
    work->source->row(work->source->arg, tensor, token, head, out);
}

static bool sees(const struct work *work, const struct oracle_query *query, int64_t j)
{
    struct attention_range seen = attention_keys(work->shape, &work->segment, query->i);
    return j >= seen.first && j < seen.end;
}

/* Every key once: its scores with each query that sees it, and dP. */
static void score_keys(struct work *work, const struct oracle_query *queries, int64_t n, bool backward)
{
    const struct attention_shape *shape = work->shape;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    for (int64_t j = 0; j < work->span; j++) {
        load(work, ORACLE_K, j, work->kv, work->k);
        load(work, ORACLE_V, j, work->kv, work->v);
        work->scale->k_max = magnitude(work->k, dim, work->scale->k_max);
        work->scale->v_max = magnitude(work->v, dim_v, work->scale->v_max);
        work->scale->v_norm = norm(work->v, dim_v, work->scale->v_norm);
        for (int64_t a = 0; a < n; a++) {
            int64_t at = a * work->span + j;
            if (!sees(work, &queries[a], j))
                continue;
            work->s[at] = dot_exact(work->q + a * dim, work->k, dim) * (double)shape->scale;
            work->ps[at] = rounded(shape->dtype, (double)(dot_plain(work->q + a * dim, work->k, dim) * shape->scale));
            work->scale->s_max = fmax(work->scale->s_max, fabs(work->s[at]));
            if (!backward)
                continue;
            work->dp[at] = dot_exact(work->d_o + a * dim_v, work->v, dim_v);
            work->pdp[at] = rounded(shape->dtype, (double)dot_plain(work->d_o + a * dim_v, work->v, dim_v));
            work->scale->dp_max = fmax(work->scale->dp_max, fabs(work->dp[at]));
        }
    }
}

/* Scores to weights in place. */
static double softmax_exact(double *s, struct attention_range seen)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = seen.first; j < seen.end; j++)
        max = fmax(max, s[j]);
    for (int64_t j = seen.first; j < seen.end; j++)
        sum += s[j] = exp(s[j] - max);
    for (int64_t j = seen.first; j < seen.end; j++)
        s[j] /= sum;
    return sum > 0 ? max + log(sum) : -INFINITY;
}

static double softmax_plain(enum dtype dtype, double *s, struct attention_range seen)
{
    double max = -INFINITY;
    float sum = 0;
    for (int64_t j = seen.first; j < seen.end; j++)
        max = fmax(max, s[j]);
    for (int64_t j = seen.first; j < seen.end; j++) {
        float weight = (float)exp(s[j] - max);
        s[j] = (double)weight;
        sum += weight;
    }
    for (int64_t j = seen.first; j < seen.end; j++)
        s[j] = rounded(dtype, (double)((float)s[j] / sum));
    return sum > 0 ? (double)(float)(max + log((double)sum)) : -INFINITY;
}

/* dP to dS in place. What is taken off every dP is sum(P dP) = <dO, O>; kernels take it from the O they stored, so the plain one does. */
static void score_gradients(const struct work *work, struct attention_range seen, const double *p, double *dp, double mean,
                            bool plain)
{
    enum dtype dtype = work->shape->dtype;
    for (int64_t j = seen.first; j < seen.end; j++) {
        double ds = p[j] * (dp[j] - mean);
        dp[j] = plain ? rounded(dtype, rounded(dtype, ds) * (double)work->shape->scale) : ds * (double)work->shape->scale;
    }
}

static void weigh(struct work *work, struct oracle_query *queries, int64_t n)
{
    for (int64_t a = 0; a < n; a++) {
        struct attention_range seen = attention_keys(work->shape, &work->segment, queries[a].i);
        queries[a].lse = softmax_exact(work->s + a * work->span, seen);
        queries[a].plain_lse = softmax_plain(work->shape->dtype, work->ps + a * work->span, seen);
    }
}

static void differentiate(struct work *work, const struct oracle_query *queries, int64_t n)
{
    int dim_v = work->shape->head_dim_v;
    for (int64_t a = 0; a < n; a++) {
        struct attention_range seen = attention_keys(work->shape, &work->segment, queries[a].i);
        const float *d_o = work->d_o + a * dim_v;
        double mean = 0;
        float plain_mean = 0;
        for (int t = 0; t < dim_v; t++) {
            mean += (double)d_o[t] * queries[a].o[t];
            plain_mean += d_o[t] * (float)queries[a].o[dim_v + t];
        }
        score_gradients(work, seen, work->s + a * work->span, work->dp + a * work->span, mean, false);
        score_gradients(work, seen, work->ps + a * work->span, work->pdp + a * work->span, (double)plain_mean, true);
    }
}

/* out[0..dim) += x * row in double, out[dim..2 dim) += px * row in fp32. */
static void add_row(double *out, int dim, int64_t plain_at, double x, double px, const float *row)
{
    for (int t = 0; t < dim; t++) {
        out[t] += x * (double)row[t];
        out[plain_at + t] = (double)((float)out[plain_at + t] + (float)px * row[t]);
    }
}

/* Every key once more: O. */
static void gather_values(struct work *work, struct oracle_query *queries, int64_t n)
{
    int dim_v = work->shape->head_dim_v;
    for (int64_t j = 0; j < work->span; j++) {
        load(work, ORACLE_V, j, work->kv, work->v);
        for (int64_t a = 0; a < n; a++)
            if (sees(work, &queries[a], j))
                add_row(queries[a].o, dim_v, dim_v, work->s[a * work->span + j], work->ps[a * work->span + j], work->v);
    }
}

/* And once more: dQ, and what the queries add to its own gradients. */
static void gather_gradients(struct work *work, struct oracle_query *queries, int64_t n, struct oracle_keys *keys)
{
    int dim = work->shape->head_dim, dim_v = work->shape->head_dim_v;
    for (int64_t j = 0; j < work->span; j++) {
        load(work, ORACLE_K, j, work->kv, work->k);
        for (int64_t a = 0; a < n; a++) {
            int64_t at = a * work->span + j;
            if (!sees(work, &queries[a], j))
                continue;
            add_row(queries[a].dq, dim, dim, work->dp[at], work->pdp[at], work->k);
            if (keys == NULL || keys->dk == NULL)
                continue;
            work->weights[j] += work->s[at];
            add_row(keys->dk + j * dim, dim, work->span * dim, work->dp[at], work->pdp[at], work->q + a * dim);
            add_row(keys->dv + j * dim_v, dim_v, work->span * dim_v, work->s[at], work->ps[at], work->d_o + a * dim_v);
        }
        work->scale->weight = fmax(work->scale->weight, work->weights[j]);
    }
}

static void round_plain(enum dtype dtype, double *plain, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        plain[t] = rounded(dtype, plain[t]);
}

static void run_some(struct work *work, struct oracle_query *queries, int64_t n, struct oracle_keys *keys)
{
    const struct attention_shape *shape = work->shape;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    bool backward = n > 0 && queries[0].dq != NULL;
    for (int64_t a = 0; a < n; a++) {
        load(work, ORACLE_Q, queries[a].i, queries[a].head, work->q + a * dim);
        work->scale->q_max = magnitude(work->q + a * dim, dim, work->scale->q_max);
        for (int t = 0; t < 2 * dim_v; t++)
            queries[a].o[t] = 0;
        for (int t = 0; backward && t < 2 * dim; t++)
            queries[a].dq[t] = 0;
        if (!backward)
            continue;
        load(work, ORACLE_DO, queries[a].i, queries[a].head, work->d_o + a * dim_v);
        work->scale->do_max = magnitude(work->d_o + a * dim_v, dim_v, work->scale->do_max);
        work->scale->do_norm = norm(work->d_o + a * dim_v, dim_v, work->scale->do_norm);
    }
    score_keys(work, queries, n, backward);
    weigh(work, queries, n);
    gather_values(work, queries, n);
    for (int64_t a = 0; a < n; a++)
        round_plain(shape->dtype, queries[a].o + dim_v, dim_v);
    if (!backward)
        return;
    differentiate(work, queries, n);
    gather_gradients(work, queries, n, keys);
    for (int64_t a = 0; a < n; a++)
        round_plain(shape->dtype, queries[a].dq + dim, dim);
}

static enum status work_alloc(struct work *work, int64_t most)
{
    const struct attention_shape *shape = work->shape;
    size_t scores = (size_t)(most * work->span) * sizeof(double);
    TRY(mem_alloc(scores, "scores of a check", (void **)&work->s));
    TRY(mem_alloc(scores, "scores of a check", (void **)&work->ps));
    TRY(mem_alloc(scores, "scores of a check", (void **)&work->dp));
    TRY(mem_alloc(scores, "scores of a check", (void **)&work->pdp));
    TRY(mem_alloc((size_t)(most * shape->head_dim) * sizeof(float), "rows of a check", (void **)&work->q));
    TRY(mem_alloc((size_t)(most * shape->head_dim_v) * sizeof(float), "rows of a check", (void **)&work->d_o));
    TRY(mem_alloc((size_t)work->span * sizeof(double), "weights of a check", (void **)&work->weights));
    TRY(mem_alloc((size_t)shape->head_dim * sizeof(float), "rows of a check", (void **)&work->k));
    return mem_alloc((size_t)shape->head_dim_v * sizeof(float), "rows of a check", (void **)&work->v);
}

static void work_free(struct work *work)
{
    free(work->s);
    free(work->ps);
    free(work->dp);
    free(work->pdp);
    free(work->q);
    free(work->d_o);
    free(work->k);
    free(work->v);
    free(work->weights);
}

enum status oracle_run(const struct attention_shape *shape, const struct oracle_source *source, int64_t segment, int kv,
                       struct oracle_query *queries, int64_t n, struct oracle_keys *keys, struct oracle_scale *scale)
{
    struct work work = {.shape = shape, .source = source, .kv = kv, .scale = scale};
    work.segment = attention_segment_get(shape, segment);
    work.span = work.segment.seq_k;
    int64_t most = SCORE_BYTES / 4 / (int64_t)sizeof(double) / (work.span > 0 ? work.span : 1);
    most = attention_clamp(most, 1, n > 0 ? n : 1);
    enum status status = work_alloc(&work, most);
    for (int64_t a = 0; a < n && status == STATUS_OK; a += most)
        run_some(&work, queries + a, n - a < most ? n - a : most, keys);
    work_free(&work);
    return status;
}

/* dst exact += part exact, dst plain += part plain rounded; both [2][n]. */
static void add_part(enum dtype dtype, double *dst, const double *part, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        dst[t] += part[t];
    for (int64_t t = n; t < 2 * n; t++)
        dst[t] += rounded(dtype, part[t]);
}

/* The queries of one copy of the kv head, and what they add to its gradients. */
static enum status part_make(const struct attention_shape *shape, const struct oracle_source *source, int64_t segment, int64_t first,
                             int64_t n, struct oracle_truth *out, struct oracle_scale *scale)
{
    int64_t dk = out->segment.seq_k * shape->head_dim, dv = out->segment.seq_k * shape->head_dim_v;
    struct oracle_keys part = {0};
    enum status status = mem_alloc((size_t)(2 * dk) * sizeof(double), "dk of a check", (void **)&part.dk);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)(2 * dv) * sizeof(double), "dv of a check", (void **)&part.dv);
    if (status == STATUS_OK)
        status = oracle_run(shape, source, segment, out->kv, out->queries + first, n, &part, scale);
    if (status == STATUS_OK) {
        add_part(shape->dtype, out->keys.dk, part.dk, dk);
        add_part(shape->dtype, out->keys.dv, part.dv, dv);
    }
    free(part.dk);
    free(part.dv);
    return status;
}

enum status oracle_truth_make(const struct attention_shape *shape, const struct oracle_source *source, int64_t segment, int kv,
                              int copies, struct oracle_truth *out, struct oracle_scale *scale)
{
    struct attention_range heads = attention_heads_of(shape, kv);
    int64_t dim = shape->head_dim, dim_v = shape->head_dim_v, each = 2 * (dim + dim_v);
    *out = (struct oracle_truth){.segment = attention_segment_get(shape, segment), .kv = kv};
    int64_t seq_q = out->segment.seq_q, seq_k = out->segment.seq_k;
    out->n = seq_q * (heads.end - heads.first);
    TRY(mem_alloc((size_t)out->n * sizeof *out->queries, "queries of a check", (void **)&out->queries));
    TRY(mem_alloc((size_t)(out->n * each) * sizeof(double), "rows of a check", (void **)&out->rows));
    TRY(mem_alloc((size_t)(seq_k * 2 * dim) * sizeof(double), "dk of a check", (void **)&out->keys.dk));
    TRY(mem_alloc((size_t)(seq_k * 2 * dim_v) * sizeof(double), "dv of a check", (void **)&out->keys.dv));
    for (int64_t a = 0; a < out->n; a++)
        out->queries[a] = (struct oracle_query){.i = a % seq_q,
                                                .head = (int)(heads.first + a / seq_q),
                                                .o = out->rows + a * each,
                                                .dq = out->rows + a * each + 2 * dim_v};
    int64_t heads_each = (heads.end - heads.first + copies - 1) / copies, part = heads_each * seq_q; /* queries run head by head */
    for (int64_t first = 0; first < out->n; first += part)
        TRY(part_make(shape, source, segment, first, out->n - first < part ? out->n - first : part, out, scale));
    round_plain(shape->dtype, out->keys.dk + seq_k * dim, seq_k * dim);
    round_plain(shape->dtype, out->keys.dv + seq_k * dim_v, seq_k * dim_v);
    return STATUS_OK;
}

void oracle_truth_free(struct oracle_truth *truth)
{
    free(truth->queries);
    free(truth->rows);
    free(truth->keys.dk);
    free(truth->keys.dv);
}

/* |a - b|, where equal infinities are equal. */
static double distance(double a, double b)
{
    return a == b ? 0 : isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
}

void oracle_compare(struct oracle_error *error, double got, double exact, double plain, int64_t token, int head)
{
    double off = distance(got, exact);
    if (off > error->error && !error->bad) {
        error->error = off;
        error->token = token;
        error->head = head;
        error->bad = !isfinite(off);
    }
    error->plain = fmax(error->plain, distance(plain, exact));
}

bool oracle_agrees(const struct oracle_error *error, double floor, char why[256])
{
    if (!error->bad && error->error <= 2 * error->plain + floor)
        return true;
    text_print(why, 256, "%s at token %lld, head %d is off by %.3g; allowed: twice the %.3g of the plain computation and %.3g",
               error->name, (long long)error->token, error->head, error->error, error->plain, floor);
    return false;
}

void oracle_errors_init(struct oracle_error errors[ORACLE_OUTPUTS])
{
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    for (int i = 0; i < ORACLE_OUTPUTS; i++)
        errors[i] = (struct oracle_error){.name = names[i]};
}

bool oracle_all_agree(const struct attention_shape *shape, const struct oracle_error errors[ORACLE_OUTPUTS],
                      const struct oracle_scale *scale, char why[256])
{
    const double u = 0x1p-24; /* half an ulp of fp32: what accumulation may add whatever the storage */
    /* Where only a handful of values is compared, the plain computation may be lucky: a quarter of a rounding of <dO, O>, and
     * for dV of dO, more. */
    double luck = oracle_roundoff(shape->dtype) / 4;
    double ds_max = scale->dp_max * fabs((double)shape->scale);
    /* <dO, V> and <dO, O> may cancel to next to nothing; what was added up, and rounded, was as large as this. Where few tokens are
     * seen (S = 1: dQ is 0, the difference of two equal sums) the plain computation makes no error to compare with. */
    double ds_added = scale->do_norm * scale->v_norm * fabs((double)shape->scale);
    double ds_fp32 = 8 * u * fmax(ds_added, ds_max), ds_luck = luck * ds_max;
    /* dK and dV of a key add up over its queries, and so do the roundings: the first token of a document weighs more than one. */
    double weight = fmax(1, scale->weight);
    double s_bound = fabs((double)shape->scale) * scale->q_max * scale->k_max * shape->head_dim;
    return oracle_agrees(&errors[ORACLE_O], 4 * u * scale->v_max, why) &&
           oracle_agrees(&errors[ORACLE_LSE], 4 * u * (1 + s_bound), why) &&
           oracle_agrees(&errors[ORACLE_DQ], (ds_fp32 + ds_luck) * scale->k_max, why) &&
           oracle_agrees(&errors[ORACLE_DK], (ds_fp32 * weight + ds_luck) * scale->q_max, why) &&
           oracle_agrees(&errors[ORACLE_DV], (4 * u * weight + luck) * scale->do_max, why);
}
