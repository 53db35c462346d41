/* sp/exchange_nccl.c -- the packed exchange over NCCL: as trainers run it, as it is best without help, and with staging and both
 * sides in memory that NCCL was told of beforehand, so that it needs no buffers of its own in between. */
#include "sp/exchange_packed.h"

static struct verdict nccl_supports(const struct exchange_shape *shape, const struct comm *group)
{
    return exchange_can(DEV_CUDA, shape, group);
}

const struct exchange exchange_nccl =
    PACKED("nccl", DEV_CUDA, 3, "pack, one NCCL all-to-all of q, k and v together, unpack", nccl_supports,
           packed_create, packed_run);
const struct exchange exchange_nccl_separate =
    PACKED("nccl-separate", DEV_CUDA, 1, "as nccl, one tensor after another, permuted on both sides as trainers do",
           nccl_supports, packed_create, packed_run_separate);

/* ---- over routes ---- */

static struct verdict supports(const struct exchange_shape *shape, const struct comm *group, enum transport_route route)
{
    struct verdict verdict = exchange_can(DEV_CUDA, shape, group);
    return verdict_ok(&verdict) && group != NULL ? route_verdict(group, route) : verdict;
}

#define OVER(name, route)                                                                                              \
    static struct verdict name##_supports(const struct exchange_shape *shape, const struct comm *group)                \
    {                                                                                                                  \
        return supports(shape, group, route);                                                                          \
    }                                                                                                                  \
    static enum status name##_create(const struct exchange_shape *shape, struct comm *group, void **state)             \
    {                                                                                                                  \
        return packed_create_over(shape, group, route, state);                                                         \
    }

OVER(registered, TRANSPORT_REGISTERED)
OVER(window, TRANSPORT_WINDOW)
OVER(engine, TRANSPORT_ENGINE)

const struct exchange exchange_nccl_registered =
    PACKED("nccl-registered", DEV_CUDA, 3, "as nccl, between buffers registered with it", registered_supports,
           registered_create, packed_run);
const struct exchange exchange_nccl_window =
    PACKED("nccl-window", DEV_CUDA, 3, "as nccl, between buffers in its symmetric windows", window_supports,
           window_create, packed_run);
const struct exchange exchange_nccl_ce =
    PACKED("nccl-ce", DEV_CUDA, 3, "as nccl-window, moved by NCCL's copy engine path, which takes no multiprocessor",
           engine_supports, engine_create, packed_run);
