/* sp/work_memory.c -- memory of one rank, term by term, each with the formula that made it.
 *
 *   peak = params + states + gather + context + grads and buckets where they are live
 *        + max(attention, mlp, loss: each with the checkpoints or activations; step: without them)
 *
 * s = B * S/P local tokens, b = bytes of the storage dtype, N/G = parameters over the ranks that ZeRO shards them over; under split_gather
 * a rank's pieces of layers and the rest each over theirs. Sources: DeepSpeed's ZeRO
 * memory estimators (runtime/zero) for what is sharded; its stage3.py, stage_1_and_2.py and parameter coordinator for
 * what is allocated when; arXiv 2205.05198 for activations, without dropout masks and with FlashAttention; DeepSpeed's
 * TiledMLP and tiled loss for tiles; the coefficients are the target's. docs/models.md derives each line.
 */
#include "sp/work_memory_state.h"

#include "kernels/attention.h"
#include "model/model.h"
#include "sp/exchange.h"
#include "sp/shard.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void memory_add(struct build *build, enum phase phase, const char *name, double bytes, const char *fmt, ...)
{
    const double most = (double)(INT64_C(1) << 57); /* 24 of them still add up */
    struct work_memory *out = build->out;
    if (out->n == WORK_TERMS || !(bytes > 0))
        return;
    struct work_term *term = &out->term[out->n];
    va_list args;
    va_start(args, fmt);
    vsnprintf(term->formula, sizeof term->formula, fmt, args);
    va_end(args);
    snprintf(term->name, sizeof term->name, "%s", name);
    term->bytes = (int64_t)(bytes < most ? ceil(bytes) : most);
    term->host = phase == HOST;
    build->phase[out->n++] = phase;
}

static void sizes_fill(const struct model *model, const struct problem *problem, const struct plan *plan,
                       const struct target *target, enum dev_kind dev, int threads, struct sizes *z)
{
    z->model = model;
    z->problem = problem;
    z->plan = plan;
    z->coef = &target->memory;
    z->dev = dev;
    z->threads = threads;
    z->b = dtype_bytes(problem->dtype);
    z->ways = plan_ways(plan);
    z->s = (double)problem->batch * (double)shard_local(problem, plan);
    z->q = (double)problem->heads * problem->head_dim;
    z->h = (double)model->hidden;
    z->f = (double)model->ffn;
    if (model->experts > 0) {
        double dense = model->dense_layers > 0 ? (double)model->ffn_dense : 0;
        z->f = z->f * (model->experts_per_token > 0 ? model->experts_per_token : 1) + (double)model->ffn_shared;
        z->f = z->f > dense ? z->f : dense;
    }
    z->vocab = (double)model->vocab;
    z->layers = model->layers;
    z->params = (double)model->params;
    z->kv_sent = problem->kv_heads > plan_head_ranks(plan) ? problem->kv_heads : plan_head_ranks(plan);
    work_params(model, problem, plan, target, &z->held);
    z->layer = z->held.cut > 0 ? z->held.cut / model->layers : (double)model->params_layer;
    z->group = plan->zero_stage > 0 ? z->held.whole_group : 1;
    z->class = target_class(target, plan->attention);
    z->class_index = 0;
    for (int i = 0; z->class != NULL && target->classes[i] != NULL; i++)
        if (target->classes[i] == z->class)
            z->class_index = i;
}

/* From when on gradients are there: stages 1 and 2 of some runtimes free them after the step, and the first micro-step's
 * loss comes before any. */
static enum phase grads_phase(const struct sizes *z)
{
    bool late = z->coef->grads_late && (z->plan->zero_stage == 1 || z->plan->zero_stage == 2);
    return late && z->plan->accumulate == 1 ? AFTER_LOSS : ALWAYS;
}

struct elems memory_elems(const struct sizes *z, bool sharded)
{
    const struct work_params *p = &z->held;
    double group = sharded ? p->whole_group : 1, cut_group = sharded ? p->cut_group : 1;
    struct elems out = {.n = p->whole / group + p->cut / cut_group};
    if (p->cut > 0)
        snprintf(out.text, sizeof out.text, "(%.0f parameters / %.0f + pieces of layers %.0f / %.0f)", p->whole, group,
                 p->cut, cut_group);
    else
        snprintf(out.text, sizeof out.text, "%.0f parameters / %.0f", p->whole, group);
    return out;
}

/* Parameters, gradients and optimizer states: 16 bytes a parameter in mixed precision (2 + 2 + 4 master + 4 + 4 Adam),
 * 16 in fp32 (4 + 4 + 4 + 4), 20 where the runtime has a master copy all the same; a stage shards one kind more than
 * the stage before it. */
