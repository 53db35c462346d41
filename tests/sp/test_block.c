/* tests/sp/test_block.c -- a block under ulysses, with tp or without, and split_gather is the block of one rank: outputs, and the gradients of rows and of every
 * weight. Each rank computes the whole for itself, then its share of it with the others. */
#include "base/check.h"

#include "base/rng.h"
#include "comm/ranks.h"
#include "sp/block.h"

#include <math.h>
#include <stdlib.h>

struct scene {
    const char *what;
    struct block_shape shape;
    int64_t batch, seq;
    int docs;
    int64_t doc_len[4];
};

#define SHAPE(hidden_, ffn_, heads_, kv_, dim_, bias_, norm_, dtype_)                                                  \
    {                                                                                                                  \
        .hidden = hidden_, .ffn = ffn_, .heads = heads_, .kv_heads = kv_, .head_dim = dim_, .qkv_bias = bias_,         \
        .qk_norm = norm_, .eps = 1e-5f, .dtype = dtype_                                                                \
    }
static const struct scene scenes[] = {
    {"as many kv heads", SHAPE(32, 48, 4, 4, 8, false, false, DTYPE_FP32), 1, 16, 0, {0}},
    {"kv heads shared by heads", SHAPE(24, 40, 8, 4, 6, false, false, DTYPE_FP32), 2, 13, 0, {0}}, /* padded rows */
    {"two kv heads", SHAPE(16, 24, 8, 2, 4, true, false, DTYPE_FP32), 1, 21, 0, {0}},
    {"one kv head", SHAPE(16, 24, 4, 1, 8, true, true, DTYPE_FP32), 2, 9, 0, {0}},
    {"norms of q and k", SHAPE(20, 28, 4, 2, 8, false, true, DTYPE_FP32), 1, 15, 0, {0}},
    {"documents", SHAPE(16, 32, 4, 2, 8, true, true, DTYPE_FP32), 1, 22, 3, {7, 1, 14}},
    {"documents in two rows", SHAPE(16, 32, 4, 1, 4, false, false, DTYPE_FP32), 2, 16, 2, {11, 5}},
    {"bf16", SHAPE(32, 64, 8, 4, 16, true, false, DTYPE_BF16), 2, 18, 0, {0}},
};
enum { WORLD = 4, PADDING = WORLD - 1 /* tokens at most */ };

static double drawn(uint64_t key, int64_t i)
{
    return (double)(rng_hash(key, (uint64_t)i) >> 11) * 0x1p-53 - 0.5;
}

static double weight_at(enum block_tensor tensor, int64_t in, int64_t i)
{
    bool norm = tensor == BLOCK_NORM || tensor == BLOCK_MLP_NORM || tensor == BLOCK_Q_NORM || tensor == BLOCK_K_NORM;
    double x = drawn(100 + (uint64_t)tensor, i);
    return norm ? 1 + x : 3 * x / sqrt((double)in);
}

/* Token `t` of the padded row: within its document. */
static int32_t position_at(const struct scene *scene, int64_t t)
{
    if (t >= scene->seq)
        return (int32_t)(t - scene->seq);
    for (int d = 0; d < scene->docs; d++) {
        if (t < scene->doc_len[d])
            break;
        t -= scene->doc_len[d];
    }
    return (int32_t)t;
}

/* One run of a block on `ranks` ranks, of which this is `rank`. */
struct run {
    const struct scene *scene;
    struct side *side;
    struct comm *group;
    struct comm *cut, *same; /* ranks that cut weights, and those with the same pieces; both owned */
    enum plan_method method;
    int ranks, rank, tp;
    int ways;
    int64_t local, rows; /* tokens of a sequence here, of all of them */
    int64_t mlp_rows;    /* at a time; 0: all */
    void *weight[BLOCK_TENSORS];
    float *grad[BLOCK_TENSORS];
    void *x, *dy, *y;
    int32_t *mine, *positions;
    float *inv_freq;
    struct block *block;
    struct block_kept *kept;
    struct exec *exec;
};

