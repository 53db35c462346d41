/* comm/route.h -- all-to-alls of a group between memory that the transport's library was told of beforehand.
 *
 * A route is made once and kept by its group, which closes it; its memory is freed before. All collective but verdict and free.
 *
 *     struct verdict verdict = route_verdict(group, TRANSPORT_WINDOW);   // the same on every rank of the group, costs nothing
 *     TRY(route_open(group, TRANSPORT_WINDOW));
 *     TRY(route_alloc(group, TRANSPORT_WINDOW, bytes, "staging", &memory));
 *     TRY(route_alltoall(group, TRANSPORT_WINDOW, send, recv, bytes_each, queue));
 *     route_free(group, TRANSPORT_WINDOW, memory);
 */
#ifndef SPTUNE_COMM_ROUTE_H
#define SPTUNE_COMM_ROUTE_H

#include "base/verdict.h"
#include "comm/comm.h"

#include <stddef.h>

struct verdict route_verdict(const struct comm *group, enum transport_route kind);
/* STATUS_UNSUPPORTED with the reason where the verdict is no, or where the library can not after all, on all ranks of the group: from then
 * on the verdict of this group says so, that of other groups as before, since their ranks do not know. Open already: nothing. */
enum status route_open(struct comm *group, enum transport_route kind);
/* The same size on every rank; zeroed. In a group of one: memory of the device. */
enum status route_alloc(struct comm *group, enum transport_route kind, size_t bytes, const char *what, void **out);
void route_free(struct comm *group, enum transport_route kind, void *memory); /* accepts NULL */
/* Blocks of `bytes`, send[r] to and recv[r] from rank r, all in such memory. The own block is moved by TRANSPORT_ENGINE alone, where the
 * blocks of either side follow each other. Only enqueued: its deadline is that of the wait for the queue. */
enum status route_alltoall(struct comm *group, enum transport_route kind, const void *const *send, void *const *recv,
                           size_t bytes, struct dev_queue *queue);

#endif
