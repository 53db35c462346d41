/* tuner/native.c -- what our own harness would reach with the chosen sizes: its exchange may differ from what the
 * target runs. */
#include "tuner/search_state.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"

#include <stdlib.h>

static void ask(const struct search *search, const struct recommendation *out, struct request *native)
{
    *native = *search->request;
    native->space.nsp = 1;
    native->space.sp[0] = search->candidates.rows[out->chosen].plan.sp;
}

/* In the detail of the answer, so that the two compare; checked like everything that is timed. */
static enum status measure(struct search *search, const struct request *request, const struct candidates *candidates)
{
    if (interrupt_pending() || clock_passed(search->deadline_ns))
        return STATUS_OK;
    TRY(search_check(search, candidates));
    search_phase(search, 0.9, 0);
    return search->level == PARTS_COARSE ? search_coarse(search, request, candidates, false)
                                         : search_detail(search, request, candidates, NULL);
}

static enum status weigh(struct search *search, const struct request *request, struct candidates *candidates,
                         bool timed, struct recommendation *out)
{
    enum work_fit fit = WORK_DOES_NOT_FIT;
    TRY(measure(search, request, candidates));
    TRY(candidates_price(request, candidates, &search->pool, search->level, &search->scale));
    int best = candidates_choose(request, candidates, &search->pool, &fit);
    if (best < 0 || fit == WORK_DOES_NOT_FIT || candidates->rows[best].timed != timed)
        return STATUS_OK;
    out->native = candidates->rows[best];
    out->native_best = best;
    return STATUS_OK;
}

enum status native_find(struct search *search, struct recommendation *out)
{
    const struct target *own = target_find("sptune");
    struct request *request = NULL;
    struct candidates candidates = {0};
    if (own == NULL || search->request->target == own || out->chosen < 0)
        return STATUS_OK;
    TRY(mem_alloc(sizeof *request, "a request", (void **)&request));
    ask(search, out, request);
    enum status status = request_retarget(request, own);
    request->space.nmethod = request->space.nexchange = 0; /* a second line, not a second search: its first exchange */
    if (status == STATUS_OK)
        status = candidates_build(request, &candidates);
    if (status == STATUS_OK)
        status = weigh(search, request, &candidates, search->candidates.rows[out->chosen].timed, out);
    candidates_free(&candidates);
    free(request);
    return status;
}
