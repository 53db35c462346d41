/* tests/kernels/test_gate.c -- on a GPU: a queue behind a gate, one that nobody opens, work kept as a graph, a meeting of one. */
#include "base/check.h"
#include "base/clock.h"
#include "base/dev.h"
#include "kernels/copy_peers.h"
#include "kernels/gate.h"

#include <stdio.h>

enum { BYTES = 1 << 16, LIMIT_US = 10 * 1000 * 1000, SOON_US = 20 * 1000 };
static struct dev *gpu;
static struct dev_queue *queue;
static char *a, *b, *c;

static void wait_all(void)
{
    CHECK_OK(dev_sync(queue, clock_deadline(2 * LIMIT_US)));
}

static void nothing_passes_a_gate_that_is_shut(void **state)
{
    (void)state;
    struct gate *gate = NULL;
    char seen[2] = {0};
    struct dev_queue *other = NULL;
    CHECK_OK(dev_queue_create(gpu, &other));
    CHECK_OK(gate_create(&gate));
    for (int round = 0; round < 3; round++) {
        CHECK_OK(dev_fill(queue, a, 1, BYTES));
        wait_all();
        CHECK_OK(gate_shut(gate, LIMIT_US, queue));
        CHECK_OK(dev_fill(queue, a, 2, BYTES));
        CHECK_OK(dev_copy(other, &seen[0], a, 1)); /* beside it */
        CHECK_OK(dev_sync(other, clock_deadline(LIMIT_US)));
        gate_open(gate);
        wait_all();
        CHECK_OK(dev_copy(queue, &seen[1], a, 1));
        wait_all();
        assert_false(gate_missed(gate));
        assert_int_equal(seen[0], 1);
        assert_int_equal(seen[1], 2);
    }
    gate_destroy(gate);
    dev_queue_destroy(other);
}

static void a_gate_that_nobody_opens_opens_itself(void **state)
{
    (void)state;
    struct gate *gate = NULL;
    CHECK_OK(gate_create(&gate));
    CHECK_OK(gate_shut(gate, SOON_US, queue));
    wait_all();
    assert_true(gate_missed(gate));
    CHECK_OK(gate_shut(gate, LIMIT_US, queue)); /* and the next one is a new one */
    gate_open(gate);
    wait_all();
    assert_false(gate_missed(gate));
    gate_destroy(gate);
}

static enum status copies(void *arg)
{
    int *calls = arg;
    ++*calls;
    TRY(dev_copy(queue, b, a, BYTES));
    return dev_copy(queue, c, b, BYTES);
}

static enum status fails(void *arg)
{
    (void)arg;
    return FAIL(STATUS_USAGE, "not today");
}

static void work_is_kept_and_run_again(void **state)
{
    (void)state;
    struct dev_graph *graph = NULL;
    char seen = 0;
    int calls = 0;
    CHECK_OK(dev_fill(queue, c, 7, BYTES));
    CHECK_OK(dev_graph_create(queue, copies, &calls, &graph));
    CHECK_OK(dev_copy(queue, &seen, c + BYTES - 1, 1));
    wait_all();
    assert_int_equal(seen, 7); /* nothing ran */
    for (char value = 1; value < 4; value++) {
        CHECK_OK(dev_fill(queue, a, value, BYTES));
        CHECK_OK(dev_graph_run(graph, queue));
        CHECK_OK(dev_copy(queue, &seen, c + BYTES - 1, 1));
        wait_all();
        assert_int_equal(seen, value);
    }
    assert_int_equal(calls, 1);
    dev_graph_destroy(graph);
    CHECK_FAILS(STATUS_USAGE, "not today", dev_graph_create(queue, fails, NULL, &graph));
    CHECK_OK(dev_fill(queue, a, 9, BYTES)); /* the queue is as before */
    wait_all();
}

static void one_meets_itself(void **state)
{
    (void)state;
    struct copy_peers *peers = NULL;
    void *flags = NULL;
    CHECK_OK(dev_alloc(gpu, copy_peers_flag_bytes(1), "flags", &flags));
    CHECK_OK(copy_peers_open(gpu, 0, 1, &flags, LIMIT_US, &peers));
    for (int i = 0; i < 5; i++)
        CHECK_OK(copy_peers_meet(peers, queue));
    wait_all();
    copy_peers_close(peers);
    dev_free(gpu, flags);
}

static enum status look(void *looked)
{
    ++*(int *)looked;
    return FAIL(STATUS_PEER, "rank 1 is gone");
}

/* The last one: from then on nothing waits for this GPU any more, and who would is told the same. */
static void a_look_that_fails_ends_the_wait(void **state)
{
    (void)state;
    struct gate *gate = NULL;
    int looked = 0;
    char host[8];
    CHECK_OK(gate_create(&gate));
    dev_watch(gpu, look, &looked);
    CHECK_OK(gate_shut(gate, 3 * 1000 * 1000, queue));
    CHECK_OK(dev_fill(queue, a, 1, BYTES));
    CHECK_FAILS(STATUS_PEER, "rank 1 is gone", dev_copy(queue, host, a, sizeof host)); /* pageable: the driver would wait */
    dev_watch(gpu, NULL, NULL);                                                        /* nobody ends a wait now */
    CHECK_FAILS(STATUS_PEER, "rank 1 is gone", dev_sync(queue, INT64_MAX));
    CHECK_FAILS(STATUS_PEER, "rank 1 is gone", dev_alloc(gpu, 1, "one more", (void **)&c));
    assert_int_equal(looked, 1);
    gate_open(gate);
    gate_destroy(gate);
}

static int open_gpu(void **state)
{
    (void)state;
    CHECK_OK(dev_queue_create(gpu, &queue));
    CHECK_OK(dev_alloc(gpu, BYTES, "a", (void **)&a));
    CHECK_OK(dev_alloc(gpu, BYTES, "b", (void **)&b));
    CHECK_OK(dev_alloc(gpu, BYTES, "c", (void **)&c));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    dev_free(gpu, a);
    dev_free(gpu, b);
    dev_free(gpu, c);
    dev_queue_destroy(queue);
    dev_close(gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_passes_a_gate_that_is_shut),
        cmocka_unit_test(a_gate_that_nobody_opens_opens_itself),
        cmocka_unit_test(work_is_kept_and_run_again),
        cmocka_unit_test(one_meets_itself),
        cmocka_unit_test(a_look_that_fails_ends_the_wait),
    };
    if (dev_open(DEV_CUDA, 0, &gpu) != STATUS_OK) {
        printf("skipped: %s\n", status_last()->what);
        return 77;
    }
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
