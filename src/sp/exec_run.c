/* sp/exec_run.c -- forward and backward of a layer, in one of two orders.
 *
 * In turn, all on the caller's queue:      in 0 | attention 0 | out 0 | in 1 | attention 1 | out 1 | ...
 *
 * Beside each other, with chunks and a device that can: a second queue carries the exchanges, so that only the first
 * way in and the last way out are exposed.
 *
 *     exchanges    in 0 | in 1        | out 0  in 2 | out 1  in 3 | ...         | out n-1
 *     attention         | attention 0 | attention 1 | attention 2 | ...         |
 *
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
    TRY(dev_mark(step->mark[EXEC_IN_BEGINS], exec->beside));
    TRY(exec_step_in(exec, exec->backward, step, exec->beside));
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
            TRY(exec_step_in(exec, exec->backward, step, queue));
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
    TRY(dev_call(exec->beside, call_in, &steps[0]));
    TRY(dev_event_record(exec->arrived[0], exec->beside));
    for (int c = 0; c < n; c++) {
        if (c + 1 < n) {
            TRY(dev_call(exec->beside, call_in, &steps[c + 1]));
            TRY(dev_event_record(exec->arrived[(c + 1) % 2], exec->beside));
        }
        TRY(dev_event_wait(queue, exec->arrived[c % 2]));
        TRY(attention(exec, c, queue));
        TRY(dev_event_wait(exec->beside, steps[c].mark[EXEC_ATTENTION_ENDS]));
        TRY(dev_call(exec->beside, call_out, &steps[c]));
    }
    TRY(dev_event_record(exec->arrived[0], exec->beside));
    return dev_event_wait(queue, exec->arrived[0]);
}

static enum status run(struct exec *exec, bool backward, unsigned parts, struct dev_queue *queue)
{
    if (backward && !(exec->problem.direction & PROBLEM_BACKWARD))
        return FAIL(STATUS_USAGE, "backward of a layer that was prepared for forward only");
    if (backward && (parts & EXEC_ATTENTION) && !exec->has_forward)
        return FAIL(STATUS_USAGE, "backward of a layer before its forward: there are no softmax statistics");
    exec->ran = 0;
    exec->backward = backward;
    TRY(dev_event_record(exec->begins, queue));
    if (exec->beside != NULL && parts == EXEC_ALL) {
        enum status status = beside(exec, queue);
        if (status != STATUS_OK) { /* nothing may still be reading what the caller releases next */
            struct status_message message = *status_last();
            dev_sync(exec->beside, clock_deadline(DRAIN_US));
            status_restore(&message);
            return status;
        }
    } else {
        TRY(in_turn(exec, parts, queue));
    }
    TRY(dev_mark(exec->ends, queue));
    exec->ran = parts;
    if (!backward && (parts & EXEC_ATTENTION))
        exec->has_forward = true;
    return STATUS_OK;
}

enum status exec_forward(struct exec *exec, struct dev_queue *queue)
{
    return run(exec, false, EXEC_ALL, queue);
}

enum status exec_backward(struct exec *exec, struct dev_queue *queue)
{
    return run(exec, true, EXEC_ALL, queue);
}

enum status exec_exchange(struct exec *exec, bool backward, bool in, struct dev_queue *queue)
{
    return run(exec, backward, in ? EXEC_IN : EXEC_OUT, queue);
}

enum status exec_attention(struct exec *exec, bool backward, struct dev_queue *queue)
{
    return run(exec, backward, EXEC_ATTENTION, queue);
}

/* Summed over chunks. */
static double part_us(const struct exec *exec, unsigned part, enum exec_mark from)
{
    double sum = 0, us;
    if (!(exec->ran & part))
        return 0;
    for (int c = 0; c < exec->plan.chunks; c++)
        if (dev_event_us(exec->steps[c].mark[from], exec->steps[c].mark[from + 1], &us) == STATUS_OK)
            sum += us;
    return sum;
}

const struct exec_times *exec_times(struct exec *exec)
{
    bool alone = exec->exchange == NULL;
    double whole;
    exec->times = (struct exec_times){.attention_us = part_us(exec, EXEC_ATTENTION, EXEC_ATTENTION_BEGINS)};
    if (alone || exec->ran == 0)
        return &exec->times;
    exec->times.exchange_in_us = part_us(exec, EXEC_IN, EXEC_IN_BEGINS);
    exec->times.exchange_out_us = part_us(exec, EXEC_OUT, EXEC_OUT_BEGINS);
    if (dev_event_us(exec->begins, exec->ends, &whole) == STATUS_OK)
        exec->times.exposed_us = whole > exec->times.attention_us ? whole - exec->times.attention_us : 0;
    return &exec->times;
}
