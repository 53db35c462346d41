/* bench/block.c -- a few samples of one row: aligned, timed, verified, and agreed on. */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/range.h"
#include "base/text.h"
#include "bench/group.h"
#include "bench/spin.h"
#include "bench/subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { PROBES = 3, ALIGNS = 21, ALIGN_US = 60 * 1000 * 1000, NAP_NS = 5 * 1000 * 1000 };
enum { LOAD_US = 120 * 1000, LOADED_US = 60 * 1000 }; /* a load; the samples of the block behind it */
enum { LOAD_PART_US = 20 * 1000 };                    /* of a load: is waited for before more is put on the queue */
/* Short iterations behind a load: so many back to back are a sample. */
enum { LOADED_SAMPLE_US = 5 * 1000, LOADED_LOOP_MAX = 16 };
enum flag { ELAPSED, INTERRUPT, FAILED, WRONG, PROBE, STEAL, WAIT, THROTTLED, VERIFY_US, BLOCK_US, REAL_US, GPU, FLAGS = GPU + CONDITIONS_GPU };

/* What goes through one comm_max: the ranks' worst of everything. Behind the flags, per sample: its time, then how often a rank lost
 * its CPU meanwhile. */
struct agreed {
    double flag[FLAGS + 2 * BLOCK_SAMPLES_MAX];
};

static double *times_of(struct agreed *a)
{
    return a->flag + FLAGS;
}

static double *switches_of(struct agreed *a, int samples)
{
    return a->flag + FLAGS + samples;
}

static void agreed_init(const struct run *run, struct agreed *a)
{
    for (int i = 0; i < FLAGS; i++)
        a->flag[i] = 0;
    a->flag[ELAPSED] = (double)(clock_ns() - run->start_ns) * 1e-3;
    a->flag[INTERRUPT] = comm_rank(run->env->world) == 0 && interrupt_pending() ? 1 : 0;
}

static enum status agree(struct run *run, struct agreed *a, int samples)
{
    TRY(comm_max(run->env->world, a->flag, FLAGS + 2 * samples));
    run->elapsed_us = a->flag[ELAPSED];
    run->interrupted = run->interrupted || a->flag[INTERRUPT] > 0;
    return STATUS_OK;
}

enum status block_sync(struct run *run)
{
    struct agreed a;
    agreed_init(run, &a);
    return agree(run, &a, 0);
}

/* No rank still stores into the memory of another. */
static enum status peers_done(struct run *run)
{
    TRY(comm_barrier(run->env->world, run->queue));
    return dev_sync(run->queue, clock_deadline(SUBJECT_SYNC_US));
}

/* The rate of the slowest rank while all of them spin: as time per FLOP, so that the maximum is the slowest. */
static enum status probe(struct run *run, double *slowness)
{
    *slowness = 0;
    TRY(peers_done(run));
    if (run_behind(run)) /* what the CPUs compute meanwhile is not in the times */
        return STATUS_OK;
    double rate = spin_rate_all(run->queue);
    *slowness = rate > 0 ? 1 / rate : 0;
    return STATUS_OK;
}

