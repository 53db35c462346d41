/* cli/prove.c -- steps that were predicted, taken.
 *
 * The harness runs a candidate's plan as it stands: its exchange, kernel, ZeRO stage, checkpointing and form of the loss, on this
 * project's own sources. Its first step is left out (memory is touched, plans of kernels are made); the others' median is compared. The
 * harness is not the target: it has no Python, and its own memory savers.
 */
#include "cli/prove.h"

#include "base/interrupt.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/units.h"
#include "bench/spin.h"
#include "results/stats.h"
#include "train/run.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, FIRST = 1 /* and one before them */ };

struct taken {
    double us[STEPS];
    int n;
};

static enum status begin(void *arg, struct trainer *trainer, int64_t steps)
{
    (void)arg;
    (void)trainer;
    (void)steps;
    return STATUS_OK;
}

static enum status on_step(void *arg, const struct trainer_report *report, const double *eval)
{
    struct taken *taken = arg;
    (void)eval;
    if (report->step >= FIRST && taken->n < STEPS)
        taken->us[taken->n++] = report->seconds * 1e6;
    return STATUS_OK;
}

static bool stop(void *arg)
{
    (void)arg;
    return interrupt_pending() != 0;
}

/* Why the harness does not run it, "" when it does. */
static const char *refusal(const struct recommendation *rec, const struct recommend_candidate *c, int ranks)
{
    const struct plan *plan = &c->plan;
    int64_t available = 0;
    if (rec->request.world != ranks)
        return "the job is larger than what runs here";
    if (rec->request.model.unlike[0] != '\0' || rec->request.model.vocab < 256)
        return rec->request.model.unlike[0] != '\0' ? rec->request.model.unlike : "its vocabulary does not hold bytes";
    if (trainer_cannot(plan)[0] != '\0')
        return trainer_cannot(plan);
    if (rec->request.problem.docs > 0)
        return "its documents are not those of the planned data";
    if (rec->request.dev == DEV_CPU && mem_available(&available) == STATUS_OK &&
        c->memory.peak_bytes + c->memory.host_bytes > available / ranks)
        return "its peak is more than a rank's share of the free memory here";
    return "";
}

static void options_fill(const struct recommendation *rec, const struct recommend_candidate *c, struct run_options *out)
{
    struct trainer_options *o = &out->trainer;
    memset(out, 0, sizeof *out); /* broadcast as bytes */
    out->trains = true;
    o->model = rec->request.model;
    o->plan = c->plan;
    o->plan.order_n = 0;
    o->dtype = rec->request.problem.dtype;
    o->seqs[0] = rec->request.problem.seq;
    o->n_seqs = 1;
    o->steps = FIRST + STEPS;
    o->epochs = FIRST + STEPS; /* of short data */
    o->lr = o->min_lr = 1e-6;
    o->beta1 = 0.9;
    o->beta2 = 0.95;
    o->eps = 1e-8;
    o->clip = 1;
    o->seed = rec->request.seed;
}

static enum status prove_one(struct ranks *ranks, const struct recommendation *rec, struct recommend_proof *proof)
{
    const struct recommend_candidate *c = &rec->candidates[proof->candidate];
    struct run_options *options = malloc(sizeof *options);
    struct taken taken = {0};
    struct run_sink sink = {.arg = &taken, .begin = begin, .step = on_step, .stop = stop};
    struct run_result result;
    double rate;
    const char *why = refusal(rec, c, comm_size(ranks->env.world));
    if (options == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a proof");
    text_print(proof->why, sizeof proof->why, "%s", why);
    if (why[0] != '\0') {
        free(options);
        return STATUS_OK;
    }
    options_fill(rec, c, options);
    enum status status = ranks_tell(ranks, "train", options, sizeof *options);
    if (status == STATUS_OK)
        status = spin_rate_ranks(ranks->env.world, ranks->env.dev, &rate);
    if (status == STATUS_OK)
        status = run_train(options, ranks->env.world, ranks->env.dev, &sink, &result);
    free(options);
    bool cannot =
        status == STATUS_USAGE || status == STATUS_UNSUPPORTED || status == STATUS_NOMEM || status == STATUS_CHECK;
    if (cannot && status_last()->agreed) {
        /* all ranks have said the same, and wait for the next order: the answer stands without its proof */
        text_print(proof->why, sizeof proof->why, "%s", status_last()->what);
        status_clear();
        return STATUS_OK;
    }
    TRY(status);
    if (taken.n < STEPS) {
        text_print(proof->why, sizeof proof->why, "%d of %d steps were taken", taken.n, STEPS);
        return STATUS_OK;
    }
    proof->step_us = stats_median(taken.us, STEPS);
    proof->bytes = result.peak_bytes;
    return STATUS_OK;
}

enum status prove_run(struct ranks *ranks, struct recommendation *rec)
{
    int runner_up = -1;
    if (rec->chosen < 0)
        return STATUS_OK;
    for (int i = 0; i < rec->n && runner_up < 0; i++)
        if (i != rec->chosen && rec->candidates[i].priced && rec->candidates[i].fit != WORK_DOES_NOT_FIT)
            runner_up = i;
    rec->proofs[0].candidate = rec->chosen;
    rec->proofs[1].candidate = runner_up;
    rec->nproofs = runner_up >= 0 ? 2 : 1;
    for (int p = 0; p < rec->nproofs; p++) {
        char what[64];
        text_print(what, sizeof what, "%d steps at sp %d", FIRST + STEPS,
                   rec->candidates[rec->proofs[p].candidate].plan.sp);
        progress_begin(what, 0);
        enum status status = prove_one(ranks, rec, &rec->proofs[p]);
        progress_end();
        TRY(status);
    }
    return STATUS_OK;
}