static void add_states(struct build *build, const struct sizes *z)
{
    int stage = z->plan->zero_stage;
    bool offload_params = z->plan->offload == PLAN_OFFLOAD_PARAMS;
    bool offload = z->plan->offload != PLAN_OFFLOAD_NONE, grads_away = offload && !z->coef->units;
    bool stays = z->coef->units && z->b == 4; /* fp32 weights are what is gathered: only moments go */
    bool master = z->b < 4 || (z->coef->master_fp32 && stage >= 1 && stage <= 2);
    struct elems params = memory_elems(z, stage >= 3), grads = memory_elems(z, stage >= 2),
                 states = memory_elems(z, stage >= 1);
    double state = master ? 12 : 8, grad = z->coef->units ? 4 : z->b;
    if (!offload_params)
        memory_add(build, ALWAYS, "params", z->b * params.n, "%.0f B x %s", z->b, params.text);
    if (!grads_away || stage < 2) /* sharded gradients go to the host as they are reduced */
        memory_add(build, grads_phase(z), "grads", grad * grads.n, "%.0f B x %s%s", grad, grads.text,
                   grads_phase(z) == AFTER_LOSS ? ", from the first backward on" : "");
    if (!offload)
        memory_add(build, ALWAYS, "states", state * states.n, "%.0f B x %s: %s", state, states.text,
                   master ? "fp32 copy, two moments" : "two moments");
    else if (stays && master)
        memory_add(build, ALWAYS, "states", 4 * states.n, "4 B x %s: fp32 copy", states.text);
    if (!grads_away && grad < 4) /* DeepSpeed's estimates: 18 P/G in stage 3, 2 P + 18 P/G in stage 2 */
        memory_add(build, STEP, "step_grads", (stage == 3 ? 2 : 4) * states.n, "%d B x %s: gradients in fp32",
                   stage == 3 ? 2 : 4, states.text);
    double away = (stays ? 8 : state) + (grads_away ? 4 : 0);
    if (offload)
        memory_add(build, HOST, "host_states", z->coef->host_factor * away * states.n, "%.1f x %.0f B x %s",
                   z->coef->host_factor, away, states.text);
    if (offload_params)
        memory_add(build, HOST, "host_params", z->coef->host_factor * z->b * params.n, "%.1f x %.0f B x %s",
                   z->coef->host_factor, z->b, params.text);
}

/* ZeRO-3 has weights and gradients of the embedding and of a layer whole while they are in use. Once it has seen the
 * order of the layers (from the second step on) it also keeps weights that come again soon: at most live_elems. */
static void add_gather(struct build *build, const struct sizes *z)
{
    double used = (double)z->model->params_embedding + z->layer;
    double live = z->coef->live_elems < z->model->params ? (double)z->coef->live_elems : z->params;
    if (live > used)
        memory_add(build, ALWAYS, "gather", z->b * (live + used),
                   "%.0f B x (%.0f weights kept + gradients of embedding %lld + layer %.0f)", z->b, live,
                   (long long)z->model->params_embedding, z->layer);
    else
        memory_add(build, ALWAYS, "gather", 2 * z->b * used,
                   "2 x %.0f B x (embedding %lld + layer %.0f): whole while in use", z->b,
                   (long long)z->model->params_embedding, z->layer);
}

/* Where gradients are collected to be reduced. ZeRO-3 allocates one buffer at the start, of the type that it reduces in;
 * stages 1 and 2 take theirs with the first gradient, after the logits are gone, and give them back after the last. */
static void add_buckets(struct build *build, const struct sizes *z)
{
    bool many = z->plan->sp > 1, third = z->plan->zero_stage == 3;
    double elems = (double)z->coef->reduce_elems[many];
    double bytes = third && z->coef->reduce_bytes[many] > 0 ? z->coef->reduce_bytes[many] : z->b;
    int buffers = third ? 1 : z->coef->reduce_buffers;
    if (z->params > 0 && z->plan->zero_stage >= 1)
        memory_add(build, third ? ALWAYS : LAYERS, "buckets", buffers * bytes * elems, "%d x %.0f B x %.0f elements%s",
                   buffers, bytes, elems, third ? "" : ", while layers run backward");
}

static void add_runtime(struct build *build, const struct sizes *z)
{
    if (z->plan->zero_stage == 3)
        add_gather(build, z);
    add_buckets(build, z);
}

