/* bench/state.c -- the state of the CPUs that rows are measured in.
 *
 * Virtual CPUs share a physical core at times, clocks change, neighbours come and go: the same code then takes up to twice as long, for
 * milliseconds or for hours. Rows of one run are compared with each other, so they must be measured in one state. A block is in the
 * state when the probes before and after it are within a band around the state's rate and the CPU was not given to others meanwhile. Three probes
 * in a row outside the state that agree among themselves are a new state: what the run has is thrown away and it starts over in it.
 */
#include "bench/measure.h"

#include "base/log.h"

#include <math.h>

static const double band = 0.15;        /* twice what quiet probes scatter, less than the step to a shared core */
static const double alike = 0.10;
static const double lost_most = 0.15;   /* a time may be off by as much as that */
enum { RESTARTS_MAX = 2 };

bool state_judged(const struct run *run)
{
    return run->options->repeats >= 0 && !run->options->oversubscribed && !run_behind(run);
}

static bool within(double rate, double reference, double share)
{
    return rate >= reference * (1 - share) && rate <= reference / (1 - share);
}

static void best_update(struct run *run, double rate)
{
    run->env->memo.fma_best = fmax(run->env->memo.fma_best, rate);
}

static void state_take(struct run *run, double rate)
{
    struct bench_memo *memo = &run->env->memo;
    memo->state_rate = rate;
    run->nrecent = 0;
    if (memo->warned || !state_judged(run) || rate >= memo->fma_best * (1 - band))
        return;
    memo->warned = true;
    log_warn("the CPUs compute at %.0f %% of the best rate seen here: what is measured now is marked with its state",
             100 * rate / memo->fma_best);
}

void state_begin(struct run *run, const double *rates, int n)
{
    struct bench_memo *memo = &run->env->memo;
    double low = INFINITY, high = 0;
    for (int i = 0; i < n; i++) {
        best_update(run, rates[i]);
        low = fmin(low, rates[i]);
        high = fmax(high, rates[i]);
    }
    if (memo->state_rate == 0 || (within(low, high, alike) && !within(high, memo->state_rate, band)))
        state_take(run, high);
}

/* Remember a probe outside the state; true when three in a row agree. */
static bool lasts(struct run *run, double rate)
{
    enum { PROBES = 3 };
    if (run->nrecent > 0 && !within(rate, run->recent[run->nrecent - 1], alike))
        run->nrecent = 0;
    if (run->nrecent < PROBES)
        run->recent[run->nrecent++] = rate;
    return run->nrecent == PROBES;
}

enum state_verdict state_judge(struct run *run, double before, double after, double lost, double throttled)
{
    double state = run->env->memo.state_rate;
    best_update(run, after);
    if (!state_judged(run))
        return STATE_SAME;
    if (within(after, state, band)) {
        run->nrecent = 0;
        bool quiet = lost <= lost_most && throttled <= 0;
        return within(before, state, band) && quiet ? STATE_SAME : STATE_OUTSIDE;
    }
    if (!lasts(run, after) || run->restarts >= RESTARTS_MAX)
        return STATE_OUTSIDE;
    run->restarts++;
    state_take(run, after);
    return STATE_CHANGED;
}
