/* bench/check_kernels.c -- every kernel of this device on odd shapes: attention against the oracle, the product.
 *
 * Kernels need no other rank, so the shapes are shared out among the ranks.
 */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "bench/data.h"
#include "bench/group.h"
#include "bench/mirror.h"
#include "bench/oracle.h"
#include "kernels/attention_cpu.h"
#include "kernels/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention ---- */

/* group 0: heads / kv_heads. docs: lengths of queries and keys, -1 ends. */
struct attention_case {
    int64_t batch, seq_q, seq_k;
    int heads, kv_heads, dim, dim_v;
    enum attention_causal causal;
    int64_t window;
    int group, group_first;
    int64_t doc_q[8], doc_k[8];
};

#define FULL ATTENTION_FULL
#define TOP ATTENTION_TOP_LEFT
#define BOTTOM ATTENTION_BOTTOM_RIGHT
#define NO_DOCS .doc_q = {-1}

static const struct attention_case attention_cases[] = {
    {1, 1, 1, 1, 1, 8, 8, BOTTOM, NO_DOCS},
    {2, 7, 7, 4, 4, 16, 16, FULL, NO_DOCS},
    {1, 33, 33, 4, 2, 16, 16, BOTTOM, NO_DOCS},
    {1, 33, 33, 4, 1, 16, 16, TOP, NO_DOCS},
    {2, 40, 40, 6, 2, 24, 24, BOTTOM, .window = 7, NO_DOCS},
    {1, 40, 40, 2, 2, 16, 16, FULL, .window = 1, NO_DOCS},
    {1, 4, 6, 2, 1, 16, 16, BOTTOM, NO_DOCS},  /* rows see 3 to 6 keys */
    {1, 6, 4, 2, 1, 16, 16, BOTTOM, NO_DOCS},  /* the first two rows see none */
    {1, 6, 4, 2, 1, 16, 16, TOP, NO_DOCS},
    {1, 0, 5, 2, 1, 16, 16, FULL, NO_DOCS},
    {1, 5, 0, 2, 1, 16, 16, FULL, NO_DOCS},    /* nothing to see: o 0, lse -inf */
    {1, 19, 70, 2, 2, 64, 64, BOTTOM, .window = 13, NO_DOCS},
    {1, 113, 113, 2, 1, 128, 128, BOTTOM, NO_DOCS},
    {1, 29, 29, 2, 1, 192, 128, BOTTOM, NO_DOCS},
    {1, 23, 23, 3, 2, 16, 16, BOTTOM, .group = 4, .group_first = 3, NO_DOCS}, /* part of two groups */
    {1, 23, 23, 2, 1, 16, 16, FULL, .group = 4, .group_first = 2, NO_DOCS},
    {1, 1023, 1023, 1, 1, 8, 8, BOTTOM, NO_DOCS},
    {1, 41, 41, 4, 2, 16, 16, BOTTOM, .doc_q = {0, 17, 0, 1, 23, 0, -1}, .doc_k = {0, 17, 0, 1, 23, 0, -1}},
    {1, 30, 34, 2, 1, 16, 16, BOTTOM, .doc_q = {5, 0, 25, -1}, .doc_k = {9, 5, 20, -1}},
    {1, 36, 36, 2, 2, 16, 16, BOTTOM, .window = 4, .doc_q = {12, 24, -1}, .doc_k = {12, 24, -1}},
    {1, 36, 36, 2, 2, 16, 16, FULL, .doc_q = {3, 5, 28, -1}, .doc_k = {3, 5, 28, -1}},
};
enum { ATTENTION_CASES = sizeof attention_cases / sizeof attention_cases[0], CASES = ATTENTION_CASES * DTYPE_COUNT };
enum { GAP = 8, LONG = 200, SYNC_US = 60 * 1000 * 1000 };

struct attention_data {
    struct attention_shape shape;
    int64_t cu_q[9], cu_k[9];
    void *q, *k, *v, *d_o, *workspace;
    size_t workspace_bytes;
};

/* What one kernel computed, and how far off it is. */
struct attention_out {
    bool ran;
    void *o, *dq, *dk, *dv;
    float *lse;
    struct oracle_error errors[ORACLE_OUTPUTS];
};

static int offsets(const int64_t *lengths, int64_t *cu)
{
    int n = 0;
    cu[0] = 0;
    for (; n < 8 && lengths[n] >= 0; n++)
        cu[n + 1] = cu[n] + lengths[n];
    return n;
}

