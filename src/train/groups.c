/* train/groups.c -- splitting the job. */
#include "train/groups.h"

#include "base/mem.h"

#include <stdlib.h>

static enum status room_alloc(struct groups *groups)
{
    size_t bytes = groups_sum_room(groups->world, GROUPS_SUM_MAX) * sizeof(double);
    return dev_alloc(groups->dev, bytes, "sums over ranks", &groups->room);
}

static enum status finish(struct groups *groups, enum status status)
{
    if (status == STATUS_OK)
        status = comm_agree(groups->world, room_alloc(groups), "prepare groups");
    if (status != STATUS_OK)
        groups_destroy(groups);
    return status;
}

enum status groups_create(struct comm *world, const struct plan *plan, struct dev *dev, struct groups *out)
{
    int rank = comm_rank(world), sequence = plan_sequence_ranks(plan), shard = sequence * plan->dp_shard,
        ways = plan_ways(plan);
    struct groups groups = {.world = world, .dev = dev};
    if (shard * plan->dp_replicate != comm_size(world))
        return status_agreed(HINT(FAIL(STATUS_USAGE, "sp %d x dp_shard %d x dp_replicate %d x tp %d on %d ranks",
                                       plan->sp, plan->dp_shard, plan->dp_replicate, plan->tp, comm_size(world)),
                                  "sizes whose product is the number of ranks"));
    enum status status = comm_split(world, rank / sequence * plan->tp + rank % plan->tp, rank, &groups.sp);
    if (status == STATUS_OK)
        status = comm_split(world, rank / shard, rank, &groups.shard);
    if (status == STATUS_OK)
        status = comm_split(world, rank % shard, rank, &groups.replicate);
    groups.layers = groups.shard;
    groups.cut = plan->method == PLAN_METHOD_SPLIT_GATHER && ways > 1 ? groups.sp : NULL;
    if (status == STATUS_OK && plan->tp > 1)
        status = comm_split(world, rank / ways, rank, &groups.cut);
    if (status == STATUS_OK && ways > 1)
        status = comm_split(world, rank / shard * ways + rank % ways, rank, &groups.layers);
    TRY(finish(&groups, status));
    *out = groups;
    return STATUS_OK;
}

enum status groups_create_alone(struct comm *world, struct dev *dev, struct groups *out)
{
    int rank = comm_rank(world);
    struct groups groups = {.world = world, .dev = dev};
    enum status status = comm_split(world, rank, rank, &groups.sp);
    if (status == STATUS_OK)
        status = comm_split(world, rank, rank, &groups.shard);
    if (status == STATUS_OK)
        status = comm_split(world, rank, rank, &groups.replicate);
    groups.layers = groups.shard;
    TRY(finish(&groups, status));
    *out = groups;
    return STATUS_OK;
}

void groups_destroy(struct groups *groups)
{
    if (groups->layers != groups->shard)
        comm_close(groups->layers);
    if (groups->cut != groups->sp)
        comm_close(groups->cut);
    comm_close(groups->replicate);
    comm_close(groups->shard);
    comm_close(groups->sp);
    if (groups->dev != NULL)
        dev_free(groups->dev, groups->room);
    *groups = (struct groups){0};
}

/* What those of one piece agree on, the others that share their sequence hear from them. */
enum status groups_agree(const struct groups *groups, enum status mine, const char *doing)
{
    enum status status = comm_agree(groups->sp, mine, doing);
    return groups->cut == NULL || groups->cut == groups->sp ? status : comm_agree(groups->cut, status, doing);
}

enum status groups_await(const struct groups *groups, enum status mine, const char *doing)
{
    int64_t was = comm_deadline_us(groups->world);
    comm_set_deadline(groups->world, GROUPS_PATIENCE_US);
    enum status status = comm_agree(groups->world, mine, doing);
    comm_set_deadline(groups->world, was);
    return status;
}

size_t groups_sum_room(const struct comm *comm, int n)
{
    return ((size_t)comm_size(comm) + 1) * (size_t)n; /* this rank's, then all */
}

enum status groups_sum_over(struct comm *comm, double *values, int n, double *room, struct dev_queue *queue)
{
    int ranks = comm_size(comm);
    size_t bytes = (size_t)n * sizeof *values;
    double *host = NULL;
    TRY(mem_alloc((size_t)ranks * bytes, "sums over ranks", (void **)&host));
    enum status status = dev_copy(queue, room, values, bytes);
    if (status == STATUS_OK)
        status = comm_allgather(comm, room, room + n, bytes, queue);
    if (status == STATUS_OK)
        status = dev_copy_now(queue, host, room + n, (size_t)ranks * bytes, INT64_MAX);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        values[i] = 0;
        for (int r = 0; r < ranks; r++)
            values[i] += host[r * n + i];
    }
    free(host);
    return status;
}

enum status groups_sum(const struct groups *groups, double *values, int n, struct dev_queue *queue)
{
    if (n > GROUPS_SUM_MAX)
        return FAIL(STATUS_USAGE, "%d sums at a time; at most %d", n, GROUPS_SUM_MAX);
    return groups_sum_over(groups->world, values, n, groups->room, queue);
}

int64_t groups_deadline(struct groups *groups, int64_t after_us)
{
    struct comm *all[] = {groups->world, groups->sp, groups->shard, groups->layers, groups->replicate, groups->cut};
    int64_t was = comm_deadline_us(groups->world);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != NULL)
            comm_set_deadline(all[i], after_us);
    return was;
}