static double rate_of(double slowness)
{
    return slowness > 0 ? 1 / slowness : 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

enum status block_prepare(struct run *run)
{
    double rates[PROBES], us[ALIGNS];
    for (int i = 0; i < PROBES; i++)
        TRY(probe(run, &rates[i]));
    TRY(comm_max(run->env->world, rates, PROBES));
    for (int i = 0; i < PROBES; i++)
        rates[i] = rate_of(rates[i]);
    state_begin(run, rates, PROBES);
    run->rate = rates[PROBES - 1];
    for (int i = 0; i < ALIGNS; i++) {
        int64_t from = clock_ns();
        TRY(comm_barrier(run->env->world, run->queue));
        if (run_behind(run))
            TRY(dev_sync(run->queue, clock_deadline(ALIGN_US)));
        us[i] = (double)(clock_ns() - from) * 1e-3;
    }
    TRY(comm_max(run->env->world, us, ALIGNS));
    qsort(us, ALIGNS, sizeof us[0], ascending);
    run->align_us = us[ALIGNS / 2];
    return STATUS_OK;
}

static double switches_so_far(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? (double)usage.ru_nivcsw : 0;
}

/* us: of one iteration of the whole problem. real_us: what the sample took. switches: how often the CPU was taken away meanwhile. */
struct timed {
    double us, real_us, switches;
};

static const char warming[] = "warm-up", loading[] = "load", timing[] = "timed sample"; /* names of ranges */

/* The same where the device runs behind the host: what is timed is only put on the queue. Marks would be in the time, so phases are read
 * from iterations before: behind the gate, but for the first one, whose launches may wait for the device. */
static enum status sample_behind(struct run *run, struct row *row, const char *name, int loop, struct timed *out, enum status *failed)
{
    bool told = name == warming && row->warmups > 0 && row->graph == NULL && row->subject->timed != NULL;
    enum timing_how gated = subject_host_driven(row->subject, row->c) ? TIMING_OPEN : TIMING_GATED;
    enum timing_how how = told                           ? gated
                          : name != timing               ? TIMING_OPEN
                          : row->c->timing == BENCH_LOOP ? TIMING_HOST
                                                         : gated;
    int64_t from = clock_ns();
    double us = 0;
    dev_queue_marks(row->subject->queue(row->state), told);
    TRY(timing_begin(run->timing, how, row->subject->queue(row->state)));
    range_push_at(name, row->iteration);
    if (row->graph != NULL)
        *failed = dev_graph_run(row->graph, row->subject->queue(row->state));
    for (int i = 0; i < loop && *failed == STATUS_OK && row->graph == NULL; i++)
        *failed = row->subject->enqueue(row->state, row->iteration + i);
    range_pop();
    dev_queue_marks(row->subject->queue(row->state), true);
    if (group_is_over(*failed)) { /* nothing is waited for any more, neither the device nor ranks */
        timing_leave(run->timing);
        return *failed;
    }
    TRY(timing_end(run->timing, &us));
    if (told)
        TRY(row->subject->timed(row->state, *failed == STATUS_OK));
    *out = (struct timed){.us = us / loop, .real_us = (double)(clock_ns() - from) * 1e-3};
    row->iteration += loop;
    if (row->subject->whole_us != NULL && *failed == STATUS_OK)
        out->us = row->subject->whole_us(row->state, out->us);
    return STATUS_OK;
}

/* What a layer would do with its buffers now, once nobody stores into them any more. */
static enum status use(struct run *run, struct row *row)
{
    if (row->c->buffers != BENCH_USED)
        return STATUS_OK;
    TRY(comm_barrier(run->env->world, run->queue));
    row->subject->use(row->state);
    return STATUS_OK;
}

/* One sample: `loop` iterations back to back after the ranks were aligned. A failure of this rank alone is kept in *failed; one that
 * ends the job is returned. */
static enum status sample(struct run *run, struct row *row, const char *name, int loop, struct timed *out, enum status *failed)
{
    if (run_behind(run))
        return sample_behind(run, row, name, loop, out, failed);
    TRY(use(run, row));
    TRY(comm_barrier(run->env->world, run->queue));
    double switches = switches_so_far();
    int64_t from = clock_ns();
    range_push_at(name, row->iteration);
    for (int i = 0; i < loop && *failed == STATUS_OK; i++)
        *failed = row->subject->iterate(row->state, row->iteration + i);
    range_pop();
    out->real_us = (double)(clock_ns() - from) * 1e-3;
    out->switches = switches_so_far() - switches;
    out->us = out->real_us / loop;
    row->iteration += loop;
    if (row->subject->whole_us != NULL && *failed == STATUS_OK)
        out->us = row->subject->whole_us(row->state, out->us);
    return group_is_over(*failed) ? *failed : STATUS_OK;
}

/* All ranks know that one failed: why, and the row is settled. */
static enum status settle_failed(struct run *run, struct row *row, enum status mine)
{
    enum status status = group_agree(run->env, mine);
    if (group_is_over(status))
        return status;
    row_fail(row, status != STATUS_OK ? status_last()->what : "a rank failed");
    status_clear();
    return STATUS_OK;
}

struct complaint {
    int wrong;
    char why[256];
};

/* All ranks know that data of one are wrong: what the first of them says. */
static enum status settle_wrong(struct run *run, struct row *row, bool ok, const char why[256])
{
    int size = comm_size(run->env->world);
    struct complaint mine = {.wrong = !ok}, *all = NULL;
    char text[256];
    if (!ok)
        memcpy(mine.why, why, sizeof mine.why);
    enum status status = group_agree(run->env, mem_alloc((size_t)size * sizeof *all, "complaints", (void **)&all));
    if (status == STATUS_OK)
        status = boot_allgather(comm_boot(run->env->world), &mine, sizeof mine, all, clock_deadline(BOOT_DEADLINE_US));
    for (int r = 0; r < size && status == STATUS_OK && !row->settled; r++)
        if (all[r].wrong) {
            text_print(text, sizeof text, "wrong data on rank %d: %.220s", r, all[r].why);
            row_fail(row, text);
        }
    free(all);
    return status;
}

/* Microseconds left for this call; a lot when there is no budget. */
static double left_us(const struct run *run)
{
    return run->options->budget_us < 0 ? INFINITY : (double)run->options->budget_us - run->elapsed_us;
}

enum { LOOP = 20 };

static enum status put_all(void *arg)
{
    struct row *row = arg;
    struct dev_queue *queue = row->subject->queue(row->state);
    enum status status = STATUS_OK;
    dev_queue_marks(queue, false);
    for (int i = 0; i < row->loop && status == STATUS_OK; i++)
        status = row->subject->enqueue(row->state, row->iteration + i);
    dev_queue_marks(queue, true);
    return status;
}

/* As many iterations as make a graph of some 10 ms; it runs once, since the first run is not like the others. */
static enum status graph_open(struct run *run, struct row *row)
{
    struct timed timed;
    enum status failed = STATUS_OK;
    row->loop = (int)fmax(1, fmin(10e3 / fmax(row->real_us, 1), LOOP));
    row->real_us *= row->loop;
    enum status status = group_agree(run->env, dev_graph_create(row->subject->queue(row->state), put_all, row, &row->graph));
    if (group_is_over(status))
        return status;
    if (status != STATUS_OK) {
        if (status == STATUS_UNSUPPORTED)
            row_waive(row, RULE_ABSENT, "%s", status_last()->what);
        else
            row_fail(row, status_last()->what);
        status_clear();
        return STATUS_OK;
    }
    TRY(sample(run, row, warming, row->loop, &timed, &failed));
    return failed != STATUS_OK ? settle_failed(run, row, failed) : STATUS_OK;
}

/* Is each of its blocks taken after a load? */
static bool is_loaded(const struct run *run, const struct row *row)
{
    return run_behind(run) && row->subject->computes;
}

/* Is another warm-up too long? Behind a host the first says nothing: it loads kernels, and nobody is told of its phases. */
static bool warm_enough(const struct run *run, const struct row *row)
{
    return row->warmups > (run_behind(run) ? 1 : 0) && row->real_us > left_us(run) / 10;
}

enum status block_warm(struct run *run, struct row *row)
{
    int least = is_loaded(run, row) ? 2 : 1; /* the last one says how long its loads are */
    int wanted = run->options->warmup > least ? run->options->warmup : least;
    double shortest = INFINITY; /* behind the first: a spike makes no iteration a long one */
    while (row->warmups < wanted) {
        struct agreed a;
        enum status failed = STATUS_OK;
        struct timed timed;
        TRY(sample(run, row, warming, 1, &timed, &failed));
        agreed_init(run, &a);
        a.flag[FAILED] = failed != STATUS_OK;
        a.flag[REAL_US] = timed.real_us;
        TRY(agree(run, &a, 0));
        if (a.flag[FAILED] > 0)
            return settle_failed(run, row, failed);
        shortest = row->warmups++ > 0 ? fmin(shortest, a.flag[REAL_US]) : shortest;
        row->real_us = a.flag[REAL_US];
        if (run->interrupted || left_us(run) <= 0 || warm_enough(run, row))
            break;
    }
    row->loop = 1;
    if (row->c->timing == BENCH_GRAPH)
        return graph_open(run, row);
    if (row->c->timing == BENCH_LOOP) /* as nccl-tests, unless that takes seconds */
        row->loop = row->real_us * LOOP < 2e6 ? LOOP : 2;
    else if (is_loaded(run, row))
        row->loop = bench_loaded_loop(fmin(shortest, row->real_us));
    row->real_us *= row->loop;
    return STATUS_OK;
}

int bench_load(double us)
{
    return us > 0 && us < 10.0 * LOAD_US ? (int)fmax(1, LOAD_US / fmax(us, 1) + 0.5) : 0;
}

/* The device waits for the host between samples, some 0.1 ms: of short ones so much of the time that its clocks rise again. */
int bench_loaded_loop(double us)
{
    return us > 0 ? (int)fmax(1, fmin(LOADED_SAMPLE_US / us + 0.5, LOADED_LOOP_MAX)) : 1;
}

static int samples_behind(double sample_us)
{
    return (int)fmax(1, fmin(LOADED_US / fmax(sample_us, 0.01), BLOCK_SAMPLES_MAX));
}

int bench_load_samples(double us)
{
    return samples_behind(us * bench_loaded_loop(us));
}

double bench_loaded_us(double us, int samples)
{
    int each = bench_load_samples(us), blocks = (samples + each - 1) / each;
    return us * (samples * bench_loaded_loop(us) + blocks * bench_load(us));
}

/* Iterations that are put on the queue as one. */
static int unit_of(const struct row *row)
{
    return row->graph != NULL ? row->loop : 1;
}

static double unit_us(const struct row *row)
{
    return row->real_us / row->loop * unit_of(row);
}

double block_load_us(const struct run *run, const struct row *row)
{
    return is_loaded(run, row) ? bench_load(unit_us(row)) * unit_us(row) : 0;
}

/* Samples of the next block: about 20 ms of them beside other rows, 50 ms alone; 60 ms behind a load. */
static int samples_next(const struct run *run, const struct row *row)
{
    double each = fmax(row->real_us, 0.01), wanted = (run->nwave > 1 ? 20e3 : 50e3) / each;
    if (is_loaded(run, row))
        wanted = samples_behind(each);
    wanted = fmin(wanted, (left_us(run) - block_load_us(run, row)) / each);
    wanted = fmin(wanted, (double)(run->options->samples_max - row->n));
    wanted = fmin(wanted, BLOCK_SAMPLES_MAX);
    return wanted > 1 ? (int)wanted : 1;
}

/* The first block always; later ones when that costs little beside the block itself. */
static bool verify_next(const struct row *row)
{
    return row->blocks == 0 || row->verify_us < 0.1 * row->block_us;
}

/* A GPU that was idle computes at clocks that its power limit does not let it keep: after some 50 ms it is slower, by up to a fifth, and stays so.
 * What trains computes for long, so that is the state in which computing is timed. Ranks agreed on real_us: all do the same. */
static enum status load(struct run *run, struct row *row, double *load_us, enum status *failed)
{
    struct timed timed;
    int unit = unit_of(row), units = is_loaded(run, row) ? bench_load(unit_us(row)) : 0;
    int part = row->graph != NULL ? 1 : (int)fmax(1, fmin(LOAD_PART_US / unit_us(row), units));
    int64_t from = clock_ns();
    for (int done = 0; done < units; done += part)
        TRY(sample(run, row, loading, unit * (part < units - done ? part : units - done), &timed, failed));
    *load_us = units > 0 ? (double)(clock_ns() - from) * 1e-3 : 0;
    return STATUS_OK;
}

/* The samples themselves. *real_us: of the shortest, so that a spike does not shrink the next block. */
static enum status take_samples(struct run *run, struct row *row, int k, bool verify, struct agreed *a, double *real_us,
                                enum status *failed)
{
    struct timed timed;
    *real_us = 0;
    if (row->c->buffers != BENCH_COLD && row->real_us < 2000.0 * row->loop) /* what others left in the caches is not this row's */
        TRY(sample(run, row, warming, 1, &timed, failed));
    for (int i = 0; i < k; i++) { /* a rank that failed still aligns with the others */
        if (i == k - 1 && verify) {
            TRY(peers_done(run));
            if (*failed == STATUS_OK)
                *failed = row->subject->poison(row->state);
            if (group_is_over(*failed))
                return *failed;
        }
        TRY(sample(run, row, timing, row->loop, &timed, failed));
        times_of(a)[i] = timed.us;
        switches_of(a, k)[i] = timed.switches;
        *real_us = i == 0 ? timed.real_us : fmin(*real_us, timed.real_us);
    }
    return STATUS_OK;
}

/* The share of time that went to others, if that can have moved the median: a rank that lost its CPU for long while it aligned, or
 * during one of many short samples, has spoilt none or one of them. */
static double lost_share(struct agreed *a, int k)
{
    int disturbed = 0;
    for (int i = 0; i < k; i++)
        disturbed += switches_of(a, k)[i] > 0;
    return fmax(a->flag[STEAL], disturbed > 0.15 * k ? a->flag[WAIT] : 0);
}

/* Is the GPU's part of the conditions judged, and bad? */
static bool gpu_disturbed(const struct run *run, struct agreed *a)
{
    return run->options->repeats >= 0 && !run->options->oversubscribed && conditions_gpu_disturbed(a->flag + GPU);
}

/* Keep the samples, unless the CPUs were not in the run's state, or the GPUs not as usual. */
static enum status keep(struct run *run, struct row *row, struct agreed *a, int k, double before, double load_us,
                        bool verified)
{
    double after = rate_of(a->flag[PROBE]);
    enum state_verdict verdict = state_judge(run, before, after, lost_share(a, k), a->flag[THROTTLED]);
    if (verdict == STATE_SAME && gpu_disturbed(run, a))
        verdict = STATE_OUTSIDE;
    double share = run->env->memo.fma_best > 0 ? after / run->env->memo.fma_best : 0;
    if (verdict == STATE_CHANGED) {
        for (int i = 0; i < run->n; i++)
            if (!run->rows[i].settled)
                row_restart(&run->rows[i]);
        for (int i = 0; i < run->nceilings; i++)
            ceiling_restart(run->ceilings[i]);
        return STATUS_OK;
    }
    if (verdict == STATE_OUTSIDE && row->repeats_left > 0 && row->repeats_total > 0 && !run->interrupted && left_us(run) > a->flag[BLOCK_US]) {
        row->repeats_left--;
        row->repeats_total--;
        row->repeated++;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL); /* whoever disturbed us gets his turn now */
        return STATUS_OK;
    }
    TRY(mem_grow((void **)&row->times_us, &row->cap, (size_t)(row->n + k), sizeof *row->times_us));
    memcpy(row->times_us + row->n, times_of(a), (size_t)k * sizeof *row->times_us);
    row->n += k;
    row->tainted += verdict == STATE_OUTSIDE ? k : 0;
    row->repeats_left = run->options->repeats;
    row->verified += verified ? 1 : 0;
    row->state_sum += share;
    row->state_min = row->blocks == 0 ? share : fmin(row->state_min, share);
    conditions_gpu_add(row->gpu, a->flag + GPU, row->blocks == 0);
    row->load_us = row->blocks == 0 ? load_us : fmin(row->load_us, load_us);
    row->steal_max = fmax(row->steal_max, a->flag[STEAL]);
    row->wait_max = fmax(row->wait_max, a->flag[WAIT]);
    row->throttled += a->flag[THROTTLED];
    row->blocks++;
    return STATUS_OK;
}