static void shape_make(const struct attention_case *c, enum dtype dtype, struct attention_data *d)
{
    struct attention_shape shape = {.batch = c->batch,
                                    .seq_q = c->seq_q,
                                    .seq_k = c->seq_k,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .head_dim = c->dim,
                                    .head_dim_v = c->dim_v,
                                    .dtype = dtype,
                                    .causal = c->causal,
                                    .window = c->window};
    attention_shape_fill(&shape);
    if (c->group > 0) {
        shape.group = c->group;
        shape.group_first = c->group_first;
    }
    shape.docs = offsets(c->doc_q, d->cu_q);
    offsets(c->doc_k, d->cu_k);
    shape.cu_q = d->cu_q;
    shape.cu_k = d->cu_k;
    shape.q_stride += GAP; /* heads of a wider buffer */
    shape.k_stride += 2 * GAP;
    shape.v_stride += GAP;
    shape.o_stride += 3 * GAP;
    d->shape = shape;
}

static enum status tensor_make(uint64_t seed, enum data_tensor tensor, const struct attention_shape *shape, int64_t tokens,
                               int heads, int dim, int64_t stride, void **out)
{
    TRY(mem_alloc((size_t)(tokens * stride * dtype_bytes(shape->dtype)), "a tensor of a check", out));
    struct data_side side = {.base = *out, .dtype = shape->dtype, .batch = 1, .seq = tokens, .heads = heads, .dim = dim,
                             .token_stride = stride};
    memset(*out, 0xff, (size_t)(tokens * stride * dtype_bytes(shape->dtype))); /* NaN between the heads and in outputs */
    if (tensor == DATA_Q || tensor == DATA_K || tensor == DATA_V || tensor == DATA_DO)
        data_fill(seed, tensor, &side);
    return STATUS_OK;
}

static enum status data_make(uint64_t seed, size_t workspace, struct attention_data *d)
{
    const struct attention_shape *s = &d->shape;
    int64_t nq = s->batch * s->seq_q, nk = s->batch * s->seq_k;
    TRY(tensor_make(seed, DATA_Q, s, nq, s->heads, s->head_dim, s->q_stride, &d->q));
    TRY(tensor_make(seed, DATA_K, s, nk, s->kv_heads, s->head_dim, s->k_stride, &d->k));
    TRY(tensor_make(seed, DATA_V, s, nk, s->kv_heads, s->head_dim_v, s->v_stride, &d->v));
    TRY(tensor_make(seed, DATA_DO, s, nq, s->heads, s->head_dim_v, s->o_stride, &d->d_o));
    d->workspace_bytes = workspace;
    return mem_alloc(workspace, "workspace of a check", &d->workspace);
}

static enum status out_make(const struct attention_shape *s, struct attention_out *out)
{
    int64_t nq = s->batch * s->seq_q, nk = s->batch * s->seq_k;
    oracle_errors_init(out->errors);
    TRY(tensor_make(0, DATA_O, s, nq, s->heads, s->head_dim_v, s->o_stride, &out->o));
    TRY(tensor_make(0, DATA_DQ, s, nq, s->heads, s->head_dim, s->q_stride, &out->dq));
    TRY(tensor_make(0, DATA_DK, s, nk, s->kv_heads, s->head_dim, s->k_stride, &out->dk));
    TRY(tensor_make(0, DATA_DV, s, nk, s->kv_heads, s->head_dim_v, s->v_stride, &out->dv));
    TRY(mem_alloc((size_t)(nq * s->heads) * sizeof(float), "statistics of a check", (void **)&out->lse));
    memset(out->lse, 0xff, (size_t)(nq * s->heads) * sizeof(float));
    return STATUS_OK;
}

static void data_free(struct attention_data *d, struct attention_out out[CHECK_VARIANTS])
{
    free(d->q);
    free(d->k);
    free(d->v);
    free(d->d_o);
    free(d->workspace);
    for (int i = 0; i < CHECK_VARIANTS; i++) {
        free(out[i].o);
        free(out[i].dq);
        free(out[i].dk);
        free(out[i].dv);
        free(out[i].lse);
    }
}

static void source_row(void *arg, enum oracle_tensor tensor, int64_t token, int head, float *out)
{
    const struct attention_data *d = arg;
    const struct attention_shape *s = &d->shape;
    const void *base[] = {d->q, d->k, d->v, d->d_o};
    const int64_t stride[] = {s->q_stride, s->k_stride, s->v_stride, s->o_stride};
    int dim = tensor == ORACLE_Q || tensor == ORACLE_K ? s->head_dim : s->head_dim_v;
    dtype_load(s->dtype, (const char *)base[tensor] + (token * stride[tensor] + (int64_t)head * dim) * dtype_bytes(s->dtype), out,
               dim);
}

