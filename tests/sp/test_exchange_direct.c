/* tests/sp/test_exchange_direct.c -- what exchange direct has and the others do not: stores that bypass the cache, memory
 * shared by many small buffers, more ranks than CPUs, no path over tcp, a peer that dies while others store into it.
 *
 * tests/sp/test_exchange.c moves every cell of every shape through it; here rows are as long as in practice.
 */
#include "sp/sp_test.h"

#include "base/cache.h"
#include "base/mem.h"
#include "comm/ranks.h"
#include "sp/exchange.h"
#include "sp/exchange_direct.h"

#include <signal.h>
#include <stdlib.h>

enum { HEADS = 8, DIM = 65 /* rows of 65 words: lines are whole only in the middle */, TENSORS = 3, VICTIM = 1 };

struct layer { /* q, k and v of one rank; fp32 words that carry their origin */
    struct comm *comm;
    void *state;
    struct exchange_tensor t[TENSORS];
    int64_t tokens, seq_local; /* all, mine */
};

static enum status layer_open(struct layer *layer, struct comm *comm, int kv_heads, int64_t seq_local)
{
    const struct exchange *direct = exchange_find("direct");
    int size = comm_size(comm);
    *layer = (struct layer){.comm = comm, .tokens = seq_local * size, .seq_local = seq_local};
    struct exchange_shape shape = {
        .batch = 1, .seq_local = seq_local, .dtype = DTYPE_FP32, .row_elems_max = (int64_t)HEADS * DIM * TENSORS};
    TRY(direct->create(&shape, comm, &layer->state));
    for (int i = 0; i < TENSORS; i++) {
        struct exchange_tensor *t = &layer->t[i];
        int heads = i == 0 ? HEADS : kv_heads, local = model_kv_local(heads, size);
        *t = (struct exchange_tensor){
            .heads = heads, .count = local, .dim = DIM, .head_stride = (int64_t)local * DIM, .sum = true};
        size_t row = (size_t)heads * DIM * sizeof(uint32_t), head_row = (size_t)t->head_stride * sizeof(uint32_t);
        TRY(direct->alloc(layer->state, (size_t)seq_local * row, "seq", &t->seq));
        TRY(direct->alloc(layer->state, (size_t)layer->tokens * head_row, "head", &t->head));
    }
    return STATUS_OK;
}

static void layer_close(struct layer *layer)
{
    const struct exchange *direct = exchange_find("direct");
    for (int i = 0; i < TENSORS && layer->state != NULL; i++) {
        direct->free(layer->state, layer->t[i].head);
        direct->free(layer->state, layer->t[i].seq);
    }
    direct->destroy(layer->state);
}

/* A float without rounding, different in every run. */
static float origin(int tensor, int64_t token, int head, int lane, int run)
{
    return (float)(((token * HEADS + head) * DIM + lane) % 100003 * 16 + tensor * 4 + run % 4);
}

static float *seq_at(const struct layer *layer, int i, int64_t token, int head)
{
    return (float *)layer->t[i].seq + (token * layer->t[i].heads + head) * DIM;
}

static float *head_at(const struct layer *layer, int i, int64_t token, int local)
{
    return (float *)layer->t[i].head + token * layer->t[i].head_stride + (int64_t)local * DIM;
}

static int there(struct layer *layer, int run, struct dev_queue *queue)
{
    int rank = comm_rank(layer->comm), size = comm_size(layer->comm);
    for (int i = 0; i < TENSORS; i++)
        for (int64_t token = 0; token < layer->seq_local; token++)
            for (int head = 0; head < layer->t[i].heads; head++)
                for (int lane = 0; lane < DIM; lane++)
                    seq_at(layer, i, token, head)[lane] = origin(i, rank * layer->seq_local + token, head, lane, run);
    RANK_TRY(exchange_find("direct")->run(layer->state, EXCHANGE_TO_HEADS, layer->t, TENSORS, queue));
    for (int i = 0; i < TENSORS; i++)
        for (int64_t token = 0; token < layer->tokens; token++)
            for (int local = 0; local < model_kv_local(layer->t[i].heads, size); local++)
                for (int lane = 0; lane < DIM; lane++)
                    RANK_CHECK(head_at(layer, i, token, local)[lane] ==
                               origin(i, token, model_kv_first(layer->t[i].heads, size, rank) + local, lane, run));
    return 0;
}

