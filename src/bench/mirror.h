/* bench/mirror.h -- what the host knows of buffers of a device: it fills and reads them through copies.
 *
 * A mirror is a whole copy of a buffer in host memory; on the CPU it is the buffer itself and nothing is copied. The functions below
 * it do what those of bench/data.h do, on buffers of any device and size: in pieces through a small staging buffer, with a few threads
 * making the data. None is collective. Nothing else in bench reads or writes through a pointer to a device's memory.
 *
 *     TRY(mirror_open(dev, device, bytes, &mirror));
 *     fill(mirror.host); TRY(mirror_store(&mirror));      // to the device
 *     TRY(mirror_load(&mirror)); compare(mirror.host);    // from it
 *     mirror_close(&mirror);
 */
#ifndef SPTUNE_BENCH_MIRROR_H
#define SPTUNE_BENCH_MIRROR_H

#include "base/dev.h"
#include "bench/data.h"
#include "sp/shard.h"

#include <stddef.h>

struct mirror {
    struct dev *dev;
    struct dev_queue *queue; /* NULL: the host memory is the buffer */
    void *device, *host;
    size_t bytes;
    bool owns_device; /* else the host's */
};

/* Host memory is not set yet: it is loaded, or filled whole, before it is stored. */
enum status mirror_open(struct dev *dev, void *device, size_t bytes, struct mirror *out);
/* The reverse: a device buffer for what the host has, stored to it. */
enum status mirror_of_host(struct dev *dev, void *host, size_t bytes, struct mirror *out);
void mirror_close(struct mirror *mirror); /* accepts a zeroed one */
/* For host work on what is mirrored: 1 on the CPU, whose ranks are bound and measured. */
int mirror_threads(const struct dev *dev);
enum status mirror_load(struct mirror *mirror);
enum status mirror_store(struct mirror *mirror);

/* side->base is the device's. Tokens may have gaps between them, which stay as they are. */
enum status mirror_data_fill(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side);
enum status mirror_data_compare(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                                int copies, struct data_errors *out);
/* The same of a side whose tokens are those of a shard: side->seq of them in each row, position_first does not count. */
enum status mirror_shard_fill(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                              const struct shard *shard);
enum status mirror_shard_compare(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                                 const struct shard *shard, int copies, struct data_errors *out);
enum status mirror_bytes_fill(struct dev *dev, uint64_t seed, int from, int to, int64_t bytes, void *out);
enum status mirror_bytes_verify(struct dev *dev, uint64_t seed, int from, int to, int64_t bytes, const void *in,
                                const char *where, bool *ok, char why[256]);

#endif
