/* sp/exec_run.c -- the chunks of a layer, in one of two orders.
 *
 * In turn, all on the caller's queue:      in 0 | attention 0 | out 0 | in 1 | attention 1 | out 1 | ...
 *
 * Beside each other, with chunks and a device that can: a second queue carries the exchanges, so that only the first
 * way in and the last way out are exposed.
 *
 *     exchanges    in 0 | in 1        | out 0  in 2 | out 1  in 3 | ...         | out n-1
 *     attention         | attention 0 | attention 1 | attention 2 | ...         |
 *
 * On a GPU a kernel of attention may leave others no room until it ends. What comes in would then be behind what goes out, and attention
 * behind both, so there all chunks but the first come in together, before the first attention has filled it. Where links are slow
 * beside attention that exposes more: up to (n-1)/n of the way in less 1/n of attention.
 *
 *     exchanges    in 0 | in of all others | out 0       | out 1       | ...         | out n-1
 *     attention         | attention 0      | attention 1 | attention 2 | ...         |
 *
 * The order on the second queue is fixed, the same on every rank, as collectives need it.
 */
#include "sp/exec_state.h"

/* Of a chunk, for a queue that calls it. */
static enum status call_in(void *arg)
{
    struct exec_step *step = arg;
    struct exec *exec = step->exec;
    const int chunk = (int)(step - exec->steps);
    TRY(dev_mark(step->mark[EXEC_IN_BEGINS], exec->beside));
    TRY(exec_step_in(exec, exec->backward, exec->together && chunk == 1 ? &exec->rest : &step->heads, chunk, exec->beside));
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

/* Exchanges that bring heads in, beside attention. */
static int ways_in(const struct exec *exec)
{
    return exec->together ? 2 : exec->plan.chunks;
}

/* The second queue starts after what the caller put on its own, and the caller's goes on after the second. */
static enum status beside(struct exec *exec, struct dev_queue *queue)
{
    struct exec_step *steps = exec->steps;
    const int n = exec->plan.chunks, ways = ways_in(exec);
    dev_queue_marks(exec->beside, dev_queue_marks_on(queue));
    TRY(dev_event_wait(exec->beside, exec->begins));
    TRY(dev_call(exec->beside, call_in, &steps[0]));
    TRY(dev_event_record(exec->arrived[0], exec->beside));
    for (int c = 0; c < n; c++) {
        if (c + 1 < ways) {
            TRY(dev_call(exec->beside, call_in, &steps[c + 1]));
            TRY(dev_event_record(exec->arrived[(c + 1) % 2], exec->beside));
        }
        if (c < ways)
            TRY(dev_event_wait(queue, exec->arrived[c % 2]));
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
    return status == STATUS_OK ? status : dev_queue_drain(exec->beside, status);
}

/* Summed over chunks. */
static double part_us(const struct exec *exec, unsigned part, enum exec_mark from)
{
    const int n = part == EXEC_IN && exec->ran == EXEC_ALL ? ways_in(exec) : exec->plan.chunks;
    double sum = 0, us;
    if (!(exec->ran & part))
        return 0;
    for (int c = 0; c < n; c++)
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
