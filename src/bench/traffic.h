/* bench/traffic.h -- bare copies by all ranks at once: the most that anything which moves data between ranks can reach.
 *
 *   TRAFFIC_LOCAL  every rank copies `bytes` within its own memory
 *   TRAFFIC_ONE    rank 0 alone does, on one thread; the others wait
 *   TRAFFIC_PEERS  every rank stores `bytes` into the memory of its peers, an equal part to each of the P - 1 others of its group
 *   TRAFFIC_ALL    as an all-to-all does: an equal part to each of the P ranks, itself included
 *
 * Peers are reached by plain stores through window pointers (comm/window.h). All ranks start together and store to the next rank
 * first, the one after it next, so every direction is busy and no rank is everybody's first target. Parts are multiples of 64 bytes
 * but the last. Large parts are shared by the threads of the rank's device. Buffers are hot, cold or used as those of the rows (bench/rotation.h).
 *
 *     TRY(traffic_open(env, TRAFFIC_ALL, sp, bytes, BENCH_COLD, &traffic));     // collective
 *     TRY(traffic_run(traffic, i++, TRAFFIC_PLAIN));                            // this rank's share; done when it returns
 */
#ifndef SPTUNE_BENCH_TRAFFIC_H
#define SPTUNE_BENCH_TRAFFIC_H

#include "bench/bench.h"
#include "bench/rotation.h"

enum traffic_store {
    TRAFFIC_PLAIN, /* memcpy; of a GPU: by the copy engines */
    TRAFFIC_STREAMING, /* stores that go past the caches: no line is read that is only written; of a GPU: stores of a kernel */
    TRAFFIC_STORES
};

struct traffic;
const char *traffic_store_name(const struct traffic *traffic, enum traffic_store store);

/* STATUS_UNSUPPORTED on all ranks, with the reason, where peers cannot be stored to. */
enum status traffic_open(struct bench_env *env, enum bench_traffic kind, int sp, int64_t bytes,
                         enum bench_buffers buffers, struct traffic **out);
void traffic_close(struct traffic *traffic);
enum status traffic_run(struct traffic *traffic, int iteration, enum traffic_store store);
/* The same not waited for, where copies run behind the host; and the queue that they go to. */
enum status traffic_put(struct traffic *traffic, int iteration, enum traffic_store store);
/* Buffers used: before each copy, when no peer still stores to this rank (bench/use.h). */
void traffic_use(struct traffic *traffic);
bool traffic_behind(const struct traffic *traffic);
struct dev_queue *traffic_queue(const struct traffic *traffic);
/* Stores there are on this device: TRAFFIC_PLAIN, or both where it has kernels. */
int traffic_stores(const struct traffic *traffic);
const struct rotation *traffic_rotation(const struct traffic *traffic);
const char *
traffic_carrier(const struct traffic *traffic); /* as a row names its transport; "" when nothing leaves the rank */

/* For rows whose data are verified: bytes that say from whom to whom they go, poison, and what the last iteration left. */
enum status traffic_data(struct traffic *traffic, uint64_t seed);
enum status traffic_poison(struct traffic *traffic);
enum status traffic_verify(const struct traffic *traffic, uint64_t seed, bool *ok, char why[256]);

#endif
