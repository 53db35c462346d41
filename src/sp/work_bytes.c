/* sp/work_bytes.c -- bytes of an exchange, FLOPs of attention, products of the linear layers, bytes of what goes over elements.
 * docs/models.md derives each. */
#include "sp/work.h"

#include "kernels/attention.h"
#include "sp/exchange.h"
#include "sp/exchange_direct.h"
#include "sp/exec_chunk.h"
#include "sp/shard.h"

#include <string.h>

static int sp_of(const struct plan *plan)
{
    return plan->sp > 0 ? plan->sp : 1;
}

static int64_t tokens_local(const struct problem *problem, const struct plan *plan)
{
    return problem->batch * shard_local(problem, plan);
}

/* Keys and values that a rank has on the head side, heads of both together, per token and lane: with more ranks than heads each has a
 * copy of one. */
static int64_t kv_elems(const struct problem *problem, const struct plan *plan)
{
    int64_t dims = (int64_t)problem->head_dim + problem_dim_v(problem);
    return tokens_local(problem, plan) * plan_head_ranks(plan) *
           model_kv_local(problem->kv_heads, plan_head_ranks(plan)) * dims;
}

/* Rows of all ranks, `in` times gathered before products and twice scattered as sums behind them, around attention and MLP: forward
 * gathers normalised rows; backward those once more, and dy. */
static void gathers(const struct problem *problem, const struct plan *plan, bool backward, struct work_exchange *out)
{
    int64_t ranks = sp_of(plan);
    int64_t rows = ranks > 1 ? tokens_local(problem, plan) * ranks * problem->hidden * dtype_bytes(problem->dtype) : 0;
    *out = (struct work_exchange){.bytes_in = (backward ? 4 : 2) * rows, .bytes_out = 2 * rows};
    out->wire_in = out->bytes_in / ranks * (ranks - 1);
    out->wire_out = out->bytes_out / ranks * (ranks - 1);
}

void work_exchange(const struct problem *problem, const struct plan *plan, bool backward, struct work_exchange *out)
{
    if (plan->method == PLAN_METHOD_SPLIT_GATHER) {
        gathers(problem, plan, backward, out);
        return;
    }
    int64_t ranks = plan_head_ranks(plan), places = plan_ring(plan);
    int64_t dim = problem->head_dim, dim_v = problem_dim_v(problem);
    int64_t kv = problem->kv_heads > ranks ? problem->kv_heads : ranks; /* with P > Hkv every rank gets a copy */
    int64_t token = tokens_local(problem, plan) * dtype_bytes(problem->dtype);
    out->tensor_bytes[0] = token * problem->heads * dim;
    out->tensor_bytes[1] = token * (ranks > 1 ? kv : problem->kv_heads) * dim;
    out->tensor_bytes[2] = token * (ranks > 1 ? kv : problem->kv_heads) * dim_v;
    out->tensor_bytes[3] = token * problem->heads * dim_v;
    int64_t qkv = out->tensor_bytes[0] + out->tensor_bytes[1] + out->tensor_bytes[2], o = out->tensor_bytes[3];
    out->bytes_in = backward ? o : qkv;
    out->bytes_out = backward ? qkv : o;
    out->wire_in = out->bytes_in / ranks * (ranks - 1);
    out->wire_out = out->bytes_out / ranks * (ranks - 1);
    if (places == 1)
        return;
    int64_t keys = (places - 1) * kv_elems(problem, plan) * dtype_bytes(problem->dtype);
    int64_t sums = (places - 1) * (int64_t)sizeof(float) + dtype_bytes(problem->dtype); /* the last pass is rounded */
    int64_t gradients = backward ? sums * kv_elems(problem, plan) : 0;
    out->bytes_in = (ranks > 1 ? out->bytes_in : 0) + keys;
    out->bytes_out = (ranks > 1 ? out->bytes_out : 0) + gradients;
    out->wire_in += keys;
    out->wire_out += gradients;
}

static double pairs_of(const struct problem *problem, int64_t tokens)
{
    struct attention_shape shape = {.batch = 1,
                                    .seq_q = tokens,
                                    .seq_k = tokens,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 1,
                                    .causal = problem->causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                    .window = problem->window};
    attention_shape_fill(&shape);
    return attention_pairs(&shape);
}

