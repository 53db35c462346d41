/* sp/exchange_direct.h -- memory of exchange direct: buffers inside windows, found again on every rank. Not for others.
 *
 * Allocations are collective, in the same order and of the same sizes, so one lies at the same place of the same window
 * on every rank, and a pointer of this rank says where a peer's is. Small ones share windows: a window takes a file
 * descriptor and a mapping per peer.
 */
#ifndef SPTUNE_SP_EXCHANGE_DIRECT_H
#define SPTUNE_SP_EXCHANGE_DIRECT_H

#include "comm/window.h"

struct direct_window {
    struct window *window; /* NULL once all that lay in it is freed */
    size_t used;
    int live; /* allocations not yet freed */
};

struct direct_memory {
    struct comm *group;
    struct direct_window *windows; /* in the order they were made */
    size_t cap;
    int n;
};

/* What the windows of allocations of `bytes` in all, as a layer makes them (exec_layer.c), take together at most. */
size_t direct_memory_room(size_t bytes);
/* What those of n allocations, in this order, take together. */
size_t direct_memory_windows(const size_t *bytes, int n);
enum status direct_memory_alloc(struct direct_memory *memory, size_t bytes, const char *what, void **out);
void direct_memory_free(struct direct_memory *memory, void *local); /* accepts NULL */
void direct_memory_destroy(struct direct_memory *memory);
/* Where `rank` has what this rank has at `local`; NULL: not from here. */
char *direct_memory_at(const struct direct_memory *memory, int rank, const void *local);

#endif
