/* tests/kernels/test_copy_move.c -- a launch of several moves as one list of chunks: every byte of every small pair of jobs is copied once,
 * whatever the blocks and threads. One job by all ways: test_copy_split.c. */
#include "base/check.h"
#include "base/rng.h"
#include "kernels/copy_move.h"

#include <stdlib.h>
#include <string.h>

enum { MOVES = 64, BUFFER = 1 << 14 };

struct list {
    struct move move[MOVES];
    uint32_t unit[MOVES];
    int n;
};

static enum status keep(void *arg, const struct move *move, uint32_t unit)
{
    struct list *list = arg;
    assert_true(list->n < MOVES);
    list->unit[list->n] = unit;
    list->move[list->n++] = *move;
    return STATUS_OK;
}

/* As a launch of several moves does it: one unit for all, one list of chunks. */
static uint32_t same_unit(struct list *list, uint32_t threads, uint32_t *start)
{
    uint32_t unit = 16;
    for (int m = 0; m < list->n; m++)
        unit = list->unit[m] < unit ? list->unit[m] : unit;
    start[0] = 0;
    for (int m = 0; m < list->n; m++) {
        list->move[m].units = list->move[m].units * list->unit[m] / unit;
        move_share(&list->move[m], threads);
        start[m + 1] = start[m] + move_chunks(&list->move[m], threads);
    }
    return unit;
}

/* All tickets, one after the other. `seen` counts writes of each byte of the destination. */
static void walk(const struct list *list, const uint32_t *start, uint32_t unit, uint32_t threads, uint32_t parts,
                 char *base, unsigned char *seen)
{
    enum { ROWS = 4 };
    uint32_t total = start[list->n], tickets = move_tickets(total, ROWS, parts), row, u;
    for (uint32_t ticket = 0; ticket < tickets; ticket++)
        for (uint64_t r = 0, chunk = move_ticket(tickets, ROWS, parts, ticket); r < ROWS; r++, chunk++) {
            int m = 0;
            if (chunk >= total)
                continue;
            while (chunk >= start[m + 1])
                m++;
            for (uint32_t t = 0; t < threads; t++)
                if (move_unit(&list->move[m], threads, (uint32_t)chunk - start[m], t, &row, &u)) {
                    struct move_place place = move_row(&list->move[m], row);
                    char *dst = list->move[m].dst + place.dst + (size_t)u * unit;
                    memcpy(dst, list->move[m].src + place.src + (size_t)u * unit, unit);
                    for (uint32_t i = 0; i < unit; i++)
                        seen[dst + i - base]++;
                }
        }
}

static void naive(const struct copy_job *job, char *base, unsigned char *wanted)
{
    for (int64_t a = 0; a < job->n[0]; a++)
        for (int64_t b = 0; b < job->n[1]; b++)
            for (int64_t c = 0; c < job->n[2]; c++) {
                char *dst = (char *)job->dst + a * job->dst_stride[0] + b * job->dst_stride[1] + c * job->dst_stride[2];
                memcpy(dst,
                       (const char *)job->src + a * job->src_stride[0] + b * job->src_stride[1] +
                           c * job->src_stride[2],
                       job->row_bytes);
                for (size_t i = 0; i < job->row_bytes; i++)
                    wanted[dst + i - base]++;
            }
}

/* n[0] x n[1] x n[2] rows, the dimensions of the destination in another order than those of the source. */
static void job_fill(struct copy_job *job, const int n[3], size_t row, int order)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    int64_t src = (int64_t)row, dst = (int64_t)row;
    job->row_bytes = row;
    for (int d = 2; d >= 0; d--) {
        int to = orders[order][d];
        job->n[d] = n[d];
        job->src_stride[d] = src;
        src *= n[d];
        job->dst_stride[to] = dst;
        dst *= n[to];
    }
}

