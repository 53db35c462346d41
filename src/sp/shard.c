/* sp/shard.c -- index arithmetic of shards. */
#include "sp/shard.h"

static void range_add(struct shard *out, int64_t first, int64_t count)
{
    if (count <= 0)
        return;
    out->local += count;
    if (out->n > 0 && out->range[out->n - 1].first + out->range[out->n - 1].count == first) {
        out->range[out->n - 1].count += count;
        return;
    }
    out->range[out->n].first = first;
    out->range[out->n++].count = count;
}

void shard_get(int places, int64_t padded, int ranks, int rank, struct shard *out)
{
    int64_t each = padded / ranks;
    int share = ranks / places;
    *out = (struct shard){0};
    if (places == 1) {
        range_add(out, rank * each, each);
        return;
    }
    /* This rank's [from, to) of its place's two pieces, one behind the other. */
    int64_t piece = padded / places / 2, from = rank % share * each, to = from + each;
    int place = rank / share;
    int64_t low = (int64_t)place * piece, high = (int64_t)(2 * places - 1 - place) * piece;
    range_add(out, low + from, (to < piece ? to : piece) - from);
    from = from > piece ? from : piece;
    range_add(out, high + from - piece, to - from);
}

int shard_multiple(const struct plan *plan)
{
    return plan_ring(plan) > 1 ? 2 * plan_sequence_ranks(plan) : plan_sequence_ranks(plan);
}

int64_t shard_padded(const struct problem *problem, const struct plan *plan)
{
    return problem_padded(problem, shard_multiple(plan));
}

int64_t shard_local(const struct problem *problem, const struct plan *plan)
{
    return shard_padded(problem, plan) / plan_sequence_ranks(plan);
}

bool shard_packed(const struct problem *problem, const struct plan *plan)
{
    return problem->docs > 0 || (!problem->causal && shard_padded(problem, plan) > problem->seq);
}

void shard_of(const struct plan *plan, int64_t padded, int rank, struct shard *out)
{
    shard_get(plan_ring(plan), padded, plan_sequence_ranks(plan), rank, out);
}

void shard_whole(int64_t seq, struct shard *out)
{
    *out = (struct shard){0};
    range_add(out, 0, seq);
}

int64_t shard_position(const struct shard *shard, int64_t index)
{
    int i = 0;
    while (i + 1 < shard->n && index >= shard->range[i].count)
        index -= shard->range[i++].count;
    return shard->range[i].first + index;
}

int64_t shard_index(const struct shard *shard, int64_t position)
{
    int64_t before = 0;
    for (int i = 0; i < shard->n; before += shard->range[i++].count)
        if (position >= shard->range[i].first && position < shard->range[i].first + shard->range[i].count)
            return before + position - shard->range[i].first;
    return -1;
}

int64_t shard_below(const struct shard *shard, int64_t position)
{
    int64_t below = 0;
    for (int i = 0; i < shard->n; i++) {
        int64_t here = position - shard->range[i].first;
        below += here < 0 ? 0 : here < shard->range[i].count ? here : shard->range[i].count;
    }
    return below;
}
