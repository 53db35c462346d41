/* tests/sp/layers.c -- the layers of layers.h: odd rows, gaps, chunks, copies of a kv head, single tensors, no tokens at all. */
#include "sp/layers.h"
#include "sp/sp_test.h"

#include "base/rng.h"
#include "comm/ranks.h"

#include <stdlib.h>

enum { TENSORS = 3, RUNS = 3, POISON = 0xa5, SYNC_US = 60 * 1000 * 1000 };

/* kv: heads of k and v in all; 0: as q, -1: one for all ranks. */
static const struct layer_case {
    int64_t batch, seq_local;
    int local, kv, dim, dim_v, n, gap, first, count;
    enum dtype dtype;
} cases[] = {
    {1, 1, 1, 0, 1, 1, 3, 0, 0, -1, DTYPE_FP32},
    {1, 300, 4, 0, 128, 128, 3, 0, 0, -1, DTYPE_BF16},
    {1, 64, 4, -1, 64, 64, 3, 0, 0, -1, DTYPE_BF16},   /* copies of one kv head */
    {2, 77, 3, -1, 65, 33, 3, 5, 0, -1, DTYPE_FP16},   /* odd rows */
    {3, 50, 4, 0, 96, 96, 3, 3, 1, 2, DTYPE_BF16},     /* a chunk in the middle */
    {1, 129, 4, 0, 128, 128, 1, 0, 0, -1, DTYPE_BF16}, /* one tensor, flat by heads: sent and received as it lies */
    {1, 1, 4, 0, 24, 24, 1, 0, 1, 2, DTYPE_FP32},      /* flat, yet not one behind the other */
    {2, 31, 2, 0, 7, 7, 1, 1, 0, -1, DTYPE_BF16},
    {1, 0, 2, 0, 8, 8, 3, 0, 0, -1, DTYPE_FP32}, /* no tokens at all */
    {1, 400, 4, -1, 128, 128, 3, 0, 0, -1, DTYPE_FP32},
    {1, 4200, 4, 0, 128, 128, 1, 0, 0, -1, DTYPE_BF16}, /* more than push shares as one list of chunks */
};

struct layer { /* of one rank, on one device */
    const struct exchange *exchange;
    struct comm *comm;
    struct dev_queue *queue;
    void *state;
    struct exchange_tensor t[TENSORS];
    size_t seq_bytes[TENSORS], head_bytes[TENSORS];
    const struct layer_case *c;
    enum exchange_direction direction; /* of the next run */
};

static int heads_of(const struct layer_case *c, int i, int size)
{
    return i == 0 || c->kv == 0 ? c->local * size : 1;
}

static enum status layer_open(struct layer *layer, const struct exchange *exchange, const struct layer_case *c,
                              struct comm *comm, struct dev_queue *queue)
{
    int size = comm_size(comm);
    struct exchange_shape shape = {.batch = c->batch, .seq_local = c->seq_local, .dtype = c->dtype};
    *layer = (struct layer){.exchange = exchange, .comm = comm, .queue = queue, .c = c};
    for (int i = 0; i < c->n; i++) {
        int heads = heads_of(c, i, size), local = model_kv_local(heads, size), dim = i == 2 ? c->dim_v : c->dim;
        int first = local > c->first ? c->first : 0,
            count = c->count < 0 || first + c->count > local ? local - first : c->count;
        layer->t[i] = (struct exchange_tensor){.heads = heads,
                                               .first = first,
                                               .count = count,
                                               .dim = dim,
                                               .head_stride = (int64_t)local * dim + c->gap,
                                               .sum = true};
        shape.row_elems_max += (int64_t)count * dim;
        int64_t tokens = c->batch * c->seq_local * dtype_bytes(c->dtype);
        layer->seq_bytes[i] = (size_t)(tokens * heads * dim);
        layer->head_bytes[i] = (size_t)(tokens * size * layer->t[i].head_stride);
    }
    TRY(exchange->create(&shape, comm, &layer->state));
    for (int i = 0; i < c->n; i++) {
        TRY(exchange->alloc(layer->state, layer->seq_bytes[i], "a test", &layer->t[i].seq));
        TRY(exchange->alloc(layer->state, layer->head_bytes[i], "a test", &layer->t[i].head));
    }
    return STATUS_OK;
}

static void layer_close(struct layer *layer)
{
    for (int i = layer->c->n - 1; i >= 0 && layer->state != NULL; i--) {
        layer->exchange->free(layer->state, layer->t[i].head);
        layer->exchange->free(layer->state, layer->t[i].seq);
    }
    layer->exchange->destroy(layer->state);
}

