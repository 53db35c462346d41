/* sp/exchange_packed.h -- what rows of exchange_packed.c, exchange_nccl.c and exchange_ucx.c share. Not for others. */
#ifndef SPTUNE_SP_EXCHANGE_PACKED_H
#define SPTUNE_SP_EXCHANGE_PACKED_H

#include "comm/route.h"
#include "sp/exchange.h"

enum { PACKED_PLAIN = -1 }; /* no route: buffers that nobody was told of */

/* route: enum transport_route, or PACKED_PLAIN. */
enum status packed_create_over(const struct exchange_shape *shape, struct comm *group, int route, void **state);
enum status packed_create(const struct exchange_shape *shape, struct comm *group, void **state); /* plain */
/* Plain, by the messages of UCX beside the group's transport (comm_beside). */
enum status packed_create_beside(const struct exchange_shape *shape, struct comm *group, void **state);
void packed_destroy(void *state);
enum status packed_alloc(void *state, size_t bytes, const char *what, void **out);
void packed_free(void *state, void *memory);
int64_t packed_staging(const void *state);
enum status packed_run(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors, int n,
                       struct dev_queue *queue);
enum status packed_run_separate(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors,
                                int n, struct dev_queue *queue);
const char *packed_in_use(const void *state);
void packed_phases(void *state, double *pack_us, double *transfer_us, double *unpack_us);

/* One row per device, way of sharing the all-to-alls, and route. */
#define PACKED(name_, dev_, together_, about_, supports_, create_, run_)                                               \
    {                                                                                                                  \
        .name = name_, .dev = dev_, .tensors_together = together_, .about = about_, .supports = supports_,             \
        .create = create_, .destroy = packed_destroy, .alloc = packed_alloc, .free = packed_free,                      \
        .staging_bytes = packed_staging, .run = run_, .in_use = packed_in_use, .phases = packed_phases                 \
    }

#endif
