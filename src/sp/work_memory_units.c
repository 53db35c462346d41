/* sp/work_memory_units.c -- memory of a harness that goes by units: weights and gradients whole a unit at a time, buffers that stay.
 *
 * A unit is the embedding, a layer, or the head. T ranks may cut a layer (plan_ways): N elements of it are then this rank's pieces, and what meets
 * the pieces is the rows of all T, s*T. Counted in train/params.c (weights, gradients), train/decoder.c (x, h, dx, logits), sp/block.c
 * (h, d_h, x', gate, up, their product), sp/exec_layer.c, train/stream.h; docs/models.md has each line.
 */
#include "sp/work_memory_state.h"

#include "kernels/gemm_cublas.h"
#include "kernels/nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { UNIT_LAYERS = 2 /* layers whole at a time */, PASSING = 4 << 20 /* elements of offloaded states at a time */ };

/* What is not in layers: embedding and head. */
static double outside_layers(const struct sizes *z)
{
    return (double)z->model->params_embedding * (z->model->tied ? 1 : 2);
}

/* Ranks that share a layer, or their pieces of it. */
static double layer_group(const struct sizes *z)
{
    return z->plan->zero_stage > 0 && z->held.cut > 0 ? z->held.cut_group : z->group;
}

/* The largest of a rank's shares of units. */
static double largest_part(const struct sizes *z)
{
    return fmax(z->layer / layer_group(z), (double)z->model->params_embedding / z->group);
}

/* Those of layers lend their places to each other, embedding and head have their own. */
static void add_weights(struct build *build, const struct sizes *z)
{
    double outside = outside_layers(z);
    struct elems mine = memory_elems(z, true);
    int stage = z->plan->zero_stage;
    if (stage == 3)
        memory_add(build, ALWAYS, "gather", z->b * (UNIT_LAYERS * z->layer + outside),
                   "%.0f B x (%d layers of %.0f + embedding and head %.0f): whole while in use", z->b, UNIT_LAYERS,
                   z->layer, outside);
    else if (stage > 0 && z->b < 4)
        memory_add(build, ALWAYS, "gather", z->b * mine.n, "%.0f B x %s: this rank's, to be gathered", z->b, mine.text);
}

/* Gradients that are whole until they are reduced, of a second layer where the first is reduced beside it, with the summed part of one unit; room
 * for a unit from all ranks unless NCCL sums. Stage 1 sums beside the whole gradients. */
static void add_grads(struct build *build, const struct sizes *z)
{
    const struct plan *plan = z->plan;
    bool cpu = z->dev == DEV_CPU, alone = z->problem->world == 1;
    double layer = z->layer, embedding = (double)z->model->params_embedding;
    double most = layer > embedding ? layer : embedding;
    int layers = plan->zero_stage < 2 ? 0 : cpu || z->group < 2 ? 1 : UNIT_LAYERS;
    double whole = layers > 0 ? layers * layer + outside_layers(z) : 0;
    double sums = plan->zero_stage == 1 ? memory_elems(z, true).n : 0;
    double work = (layers > 0 ? largest_part(z) : 0) + (!cpu || alone ? 0 : most);
    memory_add(build, ALWAYS, "buckets", 4 * (whole + sums + work),
               "4 B x (%.0f of %d layers, embedding and head + %.0f sums + %.0f workspace)", whole, layers, sums, work);
}

/* Offloaded states: two pieces on their way, of m, v and, where the host has them, fp32 weights. */
static void add_passing(struct build *build, const struct sizes *z)
{
    double piece = fmin(largest_part(z), PASSING);
    int kinds = z->b < 4 ? 3 : 2;
    if (z->plan->offload != PLAN_OFFLOAD_NONE)
        memory_add(build, ALWAYS, "passing", 2 * kinds * 4 * piece, "2 x %d x 4 B x %.0f elements on their way", kinds,
                   piece);
}

/* Connections of the job, and how many of them sum. */
struct connections {
    int n, sums;
};

/* A group of `size` ranks sums, on a connection that has `whole`: that of all of them does, or one of its own. */
static void sums_by(struct connections *all, int size, int whole, bool *whole_sums)
{
    bool own = size > 1 && size < whole, first = size == whole && size > 1 && !*whole_sums;
    all->n += own;
    all->sums += own || first;
    *whole_sums = *whole_sums || first;
}