/* Finite numbers in every element, the same on every device; of this rank alone, since copies of a head are not equal. */
static enum status fill(const struct layer *layer, void *memory, size_t bytes, int tensor, int run)
{
    int64_t size = dtype_bytes(layer->c->dtype), n = (int64_t)bytes / size;
    char *host = malloc(bytes + 1);
    if (host == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a test");
    uint64_t key = (uint64_t)((run * TENSORS + tensor) * RANKS_MAX + comm_rank(layer->comm));
    for (int64_t i = 0; i < n; i++)
        dtype_set(layer->c->dtype, host, i, (float)((int64_t)(rng_hash(key, (uint64_t)i) % 20001) - 10000) / 999.0f);
    enum status status = dev_copy(layer->queue, memory, host, bytes);
    if (status == STATUS_OK)
        status = dev_sync(layer->queue, clock_deadline(SYNC_US));
    free(host);
    return status;
}

static enum status run_put(void *arg)
{
    struct layer *layer = arg;
    return layer->exchange->run(layer->state, layer->direction, layer->t, layer->c->n, layer->queue);
}

/* Sources filled, destinations poisoned. */
static enum status prepare(struct layer *layer, enum exchange_direction direction, int run)
{
    layer->direction = direction;
    for (int i = 0; i < layer->c->n; i++) {
        bool in = direction == EXCHANGE_TO_HEADS;
        TRY(fill(layer, in ? layer->t[i].seq : layer->t[i].head, in ? layer->seq_bytes[i] : layer->head_bytes[i], i,
                 run));
        TRY(dev_fill(layer->queue, in ? layer->t[i].head : layer->t[i].seq, POISON,
                     in ? layer->head_bytes[i] : layer->seq_bytes[i]));
    }
    return dev_sync(layer->queue, clock_deadline(SYNC_US));
}

static int compare(const struct layer *tried, const struct layer *oracle, int run)
{
    for (int i = 0; i < tried->c->n; i++) {
        bool in = tried->direction == EXCHANGE_TO_HEADS;
        size_t bytes = in ? tried->head_bytes[i] : tried->seq_bytes[i];
        const char *want = in ? oracle->t[i].head : oracle->t[i].seq;
        char *got = malloc(bytes + 1);
        RANK_CHECK(got != NULL);
        RANK_TRY(dev_copy(tried->queue, got, in ? tried->t[i].head : tried->t[i].seq, bytes));
        RANK_TRY(dev_sync(tried->queue, clock_deadline(SYNC_US)));
        size_t at = 0;
        while (at < bytes && got[at] == want[at])
            at++;
        free(got);
        if (at < bytes)
            fprintf(stderr, "%s: case %d, run %d, %s, tensor %d: byte %zu of %zu differs from packed's\n",
                    tried->exchange->name, (int)(tried->c - cases), run, in ? "to heads" : "to tokens", i, at, bytes);
        RANK_CHECK(at == bytes);
    }
    return 0;
}

/* The last run is captured in a graph and replayed, twice. */
static int one_run(struct layer *tried, struct layer *oracle, enum exchange_direction direction, int run, bool graphs)
{
    RANK_TRY(prepare(oracle, direction, run));
    RANK_TRY(run_put(oracle));
    RANK_TRY(prepare(tried, direction, run));
    if (run < RUNS - 1 || !graphs) {
        RANK_TRY(run_put(tried));
        RANK_TRY(dev_sync(tried->queue, clock_deadline(SYNC_US)));
        return compare(tried, oracle, run);
    }
    struct dev_graph *graph = NULL;
    RANK_TRY(dev_graph_create(tried->queue, run_put, tried, &graph));
    RANK_TRY(prepare(tried, direction, run));
    RANK_TRY(comm_barrier(tried->comm, tried->queue));
    for (int replay = 0; replay < 2; replay++)
        RANK_TRY(dev_graph_run(graph, tried->queue));
    RANK_TRY(dev_sync(tried->queue, clock_deadline(SYNC_US)));
    dev_graph_destroy(graph);
    return compare(tried, oracle, run);
}

static int every_run(struct layer *tried, struct layer *oracle)
{
    int failed = 0;
    bool graphs = tried->exchange->dev == DEV_CUDA && !tried->exchange->host_driven;
    for (int run = graphs ? 0 : 1; run < RUNS && !failed; run++) {
        failed = one_run(tried, oracle, EXCHANGE_TO_HEADS, run, graphs);
        failed = failed ? failed : one_run(tried, oracle, EXCHANGE_TO_SEQ, run, graphs);
    }
    return failed;
}

/* Refused by all ranks or by none. */
static int one_exchange(const struct exchange *exchange, struct comm *comm, struct dev_queue *queue,
                        struct layer *oracle, int *moved)
{
    const struct exchange_shape shape = {.batch = 1, .dtype = DTYPE_FP32, .row_elems_max = 1};
    struct verdict verdict = exchange->supports(&shape, comm);
    struct layer tried = {.c = oracle->c};
    enum status status = verdict_ok(&verdict) ? layer_open(&tried, exchange, oracle->c, comm, queue)
                                              : FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    if (status == STATUS_UNSUPPORTED && tried.state == NULL) {
        if (comm_rank(comm) == 0 && oracle->c == cases)
            printf("%s is refused: %s\n", exchange->name, status_last()->what);
        return 0;
    }
    RANK_TRY(status);
    int failed = every_run(&tried, oracle);
    layer_close(&tried);
    ++*moved;
    return failed;
}

int layers_same_bits(const struct exchange *const *list, struct comm *comm, struct dev_queue *queue, struct comm *host,
                     struct dev_queue *host_queue, int *moved)
{
    for (int i = 0; i < layers_cases(dev_kind_of(comm_dev(comm))); i++) {
        struct layer oracle;
        int failed = 0;
        RANK_TRY(layer_open(&oracle, exchange_find("packed"), &cases[i], host, host_queue));
        for (int e = 0; list[e] != NULL && !failed; e++)
            if (list[e]->dev == dev_kind_of(comm_dev(comm)))
                failed = one_exchange(list[e], comm, queue, &oracle, moved);
        layer_close(&oracle);
        if (failed)
            return failed;
    }
    return 0;
}

int layers_cases(enum dev_kind kind)
{
    return CHECK_COUNT(cases) - (kind == DEV_CPU); /* the last is of GPUs alone */
}
