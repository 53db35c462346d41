/* tests/sp/test_exec.c -- the layer under every split by heads equals the unsharded reference; its parts alone; what is refused. */
#include "sp/whole.h"

static const struct scene scenes[] = {
    {1, 24, 12, 12, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {2, 13, 12, 4, 16, 0, DTYPE_BF16, true, 0, 0, {0}},         /* odd length, batch 2, GQA */
    {1, 17, 12, 2, 8, 0, DTYPE_FP32, true, 0, 0, {0}},          /* two kv heads for four ranks */
    {1, 17, 12, 1, 8, 0, DTYPE_BF16, true, 0, 0, {0}},          /* one kv head for all ranks */
    {2, 19, 8, 2, 8, 0, DTYPE_FP32, true, 5, 0, {0}},           /* window */
    {1, 23, 12, 12, 24, 16, DTYPE_FP32, true, 0, 0, {0}},       /* v narrower than q and k */
    {1, 21, 10, 5, 8, 0, DTYPE_FP32, false, 0, 0, {0}},         /* full mask: padding must not be seen */
    {2, 16, 12, 4, 8, 0, DTYPE_BF16, true, 0, 3, {3, 5, 8}},    /* packed, batch 2 */
    {1, 17, 8, 2, 8, 12, DTYPE_FP32, true, 4, 4, {1, 0, 9, 7}}, /* packed, padded, window, an empty document */
    {1, 11, 10, 1, 8, 0, DTYPE_FP32, false, 0, 2, {4, 7}},
    {2, 2, 12, 4, 8, 0, DTYPE_FP32, true, 0, 0, {0}}, /* fewer tokens than ranks */
    {1, 1, 12, 3, 8, 0, DTYPE_BF16, true, 0, 0, {0}},
    {1, 0, 12, 12, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {1, 1, 10, 5, 8, 0, DTYPE_FP32, false, 0, 0, {0}},
};

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
        int failed = whole_make(&problem, problem_padded(&problem, sp), &whole);
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
    int failed = whole_make(&problem, problem_padded(&problem, launch->size), &whole);
    RANK_TRY(exec_create(&problem, &plan, side.comm, side.dev, &exec));
    const struct exec_tensors *t = exec_tensors(exec);
    void *const in[] = {t->q, t->k, t->v, t->d_o};
    for (int i = Q; i <= DO; i++)
        slice_put(&whole, i, &t->shard, in[i]);
    RANK_TRY(exec_exchange(exec, PROBLEM_FORWARD, EXCHANGE_TO_HEADS, side.queue));
    RANK_CHECK(exec_times(exec)->exchange_in_us > 0);
    RANK_CHECK(exec_times(exec)->attention_us == 0 && exec_times(exec)->exchange_out_us == 0);
    struct exec_middle middle = exec_middle(exec);
    failed = failed ? failed : middle_compare(&whole, Q, middle.q, &middle.shard, middle.heads, middle.head_first);
    RANK_TRY(exec_attention(exec, PROBLEM_FORWARD, side.queue));
    RANK_CHECK(exec_times(exec)->exchange_in_us == 0 && exec_times(exec)->attention_us > 0);
    RANK_TRY(exec_exchange(exec, PROBLEM_FORWARD, EXCHANGE_TO_SEQ, side.queue));
    failed = failed ? failed : slice_compare(&whole, O, &t->shard, t->o);
    RANK_TRY(exec_exchange(exec, PROBLEM_BACKWARD, EXCHANGE_TO_HEADS, side.queue));
    RANK_TRY(exec_attention(exec, PROBLEM_BACKWARD, side.queue));
    RANK_TRY(exec_exchange(exec, PROBLEM_BACKWARD, EXCHANGE_TO_SEQ, side.queue));
    failed = failed ? failed : slice_compare(&whole, DQ, &t->shard, t->dq);
    failed = failed ? failed : slice_compare(&whole, DK, &t->shard, t->dk);
    failed = failed ? failed : slice_compare(&whole, DV, &t->shard, t->dv);
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
    plan.method = PLAN_METHOD_SPLIT_GATHER; /* has no layouts to change */
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
        plan.method = PLAN_METHOD_SPLIT_GATHER; /* STATUS_UNSUPPORTED */
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

/* ---- other documents in the same rows ---- */

enum { PACKED = 29, OUTS = 4 };
static const struct scene packed[] = {
    {1, PACKED, 8, 4, 8, 0, DTYPE_FP32, true, 0, 4, {7, 7, 8, 7}},
    {1, PACKED, 8, 4, 8, 0, DTYPE_FP32, true, 0, 1, {PACKED}},
    {1, PACKED, 8, 4, 8, 0, DTYPE_FP32, true, 0, 3, {1, 0, 28}},
    {1, PACKED, 8, 4, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {1, PACKED, 8, 4, 8, 0, DTYPE_FP32, true, 0, 2, {PACKED - 1, 1}},
    {1, PACKED, 8, 4, 8, 0, DTYPE_FP32, true, 0, 4, {2, 9, 9, 9}},
};

/* Forward and backward; out: o, dq, dk, dv, one behind the other, of `bytes` together. */
static enum status pass_both(struct exec *exec, int rank, struct dev_queue *queue, char *out, size_t bytes[OUTS])
{
    const struct exec_tensors *t = exec_tensors(exec);
    float *const in[] = {t->q, t->k, t->v, t->d_o};
    const size_t in_bytes[] = {t->q_bytes, t->k_bytes, t->v_bytes, t->o_bytes};
    const void *const got[OUTS] = {t->o, t->dq, t->dk, t->dv};
    const size_t sizes[OUTS] = {t->o_bytes, t->q_bytes, t->k_bytes, t->v_bytes};
    for (int i = 0; i < CHECK_COUNT(in); i++)
        for (size_t at = 0; at < in_bytes[i] / sizeof(float); at++)
            in[i][at] = (float)(rng_hash((uint64_t)(rank * 4 + i), at) >> 40) * 0x1p-23f - 1;
    TRY(exec_forward(exec, queue));
    TRY(exec_backward(exec, queue));
    for (int i = 0; i < OUTS; out += sizes[i++]) {
        memcpy(out, got[i], sizes[i]);
        bytes[i] = sizes[i];
    }
    return STATUS_OK;
}

/* An exec that saw all documents before against one that is new. */
static int documents_in_turn(const struct plan *plan, struct comm *group, const struct side *side)
{
    enum { ROOM = 1 << 16 };
    static char kept_out[ROOM], fresh_out[ROOM];
    struct problem problem = problem_of(&packed[0], comm_size(side->comm));
    struct exec *kept = NULL;
    int64_t most = 0;
    RANK_TRY(exec_create(&problem, plan, group, side->dev, &kept));
    const void *q = exec_tensors(kept)->q;
    for (int d = 0; d < CHECK_COUNT(packed); d++) {
        struct exec *fresh = NULL;
        size_t bytes[OUTS], all = 0;
        problem = problem_of(&packed[d], comm_size(side->comm));
        RANK_TRY(exec_documents(kept, &problem));
        RANK_CHECK(exec_backward(kept, side->queue) == STATUS_USAGE); /* its statistics are of other documents */
        RANK_TRY(pass_both(kept, comm_rank(group), side->queue, kept_out, bytes));
        RANK_TRY(exec_create(&problem, plan, group, side->dev, &fresh));
        RANK_TRY(pass_both(fresh, comm_rank(group), side->queue, fresh_out, bytes));
        for (int i = 0; i < OUTS; i++)
            all += bytes[i];
        RANK_CHECK(all > 1000 && all <= ROOM && memcmp(kept_out, fresh_out, all) == 0);
        most = fresh->workspace_bytes > most ? fresh->workspace_bytes : most;
        RANK_CHECK(exec_tensors(kept)->q == q && kept->workspace_bytes == most);
        RANK_CHECK(exec_bytes(kept) - most == exec_bytes(fresh) - fresh->workspace_bytes);
        exec_destroy(fresh);
    }
    problem.seq++;
    RANK_CHECK(exec_documents(kept, &problem) == STATUS_USAGE);
    status_clear();
    exec_destroy(kept);
    return 0;
}

static int rank_documents(const struct launch *launch, void *arg)
{
    static const struct {
        enum plan_method method;
        int ring, tp, chunks;
    } ways[] = {{PLAN_METHOD_ULYSSES, 1, 1, 1},      {PLAN_METHOD_ULYSSES, 1, 1, 2},
                {PLAN_METHOD_RING, 1, 1, 1},         {PLAN_METHOD_ULYSSES_RING, 2, 1, 1},
                {PLAN_METHOD_SPLIT_GATHER, 1, 1, 1}, {PLAN_METHOD_ULYSSES, 1, 2, 1},
                {PLAN_METHOD_RING, 1, 2, 1}};
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int w = 0; w < 2 * CHECK_COUNT(ways) && !failed; w++) { /* with exchanges or passes in turn, or beside */
        int way = w / 2, sp = launch->size / ways[way].tp;
        struct plan plan = small_plan(sp, launch->size);
        struct comm *group = NULL;
        RANK_TRY(dev_threads_set(side.dev, 1 + w % 2));
        plan.method = ways[way].method;
        plan.ring = ways[way].ring;
        plan.tp = ways[way].tp;
        plan.dp_shard = 1;
        plan.chunks = ways[way].chunks;
        if (plan_method_exchange(plan.method) != NULL)
            strcpy(plan.exchange, plan_method_exchange(plan.method));
        RANK_TRY(comm_split(side.comm, launch->rank % plan.tp, launch->rank, &group));
        failed = documents_in_turn(&plan, group, &side);
        if (failed)
            fprintf(stderr, "way %d, %d threads\n", way, 1 + w % 2);
        comm_close(group);
    }
    side_close(&side);
    return failed;
}

static void other_documents_give_the_bits_of_a_fresh_layer(void **state)
{
    (void)state;
    ranks_pass(4, rank_documents, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_equals_the_unsharded_layer),
        cmocka_unit_test(c09_two_groups_of_two),
        cmocka_unit_test(parts_run_alone),
        cmocka_unit_test(what_cannot_be_prepared_is_refused_by_all),
        cmocka_unit_test(the_rank_named_is_the_one_with_that_status),
        cmocka_unit_test(other_documents_give_the_bits_of_a_fresh_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
