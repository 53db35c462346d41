/* kernels/attention_flash2_plan.c -- tiles, packed documents and workspace of flash2. */
#include "kernels/attention_flash2_plan.h"
#include "base/dev_cuda.h"

enum { ALIGN = 256, BLOCKS_WANTED = 256 /* two for each multiprocessor of the larger GPUs */ };

/* Fixed by the shape, as the order of sums is. Tiles as on a roomy GPU, so that the workspace does not depend on it. */
static int splits_of(const struct attention_shape *shape, const struct flash2_plan *plan)
{
    enum { KEYS = 128 };
    int64_t blocks = flash2_tiles_of(shape->seq_k, KEYS) * shape->batch * shape->kv_heads * plan->parts;
    int64_t wanted = blocks > 0 ? (BLOCKS_WANTED + blocks - 1) / blocks : 1;
    return (int)(wanted < shape->group ? wanted : shape->group);
}

static int64_t take(int64_t *at, int64_t bytes)
{
    int64_t here = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

struct flash2_plan flash2_plan_make(const struct attention_shape *shape, struct flash2_tiles tiles, bool backward,
                                    bool sums)
{
    struct flash2_plan plan = {
        .tiles = tiles,
        .entries = shape->docs > 0 ? shape->docs + 3 : 0,
    };
    int64_t at = 0, rows = shape->batch * shape->heads * shape->seq_q;
    plan.parts = shape->head_dim / plan.tiles.columns;
    plan.q_tiles = flash2_tiles_of(shape->seq_q, plan.tiles.q);
    plan.k_tiles = flash2_tiles_of(shape->seq_k, plan.tiles.k);
    if (plan.entries > 0) {
        struct flash2_entry entry = flash2_entry_make(shape, plan.tiles.q, plan.tiles.k, 0, NULL);
        for (int i = 1; i < plan.entries; i++)
            entry = flash2_entry_make(shape, plan.tiles.q, plan.tiles.k, i, &entry);
        plan.q_tiles = entry.q_tile_first;
        plan.k_tiles = entry.k_tile_first;
    }
    int64_t count = shape->batch * shape->heads * plan.parts * plan.q_tiles;
    plan.entry_at = take(&at, plan.entries * (int64_t)sizeof(struct flash2_entry));
    if (backward) {
        plan.ticket_at = take(&at, (int64_t)sizeof(uint32_t));
        plan.turn_at = take(&at, (sums ? count : 0) * (int64_t)sizeof(uint32_t));
        plan.zeroed_bytes = at - plan.ticket_at;
        plan.delta_at = take(&at, rows * (int64_t)sizeof(float));
        plan.lse2_at = take(&at, rows * (int64_t)sizeof(float));
        plan.splits = sums ? splits_of(shape, &plan) : 1;
        int64_t part_bytes = plan.splits > 1 ? shape->batch * shape->seq_k * shape->kv_heads * shape->head_dim *
                                                   plan.splits * (int64_t)sizeof(float)
                                             : 0;
        plan.dk_part_at = take(&at, part_bytes);
        plan.dv_part_at = take(&at, part_bytes);
        plan.dq_sum_at = take(&at, (sums ? count : 0) * tiles.q * tiles.columns * (int64_t)sizeof(float));
    }
    plan.bytes = at;
    return plan;
}

/* Documents go to the device some at a time, through the arguments of small launches. */
enum status flash2_documents_place(const struct attention_shape *shape, const struct attention_args *args,
                                   const struct flash2_plan *plan, struct dev_queue *queue)
{
    struct flash2_entry *out = (struct flash2_entry *)((char *)args->workspace + plan->entry_at);
    struct flash2_entry chunk[240], last = {0};
    for (int at = 0; at < plan->entries;) {
        int n = 0;
        for (; n < 240 && at + n < plan->entries; n++) {
            chunk[n] = flash2_entry_make(shape, plan->tiles.q, plan->tiles.k, at + n, at + n == 0 ? NULL : &last);
            last = chunk[n];
        }
        TRY(flash2_launch_entries(chunk, n, out + at, queue));
        at += n;
    }
    return STATUS_OK;
}

struct flash2_call flash2_call_make(const struct attention_shape *shape, const struct attention_args *args,
                                    const struct flash2_plan *plan, bool backward)
{
    char *workspace = args->workspace;
    struct flash2_call call = {
        .q = args->q,
        .k = args->k,
        .v = args->v,
        .d_o = args->d_o,
        .o = args->o,
        .dq = args->dq,
        .dk = args->dk,
        .dv = args->dv,
        .lse = args->lse,
        .q_stride = shape->q_stride,
        .k_stride = shape->k_stride,
        .v_stride = shape->v_stride,
        .o_stride = shape->o_stride,
        .seq_q = shape->seq_q,
        .seq_k = shape->seq_k,
        .window = shape->window,
        .batch = (int32_t)shape->batch,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .group = shape->group,
        .group_first = shape->group_first,
        .causal = (int32_t)shape->causal,
        .scale = shape->scale,
        .entries = plan->entries,
        .dkv_fp32 = args->dkv_fp32,
        .dkv_accumulate = args->dkv_accumulate,
        .order = {.tiles = plan->q_tiles, .units = shape->batch * shape->heads, .section = 1},
        .q_tiles = plan->q_tiles,
    };
    if (plan->entries > 0)
        call.entry = (const struct flash2_entry *)(workspace + plan->entry_at);
    if (backward) {
        call.order =
            (struct flash2_order){plan->k_tiles, shape->batch * shape->kv_heads * plan->splits * plan->parts, 1};
        call.splits = plan->splits;
        call.dk_part = (float *)(workspace + plan->dk_part_at);
        call.dv_part = (float *)(workspace + plan->dv_part_at);
        call.ticket = (uint32_t *)(workspace + plan->ticket_at);
        call.turn = (uint32_t *)(workspace + plan->turn_at);
        call.delta = (float *)(workspace + plan->delta_at);
        call.lse2 = (float *)(workspace + plan->lse2_at);
        call.dq_sum = (float *)(workspace + plan->dq_sum_at);
    }
    return call;
}

enum status flash2_shared_most(struct dev_queue *queue, int *out_bytes)
{
    int index = dev_cuda_index(dev_queue_dev(queue));
    return dev_cuda_status(cudaDeviceGetAttribute(out_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
                           "asking for the shared memory of a block");
}

enum status flash2_shared_memory(const void *kernel, int bytes, const char *pass, int head_dim, struct dev_queue *queue)
{
    int most = 0;
    TRY(dev_cuda_status(
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev_cuda_index(dev_queue_dev(queue))),
        "asking for the shared memory of a block"));
    if (bytes > most)
        return HINT(FAIL(STATUS_UNSUPPORTED,
                         "flash2's %s for head_dim %d needs %d bytes of shared memory per block, this "
                         "GPU has %d",
                         pass, head_dim, bytes, most),
                    "use another attention kernel");
    return dev_cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                           "shared memory for flash2");
}
