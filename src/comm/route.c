/* comm/route.c -- routes over what a transport offers: all ranks of the group take each step together, or none goes on. */
#include "comm/route.h"

#include "base/range.h"
#include "comm/comm_group.h"

static const struct transport_routes *routes_of(const struct comm *group)
{
    return group->job->transport->routes;
}

struct verdict route_verdict(const struct comm *group, enum transport_route kind)
{
    if (group->size == 1)
        return VERDICT_YES;
    if (routes_of(group) == NULL)
        return verdict_no(RULE_EXCHANGE_CANNOT, "transport %s is not told of memory beforehand",
                          group->job->transport->name);
    if (!verdict_ok(&group->route_no[kind]))
        return group->route_no[kind];
    return routes_of(group)->verdict(group->job->state, kind);
}

enum status route_open(struct comm *group, enum transport_route kind)
{
    char id[TRANSPORT_ID_BYTES] = {0};
    struct verdict verdict = route_verdict(group, kind);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    if (group->size == 1 || group->route[kind] != NULL)
        return STATUS_OK;
    enum status status = group->rank == 0 ? routes_of(group)->id(group->job->state, kind, id) : STATUS_OK;
    TRY(group_id(group, status, id));
    void *route = NULL;
    status = comm_agree(
        group, routes_of(group)->open(group->job->state, kind, group->ranks, group->size, group->rank, id, &route),
        "open a route");
    if (status == STATUS_OK)
        group->route[kind] = route;
    else
        routes_of(group)->close(route);
    if (status == STATUS_UNSUPPORTED)
        group->route_no[kind] = verdict_no(RULE_EXCHANGE_CANNOT, "%s", status_last()->what);
    return status;
}

enum status route_alloc(struct comm *group, enum transport_route kind, size_t bytes, const char *what, void **out)
{
    void *memory = NULL;
    if (group->size == 1)
        return dev_alloc(group->job->dev, bytes, what, out);
    enum status status =
        comm_agree(group, routes_of(group)->alloc(group->route[kind], bytes, what, &memory), "allocate it");
    if (status == STATUS_OK)
        status = comm_agree(group, routes_of(group)->tell(group->route[kind], memory), "tell of its memory");
    if (status != STATUS_OK) {
        route_free(group, kind, memory);
        return status;
    }
    *out = memory;
    return STATUS_OK;
}

void route_free(struct comm *group, enum transport_route kind, void *memory)
{
    if (memory == NULL)
        return;
    if (group->size == 1)
        dev_free(group->job->dev, memory);
    else
        routes_of(group)->free(group->route[kind], memory);
}

enum status route_alltoall(struct comm *group, enum transport_route kind, const void *const *send, void *const *recv,
                           size_t bytes, struct dev_queue *queue)
{
    if (group->size == 1 || bytes == 0)
        return STATUS_OK;
    return RANGE("all-to-all",
                 routes_of(group)->alltoall(group->route[kind], send, recv, bytes, queue ? queue : group->queue));
}