/* Bytes that one layer keeps for its backward when nothing is recomputed, by the phase they belong to. */
static double saved_attention(const struct sizes *z)
{
    double kv = z->kv_sent * (z->problem->head_dim + problem_dim_v(z->problem));
    double o = (double)z->problem->heads * problem_dim_v(z->problem);
    return z->s * (z->b * (z->q + kv + o) + 4.0 * z->problem->heads);
}

static double saved_mlp(const struct sizes *z)
{
    return z->s * z->b * (z->model->gated ? 4 : 2) * z->f;
}

static void add_kept(struct build *build, const struct sizes *z)
{
    double input = z->s * z->h * z->b;
    double layer = 4 * input + saved_attention(z) + saved_mlp(z);
    switch (z->plan->checkpointing) {
    case PLAN_CHECKPOINTING_FULL:
        memory_add(build, OUTSIDE_STEP, "checkpoints", z->layers * input, "%.0f layers x %.0f tokens x %.0f x %.0f B",
                   z->layers, z->s, z->h, z->b);
        return;
    case PLAN_CHECKPOINTING_OFFLOAD:
        memory_add(build, HOST, "host_checkpoints", z->layers * input, "%.0f layers x %.0f tokens x %.0f x %.0f B",
                   z->layers, z->s, z->h, z->b);
        return;
    default:
        memory_add(build, OUTSIDE_STEP, "activations", z->layers * layer,
                   "%.0f layers x %.0f tokens x %.0f B: 4 hidden, q k v o, softmax, %d ffn", z->layers, z->s,
                   z->s > 0 ? layer / z->s : 0, z->model->gated ? 4 : 2);
    }
}

/* What is live while the layer's attention is recomputed and differentiated, beyond what add_kept already counts. */
static void add_attention(struct build *build, const struct sizes *z)
{
    double kept = z->plan->checkpointing == PLAN_CHECKPOINTING_NONE ? saved_attention(z) : 0;
    double copies = z->coef->class_copies[z->class_index];
    if (copies <= 0)
        copies = z->coef->attention_copies;
    if (copies <= 0) {
        memory_add(build, ATTENTION, "attention", (double)work_exec_bytes(z->problem, z->plan) - kept,
                   "buffers of the exchange and of the kernel, counted");
        return;
    }
    /* c_q was fitted to runs whose KV heads were copied 4 to 8 times and shows no growth with that: the copies are
     * inside it. */
    double more =
        z->b * z->s * (z->kv_sent - z->problem->kv_heads) * (z->problem->head_dim + problem_dim_v(z->problem));
    memory_add(build, ATTENTION, "attention", copies * z->b * z->s * z->q - more - kept,
               "%.1f x %.0f B x %.0f tokens x %.0f (%s)%s%s", copies, z->b, z->s, z->q,
               z->class != NULL ? z->class : z->plan->attention, more > 0 ? " - kv_copies" : "",
               kept > 0 ? " - activations" : "");
    memory_add(build, ATTENTION, "kv_copies", more, "%.0f B x %.0f tokens x (%.0f - %d) kv heads x (%d + %d)", z->b,
               z->s, z->kv_sent, z->problem->kv_heads, z->problem->head_dim, problem_dim_v(z->problem));
}

static void add_mlp(struct build *build, const struct sizes *z)
{
    bool tiled = z->plan->mlp == PLAN_MLP_TILED && z->h > 0;
    double rows = tiled && z->s > z->h ? z->h : z->s; /* ceil(s / h) tiles */
    double kept = z->plan->checkpointing == PLAN_CHECKPOINTING_NONE ? saved_mlp(z) : 0;
    double wide = z->coef->mlp_copies * z->b * rows * z->f, hidden = z->coef->mlp_hidden * z->b * z->s * z->h;
    if (z->f > 0)
        memory_add(build, MLP, "mlp", wide + hidden - kept,
                   "%.2f x %.0f B x %.0f rows x %.0f + %.0f x %.0f B x %.0f tokens x %.0f%s", z->coef->mlp_copies, z->b,
                   rows, z->f, z->coef->mlp_hidden, z->b, z->s, z->h, kept > 0 ? " - activations" : "");
}

/* Logits in the storage dtype, their fp32 copy, and what log-softmax and gradients need: c_l bytes an entry in all. Tiles
 * hold about 1 GiB of fp32 logits. */