/* Copies bring equal numbers here, so a sum is a multiple. */
static int back(struct layer *layer, int run, struct dev_queue *queue)
{
    int rank = comm_rank(layer->comm), size = comm_size(layer->comm);
    for (int i = 0; i < TENSORS; i++)
        memset(layer->t[i].seq, 0xff, (size_t)layer->seq_local * (size_t)layer->t[i].heads * DIM * sizeof(float));
    RANK_TRY(exchange_find("direct")->run(layer->state, EXCHANGE_TO_SEQ, layer->t, TENSORS, queue));
    for (int i = 0; i < TENSORS; i++)
        for (int64_t token = 0; token < layer->seq_local; token++)
            for (int head = 0; head < layer->t[i].heads; head++)
                for (int lane = 0; lane < DIM; lane++)
                    RANK_CHECK(seq_at(layer, i, token, head)[lane] ==
                               (float)model_kv_copies(layer->t[i].heads, size) *
                                   origin(i, rank * layer->seq_local + token, head, lane, run));
    return 0;
}

static int both_ways(struct comm *comm, struct dev_queue *queue, int kv_heads, int64_t seq_local)
{
    struct layer layer;
    int failed = 0;
    RANK_TRY(layer_open(&layer, comm, kv_heads, seq_local));
    for (int run = 0; run < 6 && !failed; run++) {
        failed = there(&layer, run, queue);
        failed = failed ? failed : back(&layer, run, queue);
    }
    layer_close(&layer);
    return failed;
}

static int rank_long_rows(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = both_ways(side.comm, side.queue, HEADS, 37);
    failed = failed ? failed : both_ways(side.comm, side.queue, 2, 31); /* copies, from 4 ranks on */
    side_close(&side);
    return failed;
}

static void long_rows_there_and_back(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks *= 2) /* 8: more than most CI machines have CPUs */
        ranks_pass(ranks, rank_long_rows, NULL);
}

/* One token more than both sides of q, k and v fit a core's cache: own blocks, too, are stored past it. */
static int rank_beyond_core(const struct launch *launch, void *arg)
{
    const int64_t token_bytes = (int64_t)TENSORS * HEADS * DIM * (int64_t)sizeof(uint32_t);
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = both_ways(side.comm, side.queue, HEADS, cache_core_bytes() / (2 * token_bytes) + 1);
    side_close(&side);
    return failed;
}

static void own_block_beyond_the_core(void **state)
{
    (void)state;
    ranks_pass(2, rank_beyond_core, NULL);
}

/* ---- memory ---- */

enum { BUFFERS = 400 };

static int rank_many_buffers(const struct launch *launch, void *arg)
{
    struct side side;
    const struct exchange *direct = exchange_find("direct");
    struct exchange_shape shape = {.batch = 1, .seq_local = 4, .dtype = DTYPE_FP32, .row_elems_max = 64};
    void *state = NULL;
    char *buffer[BUFFERS];
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(direct->create(&shape, side.comm, &state));
    for (int i = 0; i < BUFFERS; i++) {
        size_t bytes = (size_t)(i * 977 % 9000);
        RANK_TRY(direct->alloc(state, bytes, "buffer", (void **)&buffer[i]));
        RANK_CHECK((uintptr_t)buffer[i] % MEM_ALIGN == 0);
        for (size_t b = 0; b < bytes; b++)
            RANK_CHECK(buffer[i][b] == 0);
        memset(buffer[i], i, bytes);
    }
    for (int i = 0; i < BUFFERS; i++) /* nobody wrote into a neighbour's */
        for (size_t b = 0; b < (size_t)(i * 977 % 9000); b++)
            RANK_CHECK(buffer[i][b] == (char)i);
    for (int i = 0; i < BUFFERS; i++) /* in an order of its own on every rank */
        direct->free(state, buffer[(i * 7 + launch->rank * 31) % BUFFERS]);
    direct->free(state, NULL);
    void *again = NULL;
    RANK_TRY(direct->alloc(state, 3 << 20, "buffer", &again));
    direct->destroy(state);
    side_close(&side);
    return 0;
}

static void many_small_buffers_in_few_windows(void **state)
{
    (void)state;
    ranks_pass(3, rank_many_buffers, NULL);
}

/* q, k, v and o of a layer, both sides, forward and backward, as exec_layer.c asks for them. */
static int layer_in_windows(struct comm *comm, size_t q, size_t k)
{
    const size_t row[] = {q, k, k, q, q, q, k, k};
    struct direct_memory memory = {.group = comm};
    size_t asked = 0, taken = 0, bytes[16];
    for (int i = 0; i < 16; i++) {
        void *buffer;
        bytes[i] = row[i % 8];
        asked += bytes[i];
        RANK_TRY(direct_memory_alloc(&memory, row[i % 8], "a tensor", &buffer));
    }
    for (int w = 0; w < memory.n; w++)
        taken += window_bytes(memory.windows[w].window);
    bool fits = taken <= direct_memory_room(asked) && direct_memory_room(asked) <= asked + (48 << 20);
    if (!fits)
        fprintf(stderr, "q %zu k %zu: %zu asked, %zu taken, %zu told\n", q, k, asked, taken, direct_memory_room(asked));
    direct_memory_destroy(&memory);
    RANK_CHECK(fits);
    RANK_CHECK(taken == direct_memory_windows(bytes, 16));
    return 0;
}