/* Of NCCL, as train/params.c opens them (sums_open): the job's; one more that gathers and reduces beside the layers; and groups that sum. */
static struct connections connections_of(const struct sizes *z)
{
    const struct plan *plan = z->plan;
    int world = z->problem->world, ways = (int)z->ways, shard = plan->dp_shard * plan_sequence_ranks(plan);
    int copies = model_kv_copies(z->problem->kv_heads, ways);
    bool beside = plan->zero_stage >= 2 && shard > 1, job_sums = false, beside_sums = false;
    bool *sums = beside ? &beside_sums : &job_sums;
    struct connections out = {.n = world > 1 ? 1 + beside : 0};
    if (world == 1)
        return out;
    sums_by(&out, plan->zero_stage > 0 ? shard : world, world, sums);
    if (ways > 1 || plan->zero_stage > 0)
        sums_by(&out, plan->dp_replicate, world, &job_sums);
    if (ways == 1)
        return out;
    sums_by(&out, shard / ways, world, sums);
    sums_by(&out, ways, world, &job_sums); /* rows, in blocks */
    if (beside)
        sums_by(&out, ways, world, sums);
    if (copies > 1 && copies < ways)
        sums_by(&out, copies, world, sums);
    return out;
}

static void add_connections(struct build *build, const struct sizes *z)
{
    const struct target_memory *coef = z->coef;
    struct connections all = connections_of(z);
    if (z->dev == DEV_CPU && all.n > 0)
        memory_add(build, ALWAYS, "communicators", (double)coef->comm_cpu_bytes, "UCX and its shared memory");
    else
        memory_add(build, ALWAYS, "communicators",
                   (double)all.n * (double)coef->comm_bytes + (double)all.sums * (double)coef->sum_bytes,
                   "%d x %lld B + %d that sum x %lld B", all.n, (long long)coef->comm_bytes, all.sums,
                   (long long)coef->sum_bytes);
}

void memory_unit_params(struct build *build, const struct sizes *z)
{
    add_weights(build, z);
    add_grads(build, z);
    add_passing(build, z);
    add_connections(build, z);
}

/* ---- activations ---- */

/* Each tile reads and writes the gradients of the whole head once: on an H200, 512 rows of 32,768 logits a tile, over half of the head's
 * time. A CPU's caches want less, and its products are slower. */
int64_t work_logits_tile(enum dev_kind dev)
{
    return dev == DEV_CPU ? 64 << 20 : 1 << 30;
}

static double logits_tiles(const struct sizes *z)
{
    double all = ceil(4 * z->s * z->vocab / (double)work_logits_tile(z->dev));
    return z->plan->loss == PLAN_LOSS_PLAIN ? 1 : fmax(1, all);
}

/* The workspace of y = x W^T, of its dx and its dW. narrow: y has the storage type. */
static double product_bytes(const struct sizes *z, double rows, double out, double in, bool narrow)
{
    int64_t m = (int64_t)rows, n = (int64_t)out, k = (int64_t)in;
    enum dtype dtype = z->problem->dtype;
    const struct gemm_shape shapes[] = {{.m = m, .n = n, .k = k, .dtype = dtype, .trans_b = true, .narrow = narrow},
                                        {.m = m, .n = k, .k = n, .dtype = dtype, .add = true, .narrow = true},
                                        {.m = n, .n = k, .k = m, .dtype = dtype, .trans_a = true, .add = true}};
    double most = 0;
    for (int i = 0; i < 3; i++)
        most = fmax(most, (double)gemm_workspace(z->dev, &shapes[i]));
    return most;
}

/* Of the head and of a block, for their products, norms and, where others cut the block, sums of rows, one after the other. */
static double scratch_bytes(const struct sizes *z)
{
    double all = z->s * z->ways, batch = fmax(1, (double)z->problem->batch);
    double norm = (double)nn_norm_scratch(z->dev, (int64_t)z->s, z->model->hidden);
    if (z->dev != DEV_CPU)
        return 2.0 * GEMM_CUBLAS_WORKSPACE;
    double head = product_bytes(z, ceil(z->s / logits_tiles(z)), z->vocab, z->h, false);
    double f = z->f / z->ways, block = fmax(product_bytes(z, all, f, z->h, true), product_bytes(z, all, z->h, f, true));
    block = fmax(block, product_bytes(z, all, z->q / z->ways, z->h, true));
    double sums = z->held.cut > 0 ? z->b * z->h * all / batch : 0;
    return fmax(head, norm) + fmax(fmax(block, norm), sums);
}