static void *memory(int64_t elems, int64_t bytes)
{
    return calloc((size_t)elems + 1, (size_t)bytes);
}

/* Element `i` of this rank's piece, in the whole tensor. */
static int64_t in_whole(const struct run *run, enum block_tensor tensor, int64_t i)
{
    const struct block_shape *whole = &run->scene->shape;
    struct block_cut cut = block_cut_of(whole, run->ways, tensor);
    int64_t rows, cols, part = run->rank % run->ways / cut.copies;
    block_tensor_shape(whole, tensor, &rows, &cols);
    if (cut.dim == 0)
        return part * (rows / cut.parts) * cols + i;
    return i / (cols / cut.parts) * cols + part * (cols / cut.parts) + i % (cols / cut.parts);
}

static void weights_make(struct run *run)
{
    const struct block_shape *whole = &run->scene->shape;
    const struct block_shape piece = block_shape_cut(whole, run->ways);
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        int64_t rows, cols, in, n;
        if (!block_tensor_shape(&piece, (enum block_tensor)t, &rows, &cols))
            continue;
        n = rows * cols;
        block_tensor_shape(whole, (enum block_tensor)t, &rows, &in);
        run->weight[t] = memory(n, dtype_bytes(whole->dtype));
        run->grad[t] = memory(n, sizeof(float));
        for (int64_t i = 0; i < n; i++)
            dtype_set(whole->dtype, run->weight[t], i,
                      (float)weight_at((enum block_tensor)t, in, in_whole(run, (enum block_tensor)t, i)));
    }
}

/* Tokens that are not there have no gradient: of one rank, which pads nothing, they are not missed. */
static void rows_make(struct run *run)
{
    const struct scene *s = run->scene;
    int64_t hidden = s->shape.hidden, n = run->rows * hidden;
    int bytes = dtype_bytes(s->shape.dtype);
    run->x = memory(n, bytes);
    run->y = memory(n, bytes);
    run->dy = memory(n, bytes);
    run->mine = memory(run->rows, sizeof *run->mine);
    run->positions = memory(run->rows * run->ranks, sizeof *run->positions);
    run->inv_freq = memory(s->shape.head_dim / 2, sizeof *run->inv_freq);
    for (int64_t r = 0; r < run->rows; r++) {
        int64_t token = run->rank * run->local + r % run->local,
                at = (r / run->local * (s->seq + PADDING) + token) * hidden;
        run->mine[r] = position_at(s, token);
        for (int64_t c = 0; c < hidden; c++) {
            dtype_set(s->shape.dtype, run->x, r * hidden + c, (float)(2 * drawn(1, at + c)));
            dtype_set(s->shape.dtype, run->dy, r * hidden + c, token < s->seq ? (float)(2 * drawn(2, at + c)) : 0);
        }
    }
    for (int i = 0; i < s->shape.head_dim / 2; i++)
        run->inv_freq[i] = (float)pow(100, -2.0 * i / s->shape.head_dim);
}

static struct problem problem_of(const struct run *run)
{
    const struct scene *s = run->scene;
    struct problem problem = {.batch = s->batch,
                              .seq = s->seq,
                              .heads = s->shape.heads,
                              .kv_heads = s->shape.kv_heads,
                              .head_dim = s->shape.head_dim,
                              .hidden = s->shape.hidden,
                              .ffn = s->shape.ffn,
                              .dtype = s->shape.dtype,
                              .causal = true,
                              .docs = s->docs,
                              .direction = PROBLEM_BOTH,
                              .world = run->ranks};
    memcpy(problem.doc_len, s->doc_len, sizeof s->doc_len);
    return problem;
}