/* Per row: documents by themselves and padding as one more; a causal row without documents runs over its padding. */
static double row_pairs(const struct problem *problem, int64_t padded)
{
    double pairs = 0;
    if (problem->docs == 0 && (problem->causal || padded == problem->seq))
        return pairs_of(problem, padded);
    for (int i = 0; i < problem->docs; i++)
        pairs += pairs_of(problem, problem->doc_len[i]);
    if (problem->docs == 0)
        pairs += pairs_of(problem, problem->seq);
    return pairs + pairs_of(problem, padded - problem->seq);
}

double work_attention_flops(const struct problem *problem, const struct plan *plan, bool backward)
{
    double lanes = (double)problem->head_dim + (double)problem_dim_v(problem);
    double pairs = (double)problem->batch * row_pairs(problem, shard_padded(problem, plan));
    return (backward ? 2.5 : 1.0) * 2.0 * (double)problem->heads / sp_of(plan) * lanes * pairs;
}

struct gemm_list {
    struct work_gemm *out;
    int n;
};

/* A product like `like`, n x k. Shapes without columns are left out: heads alone, no shared experts. */
static void gemm_add(struct gemm_list *list, struct work_gemm like, const char *name, int64_t n, int64_t k)
{
    like.name = name;
    like.n = n;
    like.k = k;
    if (n > 0 && k > 0 && like.count > 0 && like.layers > 0 && list->n < WORK_GEMMS)
        list->out[list->n++] = like;
}

int work_gemms(const struct model *model, const struct problem *problem, const struct plan *plan,
               const struct target *target, struct work_gemm out[WORK_GEMMS])
{
    bool late = target != NULL && target->keeps_late && plan->zero_stage == 3;
    bool mixture = model->experts > 0, gated = model->gated;
    int layers = model->layers, dense = mixture ? model->dense_layers : 0;
    int64_t ways = plan_ways(plan), s = tokens_local(problem, plan) * ways, hidden = model->hidden;
    int64_t heads = problem->heads / ways, kv = model_kv_local(problem->kv_heads, (int)ways), ffn = model->ffn / ways;
    int64_t dim = problem->head_dim, dim_v = problem_dim_v(problem), wide = gated ? 2 : 1;
    struct work_gemm each = {.m = s, .rows = s, .count = 1, .layers = layers, .forwards = work_forward_passes(plan)},
                     expert;
    struct gemm_list list = {out, 0};
    gemm_add(&list, each, "qkv", heads * dim + kv * (dim + dim_v), hidden);
    gemm_add(&list, each, "o", hidden, heads * dim_v);
    each.layers = layers - dense;
    expert = each;
    if (mixture) {
        gemm_add(&list, each, "router", model->experts, hidden);
        expert.count = model->experts_per_token;
        expert.rows = (int64_t)((double)s * model->experts_per_token / model->experts);
        expert.rows = expert.rows > 0 ? expert.rows : 1;
    }
    gemm_add(&list, expert, gated ? "gate_up" : "up", wide * ffn, hidden);
    if (!mixture) /* experts' outputs are weighted, so they are kept; shared ones are taken to be, too */
        expert.forwards = late ? each.forwards : 1;
    gemm_add(&list, expert, "down", hidden, ffn);
    if (mixture) {
        gemm_add(&list, each, gated ? "shared_gate_up" : "shared_up", wide * model->ffn_shared, hidden);
        gemm_add(&list, each, "shared_down", hidden, model->ffn_shared);
        each.layers = dense;
        gemm_add(&list, each, gated ? "dense_gate_up" : "dense_up", wide * model->ffn_dense, hidden);
        each.forwards = late ? each.forwards : 1;
        gemm_add(&list, each, "dense_down", hidden, model->ffn_dense);
    }
    return list.n;
}

struct work_gemm work_logits(const struct model *model, const struct problem *problem, const struct plan *plan)
{
    bool some = model->vocab > 0 && model->hidden > 0;
    int64_t s = tokens_local(problem, plan);
    return (struct work_gemm){"logits", s, model->vocab, model->hidden, some, 1, s, 1};
}

static double touched(const struct target_touch *touch, const struct problem *problem)
{
    return touch->stored * dtype_bytes(problem->dtype) + touch->fp32 * (double)sizeof(float);
}

