/* kernels/copy_rows.c -- jobs cut into bands.
 *
 * A band is the same share of every job, so that jobs which pick their rows out of one tensor for several destinations go through it
 * together: what one reads brings the lines, or the pages, that the next needs. A cut falls between rows, or inside a long row on a
 * whole page from its start.
 *
 *   job 0  |--0--|--1--|--2--|--3--|     threads take runs of bands; beyond the cache a band is BAND_BYTES, else a call that
 *   job 1  |-0-|-1-|-2-|-3-|             threads do not share is one band: its jobs whole, one after the other
 *
 * One Zen 3 core, 64 MiB of rows for 4 destinations, share of memcpy (7.8 GB/s) with jobs one after the other and in bands: rows of
 * 256 bytes 59 and 77 %, 512 85 and 86, 1 KiB 73 and 84; past the cache (copy_stream.c) 1 KiB 49 and 100, 2 KiB 69 and 109. In the
 * cache (4 MiB) bands cost a third.
 *
 * Rows r to s of a job of n[0] x n[1] x n[2] are at most five jobs: the rest of a line, of a plane, whole planes, and the same at the
 * end.
 */
#include "kernels/copy_rows.h"

#include "base/cache.h"

enum {
    PIECE_BYTES = 1 << 20, /* some 100 us, so that the cost of waking a thread is small beside it */
    PIECES_PER_THREAD = 4, /* a thread that is slow for a while leaves work to the others */
    BAND_BYTES = 128 << 10,
    BAND_JOB_BYTES = 4 << 10, /* of each job at least */
    LONG_ROW = 64 << 10,
    PAGE = 4096,
};

static int64_t rows_of(const struct copy_job *job)
{
    return job->n[0] * job->n[1] * job->n[2];
}

static enum status job_check(const char *what, const struct copy_job *job, int64_t *bytes)
{
    const int64_t *n = job->n;
    if (n[0] < 0 || n[1] < 0 || n[2] < 0)
        return HINT(
            FAIL(STATUS_USAGE, "%s: %lld x %lld x %lld rows", what, (long long)n[0], (long long)n[1], (long long)n[2]),
            "counts are 0 or more");
    if (n[0] == 0 || n[1] == 0 || n[2] == 0)
        return STATUS_OK;
    if (job->src == NULL || job->dst == NULL)
        return FAIL(STATUS_USAGE, "%s: no source or no destination was given", what);
    *bytes += rows_of(job) * (int64_t)job->row_bytes;
    return STATUS_OK;
}

enum status copy_rows_check(const char *what, const struct copy_job *jobs, int njobs, int64_t *out_bytes)
{
    int64_t bytes = 0;
    if (njobs < 0 || (njobs > 0 && jobs == NULL))
        return FAIL(STATUS_USAGE, "%s: %d jobs", what, njobs);
    for (int i = 0; i < njobs; i++)
        TRY(WHERE(job_check(what, &jobs[i], &bytes), "job %d", i));
    *out_bytes = bytes;
    return STATUS_OK;
}

typedef void run_fn(const struct copy_job *job);

/* The box of `n` rows at row (a, b, c), `skip` bytes into each, `bytes` of each. */
static void box_run(const struct copy_job *job, const int64_t at[3], const int64_t n[3], int64_t skip, int64_t bytes,
                    run_fn *run)
{
    struct copy_job box = *job;
    int64_t from = skip, to = skip;
    for (int d = 0; d < 3; d++) {
        from += at[d] * job->src_stride[d];
        to += at[d] * job->dst_stride[d];
        box.n[d] = n[d];
    }
    box.src = (const char *)job->src + from;
    box.dst = (char *)job->dst + to;
    box.row_bytes = (size_t)bytes;
    run(&box);
}

