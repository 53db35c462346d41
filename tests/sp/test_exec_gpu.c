/* tests/sp/test_exec_gpu.c -- on GPUs: a layer that was captured in a graph, forward and backward, gives on inputs it has not seen the bits of
 * the same layer put on its queue anew, exchanges in turn with attention and beside it.
 *
 * The graph comes first, so that what it would read too early, or not write, is of other inputs. Needs two GPUs, uses up to four.
 */
#include "sp/sp_test.h"

#include "base/rng.h"
#include "comm/ranks.h"
#include "comm/window.h"
#include "sp/exec.h"

#include <stdlib.h>

enum { SKIP = 77, REPLAYS = 3, POISON = 0xa5, SYNC_US = 60 * 1000 * 1000 };
enum { Q, K, V, D_O, INPUTS, O = INPUTS, DQ, DK, DV, TENSORS }; /* by tokens */

static const struct shape {
    int local, kv; /* query heads of a rank; kv heads of a rank, 0: one of all ranks */
    int64_t batch, local_seq;
} shapes[] = {
    {8, 2, 1, 201}, /* in 4 chunks a kv head is read by two of them: its gradients are summed in fp32 */
    {4, 0, 2, 96},  /* one kv head for all: copies of its gradients are summed by who brought it */
};
static const char ours[] = "flash2";
static const char *const moved_by[] = {"push", "ce"}, *const computed_by[] = {ours, "cudnn-ordered"};
static const int chunkings[] = {1, 4};

struct layer { /* of one rank */
    struct exec *exec;
    struct comm *comm;
    struct dev_queue *queue;
    void *at[TENSORS];
    size_t bytes[TENSORS], outputs_bytes;
    struct dev_graph *forward, *backward;
};

static enum status wait(const struct layer *layer)
{
    return dev_sync(layer->queue, clock_deadline(SYNC_US));
}

static enum status put_forward(void *arg)
{
    struct layer *layer = arg;
    return exec_forward(layer->exec, layer->queue);
}

static enum status put_backward(void *arg)
{
    struct layer *layer = arg;
    return exec_backward(layer->exec, layer->queue);
}

static enum status open_layer(const struct problem *problem, const struct plan *plan, struct layer *layer)
{
    TRY(exec_create(problem, plan, layer->comm, comm_dev(layer->comm), &layer->exec));
    const struct exec_tensors *t = exec_tensors(layer->exec);
    void *const at[TENSORS] = {t->q, t->k, t->v, t->d_o, t->o, t->dq, t->dk, t->dv};
    const size_t bytes[TENSORS] = {t->q_bytes, t->k_bytes, t->v_bytes, t->o_bytes,
                                   t->o_bytes, t->q_bytes, t->k_bytes, t->v_bytes};
    memcpy(layer->at, at, sizeof at);
    memcpy(layer->bytes, bytes, sizeof bytes);
    for (int i = INPUTS; i < TENSORS; i++)
        layer->outputs_bytes += bytes[i];
    return STATUS_OK;
}

static void close_layer(struct layer *layer)
{
    dev_graph_destroy(layer->backward);
    dev_graph_destroy(layer->forward);
    exec_destroy(layer->exec);
}