enum status block_run(struct run *run, struct row *row)
{
    struct agreed a = {{0}};
    struct conditions from;
    struct gpu_facts gpu_from, gpu_to;
    enum status failed = STATUS_OK;
    bool ok = true, verify = verify_next(row);
    char why[256] = "";
    double slowness = 0, real_us, load_us, before = run->rate;
    int k = samples_next(run, row);
    gpu_watch_read(run->watch, &gpu_from); /* before the load: it takes milliseconds, in which a GPU would rest */
    conditions_read(&from);
    TRY(load(run, row, &load_us, &failed));
    TRY(take_samples(run, row, k, verify, &a, &real_us, &failed));
    struct conditions_span span = conditions_since(&from);
    gpu_watch_read(run->watch, &gpu_to);
    TRY(probe(run, &slowness));
    int64_t at = clock_ns();
    if (verify && failed == STATUS_OK)
        failed = RANGE("verify", row->subject->verify(row->state, &ok, why));
    if (group_is_over(failed))
        return failed;
    agreed_init(run, &a);
    a.flag[FAILED] = failed != STATUS_OK;
    a.flag[WRONG] = !ok;
    a.flag[PROBE] = slowness;
    a.flag[STEAL] = span.steal_share;
    a.flag[WAIT] = span.wait_share;
    a.flag[THROTTLED] = span.throttled;
    a.flag[VERIFY_US] = verify ? (double)(clock_ns() - at) * 1e-3 : 0;
    a.flag[BLOCK_US] = span.elapsed_us;
    a.flag[REAL_US] = real_us;
    conditions_gpu_between(&gpu_from, &gpu_to, span.elapsed_us, a.flag + GPU);
    TRY(agree(run, &a, k));
    run->rate = rate_of(a.flag[PROBE]);
    if (a.flag[FAILED] > 0)
        return settle_failed(run, row, failed);
    if (a.flag[WRONG] > 0)
        return settle_wrong(run, row, ok, why);
    row->verify_us = verify ? a.flag[VERIFY_US] : row->verify_us;
    row->block_us = a.flag[BLOCK_US];
    row->real_us = a.flag[REAL_US];
    return keep(run, row, &a, k, before, load_us, verify);
}
