/* base/lane.h -- one thread that runs jobs in the order they were put, beside the thread that puts them.
 *
 * For work that may overlap computing: the exchange of the next chunk. One thread puts and waits (the owner). After a job has
 * failed, those put before the owner has seen the failure are skipped. The thread sleeps when there is nothing to do, takes
 * no signals, and has the CPU binding of the thread that opened the lane.
 *
 *     TRY(lane_open(&lane));
 *     uint64_t ticket = lane_put(lane, job, arg);   // arg stays valid until the job has run
 *     TRY(lane_wait(lane, ticket));                 // this job and all before it; their failure, with its message
 *     lane_close(lane);
 */
#ifndef SPTUNE_BASE_LANE_H
#define SPTUNE_BASE_LANE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct lane; /* owned */
typedef enum status lane_job(void *arg);

enum { LANE_JOBS = 64 }; /* waiting at a time; lane_put waits for room */

enum status lane_open(struct lane **out);
void lane_close(struct lane *lane);                             /* runs what was put, then ends; accepts NULL */
uint64_t lane_put(struct lane *lane, lane_job *job, void *arg); /* its ticket: 1, 2, ... */
bool lane_inside(const struct lane *lane);                      /* is the caller a job of this lane? */
/* Ticket 0 waits for nothing. A failure is returned once: by the first wait for its job or a later one. */
enum status lane_wait(struct lane *lane, uint64_t ticket);

#endif
