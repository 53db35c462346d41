/* sp/exchange_block.h -- where the block that goes to or comes from one peer lies, on either side of an exchange.
 *
 *   sequence side of a rank, block of peer p:        head side of a rank, block of peer p:
 *
 *     token 0    h0 h1 [h2 h3] h4 h5                   rank 0's tokens   [h h] . .
 *     token 1    h0 h1 [h2 h3] h4 h5                                     [h h] . .
 *                       ^ heads that p holds           rank 1's tokens   [h h] . .
 *                                                                        [h h] . .
 *     every token, some lanes of it                    p's tokens, the lanes that move (head_stride apart)
 *
 * For each b of the batch, for each of the S/P tokens, one row of count * dim elements. Rows that follow each other
 * without a gap make a flat block, which needs no copy to be sent or received: the head side of batch 1 whose chunk is
 * the whole row.
 */
#ifndef SPTUNE_SP_EXCHANGE_BLOCK_H
#define SPTUNE_SP_EXCHANGE_BLOCK_H

#include "model/model.h"
#include "sp/exchange.h"

struct exchange_block {
    char *base;
    int64_t batch, seq;                 /* rows: batch x seq */
    int64_t batch_stride, token_stride; /* bytes */
    int64_t row_bytes;
};

static inline int64_t exchange_row_bytes(const struct exchange_shape *shape, const struct exchange_tensor *tensor)
{
    return (int64_t)tensor->count * tensor->dim * dtype_bytes(shape->dtype);
}

static inline struct exchange_block exchange_block_seq(const struct exchange_shape *shape,
                                                       const struct exchange_tensor *tensor, int size, int peer)
{
    int64_t head_bytes = (int64_t)tensor->dim * dtype_bytes(shape->dtype);
    int64_t token = tensor->heads * head_bytes;
    int first = model_kv_first(tensor->heads, size, peer) + tensor->first;
    return (struct exchange_block){(char *)tensor->seq + first * head_bytes,
                                   shape->batch,
                                   shape->seq_local,
                                   shape->seq_local * token,
                                   token,
                                   tensor->count * head_bytes};
}

static inline struct exchange_block exchange_block_head(const struct exchange_shape *shape,
                                                        const struct exchange_tensor *tensor, int size, int peer)
{
    int64_t token = tensor->head_stride * dtype_bytes(shape->dtype);
    return (struct exchange_block){(char *)tensor->head + peer * shape->seq_local * token,
                                   shape->batch,
                                   shape->seq_local,
                                   size * shape->seq_local * token,
                                   token,
                                   exchange_row_bytes(shape, tensor)};
}

/* The same rows without gaps, at `base`. */
static inline struct exchange_block exchange_block_flat(const struct exchange_block *like, char *base)
{
    return (struct exchange_block){base,           like->batch, like->seq, like->seq * like->row_bytes, like->row_bytes,
                                   like->row_bytes};
}

static inline bool exchange_block_is_flat(const struct exchange_block *block)
{
    return (block->seq <= 1 || block->token_stride == block->row_bytes) &&
           (block->batch <= 1 || block->batch_stride == block->seq * block->row_bytes);
}

#endif
