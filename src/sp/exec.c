/* sp/exec.c -- the life of an exec, whatever its method: checked, made and agreed on by all ranks, run, told of. */
#include "sp/exec_state.h"

#include "base/mem.h"

#include <stdlib.h>

/* What was given, checked; from here on a rank's heads are all there are. */
static enum status accept(struct exec *exec)
{
    TRY(problem_check(&exec->given));
    struct verdict verdict = plan_check(&exec->given, &exec->given_plan, dev_kind_of(exec->dev));
    if (!verdict_ok(&verdict)) {
        char text[PLAN_TEXT];
        return WHERE(FAIL(STATUS_UNSUPPORTED, "%s", verdict.why), "%.200s", plan_text(&exec->given_plan, text));
    }
    exec->problem = exec->given;
    exec->plan = exec->given_plan;
    return plan_cut(&exec->problem, &exec->plan);
}

/* What can fail on this rank alone. */
static enum status prepare(struct exec *exec)
{
    const struct problem *problem = &exec->problem;
    TRY(accept(exec));
    if (comm_size(exec->group) != exec->given_plan.sp)
        return FAIL(STATUS_USAGE, "a plan of sp %d on a group of %d ranks", exec->given_plan.sp,
                    comm_size(exec->group));
    exec->sp = exec->plan.sp; /* split_gather: 1 after plan_cut, whatever the group */
    exec->rank = comm_rank(exec->group) % exec->sp;
    exec->dim = problem->head_dim;
    exec->dim_v = problem_dim_v(problem);
    exec->elem_bytes = dtype_bytes(problem->dtype);
    exec->attention = attention_find(exec->plan.attention);
    TRY(dev_event_create(exec->dev, &exec->begins));
    TRY(dev_event_create(exec->dev, &exec->ends));
    return exec_layer_prepare(exec);
}

enum status exec_create(const struct problem *problem, const struct plan *plan, struct comm *group, struct dev *dev,
                        struct exec **out)
{
    static const char doing[] = "prepare this layer";
    struct exec *exec = NULL;
    enum status status = mem_alloc(sizeof *exec, "an attention layer", (void **)&exec);
    if (status == STATUS_OK) {
        exec->given = *problem;
        exec->given_plan = *plan;
        exec->group = group;
        exec->dev = dev;
        exec->room.dev = dev;
        status = prepare(exec);
    }
    TRY_OUT(comm_agree(group, status, doing));
    TRY_OUT(comm_agree(group, exec_layer_build(exec), doing));
    *out = exec;
    return STATUS_OK;
out:
    exec_destroy(exec);
    return status;
}

enum status exec_documents(struct exec *exec, const struct problem *problem)
{
    if (!problem_alike(problem, &exec->given))
        return FAIL(STATUS_USAGE, "a layer that was prepared for another problem, not for other documents of this one");
    exec->given = *problem;
    exec->has_forward = false;
    TRY(accept(exec));
    return exec_layer_documents(exec);
}

void exec_destroy(struct exec *exec)
{
    if (exec == NULL)
        return;
    exec_layer_destroy(exec);
    dev_event_destroy(exec->ends);
    dev_event_destroy(exec->begins);
    free(exec);
}

const struct exec_tensors *exec_tensors(const struct exec *exec)
{
    return &exec->tensors;
}

int64_t exec_bytes(const struct exec *exec)
{
    return exec->room.bytes + exec->workspace_bytes + exec->exchange_bytes +
           (exec->ring != NULL ? ring_bytes(exec->ring) : 0);
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
    TRY(exec_run(exec, parts, queue));
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

enum status exec_exchange(struct exec *exec, enum problem_direction way, enum exchange_direction to,
                          struct dev_queue *queue)
{
    return run(exec, way == PROBLEM_BACKWARD, to == EXCHANGE_TO_HEADS ? EXEC_IN : EXEC_OUT, queue);
}

enum status exec_attention(struct exec *exec, enum problem_direction way, struct dev_queue *queue)
{
    return run(exec, way == PROBLEM_BACKWARD, EXEC_ATTENTION, queue);
}

const char *exec_in_use(const struct exec *exec)
{
    return exec->exchange != NULL ? exchange_in_use(exec->exchange, exec->exchange_state, exec->head_group)
                                  : comm_transport(exec->group);
}

const struct exec_times *exec_times(struct exec *exec)
{
    double whole;
    exec->times = (struct exec_times){0};
    exec_run_times(exec, &exec->times);
    if (exec->sp == 1 || exec->ran == 0)
        return &exec->times;
    if (dev_event_us(exec->begins, exec->ends, &whole) == STATUS_OK)
        exec->times.exposed_us = whole > exec->times.attention_us ? whole - exec->times.attention_us : 0;
    return &exec->times;
}