/* What a kernel asks for each call; of a GPU, dq in fp32, and cuDNN has dk and dv of each query head before it adds up those of a group. A
 * ring calls it row by row. */
static double kernel_bytes(const struct sizes *z)
{
    const struct problem *problem = z->problem;
    bool grouped = strncmp(z->plan->attention, "cudnn", 5) == 0 && problem->heads > problem->kv_heads;
    double rows = plan_ring(z->plan) > 1 && problem->batch > 0 ? z->s / (double)problem->batch : z->s;
    if (z->dev == DEV_CPU)
        return (double)work_kernel_bytes(problem, z->plan, z->threads);
    return (4 + (grouped ? 2 * z->b : 0)) * rows * z->q;
}

/* Rows between layers, of which `offload` leaves two on the device. */
static void add_checkpoints(struct build *build, const struct sizes *z, double input)
{
    bool offload = z->plan->checkpointing == PLAN_CHECKPOINTING_OFFLOAD;
    double between = offload && z->layers > 1 ? 2 : z->layers + 1;
    memory_add(build, ALWAYS, "checkpoints", between * input, "%.0f x %.0f tokens x %.0f x %.0f B between layers",
               between, z->s, z->h, z->b);
    if (offload)
        memory_add(build, HOST, "host_checkpoints", (z->layers - 1) * input,
                   "%.0f x %.0f tokens x %.0f x %.0f B between layers", z->layers - 1, z->s, z->h, z->b);
}

/* sets: of what is kept for backward. */
static void add_attention(struct build *build, const struct sizes *z, double sets)
{
    double exec = (double)work_exec_bytes(z->problem, z->plan), scratch = scratch_bytes(z), kernel = kernel_bytes(z);
    double before =
        z->model->qk_norm
            ? z->s * z->b *
                  (z->q + (double)model_kv_local(z->problem->kv_heads, (int)z->ways) * z->ways * z->problem->head_dim)
            : 0;
    memory_add(build, ALWAYS, "attention", sets * (exec + before),
               "%.0f x buffers of the exchange and of the layer%s, counted", sets,
               before > 0 ? ", q and k before norms" : "");
    memory_add(build, ALWAYS, "windows", sets * (double)work_window_bytes(z->problem, z->plan),
               "%.0f x ends of windows that buffers do not fill", sets);
    memory_add(build, ALWAYS, "workspace", sets * kernel + scratch, "%.0f x %.0f B of the kernel + %.0f of products",
               sets, kernel, scratch);
}

/* Where ranks cut a layer its weights meet the rows of all of them: normalised ones, and the gradient that is summed over ranks. */
static void add_rows(struct build *build, const struct sizes *z)
{
    double all = z->s * z->ways;
    if (z->held.cut > 0)
        memory_add(build, ALWAYS, "rows", z->b * z->h * 2 * all, "%.0f B x 2 x %.0f tokens of all ranks x %.0f", z->b,
                   all, z->h);
}

/* Buffers stay from step to step: all are there at once. */
void memory_unit_activations(struct build *build, const struct sizes *z)
{
    const struct plan *plan = z->plan;
    bool tiled = plan->mlp == PLAN_MLP_TILED;
    double input = z->s * z->h * z->b, sets = plan->checkpointing == PLAN_CHECKPOINTING_NONE ? z->layers : 1;
    double all = z->s * z->ways, rows = tiled && all > z->h ? z->h : all, f = z->f / z->ways;
    double own = z->held.cut > 0 ? 3 : 4, wide = tiled ? 3 : 1 + 2 * sets, tiles = logits_tiles(z);
    add_checkpoints(build, z, input);
    add_attention(build, z, sets);
    add_rows(build, z);
    memory_add(build, ALWAYS, "hidden", (own + sets) * input, "(%.0f + %.0f kept) x %.0f tokens x %.0f x %.0f B", own,
               sets, z->s, z->h, z->b);
    memory_add(build, ALWAYS, "mlp", wide * rows * f * z->b, "%.0f x %.0f B x %.0f rows x %.0f%s", wide, z->b, rows, f,
               tiled ? " of a tile" : "");
    memory_add(build, ALWAYS, "logits", (z->b < 4 ? 4 + z->b : 4) * z->s * z->vocab / tiles,
               "%.0f B x %.0f tokens x %.0f / %.0f tiles", z->b < 4 ? 4 + z->b : 4, z->s, z->vocab, tiles);
}
