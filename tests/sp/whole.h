/* tests/sp/whole.h -- a layer of forked ranks against the unsharded reference: outputs, gradients, middle layout, memory.
 *
 * Every rank makes the whole tensors from the same seed, computes the whole problem with the reference kernel in fp32
 * and compares its own slices. Tolerance: fp32 2e-5 of the tensor's largest value; bf16 1.5 % of it (storage rounds to
 * 0.4 %, each copy of a gradient, and each step of a ring, once more); a cell that went astray is wrong by about 100 %.
 */
#ifndef SPTUNE_TESTS_SP_WHOLE_H
#define SPTUNE_TESTS_SP_WHOLE_H

#include "sp/sp_test.h"

#include "base/rng.h"
#include "comm/ranks.h"
#include "kernels/attention.h"
#include "model/model.h"
#include "sp/exec_state.h"
#include "sp/work.h"

#include <math.h>
#include <stdlib.h>

enum { TENSORS = 8 }; /* q k v d_o and o dq dk dv */
enum { Q, K, V, DO, O, DQ, DK, DV };

struct whole { /* the unsharded problem in fp32, padded */
    struct problem problem;
    int64_t tokens; /* batch * padded */
    float *t[TENSORS];
    int heads[TENSORS], dim[TENSORS];
};

static int64_t elems(const struct whole *w, int i)
{
    return w->tokens * w->heads[i] * w->dim[i];
}

/* Storage values: rounded to the dtype, so that both computations start from the same numbers. */
static void fill(const struct whole *w, int i)
{
    for (int64_t at = 0; at < elems(w, i); at++) {
        uint32_t bits = 0;
        double unit = (double)(rng_hash((uint64_t)i + 1, (uint64_t)at) >> 11) / 9007199254740992.0 - 0.5;
        dtype_set(w->problem.dtype, &bits, 0, (float)(2 * unit));
        w->t[i][at] = dtype_get(w->problem.dtype, &bits, 0);
    }
}

static void whole_free(struct whole *w)
{
    for (int i = 0; i < TENSORS; i++)
        free(w->t[i]);
}

static int whole_make(const struct problem *problem, int64_t padded, struct whole *w)
{
    const struct attention *reference = attention_find("reference");
    int64_t *cu = NULL;
    int docs = 0, dim = problem->head_dim, dim_v = problem_dim_v(problem);
    *w = (struct whole){.problem = *problem, .tokens = problem->batch * padded};
    for (int i = 0; i < TENSORS; i++) {
        w->heads[i] = i == K || i == V || i == DK || i == DV ? problem->kv_heads : problem->heads;
        w->dim[i] = i == V || i == DV || i == O || i == DO ? dim_v : dim;
        w->t[i] = calloc((size_t)elems(w, i) + 1, sizeof(float));
        RANK_CHECK(w->t[i] != NULL);
        if (i <= DO)
            fill(w, i);
    }
    RANK_TRY(problem_offsets(problem, padded, &cu, &docs));
    struct attention_shape shape = {.batch = docs ? 1 : problem->batch,
                                    .seq_q = docs ? w->tokens : padded,
                                    .seq_k = docs ? w->tokens : padded,
                                    .heads = problem->heads,
                                    .kv_heads = problem->kv_heads,
                                    .head_dim = dim,
                                    .head_dim_v = dim_v,
                                    .dtype = DTYPE_FP32,
                                    .causal = problem->causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                    .window = problem->window,
                                    .docs = docs,
                                    .cu_q = cu,
                                    .cu_k = cu};
    attention_shape_fill(&shape);
    size_t bytes = reference->workspace_bytes(&shape, true, 1), forward = reference->workspace_bytes(&shape, false, 1);
    void *workspace = calloc((bytes > forward ? bytes : forward) + 1, 1);
    float *lse = calloc((size_t)(w->tokens * problem->heads) + 1, sizeof *lse);
    RANK_CHECK(workspace != NULL && lse != NULL);
    struct attention_args args = {.q = w->t[Q],
                                  .k = w->t[K],
                                  .v = w->t[V],
                                  .o = w->t[O],
                                  .lse = lse,
                                  .d_o = w->t[DO],
                                  .dq = w->t[DQ],
                                  .dk = w->t[DK],
                                  .dv = w->t[DV],
                                  .workspace = workspace};
    RANK_TRY(reference->forward(&shape, &args, NULL));
    RANK_TRY(reference->backward(&shape, &args, NULL));
    free(lse);
    free(workspace);
    free(cu);
    return 0;
}

