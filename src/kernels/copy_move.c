/* kernels/copy_move.c -- cut a job into moves: long rows into pieces, many rows into slices that 32 bits can count. */
#include "kernels/copy_move.h"

enum { UNIT_MAX = 16 };

struct cut {
    uint32_t threads;
    move_visit *visit;
    void *arg;
};

/* The largest power of two, up to UNIT_MAX, that divides everything. */
static uint32_t unit_of(const struct copy_job *job)
{
    uint64_t all = (uint64_t)(uintptr_t)job->src | (uint64_t)(uintptr_t)job->dst | job->row_bytes | UNIT_MAX;
    for (int d = 0; d < 3; d++)
        if (job->n[d] > 1)
            all |= (uint64_t)job->src_stride[d] | (uint64_t)job->dst_stride[d];
    return (uint32_t)(all & (0 - all));
}

void move_share(struct move *move, uint32_t threads)
{
    move->shift = 0;
    while (1u << move->shift < threads && 1u << move->shift < move->units)
        move->shift++;
    move->pieces = (move->units + (1u << move->shift) - 1) >> move->shift;
}

static enum status cut_move(const struct cut *cut, const struct copy_job *job)
{
    uint32_t unit = unit_of(job);
    struct move move = {.src = job->src,
                        .dst = job->dst,
                        .n1 = (uint32_t)job->n[1],
                        .n2 = (uint32_t)job->n[2],
                        .nrows = (uint32_t)(job->n[0] * job->n[1] * job->n[2]),
                        .units = (uint32_t)(job->row_bytes / unit)};
    for (int d = 0; d < 3; d++) {
        move.src_stride[d] = job->src_stride[d];
        move.dst_stride[d] = job->dst_stride[d];
    }
    move_share(&move, cut->threads);
    return cut->visit(cut->arg, &move, unit);
}

static struct copy_job slice(const struct copy_job *job, int64_t from, int64_t n)
{
    struct copy_job part = *job;
    part.n[0] = n;
    part.src = (const char *)job->src + from * job->src_stride[0];
    part.dst = (char *)job->dst + from * job->dst_stride[0];
    return part;
}

static enum status cut_rows(const struct cut *cut, const struct copy_job *job)
{
    const int64_t most = INT32_MAX;
    if (job->n[1] > most || job->n[2] > most || job->n[1] * job->n[2] > most)
        return FAIL(STATUS_UNSUPPORTED, "a copy of %lld x %lld rows a slice; at most 2^31", (long long)job->n[1],
                    (long long)job->n[2]);
    int64_t together = most / (job->n[1] * job->n[2]);
    for (int64_t from = 0; from < job->n[0]; from += together) {
        struct copy_job part = slice(job, from, job->n[0] - from < together ? job->n[0] - from : together);
        TRY(cut_move(cut, &part));
    }
    return STATUS_OK;
}

/* Pieces are a dimension of their own; what is left of each row is a job of its own. */
static enum status cut_pieces(const struct cut *cut, const struct copy_job *outer)
{
    int64_t pieces = (int64_t)(outer->row_bytes / MOVE_PIECE_BYTES);
    struct copy_job body = *outer, rest = *outer;
    for (int d = 0; d < 2; d++) {
        body.n[d] = outer->n[d + 1];
        body.src_stride[d] = outer->src_stride[d + 1];
        body.dst_stride[d] = outer->dst_stride[d + 1];
    }
    body.n[2] = pieces;
    body.src_stride[2] = body.dst_stride[2] = MOVE_PIECE_BYTES;
    body.row_bytes = MOVE_PIECE_BYTES;
    TRY(cut_rows(cut, &body));
    rest.src = (const char *)outer->src + pieces * MOVE_PIECE_BYTES;
    rest.dst = (char *)outer->dst + pieces * MOVE_PIECE_BYTES;
    rest.row_bytes = outer->row_bytes % MOVE_PIECE_BYTES;
    return rest.row_bytes > 0 ? cut_rows(cut, &rest) : STATUS_OK;
}

enum status move_split(const struct copy_job *job, uint32_t threads, move_visit *visit, void *arg)
{
    const struct cut cut = {threads, visit, arg};
    if (job->n[0] == 0 || job->n[1] == 0 || job->n[2] == 0 || job->row_bytes == 0)
        return STATUS_OK;
    if (job->row_bytes < 2 * MOVE_PIECE_BYTES)
        return cut_rows(&cut, job);
    for (int64_t i = 0; i < job->n[0]; i++) {
        struct copy_job outer = slice(job, i, 1);
        TRY(cut_pieces(&cut, &outer));
    }
    return STATUS_OK;
}

uint32_t move_blocks(const struct move *move, uint32_t threads, uint32_t rows)
{
    uint64_t side = (uint64_t)(threads >> move->shift) * rows;
    return (uint32_t)((move->nrows + side - 1) / side);
}
