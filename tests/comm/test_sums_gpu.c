/* tests/comm/test_sums_gpu.c -- sums between GPUs: of the job, of all its ranks in another order, and of groups of half of them, each sum
 * exact and where the group's order wants it; two connections at once; and a death, which ends the job in bounded time and leaves no process.
 *
 * Needs two GPUs, uses up to eight; from four on also groups of half the job.
 */
#include "base/dtype.h"
#include "base/rng.h"
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>

enum { SKIP = 77, ELEMS_MAX = 300001, ROUNDS = 20, WAIT_US = 30 * 1000 * 1000 };

struct gpu_side {
    struct side side;
    struct dev *gpu;
    struct dev_queue *queue;
    struct comm *job;
    char *send, *recv; /* of the GPU: ELEMS_MAX for each rank, 4 bytes each */
    char *host;
};

static enum status gpu_side_open(struct gpu_side *g, const struct launch *launch)
{
    const size_t bytes = (size_t)launch->size * ELEMS_MAX * sizeof(float);
    *g = (struct gpu_side){.host = malloc(bytes)};
    if (g->host == NULL)
        abort();
    TRY(side_open(&g->side, launch, NULL));
    TRY(ranks_open_gpu(launch, &g->gpu));
    TRY(dev_queue_create(g->gpu, &g->queue));
    TRY(comm_open(g->side.boot, g->gpu, "nccl", NULL, &g->job));
    TRY(dev_alloc(g->gpu, bytes, "a test", (void **)&g->send));
    return dev_alloc(g->gpu, bytes, "a test", (void **)&g->recv);
}

static void gpu_side_close(struct gpu_side *g)
{
    dev_free(g->gpu, g->send);
    dev_free(g->gpu, g->recv);
    comm_close(g->job);
    dev_queue_destroy(g->queue);
    side_close(&g->side);
    dev_close(g->gpu);
    free(g->host);
}

/* Integers of 0 to 3, so that sums are exact in every type and order: of the job's rank, which the group's order does not change. */
static float term(const struct comm *comm, int rank, int64_t i, uint64_t salt)
{
    return (float)(rng_hash(salt * 64 + (uint64_t)comm_job_rank(comm, rank), (uint64_t)i) & 3);
}

static enum status terms_put(struct gpu_side *g, const struct comm *comm, int64_t n, enum dtype dtype, uint64_t salt)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(dtype, g->host, i, term(comm, comm_rank(comm), i, salt));
    TRY(dev_copy(g->queue, g->send, g->host, (size_t)n * (size_t)dtype_bytes(dtype)));
    return dev_sync(g->queue, clock_deadline(WAIT_US));
}

/* Elements [first, first + n) of the sum are at `data`. */
static int sums_are(struct gpu_side *g, const struct comm *comm, const char *data, int64_t first, int64_t n,
                    enum dtype dtype, uint64_t salt)
{
    RANK_TRY(dev_copy(g->queue, g->host, data, (size_t)n * (size_t)dtype_bytes(dtype)));
    RANK_TRY(dev_sync(g->queue, clock_deadline(WAIT_US)));
    for (int64_t i = 0; i < n; i++) {
        float want = 0;
        for (int r = 0; r < comm_size(comm); r++)
            want += term(comm, r, first + i, salt);
        if (dtype_get(dtype, g->host, i) != want) {
            fprintf(stderr, "element %lld of %lld %s: %g, not %g\n", (long long)(first + i), (long long)n,
                    dtype_name(dtype), (double)dtype_get(dtype, g->host, i), (double)want);
            return RANK_FAILED;
        }
    }
    return 0;
}

static int sums_of(struct gpu_side *g, struct comm *comm)
{
    static const int64_t elems[] = {1, 7, 4097, ELEMS_MAX};
    uint64_t salt = 1;
    RANK_CHECK(comm_sums_natively(comm) && comm_allreduce_scratch(comm, 7, DTYPE_BF16) == 0);
    for (size_t e = 0; e < sizeof elems / sizeof *elems; e++)
        for (int d = 0; d < DTYPE_COUNT; d++) {
            const int64_t n = elems[e], all = n * comm_size(comm);
            const enum dtype dtype = (enum dtype)d;
            RANK_TRY(terms_put(g, comm, all, dtype, ++salt));
            RANK_TRY(comm_reduce_scatter(comm, g->send, g->recv, n, dtype, NULL, g->queue));
            RANK_CHECK(sums_are(g, comm, g->recv, n * comm_rank(comm), n, dtype, salt) == 0);
            RANK_TRY(comm_allreduce(comm, g->send, all, dtype, NULL, g->queue));
            RANK_CHECK(sums_are(g, comm, g->send, 0, all, dtype, salt) == 0);
        }
    return 0;
}

static int sums_of_group(struct gpu_side *g, int color, int key, const char *what)
{
    struct comm *group = NULL;
    int64_t before, after, total;
    RANK_TRY(comm_split(g->job, color, key, &group));
    RANK_TRY(dev_memory(g->gpu, &before, &total));
    RANK_TRY(comm_sums_open(group));
    int failed = sums_of(g, group);
    RANK_TRY(dev_memory(g->gpu, &after, &total));
    if (comm_rank(g->job) == 0)
        printf("%s: a communicator of %d ranks takes %.1f MiB of the GPU\n", what, comm_size(group),
               (double)(before - after) / (1 << 20));
    fflush(stdout);
    comm_close(group);
    return failed;
}

