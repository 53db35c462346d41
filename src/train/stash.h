/* train/stash.h -- what goes from layer to layer, x_0 to x_L, from forward until backward has come back to it.
 *
 * Kept: all L + 1 on the device. Offloaded: two on the device; the others wait in host memory and come back a layer ahead, on a queue
 * beside, while layers compute (where the device can do both):
 *
 *   forward     compute   layer 0   | layer 1   | layer 2   | ...          slot of x_l: l mod 2
 *               copies    x_0 out   | x_1 out   | x_2 out   |              layer l writes x_{l+1} over x_{l-1} once that is out
 *   backward    compute   head      | layer L-1 | layer L-2 | ...
 *               copies              | x_{L-2} in| x_{L-3} in|              over x_L, x_{L-1}: the head, the layer above are done
 *
 * x_{L-1} and x_L stay until backward wants them. Copies: 2 (L - 1) of the rows in a step.
 *
 *     TRY(stash_create(layers, offloaded, bytes, dev, &stash));
 *     ...x_0 into stash_first(stash)...
 *     for l up:   TRY(stash_forward(stash, l, queue, &x, &y));   ...y of x on queue...
 *     for l down: TRY(stash_backward(stash, l, queue, &x));      ...what needs x on queue...
 */
#ifndef SPTUNE_TRAIN_STASH_H
#define SPTUNE_TRAIN_STASH_H

#include "base/dev.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stash;

/* bytes: of one x. */
enum status stash_create(int layers, bool offloaded, size_t bytes, struct dev *dev, struct stash **out);
/* What it takes of the device, and of the host. */
void stash_need(int layers, bool offloaded, int64_t bytes, int64_t *out_bytes, int64_t *out_host_bytes);
void stash_destroy(struct stash *stash);         /* accepts NULL */
bool stash_use(struct stash *stash, size_t bytes); /* of one x from now on; false: there is no room for as many */
int64_t stash_bytes(const struct stash *stash);  /* on the device */
int64_t stash_host_bytes(const struct stash *stash);

/* Layer l in order: its input, and room for its output. */
enum status stash_forward(struct stash *stash, int layer, struct dev_queue *queue, const void **x, void **y);
/* The layer's input again; from the last layer down. */
enum status stash_backward(struct stash *stash, int layer, struct dev_queue *queue, const void **x);
void *stash_first(const struct stash *stash); /* where x_0 is to be */
/* x_l after a forward pass, where the device can read it. */
const void *stash_at(const struct stash *stash, int layer);

#endif