static void compare_rows(const void *base, enum dtype dtype, int64_t at, int dim, const double *exact, const double *plain,
                         int64_t token, int head, struct oracle_error *error)
{
    for (int t = 0; t < dim; t++)
        oracle_compare(error, (double)dtype_get(dtype, base, at + t), exact[t], plain[t], token, head);
}

static void truth_compare(const struct attention_shape *s, const struct oracle_truth *truth, struct attention_out *out)
{
    const struct attention_segment *seg = &truth->segment;
    int dim = s->head_dim, dim_v = s->head_dim_v, kv = truth->kv;
    for (int64_t a = 0; a < truth->n; a++) {
        const struct oracle_query *q = &truth->queries[a];
        int64_t token = attention_q_token(s, seg, q->i);
        compare_rows(out->o, s->dtype, token * s->o_stride + (int64_t)q->head * dim_v, dim_v, q->o, q->o + dim_v, token, q->head,
                     &out->errors[ORACLE_O]);
        compare_rows(out->dq, s->dtype, token * s->q_stride + (int64_t)q->head * dim, dim, q->dq, q->dq + dim, token, q->head,
                     &out->errors[ORACLE_DQ]);
        oracle_compare(&out->errors[ORACLE_LSE], (double)out->lse[attention_lse_index(s, seg, q->head, q->i)], q->lse,
                       q->plain_lse, token, q->head);
    }
    for (int64_t j = 0; j < seg->seq_k; j++) {
        int64_t token = attention_k_token(s, seg, j), plain = seg->seq_k + j;
        compare_rows(out->dk, s->dtype, token * s->k_stride + (int64_t)kv * dim, dim, truth->keys.dk + j * dim,
                     truth->keys.dk + plain * dim, token, kv, &out->errors[ORACLE_DK]);
        compare_rows(out->dv, s->dtype, token * s->v_stride + (int64_t)kv * dim_v, dim_v, truth->keys.dv + j * dim_v,
                     truth->keys.dv + plain * dim_v, token, kv, &out->errors[ORACLE_DV]);
    }
}

static void case_text(const struct attention_shape *s, char buf[160])
{
    static const char *const masks[] = {"full", "causal top-left", "causal"};
    text_print(buf, 160, "%lld x %lld x %lld, %d/%d heads of %d, %s, window %lld, %d docs, %s", (long long)s->batch,
               (long long)s->seq_q, (long long)s->seq_k, s->heads, s->kv_heads, s->head_dim, masks[s->causal],
               (long long)s->window, s->docs, dtype_name(s->dtype));
}

/* Everything a kernel reads or writes, where its device reaches it. */
enum { SEEN_Q, SEEN_K, SEEN_V, SEEN_DO, SEEN_WORKSPACE, SEEN_OUTPUTS, SEEN_O = SEEN_OUTPUTS, SEEN_LSE, SEEN_DQ, SEEN_DK, SEEN_DV, SEEN };

static enum status seen_open(struct dev *dev, const struct attention_data *d, const struct attention_out *out, struct mirror seen[SEEN])
{
    const struct attention_shape *s = &d->shape;
    int64_t nq = s->batch * s->seq_q, nk = s->batch * s->seq_k, elem = dtype_bytes(s->dtype);
    void *const host[SEEN] = {d->q, d->k, d->v, d->d_o, d->workspace, out->o, out->lse, out->dq, out->dk, out->dv};
    const int64_t bytes[SEEN] = {nq * s->q_stride * elem, nk * s->k_stride * elem, nk * s->v_stride * elem,
                                 nq * s->o_stride * elem, (int64_t)d->workspace_bytes, nq * s->o_stride * elem,
                                 nq * s->heads * (int64_t)sizeof(float), nq * s->q_stride * elem, nk * s->k_stride * elem,
                                 nk * s->v_stride * elem};
    for (int i = 0; i < SEEN; i++)
        TRY(mirror_of_host(dev, host[i], (size_t)bytes[i], &seen[i]));
    return STATUS_OK;
}

static enum status seen_run(const struct attention_shape *s, const struct attention *attention, struct mirror seen[SEEN],
                            struct dev_queue *queue)
{
    struct attention_args args = {.q = seen[SEEN_Q].device,
                                  .k = seen[SEEN_K].device,
                                  .v = seen[SEEN_V].device,
                                  .o = seen[SEEN_O].device,
                                  .lse = seen[SEEN_LSE].device,
                                  .d_o = seen[SEEN_DO].device,
                                  .dq = seen[SEEN_DQ].device,
                                  .dk = seen[SEEN_DK].device,
                                  .dv = seen[SEEN_DV].device,
                                  .workspace = seen[SEEN_WORKSPACE].device};
    TRY(attention->forward(s, &args, queue));
    TRY(attention->backward(s, &args, queue));
    TRY(dev_sync(queue, clock_deadline(SYNC_US)));
    for (int i = SEEN_OUTPUTS; i < SEEN; i++)
        TRY(mirror_load(&seen[i]));
    return STATUS_OK;
}