/* Of a group on one queue, beside those of the same ranks on another, over another connection. */
static int at_once(struct gpu_side *g, int rank)
{
    struct comm *here = NULL, *beside = NULL, *there = NULL;
    struct dev_queue *other = NULL;
    const int64_t n = ELEMS_MAX;
    RANK_TRY(comm_split(g->job, 0, -rank, &here));
    RANK_TRY(comm_open_beside(g->job, &beside));
    RANK_TRY(comm_split(beside, 0, -rank, &there));
    RANK_TRY(comm_sums_open(here));
    RANK_TRY(comm_sums_open(there));
    RANK_TRY(dev_queue_create_beside(g->gpu, &other));
    for (int round = 0; round < ROUNDS; round++) { /* what they sum is nothing to look at */
        RANK_TRY(comm_allreduce(here, g->send, n, DTYPE_FP32, NULL, g->queue));
        RANK_TRY(comm_allreduce(there, g->recv, n, DTYPE_FP32, NULL, other));
    }
    RANK_TRY(dev_sync(g->queue, clock_deadline(WAIT_US)));
    RANK_TRY(dev_sync(other, clock_deadline(WAIT_US)));
    RANK_TRY(terms_put(g, here, n, DTYPE_FP32, 99));
    RANK_TRY(dev_copy(g->queue, g->recv, g->send, (size_t)n * sizeof(float)));
    RANK_TRY(dev_sync(g->queue, clock_deadline(WAIT_US)));
    RANK_TRY(comm_allreduce(here, g->send, n, DTYPE_FP32, NULL, g->queue));
    RANK_TRY(comm_allreduce(there, g->recv, n, DTYPE_FP32, NULL, other));
    RANK_TRY(dev_sync(other, clock_deadline(WAIT_US)));
    int failed = sums_are(g, here, g->send, 0, n, DTYPE_FP32, 99);
    failed = failed ? failed : sums_are(g, there, g->recv, 0, n, DTYPE_FP32, 99);
    dev_queue_destroy(other);
    comm_close(there);
    comm_close(beside);
    comm_close(here);
    return failed;
}

static int rank_sums(const struct launch *launch, void *arg)
{
    struct gpu_side g;
    const int rank = launch->rank, half = launch->size / 2;
    (void)arg;
    RANK_TRY(gpu_side_open(&g, launch));
    int failed = sums_of(&g, g.job);
    failed = failed ? failed : sums_of_group(&g, 0, -rank, "all, reversed");
    if (!failed && half > 1) {
        failed = sums_of_group(&g, rank / half, rank, "halves");
        failed = failed ? failed : sums_of_group(&g, rank % 2, -rank, "every second, reversed");
    }
    failed = failed ? failed : at_once(&g, rank);
    failed = failed ? failed : sums_of(&g, g.job); /* none of that did it any harm */
    gpu_side_close(&g);
    RANK_CHECK(failed == 0);
    return 0;
}

static int gpus;

static void every_group_sums_on_its_gpus(void **state)
{
    (void)state;
    ranks_pass(gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2, rank_sums, NULL);
}

/* ---- death ---- */

enum { VICTIM = 1, DIE_US = 300 * 1000 };

/* The others wait for the victim to make the group's communicator with them, or sum by it until it dies. */
static int rank_until_death(const struct launch *launch, void *arg)
{
    const int made = *(const int *)arg;
    struct gpu_side g;
    struct comm *group = NULL;
    enum status status = STATUS_OK;
    RANK_TRY(gpu_side_open(&g, launch));
    RANK_TRY(comm_split(g.job, 0, -launch->rank, &group));
    if (made)
        RANK_TRY(comm_sums_open(group));
    if (launch->rank == VICTIM)
        ranks_die_after(DIE_US);
    if (launch->rank == VICTIM && !made)
        ranks_sleep_forever();
    while (status == STATUS_OK) {
        status = comm_allreduce(group, g.send, ELEMS_MAX, DTYPE_FP32, NULL, g.queue);
        if (status == STATUS_OK)
            status = dev_sync(g.queue, clock_deadline(WAIT_US));
        if (status == STATUS_OK)
            status = boot_poll(g.side.boot);
    }
    int code = ranks_note(launch, status);
    comm_close(group);
    gpu_side_close(&g);
    return code;
}

static void a_death_ends_the_sums(void **state)
{
    (void)state;
    for (int made = 0; made < 2; made++) {
        struct launch_report report = ranks_run(2, rank_until_death, &made); /* sees that no process is left */
        assert_int_equal(report.failed_rank, VICTIM);
        assert_int_equal(report.signal, SIGKILL);
        assert_int_equal(report.exit_code, 4);
    }
}

int main(void)
{
    gpus = ranks_gpus(8);
    if (gpus < 2) {
        printf("skipped: it takes two GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_group_sums_on_its_gpus),
                                       cmocka_unit_test(a_death_ends_the_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