double work_elementwise(const struct model *model, const struct problem *problem, const struct plan *plan,
                        const struct target *target)
{
    const struct target_elementwise *e = &target->elementwise;
    struct work_gemm gemms[WORK_GEMMS], logits = work_logits(model, problem, plan);
    double bytes = 0;
    double ways = plan_ways(plan), tokens = (double)tokens_local(problem, plan), rows = tokens * (double)model->hidden;
    double turned = tokens * ways * problem->head_dim *
                    (problem->heads / ways + model_kv_local(problem->kv_heads, (int)ways)); /* elements of q and k */
    double inner = 0;                                                                       /* of all layers */
    if (model_is_heads(model))
        return 0;
    for (int i = 0, n = work_gemms(model, problem, plan, target, gemms); i < n; i++)
        if (strstr(gemms[i].name, "down") != NULL) /* whose inputs are as wide as the MLP inside, experts' and all */
            inner += (double)gemms[i].m * (double)gemms[i].k * gemms[i].count * gemms[i].layers;
    for (int back = 0; back < 2; back++) {
        const struct target_touch *t[] = {&e->norm[back], &e->sum[back], &e->turn[back],
                                          &e->norm[back], &e->act[back], &e->gate[back]};
        const double elements[] = {2 * rows * model->layers,
                                   2 * rows * model->layers,
                                   turned * model->layers,
                                   model->qk_norm ? turned * model->layers : 0,
                                   inner,
                                   model->gated ? inner : 0};
        double passes = back ? 1 : work_forward_passes(plan);
        for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
            bytes += passes * elements[i] * touched(t[i], problem);
        /* Of a layer that runs again nothing keeps the last sum. */
        bytes -= (passes - 1) * rows * model->layers * touched(&e->sum[back], problem);
        bytes += rows * touched(&e->norm[back], problem); /* the last norm, which no layer runs again */
    }
    return bytes + (double)logits.m * (double)logits.n * logits.count * touched(&e->loss[plan->loss], problem);
}

/* What sp/ring.c allocates, its kernel's workspace not. tokens: of a row, heads: of a rank. */
static int64_t ring_held(const struct problem *problem, const struct plan *plan, int64_t tokens, int64_t heads)
{
    const int64_t fp32 = (int64_t)sizeof(float), elem = dtype_bytes(problem->dtype);
    bool backward = (problem->direction & PROBLEM_BACKWARD) != 0;
    int64_t dim = problem->head_dim, dim_v = problem_dim_v(problem), wide = backward && dim > dim_v ? dim : dim_v;
    int64_t places = plan_ring(plan), kv = kv_elems(problem, plan);
    if (places == 1)
        return 0;
    int64_t bytes = (places > 2 ? 2 : 1) * kv * elem;       /* keys and values that arrive */
    bytes += tokens * heads * (wide * elem + fp32);         /* a step's part of a row, its statistics */
    bytes += problem->batch * tokens * heads * wide * fp32; /* the sum of the parts */
    if (backward)                                           /* of a step twice, and what arrives */
        bytes += 3 * kv * fp32 + (problem->causal ? problem->batch * tokens * heads / 2 * fp32 : 0);
    return bytes;
}

/* Names of GPUs' exchanges with windows, for builds without them. */
static bool has_windows(const struct plan *plan, bool *stages)
{
    static const char *const names[] = {"push", "pull", "ce"};
    const struct exchange *exchange = exchange_find(plan->exchange);
    bool windows = exchange != NULL && exchange->windows;
    for (size_t i = 0; i < sizeof names / sizeof *names && exchange == NULL; i++)
        windows = windows || strcmp(plan->exchange, names[i]) == 0;
    *stages = exchange != NULL ? exchange->staging_bytes != NULL : !windows;
    return windows;
}

/* A rank's part of a layer that several cut. */
struct piece {
    struct problem problem;
    struct plan plan;
};

static struct piece piece_of(const struct problem *problem, const struct plan *plan)
{
    struct piece piece = {*problem, *plan};
    if (plan_cut(&piece.problem, &piece.plan) != STATUS_OK)
        status_clear(); /* documents without room for one of padding: the same bytes */
    return piece;
}

