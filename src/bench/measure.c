/* bench/measure.c -- bench_run: waves of rows that fit in memory together, rounds of blocks in random order. */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "bench/group.h"

#include <stdlib.h>

static bool is_root(const struct run *run)
{
    return comm_rank(run->env->world) == 0;
}

bool run_behind(const struct run *run)
{
    return run->env->dev != NULL && dev_kind_of(run->env->dev) != DEV_CPU;
}

static bool out_of_time(const struct run *run)
{
    return run->interrupted || (run->options->budget_us >= 0 && run->elapsed_us >= (double)run->options->budget_us);
}

static void waive_late(struct run *run)
{
    for (int i = 0; i < run->n; i++)
        if (!run->rows[i].settled)
            row_waive(&run->rows[i], RULE_BUDGET, "%s before it was its turn",
                      run->interrupted ? "interrupted" : "the budget ended");
}

/* Create what fits beside each other. */
static enum status wave_open(struct run *run)
{
    run->nwave = 0;
    for (int i = 0; i < run->n; i++) {
        struct row *row = &run->rows[i];
        if (row->settled)
            continue;
        TRY(block_sync(run));
        if (out_of_time(run))
            return STATUS_OK;
        TRY(row_open(run, row, run->nwave > 0));
        if (row->state != NULL)
            run->nwave++;
        else if (!row->settled)
            return STATUS_OK; /* no room: this one and the rest come later */
    }
    return STATUS_OK;
}

/* Ceilings after all rows, which come first where memory is short. */
static enum status wave_warm(struct run *run)
{
    for (int i = 0; i < run->n; i++)
        if (!run->rows[i].settled && run->rows[i].state != NULL)
            TRY(block_warm(run, &run->rows[i]));
    for (int i = 0; i < run->n; i++)
        if (!run->rows[i].settled && run->rows[i].state != NULL)
            TRY(row_ceiling_open(run, &run->rows[i]));
    gpu_watch_settle(run->watch); /* now that all memory of this wave is mapped */
    return STATUS_OK;
}

/* One block of every row that is not done, in random order. */
static enum status round_run(struct run *run, bool *more)
{
    int order[BENCH_CASES_MAX], n = 0;
    for (int i = 0; i < run->n; i++)
        if (!run->rows[i].settled && run->rows[i].state != NULL)
            order[n++] = i;
    rng_shuffle(&run->rng, order, n);
    for (int i = 0; i < n; i++) {
        struct row *row = &run->rows[order[i]];
        row_stop(run, row);
        if (row->settled)
            continue;
        if (row->ceiling != NULL)
            TRY(ceiling_take(row->ceiling, run->queue));
        TRY(block_run(run, row));
        row_stop(run, row);
    }
    *more = n > 0;
    return STATUS_OK;
}

static void ceilings_close(struct run *run)
{
    while (run->nceilings > 0)
        ceiling_close(run->ceilings[--run->nceilings]);
}

/* Rows of this wave become samples while their subjects are there, then go. */
static enum status wave_close(struct run *run, struct sample *out)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < run->n; i++) {
        struct row *row = &run->rows[i];
        if (row->state != NULL && is_root(run) && status == STATUS_OK)
            status = row_sample(run, row, &out[i]);
        row_close(row);
        if (row->ceiling != NULL)
            row->limit = ceiling_result(row->ceiling);
        row->ceiling = NULL;
    }
    ceilings_close(run);
    return status;
}

static enum status wave_run(struct run *run)
{
    bool more = true;
    TRY(wave_warm(run));
    while (more)
        TRY(round_run(run, &more));
    return STATUS_OK;
}

static bool unsettled(const struct run *run)
{
    for (int i = 0; i < run->n; i++)
        if (!run->rows[i].settled)
            return true;
    return false;
}

static enum status waves(struct run *run, struct sample *out)
{
    for (run->wave = 0; unsettled(run); run->wave++) {
        enum status status = wave_open(run);
        if (status == STATUS_OK && run->nwave > 0)
            status = wave_run(run);
        if (status == STATUS_OK && out_of_time(run))
            waive_late(run);
        enum status closed = wave_close(run, out);
        TRY(status);
        TRY(group_agree(run->env, closed));
    }
    return STATUS_OK;
}

/* Rows that never had a subject, and the ceilings. */
static enum status finish(struct run *run, struct sample *out)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < run->n && is_root(run) && status == STATUS_OK; i++) {
        if (out[i].conditions == NULL)
            status = row_sample(run, &run->rows[i], &out[i]);
        if (status == STATUS_OK)
            row_ceilings(run, &run->rows[i], &out[i]);
    }
    return group_agree(run->env, status);
}

static enum status run_all(struct run *run, const struct bench_case *cases, struct sample *out)
{
    for (int i = 0; i < run->n; i++) {
        run->rows[i].c = &cases[i];
        row_check(run, &run->rows[i]);
    }
    TRY(block_sync(run));
    if (out_of_time(run))
        waive_late(run);
    if (unsettled(run)) {
        comm_set_deadline(run->env->world, run->options->timeout_us);
        TRY(block_prepare(run));
        TRY(waves(run, out));
    }
    return finish(run, out);
}

enum status measure_run(struct bench_env *env, const struct bench_subject *const *subjects, const struct bench_case *cases, int n,
                        const struct bench_options *options, struct sample *out)
{
    struct run run = {.env = env, .options = options, .subjects = subjects, .n = n, .start_ns = clock_ns()};
    if (n < 1 || n > BENCH_CASES_MAX)
        return FAIL(STATUS_USAGE, "%d cases in one run; 1 to %d", n, BENCH_CASES_MAX);
    for (int i = 0; i < n && comm_rank(env->world) == 0; i++)
        sample_init(&out[i]);
    rng_seed(&run.rng, cases[0].seed, (uint64_t)n);
    enum status status = mem_alloc((size_t)n * sizeof *run.rows, "rows", (void **)&run.rows);
    if (status == STATUS_OK)
        status = dev_queue_create(env->dev, &run.queue);
    status = group_agree(env, status);
    if (status == STATUS_OK)
        status = timing_open(env, &run.timing);
    if (status == STATUS_OK && run_behind(&run))
        run.watch = gpu_watch_open(dev_place(env->dev));
    if (status == STATUS_OK)
        status = run_all(&run, cases, out);
    gpu_watch_close(run.watch);
    ceilings_close(&run);
    for (int i = 0; i < n && run.rows != NULL; i++) {
        row_close(&run.rows[i]);
        free(run.rows[i].times_us);
    }
    free(run.rows);
    timing_close(run.timing);
    dev_queue_destroy(run.queue);
    for (int i = 0; i < n && status != STATUS_OK && comm_rank(env->world) == 0; i++)
        sample_free(&out[i]);
    return status;
}

enum status bench_run(struct bench_env *env, const struct bench_case *cases, int n, const struct bench_options *options,
                      struct sample *out)
{
    return measure_run(env, bench_subjects, cases, n, options, out);
}
