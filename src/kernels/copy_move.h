/* kernels/copy_move.h -- a copy job cut into moves that GPU threads share: the index arithmetic, for host and device alike.
 *
 * A move's rows are counted 0 .. nrows-1, the last dimension fastest. A row is copied in units of 16, 8, 4, 2 or 1 bytes: the
 * largest that divides its length, both sides' strides and both addresses. 2^shift threads share a row, the others take the next rows.
 *
 * A chunk is what a number of threads (a block's, a warp's) copy with one unit each: a piece of 2^shift units of threads >> shift rows.
 * The chunks of a move are counted pieces first; a launch that shares several moves counts theirs one move after the other, so that many
 * small moves take no longer than one.
 */
#ifndef SPTUNE_KERNELS_COPY_MOVE_H
#define SPTUNE_KERNELS_COPY_MOVE_H

#include "kernels/copy.h"

#include <stdbool.h>

#if defined(__CUDACC__)
#define MOVE_BOTH static __host__ __device__ __forceinline__
#else
#define MOVE_BOTH static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { MOVE_PIECE_BYTES = 1 << 15 }; /* longer rows are cut, so that one row keeps more than one block busy */

struct move {
    const char *src;
    char *dst;
    uint32_t n1, n2; /* the two inner dimensions */
    int64_t src_stride[3], dst_stride[3]; /* bytes */
    uint32_t nrows, units;
    uint32_t shift, pieces; /* by move_share */
};

struct move_place {
    int64_t src, dst; /* bytes from the bases */
};

MOVE_BOTH struct move_place move_row(const struct move *move, uint32_t row)
{
    uint32_t ij = row / move->n2, l = row - ij * move->n2;
    uint32_t i = ij / move->n1, j = ij - i * move->n1;
    struct move_place place;
    place.src = (int64_t)i * move->src_stride[0] + (int64_t)j * move->src_stride[1] + (int64_t)l * move->src_stride[2];
    place.dst = (int64_t)i * move->dst_stride[0] + (int64_t)j * move->dst_stride[1] + (int64_t)l * move->dst_stride[2];
    return place;
}

MOVE_BOTH uint32_t move_chunks(const struct move *move, uint32_t threads)
{
    uint32_t side = threads >> move->shift;
    return (uint32_t)(((uint64_t)move->nrows + side - 1) / side * move->pieces);
}

/* What a thread copies of a chunk: its row and unit. False: nothing, at the edges. */
MOVE_BOTH bool move_unit(const struct move *move, uint32_t threads, uint32_t chunk, uint32_t thread, uint32_t *row, uint32_t *unit)
{
    uint32_t group = move->pieces == 1 ? chunk : chunk / move->pieces, piece = chunk - group * move->pieces;
    *row = group * (threads >> move->shift) + (thread >> move->shift);
    *unit = (piece << move->shift) + (thread & ((1u << move->shift) - 1));
    return *row < move->nrows && *unit < move->units;
}

/* Warps draw tickets, 0 and up, for as long as there are any: move_tickets of them. A ticket is `rows` chunks that follow each other, or
 * none. The list is cut into `parts` equal parts, and tickets go to each of them in turn, so that at any moment all parts are worked on. */
MOVE_BOTH uint32_t move_tickets(uint32_t total, uint32_t rows, uint32_t parts)
{
    uint32_t groups = total / rows + (total % rows > 0);
    return (groups + parts - 1) / parts * parts;
}

/* The first chunk of a ticket; `total` or more: none. */
MOVE_BOTH uint64_t move_ticket(uint32_t tickets, uint32_t rows, uint32_t parts, uint32_t ticket)
{
    return ((uint64_t)(ticket % parts) * (tickets / parts) + ticket / parts) * rows;
}

/* How many of `threads` threads, a power of two, share a row: as many as it has units. */
void move_share(struct move *move, uint32_t threads);
/* Calls visit for each move of the job, for blocks of `threads` (a power of two). Empty jobs have none. Slices of more than 2^31
 * rows: STATUS_UNSUPPORTED. */
typedef enum status move_visit(void *arg, const struct move *move, uint32_t unit);
enum status move_split(const struct copy_job *job, uint32_t threads, move_visit *visit, void *arg);
/* Blocks that find work when each thread takes `rows` rows at a time. */
uint32_t move_blocks(const struct move *move, uint32_t threads, uint32_t rows);

#ifdef __cplusplus
}
#endif
#endif