static void add_loss(struct build *build, const struct sizes *z)
{
    double entries = z->s * z->vocab, tiles = 1;
    double copy = z->b >= 4 ? 0 : 4, all = z->b >= 4 ? z->coef->logits_fp32_bytes : z->coef->logits_bytes;
    char note[32] = "";
    if (z->plan->loss == PLAN_LOSS_FUSED)
        return; /* a chunk of about s * h entries, less than an MLP; the gradient of the head is in gather */
    if (z->plan->loss == PLAN_LOSS_TILED && entries > 0) {
        tiles = ceil(4 * entries / (double)work_logits_tile(DEV_CUDA));
        all = z->coef->tile_bytes;
        snprintf(note, sizeof note, " / %.0f tiles", tiles);
    }
    double rest = all - z->b - copy;
    memory_add(build, LOSS, "logits", z->b * entries / tiles, "%.0f B x %.0f tokens x %.0f%s", z->b, z->s, z->vocab,
               note);
    memory_add(build, LOSS, "logits_fp32", copy * entries / tiles, "%.0f B x %.0f tokens x %.0f%s", copy, z->s,
               z->vocab, note);
    memory_add(build, LOSS, "logits_grad", rest * entries / tiles,
               "%.1f B x %.0f tokens x %.0f%s: softmax and gradients", rest, z->s, z->vocab, note);
}
/* Is a term of this phase there when the work of `at` is done? */
static bool is_live(enum phase phase, enum phase at)
{
    switch (phase) {
    case ALWAYS:
        return true;
    case OUTSIDE_STEP:
        return at != STEP;
    case AFTER_LOSS:
        return at != LOSS;
    case LAYERS:
        return at == ATTENTION || at == MLP;
    default:
        return phase == at;
    }
}

static int64_t phase_bytes(const struct build *build, enum phase phase)
{
    int64_t sum = 0;
    for (int i = 0; i < build->out->n; i++)
        if (is_live(build->phase[i], phase))
            sum += build->out->term[i].bytes;
    return sum;
}

static void find_peak(struct build *build)
{
    static const struct {
        enum phase phase;
        const char *name;
    } phases[] = {{LOSS, "loss"}, {ATTENTION, "attention"}, {MLP, "mlp"}, {STEP, "step"}};
    struct work_memory *out = build->out;
    enum phase at = LOSS;
    for (int i = 0; i < 4; i++) {
        int64_t bytes = phase_bytes(build, phases[i].phase);
        if (i > 0 && bytes <= out->peak_bytes)
            continue;
        out->peak_bytes = bytes;
        at = phases[i].phase;
        snprintf(out->peak_at, sizeof out->peak_at, "%s", phases[i].name);
    }
    for (int i = 0; i < out->n; i++) {
        out->term[i].live_at_peak = is_live(build->phase[i], at);
        if (out->term[i].host)
            out->host_bytes += out->term[i].bytes;
    }
}

static void add_context(struct build *build, const struct sizes *z)
{
    bool cpu = z->dev == DEV_CPU;
    memory_add(build, ALWAYS, "context", (double)(cpu ? z->coef->context_cpu_bytes : z->coef->context_bytes),
               "%s, libraries%s", cpu ? "process" : "device context",
               z->coef->comm_cpu_bytes > 0 ? "" : ", communicators");
}

void work_memory(const struct model *model, const struct problem *problem, const struct plan *plan,
                 const struct target *target, struct work_memory *out)
{
    const struct exchange *exchange = exchange_find(plan->exchange);
    /* What a ring or split_gather moves data by is no exchange. */
    bool none = plan_method_exchange(plan->method) != NULL;
    const struct attention *attention = none ? attention_find(plan->attention) : NULL;
    enum dev_kind dev = exchange != NULL ? exchange->dev : attention != NULL ? attention->dev : DEV_CUDA;
    work_memory_on(model, problem, plan, target, dev, 1, out);
}

void work_memory_on(const struct model *model, const struct problem *problem, const struct plan *plan,
                    const struct target *target, enum dev_kind dev, int threads, struct work_memory *out)
{
    struct build build = {.out = out};
    struct sizes sizes;
    memset(out, 0, sizeof *out);
    sizes_fill(model, problem, plan, target, dev, threads, &sizes);
    add_states(&build, &sizes);
    if (sizes.coef->units)
        memory_unit_params(&build, &sizes);
    else
        add_runtime(&build, &sizes);
    add_context(&build, &sizes);
    if (sizes.coef->units) {
        memory_unit_activations(&build, &sizes);
    } else {
        add_kept(&build, &sizes);
        add_attention(&build, &sizes);
        add_mlp(&build, &sizes);
        add_loss(&build, &sizes);
    }
    find_peak(&build);
    if (sizes.coef->units)
        snprintf(out->peak_at, sizeof out->peak_at, "run");
}