/* Where a token of a shard lies in the whole tensor. */
static int64_t whole_row(const struct whole *w, const struct shard *shard, int64_t b, int64_t token)
{
    return b * (w->tokens / w->problem.batch) + shard_position(shard, token);
}

static void slice_put(const struct whole *w, int i, const struct shard *shard, void *to)
{
    int64_t row = (int64_t)w->heads[i] * w->dim[i];
    for (int64_t b = 0; b < w->problem.batch; b++)
        for (int64_t token = 0; token < shard->local; token++)
            for (int64_t x = 0; x < row; x++)
                dtype_set(w->problem.dtype, to, (b * shard->local + token) * row + x,
                          w->t[i][whole_row(w, shard, b, token) * row + x]);
}

static int slice_compare(const struct whole *w, int i, const struct shard *shard, const void *got)
{
    static const char *const names[] = {"q", "k", "v", "d_o", "o", "dq", "dk", "dv"};
    int64_t row = (int64_t)w->heads[i] * w->dim[i];
    double most = 0.1, worst = 0; /* a gradient that cancels to 0 still rounds like its parts, which are about 1 */
    for (int64_t at = 0; at < elems(w, i); at++)
        most = fmax(most, fabs((double)w->t[i][at]));
    for (int64_t b = 0; b < w->problem.batch; b++)
        for (int64_t token = 0; token < shard->local; token++)
            for (int64_t x = 0; x < row; x++) {
                double value = (double)dtype_get(w->problem.dtype, got, (b * shard->local + token) * row + x);
                double error = fabs(value - (double)w->t[i][whole_row(w, shard, b, token) * row + x]);
                worst = error >= worst || isnan(error) ? error : worst;
            }
    double tolerance = w->problem.dtype == DTYPE_FP32 ? 2e-5 : 0.015;
    if (!(worst <= tolerance * most))
        fprintf(stderr, "%s of tokens %lld..: off by %g, largest value %g\n", names[i],
                (long long)(shard->n > 0 ? shard->range[0].first : 0), worst, most);
    RANK_CHECK(worst <= tolerance * most);
    return 0;
}

/* The head side after exchange in: exactly the whole tensor's lanes of the local heads. */
static int middle_compare(const struct whole *w, int i, const void *got, const struct shard *shard, int local,
                          int first)
{
    int64_t dim = w->dim[i];
    for (int64_t b = 0; b < w->problem.batch; b++)
        for (int64_t token = 0; token < shard->local; token++)
            for (int64_t x = 0; x < local * dim; x++)
                RANK_CHECK(dtype_get(w->problem.dtype, got, (b * shard->local + token) * local * dim + x) ==
                           w->t[i][whole_row(w, shard, b, token) * w->heads[i] * dim + first * dim + x]);
    return 0;
}

static int times_and_bytes(struct exec *exec, const struct problem *problem, const struct plan *plan)
{
    const struct exec_times *times = exec_times(exec);
    RANK_CHECK(times->attention_us >= 0);
    RANK_CHECK((exec->beside != NULL) == (plan->sp > 1 && plan->chunks > 1 && dev_can_overlap(exec->dev)));
    RANK_CHECK((exec->ring != NULL) == (plan_ring(plan) > 1));
    bool hidden = exec->ring != NULL && dev_can_overlap(exec->dev); /* what is passed on, by what computes meanwhile */
    if (plan->sp > 1) { /* in turn nothing is hidden; beside each other the first way in and the last way out are not */
        const struct exec_step *first = &exec->steps[0], *last = &exec->steps[plan->chunks - 1];
        double whole, in = times->exchange_in_us, out = times->exchange_out_us;
        RANK_TRY(dev_event_us(exec->begins, exec->ends, &whole));
        if (exec->beside != NULL) {
            RANK_TRY(dev_event_us(first->mark[EXEC_IN_BEGINS], first->mark[EXEC_IN_ENDS], &in));
            RANK_TRY(dev_event_us(last->mark[EXEC_OUT_BEGINS], last->mark[EXEC_OUT_ENDS], &out));
        }
        RANK_CHECK(hidden || times->exposed_us >= (in + out) * 0.999);
        RANK_CHECK(times->exposed_us + times->attention_us <= whole * 1.000001);
    }
    RANK_CHECK(plan->sp == 1 ? times->exposed_us == 0 : times->exchange_in_us > 0);
    RANK_CHECK((times->exchange_out_us > 0) == (plan_head_ranks(plan) > 1));
    RANK_CHECK(exec_bytes(exec) == work_exec_bytes(problem, plan) + exec->workspace_bytes);
    return 0;
}

