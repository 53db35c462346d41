/* tests/sp/test_exec.c -- the layer under every split equals the unsharded reference: forked ranks, outputs and gradients,
 * middle layout.
 *
 * Every rank makes the whole tensors from the same seed, computes the whole problem with the reference kernel in fp32
 * and compares its own slices. Tolerance: fp32 2e-5 of the tensor's largest value; bf16 1.5 % of it (storage rounds to
 * 0.4 %, each copy of a gradient once more); a cell that went astray is wrong by about 100 %.
 */
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

static int whole_make(const struct problem *problem, int sp, struct whole *w)
{
    const struct attention *reference = attention_find("reference");
    int64_t padded = problem_padded(problem, sp), *cu = NULL;
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

/* Rows of the sequence side of `rank` inside the whole tensor. */
static int64_t whole_row(const struct whole *w, int64_t seq_local, int rank, int64_t b, int64_t token)
{
    int64_t padded = w->tokens / w->problem.batch;
    return b * padded + rank * seq_local + token;
}

static void slice_put(const struct whole *w, int i, int64_t seq_local, int rank, void *to)
{
    int64_t row = (int64_t)w->heads[i] * w->dim[i];
    for (int64_t b = 0; b < w->problem.batch; b++)
        for (int64_t token = 0; token < seq_local; token++)
            for (int64_t x = 0; x < row; x++)
                dtype_set(w->problem.dtype, to, (b * seq_local + token) * row + x,
                          w->t[i][whole_row(w, seq_local, rank, b, token) * row + x]);
}

static int slice_compare(const struct whole *w, int i, int64_t seq_local, int rank, const void *got)
{
    static const char *const names[] = {"q", "k", "v", "d_o", "o", "dq", "dk", "dv"};
    int64_t row = (int64_t)w->heads[i] * w->dim[i];
    double most = 0.1, worst = 0; /* a gradient that cancels to 0 still rounds like its parts, which are about 1 */
    for (int64_t at = 0; at < elems(w, i); at++)
        most = fmax(most, fabs((double)w->t[i][at]));
    for (int64_t b = 0; b < w->problem.batch; b++)
        for (int64_t token = 0; token < seq_local; token++)
            for (int64_t x = 0; x < row; x++) {
                double value = (double)dtype_get(w->problem.dtype, got, (b * seq_local + token) * row + x);
                double error = fabs(value - (double)w->t[i][whole_row(w, seq_local, rank, b, token) * row + x]);
                worst = error >= worst || isnan(error) ? error : worst;
            }
    double tolerance = w->problem.dtype == DTYPE_FP32 ? 2e-5 : 0.015;
    if (!(worst <= tolerance * most))
        fprintf(stderr, "%s of rank %d: off by %g, largest value %g\n", names[i], rank, worst, most);
    RANK_CHECK(worst <= tolerance * most);
    return 0;
}

/* The head side after exchange in: exactly the whole tensor's lanes of the local heads. */
static int middle_compare(const struct whole *w, int i, const void *got, int local, int first)
{
    int64_t dim = w->dim[i];
    for (int64_t row = 0; row < w->tokens; row++)
        for (int64_t x = 0; x < local * dim; x++)
            RANK_CHECK(dtype_get(w->problem.dtype, got, row * local * dim + x) ==
                       w->t[i][row * w->heads[i] * dim + first * dim + x]);
    return 0;
}

static int times_and_bytes(struct exec *exec, const struct problem *problem, const struct plan *plan)
{
    const struct exec_times *times = exec_times(exec);
    RANK_CHECK(times->attention_us >= 0);
    RANK_CHECK((exec->beside != NULL) == (plan->sp > 1 && plan->chunks > 1 && dev_can_overlap(exec->dev)));
    if (plan->sp > 1) { /* in turn nothing is hidden; beside each other the first way in and the last way out are not */
        const struct exec_step *first = &exec->steps[0], *last = &exec->steps[plan->chunks - 1];
        double whole, in = times->exchange_in_us, out = times->exchange_out_us;
        RANK_TRY(dev_event_us(exec->begins, exec->ends, &whole));
        if (exec->beside != NULL) {
            RANK_TRY(dev_event_us(first->mark[EXEC_IN_BEGINS], first->mark[EXEC_IN_ENDS], &in));
            RANK_TRY(dev_event_us(last->mark[EXEC_OUT_BEGINS], last->mark[EXEC_OUT_ENDS], &out));
        }
        RANK_CHECK(times->exposed_us >= (in + out) * 0.999);
        RANK_CHECK(times->exposed_us + times->attention_us <= whole * 1.000001);
    }
    RANK_CHECK(plan->sp == 1 ? times->exposed_us == 0 : times->exchange_in_us > 0 && times->exchange_out_us > 0);
    RANK_CHECK(exec_bytes(exec) == work_exec_bytes(problem, plan) + exec->workspace_bytes);
    return 0;
}

static int run_plan(const struct whole *w, const struct plan *plan, struct comm *group, const struct side *side)
{
    struct exec *exec = NULL;
    int rank = comm_rank(group), failed = 0;
    RANK_TRY(exec_create(&w->problem, plan, group, side->dev, &exec));
    const struct exec_tensors *t = exec_tensors(exec);
    void *const in[] = {t->q, t->k, t->v, t->d_o};
    void *const out[] = {t->o, t->dq, t->dk, t->dv};
    for (int i = Q; i <= DO; i++)
        slice_put(w, i, t->seq_local, rank, in[i]);
    RANK_CHECK(exec_backward(exec, side->queue) == STATUS_USAGE); /* there is no forward yet */
    for (int repeat = 0; repeat < 2 && !failed; repeat++) {       /* nothing is left over from the first time */
        for (int i = O; i <= DV; i++)
            memset(out[i - O], 0xff, (size_t)(elems(w, i) / plan->sp * dtype_bytes(w->problem.dtype)));
        RANK_TRY(exec_forward(exec, side->queue));
        failed = times_and_bytes(exec, &w->problem, plan);
        struct exec_middle middle = exec_middle(exec);
        failed = failed ? failed : middle_compare(w, Q, middle.q, middle.heads, middle.head_first);
        failed = failed ? failed : middle_compare(w, K, middle.k, middle.kv_heads, middle.kv_first);
        failed = failed ? failed : middle_compare(w, V, middle.v, middle.kv_heads, middle.kv_first);
        RANK_TRY(exec_backward(exec, side->queue));
        for (int i = O; i <= DV && !failed; i++)
            failed = slice_compare(w, i, t->seq_local, rank, out[i - O]);
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

static const struct scene scenes[] = {
    {1, 24, 12, 12, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {2, 13, 12, 4, 16, 0, DTYPE_BF16, true, 0, 0, {0}},         /* odd length, batch 2, GQA */
    {1, 17, 12, 2, 8, 0, DTYPE_FP32, true, 0, 0, {0}},          /* two kv heads for four ranks */
    {1, 17, 12, 1, 8, 0, DTYPE_BF16, true, 0, 0, {0}},          /* one kv head for all ranks */
    {2, 19, 8, 2, 8, 0, DTYPE_FP32, true, 5, 0, {0}},           /* window */
    {1, 23, 12, 12, 24, 16, DTYPE_FP32, true, 0, 0, {0}}, /* v narrower than q and k */
    {1, 21, 10, 5, 8, 0, DTYPE_FP32, false, 0, 0, {0}},         /* full mask: padding must not be seen */
    {2, 16, 12, 4, 8, 0, DTYPE_BF16, true, 0, 3, {3, 5, 8}},    /* packed, batch 2 */
    {1, 17, 8, 2, 8, 12, DTYPE_FP32, true, 4, 4, {1, 0, 9, 7}}, /* packed, padded, window, an empty document */
    {1, 11, 10, 1, 8, 0, DTYPE_FP32, false, 0, 2, {4, 7}},
    {2, 2, 12, 4, 8, 0, DTYPE_FP32, true, 0, 0, {0}}, /* fewer tokens than ranks */
    {1, 1, 12, 3, 8, 0, DTYPE_BF16, true, 0, 0, {0}},
    {1, 0, 12, 12, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {1, 1, 10, 5, 8, 0, DTYPE_FP32, false, 0, 0, {0}},
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

/* All scenes that this group can share, under every exchange and several chunkings. */
static int run_scenes(struct comm *group, int world, const struct side *side)
{
    int sp = comm_size(group), ran = 0;
    for (int s = 0; s < CHECK_COUNT(scenes); s++) {
        struct problem problem = problem_of(&scenes[s], world);
        struct verdict verdict = model_sp_heads(problem.heads, problem.kv_heads, sp, world);
        struct whole whole;
        int local = problem.heads / sp, chunkings[] = {1, 2, 3, local};
        if (!verdict_ok(&verdict))
            continue;
        int failed = whole_make(&problem, sp, &whole);
        for (int c = 0; c < CHECK_COUNT(chunkings) && !failed; c++)
            for (int e = 0; exchanges[e] != NULL && !failed; e++) {
                struct plan plan = small_plan(sp, world);
                plan.chunks = chunkings[c];
                strcpy(plan.exchange, exchanges[e]->name);
                if (c == 2)
                    strcpy(plan.attention, "reference");
                if (exchanges[e]->dev != DEV_CPU || plan.chunks > local || (sp == 1 && e > 0))
                    continue;
                failed = run_plan(&whole, &plan, group, side);
                if (failed)
                    fprintf(stderr, "scene %d, sp %d, %d chunks, %s, %s\n", s, sp, plan.chunks, plan.exchange,
                            plan.attention);
                ran++;
            }
        whole_free(&whole);
        if (failed)
            return failed;
    }
    RANK_CHECK(ran > 0);
    return 0;
}

static int rank_whole(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = run_scenes(side.comm, launch->size, &side);
    side_close(&side);
    return failed;
}

static void every_split_equals_the_unsharded_layer(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++)
        ranks_pass(ranks, rank_whole, NULL);
}

/* sp 2 of 4 ranks: the gradients of group {2,3} use indices of the group. */
static int rank_pairs(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank / 2, launch->rank, &group));
    int failed = run_scenes(group, launch->size, &side);
    comm_close(group);
    side_close(&side);
    return failed;
}

static void c09_two_groups_of_two(void **state)
{
    (void)state;
    ranks_pass(4, rank_pairs, NULL);
}

/* The parts by themselves do what they do inside forward and backward. */
static int rank_parts(const struct launch *launch, void *arg)
{
    struct side side;
    struct exec *exec = NULL;
    struct whole whole;
    struct problem problem = problem_of(&scenes[1], launch->size);
    struct plan plan = small_plan(launch->size, launch->size);
    (void)arg;
    plan.chunks = 2;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = whole_make(&problem, launch->size, &whole);
    RANK_TRY(exec_create(&problem, &plan, side.comm, side.dev, &exec));
    const struct exec_tensors *t = exec_tensors(exec);
    void *const in[] = {t->q, t->k, t->v, t->d_o};
    for (int i = Q; i <= DO; i++)
        slice_put(&whole, i, t->seq_local, launch->rank, in[i]);
    RANK_TRY(exec_exchange(exec, false, true, side.queue));
    RANK_CHECK(exec_times(exec)->exchange_in_us > 0);
    RANK_CHECK(exec_times(exec)->attention_us == 0 && exec_times(exec)->exchange_out_us == 0);
    struct exec_middle middle = exec_middle(exec);
    failed = failed ? failed : middle_compare(&whole, Q, middle.q, middle.heads, middle.head_first);
    RANK_TRY(exec_attention(exec, false, side.queue));
    RANK_CHECK(exec_times(exec)->exchange_in_us == 0 && exec_times(exec)->attention_us > 0);
    RANK_TRY(exec_exchange(exec, false, false, side.queue));
    failed = failed ? failed : slice_compare(&whole, O, t->seq_local, launch->rank, t->o);
    RANK_TRY(exec_exchange(exec, true, true, side.queue));
    RANK_TRY(exec_attention(exec, true, side.queue));
    RANK_TRY(exec_exchange(exec, true, false, side.queue));
    failed = failed ? failed : slice_compare(&whole, DQ, t->seq_local, launch->rank, t->dq);
    failed = failed ? failed : slice_compare(&whole, DK, t->seq_local, launch->rank, t->dk);
    failed = failed ? failed : slice_compare(&whole, DV, t->seq_local, launch->rank, t->dv);
    exec_destroy(exec);
    whole_free(&whole);
    side_close(&side);
    return failed;
}

static void parts_run_alone(void **state)
{
    (void)state;
    ranks_pass(2, rank_parts, NULL);
}

static int rank_refusals(const struct launch *launch, void *arg)
{
    struct side side;
    struct exec *exec = NULL;
    struct problem problem = problem_of(&scenes[0], launch->size);
    const struct plan good = small_plan(launch->size, launch->size);
    struct plan plan = good;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    plan.method = PLAN_METHOD_RING;
    RANK_CHECK(exec_create(&problem, &plan, side.comm, side.dev, &exec) == STATUS_UNSUPPORTED && exec == NULL);
    plan = small_plan(1, launch->size); /* legal for this world, but not on a group of two */
    RANK_CHECK(exec_create(&problem, &plan, side.comm, side.dev, &exec) == STATUS_USAGE && exec == NULL);
    problem.heads = -1;
    RANK_CHECK(exec_create(&problem, &good, side.comm, side.dev, &exec) == STATUS_USAGE && exec == NULL);
    problem = problem_of(&scenes[0], launch->size);
    plan = good;
    if (launch->rank == 1) /* one rank cannot: none goes on, and the others know which */
        strcpy(plan.attention, "wishful");
    RANK_CHECK(exec_create(&problem, &plan, side.comm, side.dev, &exec) == STATUS_UNSUPPORTED && exec == NULL);
    RANK_CHECK(launch->rank == 1 || (status_last()->rank == 1 && strstr(status_last()->what, "rank 1") != NULL));
    problem.direction = PROBLEM_FORWARD;
    RANK_TRY(exec_create(&problem, &good, side.comm, side.dev, &exec));
    RANK_CHECK(exec_tensors(exec)->dq == NULL);
    RANK_CHECK(exec_bytes(exec) == work_exec_bytes(&problem, &good) + exec->workspace_bytes);
    RANK_TRY(exec_forward(exec, side.queue));
    RANK_CHECK(exec_backward(exec, side.queue) == STATUS_USAGE);
    exec_destroy(exec);
    exec_destroy(NULL);
    side_close(&side);
    return 0;
}

/* Two ranks fail differently: the third tells of one of them, its status and its number. */
static int rank_two_reasons(const struct launch *launch, void *arg)
{
    struct side side;
    struct exec *exec = NULL;
    struct problem problem = problem_of(&scenes[0], launch->size);
    struct plan plan = small_plan(launch->size, launch->size);
    (void)arg;
    if (launch->rank == 0)
        problem.heads = -1; /* STATUS_USAGE */
    if (launch->rank == 1)
        plan.method = PLAN_METHOD_RING; /* STATUS_UNSUPPORTED */
    RANK_TRY(side_open(&side, launch, NULL));
    enum status status = exec_create(&problem, &plan, side.comm, side.dev, &exec);
    RANK_CHECK(exec == NULL && status == (launch->rank == 0 ? STATUS_USAGE : STATUS_UNSUPPORTED));
    RANK_CHECK(launch->rank < 2 || status_last()->rank == 1);
    side_close(&side);
    return 0;
}

static void the_rank_named_is_the_one_with_that_status(void **state)
{
    (void)state;
    ranks_pass(3, rank_two_reasons, NULL);
}

static void what_cannot_be_prepared_is_refused_by_all(void **state)
{
    (void)state;
    ranks_pass(2, rank_refusals, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_equals_the_unsharded_layer),
        cmocka_unit_test(c09_two_groups_of_two),
        cmocka_unit_test(parts_run_alone),
        cmocka_unit_test(what_cannot_be_prepared_is_refused_by_all),
        cmocka_unit_test(the_rank_named_is_the_one_with_that_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
