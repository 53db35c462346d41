/* tests/sp/test_exchange_route.c -- the packed exchange over routes, here on CPUs: a transport that has them, made of UCX and messages. It
 * asks what a real one asks: memory of the route on both sides, blocks one behind the other for engines, the own block moved by
 * engines alone. Groups of a job included.
 */
#include "sp/layers.h"
#include "sp/sp_test.h"

#include "comm/comm_group.h"
#include "comm/ranks.h"
#include "sp/exchange_packed.h"

#include <stdlib.h>

enum { MEMORIES = 64 };

struct fake { /* a route */
    enum transport_route kind;
    struct comm *group;
    struct {
        char *at;
        size_t bytes;
        bool told;
    } memory[MEMORIES];
};

static struct comm *current; /* whose route is opened next */

static struct verdict fake_verdict(void *state, enum transport_route kind)
{
    (void)state;
    (void)kind;
    return VERDICT_YES;
}

static enum status fake_id(void *state, enum transport_route kind, char id[TRANSPORT_ID_BYTES])
{
    (void)state;
    (void)kind;
    memset(id, 7, TRANSPORT_ID_BYTES);
    return STATUS_OK;
}

static enum status fake_open(void *state, enum transport_route kind, const int *ranks, int size, int rank,
                             const char id[TRANSPORT_ID_BYTES], void **route)
{
    (void)state;
    struct fake *fake = calloc(1, sizeof *fake);
    if (fake == NULL || id[TRANSPORT_ID_BYTES - 1] != 7 || size != current->size ||
        ranks[rank] != current->ranks[current->rank])
        return FAIL(STATUS_USAGE, "a route that is not of this group");
    fake->kind = kind;
    fake->group = current;
    *route = fake;
    return STATUS_OK;
}

static void fake_close(void *route)
{
    struct fake *fake = route;
    for (int i = 0; fake != NULL && i < MEMORIES; i++)
        if (fake->memory[i].at != NULL)
            board->failed = 1; /* memory is freed before */
    free(fake);
}

static enum status fake_alloc(void *route, size_t bytes, const char *what, void **memory)
{
    struct fake *fake = route;
    int i = 0;
    while (i < MEMORIES && fake->memory[i].at != NULL)
        i++;
    if (i == MEMORIES)
        return FAIL(STATUS_NOMEM, "too much of %s", what);
    fake->memory[i].at = calloc(1, bytes + 1);
    fake->memory[i].bytes = bytes + 1;
    fake->memory[i].told = false;
    *memory = fake->memory[i].at;
    return STATUS_OK;
}

static int find(const struct fake *fake, const void *at, size_t bytes)
{
    for (int i = 0; i < MEMORIES; i++) {
        const char *first = fake->memory[i].at, *from = at;
        if (first != NULL && from >= first && from + bytes <= first + fake->memory[i].bytes)
            return i;
    }
    return -1;
}

static enum status fake_tell(void *route, void *memory)
{
    struct fake *fake = route;
    int i = find(fake, memory, 0);
    if (i < 0)
        return FAIL(STATUS_USAGE, "told of memory of somebody else");
    fake->memory[i].told = true;
    return STATUS_OK;
}

static void fake_free(void *route, void *memory)
{
    struct fake *fake = route;
    int i = find(fake, memory, 0);
    if (i < 0)
        return;
    free(fake->memory[i].at);
    fake->memory[i].at = NULL;
}

static bool known(const struct fake *fake, const void *at, size_t bytes)
{
    int i = find(fake, at, bytes);
    return i >= 0 && fake->memory[i].told;
}

static enum status fake_alltoall(void *route, const void *const *send, void *const *recv, size_t bytes,
                                 struct dev_queue *queue)
{
    struct fake *fake = route;
    size_t each[RANKS_MAX];
    bool engine = fake->kind == TRANSPORT_ENGINE;
    for (int r = 0; r < fake->group->size; r++) {
        each[r] = engine || r != fake->group->rank ? bytes : 0;
        if (each[r] > 0 && (!known(fake, send[r], bytes) || !known(fake, recv[r], bytes)))
            return FAIL(STATUS_USAGE, "a block in memory that the route was not told of");
        if (engine && ((const char *)send[r] != (const char *)send[0] + (size_t)r * bytes ||
                       (char *)recv[r] != (char *)recv[0] + (size_t)r * bytes))
            return FAIL(STATUS_USAGE, "blocks that do not follow each other");
    }
    return comm_alltoallv(fake->group, send, each, recv, each, queue);
}

static const struct transport_routes fake_routes = {
    .verdict = fake_verdict,
    .id = fake_id,
    .open = fake_open,
    .close = fake_close,
    .alloc = fake_alloc,
    .tell = fake_tell,
    .free = fake_free,
    .alltoall = fake_alltoall,
};

#define OVER(kind)                                                                                                     \
    static enum status create_##kind(const struct exchange_shape *shape, struct comm *group, void **state)             \
    {                                                                                                                  \
        return packed_create_over(shape, group, TRANSPORT_##kind, state);                                              \
    }

OVER(REGISTERED)
OVER(WINDOW)
OVER(ENGINE)

static int in_group(struct side *side, struct comm *group, int *moved)
{
    static const char *const names[] = {"over registered", "over windows", "over engines"};
    struct exchange over[TRANSPORT_ROUTES];
    const struct exchange *list[TRANSPORT_ROUTES + 1] = {NULL};
    enum status (*const creates[])(const struct exchange_shape *, struct comm *,
                                   void **) = {create_REGISTERED, create_WINDOW, create_ENGINE};
    for (int kind = 0; kind < TRANSPORT_ROUTES; kind++) {
        over[kind] = *exchange_find("packed");
        over[kind].create = creates[kind];
        over[kind].name = names[kind];
        list[kind] = &over[kind];
    }
    current = group;
    return layers_same_bits(list, group, side->queue, group, side->queue, moved);
}

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *half = NULL;
    int moved = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct transport with = *side.comm->job->transport;
    const struct transport *without = side.comm->job->transport;
    with.routes = &fake_routes;
    side.comm->job->transport = &with;
    int failed = in_group(&side, side.comm, &moved);
    if (!failed && launch->size == 4) {
        RANK_TRY(comm_split(side.comm, launch->rank % 2, 0, &half));
        failed = in_group(&side, half, &moved);
        comm_close(half);
    }
    RANK_CHECK(failed || moved == (launch->size == 4 ? 2 : 1) * TRANSPORT_ROUTES * layers_cases(DEV_CPU));
    for (int kind = 0; kind < TRANSPORT_ROUTES; kind++) { /* as comm_close does, which the real transport ends */
        RANK_CHECK(side.comm->route[kind] != NULL);
        fake_close(side.comm->route[kind]);
        side.comm->route[kind] = NULL;
    }
    side.comm->job->transport = without;
    side_close(&side);
    return failed;
}

static void packed_over_routes_gives_the_bits_of_packed(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks += 2)
        ranks_pass(ranks, rank_main, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_over_routes_gives_the_bits_of_packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
