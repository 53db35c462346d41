/* sp/shard.c -- index arithmetic of shards. */
#include "sp/shard.h"

static int ring_of(enum plan_method method, int ring, int sp)
{
    if (method == PLAN_METHOD_RING)
        return sp;
    return method == PLAN_METHOD_ULYSSES_RING && ring > 1 ? ring : 1;
}

int shard_multiple(enum plan_method method, int ring, int sp)
{
    return ring_of(method, ring, sp) > 1 ? 2 * sp : sp;
}

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

void shard_get(enum plan_method method, int ring, int64_t padded, int sp, int rank, struct shard *out)
{
    int64_t each = padded / sp;
    int places = ring_of(method, ring, sp), share = sp / places;
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

int64_t shard_padded(const struct problem *problem, const struct plan *plan)
{
    return problem_padded(problem, shard_multiple(plan->method, plan->ring, plan->sp));
}

int64_t shard_local(const struct problem *problem, const struct plan *plan)
{
    return shard_padded(problem, plan) / (plan->sp > 1 ? plan->sp : 1);
}

void shard_of(const struct problem *problem, const struct plan *plan, int rank, struct shard *out)
{
    shard_get(plan->method, plan->ring, shard_padded(problem, plan), plan->sp, rank, out);
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