static enum status run_open(struct run *run)
{
    struct problem problem = problem_of(run);
    struct plan plan;
    plan_default(&plan);
    plan.method = run->method;
    plan.sp = run->ranks / run->tp;
    plan.tp = run->tp;
    run->ways = plan_ways(&plan);
    TRY(comm_split(run->group, run->rank / run->ways, run->rank, &run->cut));
    TRY(comm_split(run->group, run->rank % run->tp, run->rank, &run->same));
    struct block_parallel parallel = {run->cut, run->scene->batch};
    plan.micro_batch = run->scene->batch;
    if (run->method == PLAN_METHOD_SPLIT_GATHER)
        strcpy(plan.exchange, PLAN_GATHER_EXCHANGE);
    run->local = problem_local(&problem, run->ranks);
    run->rows = run->local * run->scene->batch;
    weights_make(run);
    rows_make(run);
    TRY(exec_create(&problem, &plan, run->same, run->side->dev, &run->exec));
    TRY(block_create(&run->scene->shape, &parallel, run->rows, run->mlp_rows, run->side->dev, &run->block));
    return block_keep(run->block, &run->kept);
}

static void run_close(struct run *run)
{
    block_kept_destroy(run->kept);
    block_destroy(run->block);
    exec_destroy(run->exec);
    comm_close(run->same);
    comm_close(run->cut);
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        free(run->weight[t]);
        free(run->grad[t]);
    }
    void *all[] = {run->x, run->dy, run->y, run->mine, run->positions, run->inv_freq};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* dy becomes dx. again: layers run twice, the second time for backward alone. */
static enum status run_both_ways(struct run *run, bool again)
{
    struct dev_queue *queue = run->side->queue;
    struct block_weights weights;
    struct block_grads grads;
    struct block_rope rope = {run->positions, run->inv_freq};
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        weights.of[t] = run->weight[t];
        grads.of[t] = run->grad[t];
    }
    TRY(block_gather_positions(run->block, run->mine, run->positions, queue));
    TRY(block_forward(run->block, &weights, &rope, run->exec, run->kept, run->x, run->y, queue));
    if (again)
        TRY(block_forward(run->block, &weights, &rope, run->exec, run->kept, run->x, NULL, queue));
    TRY(block_backward(run->block, &weights, &grads, &rope, run->exec, run->kept, run->x, run->dy, queue));
    return dev_sync(queue, INT64_MAX);
}

/* ---- comparing ---- */

static double tolerance(const struct scene *scene)
{
    return scene->shape.dtype == DTYPE_FP32 ? 1e-5 : 2e-2;
}

static bool near(const struct run *run, const char *what, double off, double all)
{
    bool good = all > 0 && sqrt(off) <= tolerance(run->scene) * sqrt(all);
    if (!good)
        fprintf(stderr, "%s, %s of %d, tp %d: %s is off by %g of %g\n", run->scene->what, plan_method_name(run->method),
                run->ranks, run->tp, what, sqrt(off), sqrt(all));
    return good;
}

/* This rank's rows against the same of the whole. */
static bool rows_agree(const struct run *run, const char *what, const void *got, const void *want)
{
    const struct block_shape *s = &run->scene->shape;
    double off = 0, all = 0;
    for (int64_t r = 0; r < run->rows; r++) {
        int64_t token = run->rank * run->local + r % run->local, row = r / run->local * run->scene->seq + token;
        for (int64_t c = 0; c < s->hidden && token < run->scene->seq; c++) {
            double a = (double)dtype_get(s->dtype, got, r * s->hidden + c),
                   b = (double)dtype_get(s->dtype, want, row * s->hidden + c);
            off += (a - b) * (a - b);
            all += b * b;
        }
    }
    return run->rank * run->local >= run->scene->seq /* nothing but padding */ || near(run, what, off, all);
}

