/* sp/exchange_ucx.c -- the packed exchange by tagged messages of UCX, straight from and into memory of GPUs.
 *
 * The host drives it: it waits until all is packed, posts the messages, waits until they have arrived, and only then launches the
 * unpacking. So attention hides nothing of it. Where GPUs reach each other UCX copies from memory to memory; where they do not, through
 * the host, and the name of what carries the data says so (comm/transport_ucx_cuda.c).
 */
#include "sp/exchange_packed.h"

static struct verdict ucx_supports(const struct exchange_shape *shape, const struct comm *group)
{
    return exchange_can(DEV_CUDA, shape, group); /* whether UCX moves memory of these GPUs only create finds out */
}

const struct exchange exchange_ucx = {
    .name = "ucx",
    .dev = DEV_CUDA,
    .tensors_together = 3,
    .host_driven = true,
    .about = "as nccl, by messages of UCX, which the host drives",
    .supports = ucx_supports,
    .create = packed_create_beside,
    .destroy = packed_destroy,
    .alloc = packed_alloc,
    .free = packed_free,
    .staging_bytes = packed_staging,
    .run = packed_run,
    .in_use = packed_in_use,
    .phases = packed_phases,
};