/* With all threads of this rank, where a case is worth sharing. */
static enum status variant_run(struct dev *dev, const struct attention_data *d, const struct check_variant *variant,
                               struct attention_out *out)
{
    struct mirror seen[SEEN] = {{0}};
    struct dev_queue *queue = NULL;
    TRY(out_make(&d->shape, out));
    attention_cpu_use(variant->isa);
    enum status status = seen_open(dev, d, out, seen);
    if (status == STATUS_OK)
        status = dev_queue_create(dev, &queue);
    if (status == STATUS_OK)
        status = seen_run(&d->shape, variant->attention, seen, queue);
    attention_cpu_use(-1);
    dev_queue_destroy(queue);
    for (int i = 0; i < SEEN; i++)
        mirror_close(&seen[i]);
    out->ran = status == STATUS_OK;
    return status;
}

static enum status variants_run(struct dev *dev, uint64_t seed, struct attention_data *d, struct attention_out *out,
                                struct check_variant *variants, int n)
{
    size_t workspace = 0;
    for (int i = 0; i < n; i++)
        for (int backward = 0; backward < 2; backward++) {
            attention_cpu_use(variants[i].isa);
            size_t bytes = variants[i].attention->workspace_bytes(&d->shape, backward != 0, dev_threads(dev));
            attention_cpu_use(-1);
            workspace = bytes > workspace ? bytes : workspace;
        }
    TRY(data_make(seed, workspace, d));
    for (int i = 0; i < n; i++) {
        struct verdict verdict = variants[i].attention->supports(&d->shape);
        if (verdict_ok(&verdict))
            TRY(tally_status(&variants[i].tally, variant_run(dev, d, &variants[i], &out[i])));
    }
    return STATUS_OK;
}

static enum status case_run(struct dev *dev, uint64_t seed, struct attention_data *d, struct attention_out *out, struct check_variant *variants,
                            int n)
{
    struct oracle_source source = {.row = source_row, .arg = d};
    struct oracle_scale scale = {0};
    char why[256], what[160];
    TRY(variants_run(dev, seed, d, out, variants, n));
    for (int64_t segment = 0; segment < attention_segment_count(&d->shape); segment++)
        for (int kv = 0; kv < d->shape.kv_heads; kv++) {
            struct oracle_truth truth;
            enum status status = oracle_truth_make(&d->shape, &source, segment, kv, 1, &truth, &scale);
            for (int i = 0; i < n && status == STATUS_OK; i++)
                if (out[i].ran)
                    truth_compare(&d->shape, &truth, &out[i]);
            oracle_truth_free(&truth);
            TRY(status);
        }
    case_text(&d->shape, what);
    for (int i = 0; i < n; i++) {
        variants[i].tally.cases += out[i].ran;
        if (out[i].ran && !oracle_all_agree(&d->shape, out[i].errors, &scale, why))
            tally_wrong(&variants[i].tally, "%.110s: %.140s", what, why);
    }
    return STATUS_OK;
}

/* The shape of a case; false where it is left out: the oracle takes longest where tokens are many, and blocks are alike for every dtype. */
static bool case_shape(int index, struct attention_data *d)
{
    shape_make(&attention_cases[index / DTYPE_COUNT], (enum dtype)(index % DTYPE_COUNT), d);
    return d->shape.seq_q <= LONG || d->shape.dtype == DTYPE_FP32;
}

/* What the kernels may need for this rank's share. */
static enum status prepare(const struct check_variant *variants, int n, int rank, int ranks)
{
    const struct attention_shape *shapes[CASES];
    struct attention_data *data = NULL;
    int wanted = 0;
    TRY(mem_alloc(CASES * sizeof *data, "shapes of a check", (void **)&data));
    for (int i = rank; i < CASES; i += ranks)
        if (case_shape(i, &data[i]))
            shapes[wanted++] = &data[i].shape;
    for (int v = 0; v < n; v++)
        attention_prepare(variants[v].attention, shapes, wanted, true);
    free(data);
    return STATUS_OK;
}

