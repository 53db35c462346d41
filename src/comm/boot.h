/* comm/boot.h -- the bootstrap: a TCP star around rank 0 that stays open for the whole job.
 *
 * It carries addresses, agreements and aborts, never measured data. A per-job token keeps strangers out. EOF of a peer, or an
 * abort message, ends every wait on every rank with STATUS_PEER naming the rank and what is known of it, or with the code of boot_end.
 * Every wait has a deadline and names the rank that is late. Not thread-safe. All calls are collective over the ranks of the job
 * unless said otherwise.
 *
 *     TRY(boot_open(&launch, deadline, &boot));
 *     TRY(boot_allgather(boot, mine, n, all, deadline));   // all: size * n bytes, in rank order
 *     TRY(boot_agree(boot, status, deadline));             // worst status of any rank, its message restored everywhere
 */
#ifndef SPTUNE_COMM_BOOT_H
#define SPTUNE_COMM_BOOT_H

#include "base/status.h"
#include "comm/launch.h"

#include <stddef.h>
#include <stdint.h>

struct boot;

enum { BOOT_DEADLINE_US = 30 * 1000 * 1000 }; /* for calls that have no reason to take long */

/* Takes over launch->listen_fd, on failure too. Nobody can connect any more once all have joined. */
enum status boot_open(const struct launch *launch, int64_t deadline_ns, struct boot **out);
void boot_close(struct boot *boot); /* accepts NULL and half-open; peers see a clean end, not a death */
int boot_rank(const struct boot *boot);
int boot_size(const struct boot *boot);

enum status boot_allgather(struct boot *boot, const void *mine, size_t bytes, void *all, int64_t deadline_ns);
/* As allgather with a size per rank; *all is malloc'ed, sizes[size] filled. */
enum status boot_allgatherv(struct boot *boot, const void *mine, size_t bytes, char **all, size_t *sizes,
                            int64_t deadline_ns);
/* *data is borrowed on the root, malloc'ed elsewhere. */
enum status boot_bcast(struct boot *boot, int root, void **data, size_t *bytes, int64_t deadline_ns);
enum status boot_barrier(struct boot *boot, int64_t deadline_ns);
/* Ranks decide together: everybody gives its status, everybody gets the worst one (largest enum value that is not OK, lowest rank
 * among equals) with that rank's message. */
enum status boot_agree(struct boot *boot, enum status mine, int64_t deadline_ns);

/* Not collective. Look for EOF or an abort without blocking; cheap enough to call every few microseconds of a spin loop
 * (looks at the sockets only every so often). STATUS_PEER when the job is over. */
enum status boot_poll(struct boot *boot);
/* Not collective. Tell everybody that this rank gives up; their waits end with this rank's message. */
void boot_abort(struct boot *boot, const struct status_message *message);
/* The same, and the others get the message as it is, with its code. */
void boot_end(struct boot *boot, const struct status_message *message);
/* Not collective. While this rank waits in the bootstrap, progress(arg) is called every few milliseconds: a transport finishes
 * what others still need of it. At most BOOT_IDLE_MAX at a time; removed by its arg. */
enum { BOOT_IDLE_MAX = 8 };
enum status boot_idle_add(struct boot *boot, void (*progress)(void *arg), void *arg);
void boot_idle_remove(struct boot *boot, void *arg);

#endif
