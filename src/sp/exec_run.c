/* sp/exec_run.c -- the chunks of a layer, in one of two orders.
 *
 * In turn, all on the caller's queue:      in 0 | attention 0 | out 0 | in 1 | attention 1 | out 1 | ...
 *
 * Beside each other, with chunks and a device that can: a second queue carries the exchanges, so that only the first
 * way in and the last way out are exposed.
 *
 *     exchanges    in 0 | in of all others | out 0       | out 1       | ...         | out n-1
 *     attention         | attention 0      | attention 1 | attention 2 | ...         |
 *
 * All others at once, because a kernel of attention may leave another no room until it ends: what comes in then would be behind what goes
 * out, and attention behind both.
 * The order on the second queue is fixed, the same on every rank, as collectives need it.
 */
#include "sp/exec_state.h"

#include "base/clock.h"

enum { DRAIN_US = 60 * 1000 * 1000 }; /* exchanges have deadlines of their own, all shorter */

/* Of a chunk, for a queue that calls it. */
static enum status call_in(void *arg)
{
    struct exec_step *step = arg;
    struct exec *exec = step->exec;
    const int chunk = (int)(step - exec->steps);
    TRY(dev_mark(step->mark[EXEC_IN_BEGINS], exec->beside));
    TRY(exec_step_in(exec, exec->backward, chunk == 0 ? &step->heads : &exec->rest, chunk, exec->beside));
    return dev_mark(step->mark[EXEC_IN_ENDS], exec->beside);
}

static enum status call_out(void *arg)
{
    struct exec_step *step = arg;
    struct exec *exec = step->exec;
    TRY(dev_mark(step->mark[EXEC_OUT_BEGINS], exec->beside));
    TRY(exec_step_out(exec, exec->backward, step, exec->beside));
    return dev_mark(step->mark[EXEC_OUT_ENDS], exec->beside);
}

/* Its end is more than a mark: the way out waits for it. */
static enum status attention(struct exec *exec, int chunk, struct dev_queue *queue)
{
    struct exec_step *step = &exec->steps[chunk];
    TRY(dev_mark(step->mark[EXEC_ATTENTION_BEGINS], queue));
    TRY(exec_step_attention(exec, exec->backward, chunk, queue));
    return dev_event_record(step->mark[EXEC_ATTENTION_ENDS], queue);
}

static enum status in_turn(struct exec *exec, unsigned parts, struct dev_queue *queue)
{
    for (int c = 0; c < exec->plan.chunks; c++) {
        struct exec_step *step = &exec->steps[c];
        TRY(dev_mark(step->mark[EXEC_IN_BEGINS], queue));
        if (parts & EXEC_IN)
            TRY(exec_step_in(exec, exec->backward, &step->heads, c, queue));
        TRY(dev_mark(step->mark[EXEC_IN_ENDS], queue));
        if (parts & EXEC_ATTENTION)
            TRY(attention(exec, c, queue));
        TRY(dev_mark(step->mark[EXEC_OUT_BEGINS], queue));
        if (parts & EXEC_OUT)
            TRY(exec_step_out(exec, exec->backward, step, queue));
        TRY(dev_mark(step->mark[EXEC_OUT_ENDS], queue));
    }
    return STATUS_OK;
}

/* The second queue starts after what the caller put on its own, and the caller's goes on after the second. */
static enum status beside(struct exec *exec, struct dev_queue *queue)
{
    struct exec_step *steps = exec->steps;
    int n = exec->plan.chunks;
    dev_queue_marks(exec->beside, dev_queue_marks_on(queue));
    TRY(dev_event_wait(exec->beside, exec->begins));
    for (int c = 0; c < 2; c++) {
        TRY(dev_call(exec->beside, call_in, &steps[c]));
        TRY(dev_event_record(exec->arrived[c], exec->beside));
    }
    for (int c = 0; c < n; c++) {
        if (c < 2)
            TRY(dev_event_wait(queue, exec->arrived[c]));
        TRY(attention(exec, c, queue));
        TRY(dev_event_wait(exec->beside, steps[c].mark[EXEC_ATTENTION_ENDS]));
        TRY(dev_call(exec->beside, call_out, &steps[c]));
    }
    TRY(dev_event_record(exec->arrived[0], exec->beside));
    return dev_event_wait(queue, exec->arrived[0]);
}

enum status exec_run(struct exec *exec, unsigned parts, struct dev_queue *queue)
{
    if (exec->beside == NULL || parts != EXEC_ALL)
        return in_turn(exec, parts, queue);
    enum status status = beside(exec, queue);
    if (status == STATUS_OK)
        return STATUS_OK;
    struct status_message message = *status_last(); /* nothing may still be reading what the caller releases next */
    dev_sync(exec->beside, clock_deadline(DRAIN_US));
    status_restore(&message);
    return status;
}

/* Summed over chunks, of which those after the first come in together where that is beside attention. */
static double part_us(const struct exec *exec, unsigned part, enum exec_mark from)
{
    const bool together = part == EXEC_IN && exec->beside != NULL && exec->ran == EXEC_ALL;
    double sum = 0, us;
    if (!(exec->ran & part))
        return 0;
    for (int c = 0; c < (together ? 2 : exec->plan.chunks); c++)
        if (dev_event_us(exec->steps[c].mark[from], exec->steps[c].mark[from + 1], &us) == STATUS_OK)
            sum += us;
    return sum;
}

void exec_run_times(const struct exec *exec, struct exec_times *out)
{
    out->attention_us = part_us(exec, EXEC_ATTENTION, EXEC_ATTENTION_BEGINS);
    if (exec->ring != NULL && (exec->ran & EXEC_ATTENTION))
        ring_times(exec->ring, &out->attention_us, &out->exchange_in_us);
    if (exec->exchange == NULL)
        return;
    out->exchange_in_us += part_us(exec, EXEC_IN, EXEC_IN_BEGINS);
    out->exchange_out_us = part_us(exec, EXEC_OUT, EXEC_OUT_BEGINS);
}