static void rows_run(const struct copy_job *job, int64_t row, int64_t end, run_fn *run)
{
    const int64_t *n = job->n, plane = n[1] * n[2];
    while (row < end) {
        int64_t at[3] = {row / plane, row / n[2] % n[1], row % n[2]}, box[3] = {1, 1, 1}, left = end - row;
        if (at[1] == 0 && at[2] == 0 && left >= plane) {
            box[0] = left / plane;
            box[1] = n[1];
            box[2] = n[2];
        } else if (at[2] == 0 && left >= n[2]) {
            box[1] = left / n[2] < n[1] - at[1] ? left / n[2] : n[1] - at[1];
            box[2] = n[2];
        } else {
            box[2] = left < n[2] - at[2] ? left : n[2] - at[2];
        }
        box_run(job, at, box, 0, (int64_t)job->row_bytes, run);
        row += box[0] * box[1] * box[2];
    }
}

/* Bytes [from, to) of one row. */
static void part_run(const struct copy_job *job, int64_t row, int64_t from, int64_t to, run_fn *run)
{
    const int64_t at[3] = {row / (job->n[1] * job->n[2]), row / job->n[2] % job->n[1], row % job->n[2]},
                  one[3] = {1, 1, 1};
    if (from < to)
        box_run(job, at, one, from, to - from, run);
}

/* The nearest cut at or before byte `at` of a job. */
static int64_t cut(const struct copy_job *job, int64_t at)
{
    int64_t row_bytes = (int64_t)job->row_bytes, in_row = at % row_bytes;
    if (at == rows_of(job) * row_bytes)
        return at;
    return at - in_row + (row_bytes > LONG_ROW ? in_row / PAGE * PAGE : 0);
}

static void slice_run(const struct copy_job *job, int64_t from, int64_t to, run_fn *run)
{
    int64_t row_bytes = (int64_t)job->row_bytes, first = from / row_bytes, last = to / row_bytes;
    if (first == last) {
        part_run(job, first, from % row_bytes, to % row_bytes, run);
        return;
    }
    if (from % row_bytes > 0)
        part_run(job, first++, from % row_bytes, row_bytes, run);
    rows_run(job, first, last, run);
    if (to % row_bytes > 0)
        part_run(job, last, 0, to % row_bytes, run);
}

/* Where part i of n equal parts begins; no product that could overflow. */
static int64_t part_at(int64_t whole, int64_t n, int64_t i)
{
    return i * (whole / n) + (i < whole % n ? i : whole % n);
}

struct share {
    const struct copy_job *jobs;
    int njobs;
    int64_t bands, pieces;
    run_fn *run;
};

static void band_run(const struct share *share, int64_t band)
{
    for (int i = 0; i < share->njobs; i++) {
        const struct copy_job *job = &share->jobs[i];
        int64_t bytes = rows_of(job) * (int64_t)job->row_bytes;
        if (bytes > 0)
            slice_run(job, cut(job, part_at(bytes, share->bands, band)),
                      cut(job, part_at(bytes, share->bands, band + 1)), share->run);
    }
}

static void piece_task(void *arg, int64_t piece, int thread)
{
    const struct share *share = arg;
    int64_t end = part_at(share->bands, share->pieces, piece + 1);
    (void)thread;
    for (int64_t band = part_at(share->bands, share->pieces, piece); band < end; band++)
        band_run(share, band);
}

static int64_t band_bytes(int njobs)
{
    int64_t least = (int64_t)njobs * BAND_JOB_BYTES;
    return least > BAND_BYTES ? least : BAND_BYTES;
}

bool copy_rows_beyond_cache(int64_t bytes)
{
    return bytes > cache_bytes() / 4;
}

void copy_rows_share(const struct copy_job *jobs, int njobs, int64_t bytes, struct dev_queue *queue, run_fn *run)
{
    struct share share = {.jobs = jobs, .njobs = njobs, .run = run};
    int threads = dev_queue_threads(queue);
    int64_t most = (int64_t)threads * PIECES_PER_THREAD;
    share.pieces = bytes / PIECE_BYTES < most ? bytes / PIECE_BYTES : most;
    if (share.pieces < 2 || threads == 1)
        share.pieces = 1;
    share.bands = copy_rows_beyond_cache(bytes) ? bytes / band_bytes(njobs) : share.pieces;
    if (share.bands < share.pieces)
        share.bands = share.pieces;
    if (share.bands > 1)
        dev_parallel(queue, share.pieces, piece_task, &share);
    else
        for (int i = 0; i < njobs; i++)
            run(&jobs[i]);
}