/* bf16 from -1 to 1, others on each rank and in each run. */
static enum status fill_inputs(const struct layer *layer, int run)
{
    uint16_t *host = malloc(layer->bytes[Q] + layer->bytes[K] + layer->bytes[V] + layer->bytes[D_O]);
    if (host == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a test");
    uint16_t *next = host;
    enum status status = STATUS_OK;
    for (int i = 0; i < INPUTS; i++) {
        int64_t n = (int64_t)(layer->bytes[i] / sizeof *host);
        uint64_t key = (uint64_t)((run * INPUTS + i) * RANKS_MAX + comm_rank(layer->comm));
        for (int64_t e = 0; e < n; e++)
            dtype_set(DTYPE_BF16, next, e, (float)((int)(rng_hash(key, (uint64_t)e) % 2001) - 1000) / 1000.0f);
        if (status == STATUS_OK)
            status = dev_copy(layer->queue, layer->at[i], next, layer->bytes[i]);
        next += n;
    }
    enum status waited = wait(layer);
    free(host);
    return status != STATUS_OK ? status : waited;
}

static enum status poison_outputs(const struct layer *layer)
{
    for (int i = INPUTS; i < TENSORS; i++)
        TRY(dev_fill(layer->queue, layer->at[i], POISON, layer->bytes[i]));
    return wait(layer);
}

static enum status take_outputs(const struct layer *layer, char *host)
{
    for (int i = INPUTS; i < TENSORS; i++) {
        TRY(dev_copy(layer->queue, host, layer->at[i], layer->bytes[i]));
        host += layer->bytes[i];
    }
    return wait(layer);
}

/* graphed, anew: room for the outputs; anew has those of other inputs, which these must differ from. */
static int one_replay(const struct layer *layer, int run, char *graphed, char *anew)
{
    RANK_TRY(fill_inputs(layer, run));
    RANK_TRY(poison_outputs(layer));
    RANK_TRY(dev_graph_run(layer->forward, layer->queue));
    RANK_TRY(dev_graph_run(layer->backward, layer->queue));
    RANK_TRY(take_outputs(layer, graphed));
    RANK_CHECK(memcmp(graphed, anew, layer->outputs_bytes) != 0);
    RANK_TRY(poison_outputs(layer));
    RANK_TRY(put_forward((void *)layer));
    RANK_TRY(put_backward((void *)layer));
    RANK_TRY(take_outputs(layer, anew));
    RANK_CHECK(memcmp(graphed, anew, layer->outputs_bytes) == 0);
    return 0;
}

/* The first run is not captured: in it kernels are loaded and libraries choose. */
static int replays(struct layer *layer)
{
    char *graphed = malloc(layer->outputs_bytes), *anew = malloc(layer->outputs_bytes);
    RANK_CHECK(graphed != NULL && anew != NULL);
    RANK_TRY(fill_inputs(layer, 0));
    RANK_TRY(put_forward(layer));
    RANK_TRY(put_backward(layer));
    RANK_TRY(take_outputs(layer, anew));
    RANK_TRY(dev_graph_create(layer->queue, put_forward, layer, &layer->forward));
    RANK_TRY(dev_graph_create(layer->queue, put_backward, layer, &layer->backward));
    int failed = 0;
    for (int run = 1; run <= REPLAYS && !failed; run++)
        failed = one_replay(layer, run, graphed, anew);
    free(anew);
    free(graphed);
    return failed;
}

static int one_plan(struct comm *comm, struct dev_queue *queue, const struct shape *shape, const struct plan *plan,
                    int *held)
{
    const int size = comm_size(comm);
    struct layer layer = {.comm = comm, .queue = queue};
    struct problem problem = small_problem(shape->local * size, shape->kv > 0 ? shape->kv * size : 1,
                                           shape->local_seq * size - 1 /* and padding */, size);
    problem.batch = shape->batch;
    problem.head_dim = 64;
    enum status status = open_layer(&problem, plan, &layer);
    if (status == STATUS_UNSUPPORTED && strcmp(plan->attention, ours) != 0) { /* a library's, absent or too old */
        if (comm_rank(comm) == 0)
            printf("%s is refused: %s\n", plan->attention, status_last()->what);
        return 0;
    }
    RANK_TRY(status);
    int failed = replays(&layer);
    char text[PLAN_TEXT];
    if (failed)
        fprintf(stderr, "batch %d, %d local heads: %s\n", (int)shape->batch, shape->local, plan_text(plan, text));
    close_layer(&layer);
    ++*held;
    return failed;
}

static int every_plan(struct comm *comm, struct dev_queue *queue, int *held)
{
    struct plan plan = small_plan(comm_size(comm), comm_size(comm));
    for (int s = 0; s < CHECK_COUNT(shapes); s++)
        for (int m = 0; m < CHECK_COUNT(moved_by); m++)
            for (int a = 0; a < CHECK_COUNT(computed_by); a++)
                for (int c = 0; c < CHECK_COUNT(chunkings); c++) {
                    strcpy(plan.exchange, moved_by[m]);
                    strcpy(plan.attention, computed_by[a]);
                    plan.chunks = chunkings[c];
                    int failed = one_plan(comm, queue, &shapes[s], &plan, held);
                    if (failed)
                        return failed;
                }
    return 0;
}

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev *gpu = NULL;
    struct dev_queue *queue = NULL;
    struct comm *gpus = NULL;
    int held = 0, failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(ranks_open_gpu(launch, &gpu));
    RANK_TRY(dev_queue_create(gpu, &queue));
    RANK_TRY(comm_open(side.boot, gpu, "nccl", NULL, &gpus));
    struct verdict reach = window_verdict(gpus);
    if (verdict_ok(&reach))
        failed = every_plan(gpus, queue, &held);
    else if (launch->rank == 0)
        printf("refused: %s\n", reach.why);
    board->flag[launch->rank] = held;
    comm_close(gpus);
    dev_queue_destroy(queue);
    side_close(&side);
    dev_close(gpu);
    return failed;
}

static int gpus;

static void graphs_of_layers_give_their_bits(void **state)
{
    (void)state;
    ranks_pass(gpus >= 4 ? 4 : 2, rank_main, NULL);
    printf("%d layers were captured\n", board->flag[0]);
    if (board->flag[0] == 0) /* GPUs that do not reach each other's memory */
        skip();
    assert_true(board->flag[0] >=
                CHECK_COUNT(shapes) * CHECK_COUNT(moved_by) * CHECK_COUNT(chunkings)); /* ours is always there */
}

int main(void)
{
    gpus = ranks_gpus(4);
    if (gpus < 2) {
        printf("skipped: it takes two GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_of_layers_give_their_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