/* Pieces at their places in the whole, those of all ranks added: the whole's gradient. */
static enum status grad_agrees(const struct run *run, const struct run *whole, enum block_tensor tensor, bool *good)
{
    int64_t rows, cols, piece_rows, piece_cols;
    const struct block_shape piece = block_shape_cut(&run->scene->shape, run->ways);
    block_tensor_shape(&run->scene->shape, tensor, &rows, &cols);
    block_tensor_shape(&piece, tensor, &piece_rows, &piece_cols);
    int64_t n = rows * cols;
    double off = 0, all = 0;
    float *sum = memory(n, sizeof *sum);
    void *scratch = memory((int64_t)comm_allreduce_scratch(run->group, n, DTYPE_FP32), 1);
    for (int64_t i = 0; i < piece_rows * piece_cols; i++)
        sum[in_whole(run, tensor, i)] += run->grad[tensor][i];
    enum status status = comm_allreduce(run->group, sum, n, DTYPE_FP32, scratch, run->side->queue);
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)sum[i] - (double)whole->grad[tensor][i], 2);
        all += pow((double)whole->grad[tensor][i], 2);
    }
    free(scratch);
    free(sum);
    *good = near(run, block_tensor_name(tensor), off, all) && *good;
    return status;
}

static bool same_bits(const struct run *a, const struct run *b)
{
    const struct block_shape piece = block_shape_cut(&a->scene->shape, a->ways);
    size_t bytes = (size_t)(a->rows * piece.hidden * dtype_bytes(piece.dtype));
    bool same = memcmp(a->y, b->y, bytes) == 0 && memcmp(a->dy, b->dy, bytes) == 0;
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        int64_t rows, cols;
        if (block_tensor_shape(&piece, (enum block_tensor)t, &rows, &cols))
            same = memcmp(a->grad[t], b->grad[t], (size_t)(rows * cols) * sizeof(float)) == 0 && same;
    }
    return same;
}

static int64_t memory_of(const struct run *run)
{
    return block_bytes(run->block) + block_kept_bytes(run->kept);
}

static int compare(struct side *side, struct comm *group, const struct run *whole, enum plan_method method, int tp,
                   int64_t mlp_rows)
{
    struct run run = {.scene = whole->scene,
                      .side = side,
                      .group = group,
                      .method = method,
                      .tp = tp,
                      .ranks = comm_size(group),
                      .rank = comm_rank(group),
                      .mlp_rows = mlp_rows};
    struct run again = run;
    RANK_TRY(run_open(&run));
    RANK_TRY(run_both_ways(&run, false));
    RANK_TRY(run_open(&again));
    RANK_TRY(run_both_ways(&again, true));
    RANK_CHECK(same_bits(&run, &again));
    run_close(&again);
    bool good = rows_agree(&run, "y", run.y, whole->y);
    good = rows_agree(&run, "dx", run.dy, whole->dy) && good;
    RANK_CHECK(mlp_rows == 0 || memory_of(&run) < memory_of(whole) || run.ranks > 1);
    for (int t = 0; t < BLOCK_TENSORS; t++)
        if (run.grad[t] != NULL)
            RANK_TRY(grad_agrees(&run, whole, (enum block_tensor)t, &good));
    run_close(&run);
    RANK_CHECK(good);
    return 0;
}

static int rank_scenes(const struct launch *launch, void *arg)
{
    static const struct {
        enum plan_method method;
        int tp;
    } ways[] = {
        {PLAN_METHOD_ULYSSES, 1}, {PLAN_METHOD_ULYSSES, 2}, {PLAN_METHOD_ULYSSES, 4}, {PLAN_METHOD_SPLIT_GATHER, 1}};
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int s = 0; s < CHECK_COUNT(scenes) && !failed; s++) {
        struct run whole = {.scene = &scenes[s], .side = &side, .method = PLAN_METHOD_ULYSSES, .ranks = 1, .tp = 1};
        RANK_TRY(comm_split(side.comm, launch->rank, 0, &whole.group));
        RANK_TRY(run_open(&whole));
        RANK_TRY(run_both_ways(&whole, false));
        for (int ranks = 1; ranks <= launch->size && !failed; ranks *= 2)
            for (int w = 0; w < CHECK_COUNT(ways) && !failed; w++) {
                struct comm *group = NULL;
                if (ranks % ways[w].tp != 0)
                    continue;
                RANK_TRY(comm_split(side.comm, launch->rank / ranks, launch->rank, &group));
                failed = compare(&side, group, &whole, ways[w].method, ways[w].tp, 0);
                if (!failed) /* 5 do not divide the rows */
                    failed = compare(&side, group, &whole, ways[w].method, ways[w].tp, 5);
                comm_close(group);
            }
        struct comm *alone = whole.group;
        run_close(&whole);
        comm_close(alone);
    }
    side_close(&side);
    return failed;
}

