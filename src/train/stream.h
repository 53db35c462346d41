/* train/stream.h -- steps of AdamW on states in host memory, which pass through the device piece by piece.
 *
 * Two pieces are on the device; each way has a queue of its own, since the bus has both at once (where the device can do several things):
 *
 *   in        p0 | p1   | p2   | p3   | ...      p2 into p0's buffers once p0 is out
 *   compute      | p0   | p1   | p2   | ...      AdamW, short beside a copy
 *   out                 | p0   | p1   | p2 ...
 *
 * Host memory is dev_alloc_host's. Gradients and weights are the device's.
 *
 *     TRY(stream_create(piece, masters, dev, &stream));
 *     TRY(stream_begin(stream, queue));
 *     TRY(stream_adamw(stream, n, &adamw, dtype, master, m, v, grad, weight, queue)); ...
 *     TRY(stream_end(stream, queue));                    // what is put on queue now finds the states updated
 */
#ifndef SPTUNE_TRAIN_STREAM_H
#define SPTUNE_TRAIN_STREAM_H

#include "kernels/nn.h"

struct stream;

/* piece: elements at a time. masters: do fp32 weights pass too, or are they the device's? */
enum status stream_create(int64_t piece, bool masters, struct dev *dev, struct stream **out);
void stream_destroy(struct stream *stream);             /* accepts NULL */
int64_t stream_need_bytes(int64_t piece, bool masters); /* of the device */

enum status stream_begin(struct stream *stream, struct dev_queue *queue);
/* nn_adamw on any number of elements. */
enum status stream_adamw(struct stream *stream, int64_t n, const struct nn_adamw *adamw, enum dtype dtype,
                         float *master, float *m, float *v, const float *grad, void *weight, struct dev_queue *queue);
enum status stream_end(struct stream *stream, struct dev_queue *queue);

#endif