static int64_t layer_bytes(const struct problem *problem, const struct plan *plan)
{
    int64_t ranks = plan_head_ranks(plan), batch = problem->batch, tokens = shard_local(problem, plan) * ranks;
    int64_t dim = problem->head_dim, dim_v = problem_dim_v(problem), elem = dtype_bytes(problem->dtype);
    int64_t heads = problem->heads / ranks, kv = model_kv_local(problem->kv_heads, (int)ranks);
    int64_t both = problem->direction & PROBLEM_BACKWARD ? 2 : 1;
    /* elements per token and rank: q, k, v, o on the sequence side, once more on the head side, and the gradients of
     * all */
    int64_t seq_row = (int64_t)problem->heads * (dim + dim_v) + (int64_t)problem->kv_heads * (dim + dim_v);
    int64_t head_row = heads * (dim + dim_v) + kv * (dim + dim_v);
    int64_t in = heads * dim + kv * (dim + dim_v), out = heads * dim_v, widest = in > out ? in : out;
    int64_t bytes = tokens_local(problem, plan) * seq_row * elem * both;
    bool stages;
    (void)has_windows(plan, &stages);
    if (ranks > 1)
        bytes += batch * tokens * (head_row * elem * both + (stages ? 2 * widest * elem : 0));
    bytes += batch * tokens * heads * (int64_t)sizeof(float); /* softmax statistics */
    if (both == 2 && exec_chunk_shared(problem, plan, 0))
        bytes += batch * tokens * kv * (dim + dim_v) * (int64_t)sizeof(float);
    return bytes + ring_held(problem, plan, tokens, heads);
}

int64_t work_exec_bytes(const struct problem *problem, const struct plan *plan)
{
    struct piece piece = piece_of(problem, plan);
    return layer_bytes(&piece.problem, &piece.plan);
}

/* The order in which exec_layer.c asks for them: q, k, v, o, d_o, dq, dk, dv by sequence, then by heads. */
int64_t work_window_bytes(const struct problem *problem, const struct plan *plan)
{
    const struct piece piece = piece_of(problem, plan);
    int64_t ranks = plan_head_ranks(&piece.plan), buffers = 0;
    int64_t row = tokens_local(&piece.problem, &piece.plan) * dtype_bytes(problem->dtype);
    int64_t dim = problem->head_dim, dim_v = problem_dim_v(problem), heads = piece.problem.heads;
    int64_t kv[2] = {piece.problem.kv_heads, ranks * model_kv_local(piece.problem.kv_heads, (int)ranks)};
    int n = problem->direction & PROBLEM_BACKWARD ? 8 : 4;
    bool stages;
    size_t bytes[16];
    if (ranks == 1 || !has_windows(&piece.plan, &stages))
        return 0;
    for (int side = 0; side < 2; side++) {
        int64_t of[] = {heads * dim,   kv[side] * dim, kv[side] * dim_v, heads * dim_v,
                        heads * dim_v, heads * dim,    kv[side] * dim,   kv[side] * dim_v};
        for (int i = 0; i < n; i++) {
            bytes[side * n + i] = (size_t)(row * of[i]);
            buffers += row * of[i];
        }
    }
    return (int64_t)direct_memory_windows(bytes, 2 * n) - buffers;
}

int64_t work_kernel_bytes(const struct problem *problem, const struct plan *plan, int threads)
{
    const struct piece piece = piece_of(problem, plan);
    const struct attention *attention = attention_find(plan->attention);
    bool rings = plan_ring(&piece.plan) > 1, backward = (problem->direction & PROBLEM_BACKWARD) != 0;
    int64_t tokens = shard_local(&piece.problem, &piece.plan) * plan_head_ranks(&piece.plan);
    size_t most = 0;
    for (int c = 0; c < piece.plan.chunks && attention != NULL; c++) {
        struct exec_chunk heads;
        exec_chunk(&piece.problem, &piece.plan, 0, c, &heads);
        struct attention_shape shape = {.batch = rings ? 1 : problem->batch, /* a ring goes row by row */
                                        .seq_q = tokens,
                                        .seq_k = tokens,
                                        .heads = heads.count,
                                        .kv_heads = heads.kv_count,
                                        .head_dim = problem->head_dim,
                                        .head_dim_v = problem_dim_v(problem),
                                        .dtype = problem->dtype,
                                        .causal = problem->causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                        .window = rings ? 0 : problem->window};
        const int64_t one[2] = {0, shape.batch * tokens};
        attention_shape_fill(&shape);
        shape.group = piece.problem.heads / piece.problem.kv_heads;
        shape.group_first = heads.group_first;
        if (shard_packed(&piece.problem, &piece.plan)) { /* one document as long as all rows stands for any */
            shape.batch = 1;
            shape.seq_q = shape.seq_k = one[1];
            shape.docs = 1;
            shape.cu_q = shape.cu_k = one;
        }
        for (int back = 0; back <= backward; back++) {
            size_t bytes = attention->workspace_bytes(&shape, back != 0, threads);
            most = bytes > most ? bytes : most;
        }
    }
    return (int64_t)most;
}