/* Shapes that kernels were told of beforehand, of calls in both directions (-Wl,--wrap). */
static int prepared;

void __wrap_attention_prepare(const struct attention *attention, const struct attention_shape *const *shapes, int n,
                              bool backward);
void __wrap_attention_prepare(const struct attention *attention, const struct attention_shape *const *shapes, int n,
                              bool backward)
{
    for (int i = 0; i < n && backward; i++) {
        struct verdict verdict = attention->supports(shapes[i]);
        prepared += verdict_ok(&verdict);
    }
}

static int run_plan(const struct whole *w, const struct plan *plan, struct comm *group, const struct side *side)
{
    struct exec *exec = NULL;
    int failed = 0;
    prepared = 0;
    RANK_TRY(exec_create(&w->problem, plan, group, side->dev, &exec));
    RANK_CHECK(prepared ==
               (plan_ring(plan) > 1 ? plan_ring(plan) : plan->chunks)); /* a call of each step, of each chunk */
    const struct exec_tensors *t = exec_tensors(exec);
    void *const in[] = {t->q, t->k, t->v, t->d_o};
    void *const out[] = {t->o, t->dq, t->dk, t->dv};
    for (int i = Q; i <= DO; i++)
        slice_put(w, i, &t->shard, in[i]);
    RANK_CHECK(exec_backward(exec, side->queue) == STATUS_USAGE); /* there is no forward yet */
    for (int repeat = 0; repeat < 2 && !failed; repeat++) {       /* nothing is left over from the first time */
        for (int i = O; i <= DV; i++)
            memset(out[i - O], 0xff, (size_t)(elems(w, i) / plan->sp * dtype_bytes(w->problem.dtype)));
        RANK_TRY(exec_forward(exec, side->queue));
        failed = times_and_bytes(exec, &w->problem, plan);
        struct exec_middle middle = exec_middle(exec);
        failed = failed ? failed : middle_compare(w, Q, middle.q, &middle.shard, middle.heads, middle.head_first);
        failed = failed ? failed : middle_compare(w, K, middle.k, &middle.shard, middle.kv_heads, middle.kv_first);
        failed = failed ? failed : middle_compare(w, V, middle.v, &middle.shard, middle.kv_heads, middle.kv_first);
        RANK_TRY(exec_backward(exec, side->queue));
        for (int i = O; i <= DV && !failed; i++)
            failed = slice_compare(w, i, &t->shard, out[i - O]);
        failed = failed ? failed : times_and_bytes(exec, &w->problem, plan);
    }
    exec_destroy(exec);
    return failed;
}

struct scene {
    int64_t batch, seq;
    int heads, kv_heads, dim, dim_v;
    enum dtype dtype;
    bool causal;
    int64_t window;
    int docs;
    int64_t doc_len[4];
};

static struct problem problem_of(const struct scene *scene, int world)
{
    struct problem problem = small_problem(scene->heads, scene->kv_heads, scene->seq, world);
    problem.batch = scene->batch;
    problem.head_dim = scene->dim;
    problem.head_dim_v = scene->dim_v;
    problem.dtype = scene->dtype;
    problem.causal = scene->causal;
    problem.window = scene->window;
    problem.docs = scene->docs;
    memcpy(problem.doc_len, scene->doc_len, sizeof scene->doc_len);
    return problem;
}

#endif
