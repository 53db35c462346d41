/* sp/ring_block.c -- queries, keys and documents of a step. */
#include "sp/ring_block.h"

#include "base/mem.h"
#include "sp/shard.h"

#include <stdlib.h>

static int64_t within(int64_t value, int64_t first, int64_t count)
{
    return value < first ? 0 : value - first > count ? count : value - first;
}

static enum status docs_make(const struct ring_row *row, const struct shard *queries, const struct shard *keys,
                             struct ring_block *out)
{
    size_t bytes = ((size_t)row->docs + 1) * sizeof *out->cu_q;
    TRY(mem_alloc(bytes, "offsets of documents", (void **)&out->cu_q));
    TRY(mem_alloc(bytes, "offsets of documents", (void **)&out->cu_k));
    for (int d = 0; d < row->docs; d++) {
        int64_t q = within(shard_below(queries, row->cu[d + 1]), out->q_first, out->q_count);
        int64_t k = within(shard_below(keys, row->cu[d + 1]), out->k_first, out->k_count);
        if (q == out->cu_q[out->docs] && k == out->cu_k[out->docs])
            continue; /* nothing of it is in the block */
        out->docs++;
        out->cu_q[out->docs] = q;
        out->cu_k[out->docs] = k;
    }
    return STATUS_OK;
}

enum status ring_block_make(const struct ring_row *row, int step, struct ring_block *out)
{
    struct shard queries, keys;
    int64_t local = row->padded / row->ranks;
    *out = (struct ring_block){.from = (row->rank + row->ranks - step % row->ranks) % row->ranks,
                               .q_count = local,
                               .k_count = local,
                               .causal = row->causal && step == 0 ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL};
    if (row->causal && out->from < row->rank)
        out->k_count = local / 2;
    if (row->causal && out->from > row->rank)
        out->q_first = out->q_count = local / 2;
    if (row->docs == 0)
        return STATUS_OK;
    shard_get(row->ranks, row->padded, row->ranks, row->rank, &queries);
    shard_get(row->ranks, row->padded, row->ranks, out->from, &keys);
    return docs_make(row, &queries, &keys, out);
}

void ring_block_free(struct ring_block *block)
{
    free(block->cu_q);
    free(block->cu_k);
    block->cu_q = block->cu_k = NULL;
}