static void every_byte_is_copied_once(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 2, 6, 16, 24, 48, 72, 160};
    static const uint32_t threads[] = {8, 32}, parts[] = {1, 2, 5, 16};
    char *src = aligned_alloc(64, BUFFER), *dst = aligned_alloc(64, BUFFER), *want = aligned_alloc(64, BUFFER);
    unsigned char *seen = malloc(BUFFER), *wanted = malloc(BUFFER);
    assert_true(src && dst && want && seen && wanted);
    struct rng rng;
    rng_seed(&rng, 7, 0);
    for (int i = 0; i < BUFFER; i++)
        src[i] = (char)rng_u64(&rng);
    for (int shape = 0; shape < 4 * 4 * 4; shape++)
        for (size_t r = 0; r < CHECK_COUNT(rows); r++)
            for (int order = 0; order < 6; order++) {
                int n[3] = {1 + shape % 4, 1 + shape / 4 % 4, 1 + shape / 16}, few[3] = {n[2], 1, 2};
                struct copy_job jobs[2] = {{.src = src, .dst = dst}, {.src = src + 4096, .dst = dst + BUFFER * 3 / 4}};
                job_fill(&jobs[0], n, rows[r], order);
                job_fill(&jobs[1], few, rows[(r + 3) % CHECK_COUNT(rows)], (order + 1) % 6);
                for (size_t t = 0; t < CHECK_COUNT(threads); t++)
                    for (size_t b = 0; b < CHECK_COUNT(parts); b++) {
                        struct list list = {.n = 0};
                        uint32_t start[MOVES + 1];
                        memset(dst, 0, BUFFER);
                        memset(seen, 0, BUFFER);
                        memset(wanted, 0, BUFFER);
                        for (int j = 0; j < 2; j++)
                            naive(&jobs[j], dst, wanted);
                        memcpy(want, dst, BUFFER);
                        memset(dst, 0, BUFFER);
                        for (int j = 0; j < 2; j++)
                            CHECK_OK(move_split(&jobs[j], threads[t], keep, &list));
                        uint32_t unit = same_unit(&list, threads[t], start);
                        walk(&list, start, unit, threads[t], parts[b], dst, seen);
                        assert_memory_equal(dst, want, BUFFER);
                        assert_memory_equal(seen, wanted, BUFFER);
                    }
            }
    free(src);
    free(dst);
    free(want);
    free(seen);
    free(wanted);
}

/* Every list, exhaustively: each chunk is of one ticket, and tickets that follow each other go to all parts. */
static void every_chunk_has_one_ticket(void **state)
{
    (void)state;
    for (uint32_t total = 0; total <= 60; total++)
        for (uint32_t rows = 1; rows <= 5; rows++)
            for (uint32_t parts = 1; parts <= 20; parts++) {
                unsigned char seen[60] = {0};
                uint32_t tickets = move_tickets(total, rows, parts), each = tickets / parts;
                assert_int_equal(tickets % parts, 0);
                for (uint32_t ticket = 0; ticket < tickets; ticket++) {
                    uint64_t first = move_ticket(tickets, rows, parts, ticket);
                    assert_int_equal(first / rows / each, ticket % parts);
                    for (uint64_t chunk = first; chunk < first + rows && chunk < total; chunk++)
                        seen[chunk]++;
                }
                for (uint32_t c = 0; c < total; c++)
                    assert_int_equal(seen[c], 1);
            }
}

/* As many chunks as 32 bits count: nothing wraps. */
static void the_longest_list(void **state)
{
    (void)state;
    const uint32_t total = UINT32_MAX, tickets = move_tickets(total, 4, 2);
    assert_int_equal(tickets, 1u << 30);
    assert_true(move_ticket(tickets, 4, 2, tickets - 1) == (uint64_t)total + 1 - 4);
    assert_true(move_ticket(move_tickets(total, 4, 31), 4, 31, move_tickets(total, 4, 31) - 1) >= total);
}

/* Places are counted in 64 bits: two rows 5 GiB apart, addresses that nobody reads. */
static void far_rows(void **state)
{
    (void)state;
    const int64_t far = (int64_t)5 << 30;
    struct copy_job job = {.src = (void *)(uintptr_t)4096,
                           .dst = (void *)(uintptr_t)8192,
                           .n = {3, 1, 2},
                           .src_stride = {far, 0, 64},
                           .dst_stride = {64, 0, far},
                           .row_bytes = 64};
    struct list list = {.n = 0};
    uint32_t row, unit;
    CHECK_OK(move_split(&job, 8, keep, &list));
    assert_int_equal(list.n, 1);
    assert_true(move_unit(&list.move[0], 8, move_chunks(&list.move[0], 8) - 1, 7, &row, &unit));
    struct move_place place = move_row(&list.move[0], row);
    assert_int_equal(row, 5);
    assert_true(place.src == 2 * far + 64 && place.dst == 2 * 64 + far);
}

/* A slice of more rows than 32 bits count is refused: nothing is touched here. */
static void too_many_rows_in_a_slice(void **state)
{
    (void)state;
    struct copy_job many = {.n = {1, (int64_t)1 << 20, (int64_t)1 << 20}, .row_bytes = 4};
    struct list list = {.n = 0};
    CHECK_FAILS(STATUS_UNSUPPORTED, "rows a slice", move_split(&many, 512, keep, &list));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_copied_once), cmocka_unit_test(every_chunk_has_one_ticket),
        cmocka_unit_test(the_longest_list),          cmocka_unit_test(far_rows),
        cmocka_unit_test(too_many_rows_in_a_slice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
