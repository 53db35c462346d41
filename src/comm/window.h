/* comm/window.h -- memory of a group that every rank of it loads and stores directly, and flags to say when.
 *
 * Each rank owns `bytes` of it, zeroed, MEM_ALIGN aligned; the others have it mapped. Plain loads and stores reach it: no
 * message says that they happened, so ranks order them by signals. A signal is an epoch, a number that only grows, on a
 * line of its own per slot and sender; everything this rank stored before window_signal is there for the peer after its
 * window_wait (stores that bypass the cache need a fence before the signal). Ranks are those of the group.
 *
 * Windows are destroyed before their group is closed; destroying is local: a peer that has the memory mapped keeps it.
 * Not thread-safe, like the group.
 *
 *     struct verdict verdict = window_verdict(group);                 // the same on every rank, costs nothing
 *     TRY(window_create(group, bytes, "inbox", &window));             // collective
 *     memcpy((char *)window_peer(window, peer) + at, mine, n);
 *     window_signal(window, peer, 0, ++epoch);
 *     TRY(window_wait(window, 0, peer, epoch));                       // STATUS_PEER, STATUS_TIMEOUT name the rank
 */
#ifndef SPTUNE_COMM_WINDOW_H
#define SPTUNE_COMM_WINDOW_H

#include "base/verdict.h"
#include "comm/comm.h"

#include <stddef.h>
#include <stdint.h>

struct window;

enum { WINDOW_SLOTS = 4 }; /* kinds of signals between two ranks */

/* Can ranks of this group have windows? Not collective; a size that does not fit is found by window_create. */
struct verdict window_verdict(const struct comm *group);
/* That, and is there room now for `bytes` on each rank? As this rank sees it: others may see less. */
struct verdict window_room(const struct comm *group, size_t bytes);
/* STATUS_UNSUPPORTED on all ranks, with one reason, when one rank has no such memory or cannot reach a peer's; STATUS_NOMEM when what it
 * has is taken. */
enum status window_create(struct comm *group, size_t bytes, const char *what, struct window **out);
void window_destroy(struct window *window); /* accepts NULL */
void *window_local(const struct window *window);
void *window_peer(const struct window *window, int rank); /* own rank: window_local */
size_t window_bytes(const struct window *window);

/* Not collective. Release: tell `peer` (may be this rank) that `slot` has come to `epoch`. */
void window_signal(struct window *window, int peer, int slot, uint64_t epoch);
/* Acquire: until `from` has signalled this rank `epoch` or a later one. Spins, then lets others have the CPU; helps the
 * transport along meanwhile. Ends with the group's deadline, or the job. */
enum status window_wait(struct window *window, int slot, int from, uint64_t epoch);

#endif