static int rank_layers_in_windows(const struct launch *launch, void *arg)
{
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (size_t q = 64; q <= (16 << 20) && !failed; q += q / 3 + 64)
        for (size_t share = 1; share <= 32 && !failed; share *= 2)
            failed = layer_in_windows(side.comm, q, q / share + 1);
    side_close(&side);
    return failed;
}

/* Whoever asks before whether there is room is not told too little. A group of one: its windows are never touched. */
static void layers_take_the_room_that_was_told(void **state)
{
    (void)state;
    ranks_pass(1, rank_layers_in_windows, NULL);
}

/* ---- refusals ---- */

static int rank_refused(const struct launch *launch, void *arg)
{
    struct side side;
    struct layer layer;
    const struct exchange *direct = exchange_find("direct");
    struct exchange_shape shape = {.batch = 1, .seq_local = 4, .dtype = DTYPE_FP32, .row_elems_max = 64};
    void *state = NULL, *memory = NULL;
    RANK_TRY(side_open(&side, launch, arg));
    if (arg != NULL) { /* tcp */
        struct verdict verdict = direct->supports(&shape, side.comm);
        RANK_CHECK(verdict.rule == RULE_EXCHANGE_CANNOT && strstr(verdict.why, "not by shared memory") != NULL);
        RANK_CHECK(direct->create(&shape, side.comm, &state) == STATUS_UNSUPPORTED && state == NULL);
        RANK_CHECK(strcmp(status_last()->what, verdict.why) == 0);
    } else {
        RANK_TRY(layer_open(&layer, side.comm, HEADS, 3));
        RANK_CHECK(direct->alloc(layer.state, (size_t)1 << 50, "too much", &memory) == STATUS_UNSUPPORTED);
        float elsewhere[3 * HEADS * DIM];
        struct exchange_tensor t = layer.t[0];
        t.seq = elsewhere;
        RANK_CHECK(direct->run(layer.state, EXCHANGE_TO_HEADS, &t, 1, side.queue) == STATUS_USAGE);
        RANK_CHECK(direct->run(layer.state, EXCHANGE_TO_HEADS, layer.t, 0, side.queue) == STATUS_USAGE);
        int failed = there(&layer, 1, side.queue); /* none of it did harm */
        layer_close(&layer);
        if (failed)
            return failed;
    }
    side_close(&side);
    return 0;
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    static char tcp[] = "tcp";
    ranks_pass(2, rank_refused, NULL);
    ranks_pass(2, rank_refused, tcp);
}

/* ---- death ---- */

static int rank_until_death(const struct launch *launch, void *arg)
{
    struct side side;
    struct layer layer;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(layer_open(&layer, side.comm, 2, 400));
    enum status status = comm_barrier(side.comm, side.queue); /* the victim may leave it, and die, before others do */
    if (launch->rank == VICTIM)
        ranks_die_after((int64_t)(intptr_t)arg);
    for (int run = 0; status == STATUS_OK; run++)
        status = exchange_find("direct")->run(layer.state, run % 2 ? EXCHANGE_TO_SEQ : EXCHANGE_TO_HEADS, layer.t,
                                              TENSORS, side.queue);
    int code = ranks_note(launch, status);
    layer_close(&layer);
    side_close(&side);
    return code;
}

static void a_death_is_named_by_all(void **state)
{
    (void)state;
    for (intptr_t after_us = 0; after_us <= 20000; after_us = after_us * 2 + 5000) {
        struct launch_report report = ranks_run(4, rank_until_death, (void *)after_us);
        assert_int_equal(report.failed_rank, VICTIM);
        assert_int_equal(report.signal, SIGKILL);
        assert_int_equal(report.exit_code, 4);
        for (int r = 0; r < 4; r++) {
            if (r == VICTIM)
                continue;
            assert_int_equal(board->code[r], STATUS_PEER);
            assert_int_equal(board->rank[r], VICTIM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_rows_there_and_back),
        cmocka_unit_test(own_block_beyond_the_core),
        cmocka_unit_test(many_small_buffers_in_few_windows),
        cmocka_unit_test(layers_take_the_room_that_was_told),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_death_is_named_by_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