enum status check_attention(struct dev *dev, struct check_variant *variants, int n, uint64_t seed, int rank, int ranks)
{
    TRY(prepare(variants, n, rank, ranks));
    for (int i = rank; i < CASES; i += ranks) {
        struct attention_data d = {0};
        struct attention_out out[CHECK_VARIANTS] = {{0}};
        if (!case_shape(i, &d))
            continue;
        enum status status = case_run(dev, seed, &d, out, variants, n);
        data_free(&d, out);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- rows ---- */

/* The CPU kernel is compiled once per instruction set; each one that this machine executes is checked. */
static int variants_of(enum dev_kind dev, const struct plan *only, struct check_variant out[CHECK_VARIANTS])
{
    int n = 0;
    for (int i = 0; attentions[i] != NULL; i++) {
        const struct attention *attention = attentions[i];
        if (attention->dev != dev || (only != NULL && strcmp(only->attention, attention->name) != 0))
            continue;
        if (strcmp(attention->name, "cpu") != 0 && n < CHECK_VARIANTS)
            out[n++] = (struct check_variant){.attention = attention, .isa = -1};
        for (int isa = 0; strcmp(attention->name, "cpu") == 0 && attention_cpu_isa(isa) != NULL && n < CHECK_VARIANTS; isa++)
            out[n++] = (struct check_variant){.attention = attention, .isa = isa};
    }
    return n;
}

static void variant_text(const struct check_variant *variant, char what[192])
{
    text_print(what, 192, "attention %s%s%s: masks, documents, lengths 0 to 1023", variant->attention->name,
               variant->isa >= 0 ? " " : "", variant->isa >= 0 ? attention_cpu_isa(variant->isa)->name : "");
}

static enum status attention_rows(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    const struct plan *only = check_only(order);
    struct check_variant variants[CHECK_VARIANTS];
    int all = variants_of(dev_kind_of(env->dev), only, variants), n = 0;
    char what[192];
    if (all == 0 && only != NULL)
        return check_row_waive(order, report, "kernel", only->attention, RULE_NOT_MEASURED,
                               "no attention kernel here has this name");
    if (all == 0)
        return check_row_waive(order, report, "kernel", "attention", RULE_ABSENT,
                               "this build has no attention kernel for this device");
    for (int i = 0; i < all; i++) {
        variant_text(&variants[i], what);
        if (check_asked(order, what))
            variants[n++] = variants[i];
    }
    if (n == 0)
        return STATUS_OK;
    check_begins(report, "kernel", "attention");
    enum status status =
        check_attention(env->dev, variants, n, order->seed, comm_rank(env->world), comm_size(env->world));
    TRY(group_agree(env, status));
    for (int i = 0; i < n; i++) {
        variant_text(&variants[i], what);
        TRY(check_row_add(env, report, "kernel", what, &variants[i].tally, true));
    }
    return STATUS_OK;
}

/* Kernels of devices that are not this one. */
static enum status waive_devices(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    struct dev *dev = NULL;
    if (dev_kind_of(env->dev) != DEV_CPU || report == NULL)
        return STATUS_OK;
    enum status status = dev_open(DEV_CUDA, 0, &dev);
    dev_close(dev);
    char why[256];
    text_print(why, sizeof why, "%s", status == STATUS_OK ? "these ranks compute on the cpu; --device cuda checks the GPU"
                                                         : status_last()->what);
    status_clear();
    return check_row_waive(order, report, "kernel", "GPU kernels, exchanges and transports", RULE_ABSENT, why);
}

static enum status copy_row(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    static const char what[] = "copy with change of layout, sums of copies";
    struct tally tally = {0};
    if (!check_asked(order, what))
        return STATUS_OK;
    check_begins(report, "kernel", what);
    TRY(check_copy(env->dev, order->seed, comm_rank(env->world), comm_size(env->world), &tally));
    return check_row_add(env, report, "kernel", what, &tally, true);
}

static enum status products_row(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    static const char what[] = "matrix product, in every form";
    struct tally tally = {0};
    if (gemm_ready(dev_kind_of(env->dev)) != STATUS_OK) { /* on every rank of this machine alike */
        const struct status_message message = *status_last();
        status_clear();
        return check_row_waive(order, report, "kernel", "matrix product", RULE_ABSENT, message.what);
    }
    if (!check_asked(order, what))
        return STATUS_OK;
    check_begins(report, "kernel", what);
    TRY(check_products(env->dev, order->seed, comm_rank(env->world), comm_size(env->world), &tally));
    return check_row_add(env, report, "kernel", what, &tally, true);
}

static enum status kernels_run(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    TRY(attention_rows(env, order, report));
    TRY(copy_row(env, order, report));
    TRY(products_row(env, order, report));
    return check_only(order) == NULL ? waive_devices(env, order, report) : STATUS_OK;
}

const struct check check_kernels = {.area = "kernel", .run = kernels_run};
