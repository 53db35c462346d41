/* tests/kernels/copy_split.h -- what GPUs do with a copy job, done here byte by byte: its moves by the threads of a kernel, row by row or
 * as a list of chunks, its planes by a copy engine. Every byte stored is counted in a shadow of the destination. */
#ifndef SPTUNE_TESTS_KERNELS_COPY_SPLIT_H
#define SPTUNE_TESTS_KERNELS_COPY_SPLIT_H

#include "base/check.h"

#include "kernels/copy_move.h"
#include "kernels/copy_plane.h"
#include "kernels/copy_rows.h"

enum { SPLIT_THREADS = 8, SPLIT_BLOCKS = 3 };

struct split {
    char *dst; /* where the shadow begins */
    unsigned char *stored;
    int parts;         /* moves or planes of the job */
    int64_t pitch_max; /* of planes */
};

static inline void split_store(struct split *split, char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        dst[i] = src[i];
        split->stored[dst + i - split->dst]++;
    }
}

/* The loop of copy_move.cuh for one thread of one block. */
static inline void split_thread(struct split *split, const struct move *move, uint32_t unit, uint32_t block,
                                uint32_t thread)
{
    const uint32_t across = 1u << move->shift, side = SPLIT_THREADS >> move->shift;
    for (uint64_t row = block * side + (thread >> move->shift); row < move->nrows; row += (uint64_t)SPLIT_BLOCKS * side)
        for (uint32_t u = thread % across; u < move->units; u += across) {
            struct move_place place = move_row(move, (uint32_t)row);
            assert_true((uintptr_t)(move->src + place.src) % unit == 0 &&
                        (uintptr_t)(move->dst + place.dst) % unit == 0);
            split_store(split, move->dst + place.dst + (size_t)u * unit, move->src + place.src + (size_t)u * unit,
                        unit);
        }
}

static inline enum status split_move(void *arg, const struct move *move, uint32_t unit)
{
    struct split *split = arg;
    assert_true(1u << move->shift <= SPLIT_THREADS && move->nrows > 0 && move->units > 0);
    assert_true(move_blocks(move, SPLIT_THREADS, 1) >= 1);
    for (uint32_t block = 0; block < SPLIT_BLOCKS; block++)
        for (uint32_t thread = 0; thread < SPLIT_THREADS; thread++)
            split_thread(split, move, unit, block, thread);
    split->parts++;
    return STATUS_OK;
}

/* move_list of copy_move.cuh, for a list of one move. */
static inline enum status split_chunks(void *arg, const struct move *move, uint32_t unit)
{
    struct split *split = arg;
    uint32_t total = move_chunks(move, SPLIT_THREADS), tickets = move_tickets(total, 4, SPLIT_BLOCKS), row, u;
    for (uint32_t ticket = 0; ticket < tickets; ticket++)
        for (uint64_t chunk = move_ticket(tickets, 4, SPLIT_BLOCKS, ticket), end = chunk + 4; chunk < end; chunk++)
            for (uint32_t thread = 0; chunk < total && thread < SPLIT_THREADS; thread++)
                if (move_unit(move, SPLIT_THREADS, (uint32_t)chunk, thread, &row, &u)) {
                    struct move_place place = move_row(move, row);
                    split_store(split, move->dst + place.dst + (size_t)u * unit,
                                move->src + place.src + (size_t)u * unit, unit);
                }
    split->parts++;
    return STATUS_OK;
}

static inline enum status split_plane(void *arg, const struct copy_plane *plane)
{
    struct split *split = arg;
    assert_true(plane->width > 0 && plane->height > 0); /* what cudaMemcpy2DAsync asks for */
    assert_true(plane->src_pitch >= plane->width && plane->dst_pitch >= plane->width);
    assert_true(plane->height == 1 ||
                ((int64_t)plane->src_pitch <= split->pitch_max && (int64_t)plane->dst_pitch <= split->pitch_max));
    for (size_t row = 0; row < plane->height; row++)
        split_store(split, plane->dst + row * plane->dst_pitch, plane->src + row * plane->src_pitch, plane->width);
    split->parts++;
    return STATUS_OK;
}

/* Ways of doing a job: as the kernels do, by planes, and by planes of an engine whose pitches are short. */
enum { SPLIT_ROWS, SPLIT_CHUNKS, SPLIT_PLANES, SPLIT_SHORT_PLANES, SPLIT_WAYS };
static inline void split_run(struct split *split, const struct copy_job *job, int way)
{
    split->parts = 0;
    split->pitch_max = way == SPLIT_PLANES ? INT32_MAX : (int64_t)job->row_bytes + 8;
    if (way == SPLIT_ROWS || way == SPLIT_CHUNKS) {
        struct copy_job merged = copy_rows_merge(*job);
        CHECK_OK(move_split(&merged, SPLIT_THREADS, way == SPLIT_ROWS ? split_move : split_chunks, split));
    } else {
        CHECK_OK(copy_plane_split(job, split->pitch_max, split_plane, split));
    }
}

#endif