static void every_split_is_the_block_of_one_rank(void **state)
{
    (void)state;
    ranks_pass(WORLD, rank_scenes, NULL);
}

/* Every element of a whole tensor is in as many pieces as there are copies, and no piece has another size. */
static void pieces_cover_each_tensor(void **state)
{
    (void)state;
    for (int s = 0; s < CHECK_COUNT(scenes); s++)
        for (int ways = 1; ways <= 4; ways *= 2)
            for (int t = 0; t < BLOCK_TENSORS; t++) {
                const struct block_shape *whole = &scenes[s].shape, piece = block_shape_cut(whole, ways);
                struct block_cut cut = block_cut_of(whole, ways, (enum block_tensor)t);
                int64_t rows, cols, piece_rows, piece_cols;
                block_tensor_shape(whole, (enum block_tensor)t, &rows, &cols);
                block_tensor_shape(&piece, (enum block_tensor)t, &piece_rows, &piece_cols);
                assert_int_equal(cut.parts * cut.copies, ways);
                assert_int_equal(piece_rows * (cut.dim == 0 ? cut.parts : 1), rows);
                assert_int_equal(piece_cols * (cut.dim == 1 ? cut.parts : 1), cols);
            }
    /* Two kv heads on four ranks: each on two of them. */
    struct block_cut cut = block_cut_of(&scenes[2].shape, 4, BLOCK_K);
    assert_int_equal(cut.parts, 2);
    assert_int_equal(cut.copies, 2);
}

static int rank_refused(const struct launch *launch, void *arg)
{
    struct side side;
    struct block *block = NULL;
    struct block_shape shape = scenes[0].shape;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct block_parallel parallel = {side.comm, 1};
    shape.ffn = 49;
    RANK_CHECK(block_create(&shape, &parallel, 8, 0, side.dev, &block) == STATUS_USAGE && block == NULL);
    RANK_CHECK(strstr(status_last()->what, "49 columns") != NULL);
    shape = scenes[0].shape;
    shape.heads = shape.kv_heads = 3;
    RANK_CHECK(block_create(&shape, &parallel, 8, 0, side.dev, &block) == STATUS_USAGE && block == NULL);
    RANK_CHECK(strstr(status_last()->what, "3 query heads") != NULL);
    shape = scenes[0].shape;
    for (parallel.batch = -1; parallel.batch <= 3; parallel.batch += parallel.batch < 1 ? 1 : 2) { /* -1, 0, 1, 3 */
        enum status status = block_create(&shape, &parallel, 8, 0, side.dev, &block);
        RANK_CHECK(status == (parallel.batch == 1 ? STATUS_OK : STATUS_USAGE));
        RANK_CHECK(status == STATUS_OK || strstr(status_last()->what, "8 rows") != NULL);
        block_destroy(block);
        block = NULL;
    }
    side_close(&side);
    return 0;
}

static void what_cannot_be_cut_is_refused(void **state)
{
    (void)state;
    ranks_pass(2, rank_refused, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cover_each_tensor),
        cmocka_unit_test(every_split_is_the_block_of_one_rank),
        cmocka_unit_test(what_cannot_be_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
