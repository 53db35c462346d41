/* tests/comm/test_transport_batch.c -- messages of one transport: lists of them, and who computes or leaves meanwhile. */
#include "comm/transport_ucx.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

enum { LISTED = 5, LISTED_BYTES = 500 };

/* Lists in which one peer's messages stand before and behind those of others: still in order for each peer. */
static int order_of_lists(const struct launch *launch, void *arg)
{
    static const int lists[][LISTED] = {{0, 2, 0, 1, 2}, {2, 0, 2, 0, 0}, {1, 1, 2, 1, 0}, {0, 1, 2, 1, 0}};
    (void)arg;
    struct side side;
    void *ucx;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(transport_ucx.open(side.boot, side.dev, NULL, &ucx));
    for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        struct transport_xfer sends[LISTED], recvs[LISTED * 3];
        char out[LISTED][LISTED_BYTES], in[LISTED * 3][LISTED_BYTES];
        int nsends = 0, nrecvs = 0, place[LISTED * 3];
        for (int i = 0; i < LISTED; i++) { /* every rank sends message i to the same rank, unless it is itself */
            int to = lists[l][i];
            memset(out[i], 10 * launch->rank + i, LISTED_BYTES);
            if (to != launch->rank)
                sends[nsends++] = (struct transport_xfer){.peer = to, .tag = 3, .data = out[i], .bytes = LISTED_BYTES};
            for (int from = 0; to == launch->rank && from < launch->size; from++) {
                if (from == launch->rank)
                    continue;
                place[nrecvs] = 10 * from + i;
                recvs[nrecvs] =
                    (struct transport_xfer){.peer = from, .tag = 3, .data = in[nrecvs], .bytes = LISTED_BYTES};
                nrecvs++;
            }
        }
        RANK_TRY(transport_ucx.batch(ucx, sends, nsends, recvs, nrecvs, side.queue, clock_deadline(BOOT_DEADLINE_US)));
        for (int i = 0; i < nrecvs; i++)
            RANK_CHECK(in[i][0] == place[i] && in[i][LISTED_BYTES - 1] == place[i]);
    }
    transport_ucx.close(ucx);
    side_close(&side);
    return 0;
}

static void test_order_of_lists(void **state)
{
    (void)state;
    ranks_pass(3, order_of_lists, NULL);
}

/* A rank that is done with a batch and waits in the bootstrap still does what its peers need of it. One more message in
 * each round: at some point the last one fits into the sockets only in part, and the rest waits in UCX. */
static int leave_for_the_bootstrap(const struct launch *launch, void *arg)
{
    struct side side;
    static char data[8000];
    RANK_TRY(side_open(&side, launch, arg));
    comm_set_deadline(side.comm, 3 * 1000 * 1000);
    for (int round = 0; round < 60; round++) {
        if (launch->rank == 1)
            ranks_sleep_ms(3); /* so that the way fills up */
        for (int i = 0; i <= round; i++)
            RANK_TRY(comm_bcast(side.comm, 0, data, sizeof data, side.queue));
        RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    }
    side_close(&side);
    return 0;
}

static void test_leave(void **state)
{
    (void)state;
    ranks_pass(3, leave_for_the_bootstrap, NULL);
    setenv("UCX_TCP_SNDBUF", "64k", 1);
    setenv("UCX_TCP_RCVBUF", "1m", 1);
    ranks_pass(2, leave_for_the_bootstrap, (void *)(uintptr_t) "tcp");
    unsetenv("UCX_TCP_SNDBUF");
    unsetenv("UCX_TCP_RCVBUF");
}

/* A rank that sent everything and computes: over shared memory what it sent arrives without its help. */
static int compute_after_sending(const struct launch *launch, void *arg)
{
    struct side side;
    static char data[200000];
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int round = 0; round < 30; round++) {
        size_t bytes = round % 3 == 0 ? sizeof data : round % 3 == 1 ? 8000 : 100;
        if (launch->rank == 1)
            ranks_sleep_ms(2); /* so that the way fills up */
        for (int i = 0; i <= 3 * round; i++)
            RANK_TRY(comm_bcast(side.comm, 0, data, bytes, side.queue));
        board->flag[launch->rank] = round + 1;
        for (int ms = 0; launch->rank == 0 && board->flag[1] <= round; ms++) {
            RANK_CHECK(ms < 5000);
            ranks_sleep_ms(1);
        }
        RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    }
    side_close(&side);
    return 0;
}

static void test_compute_after_sending(void **state)
{
    (void)state;
    ranks_pass(2, compute_after_sending, NULL);
}

enum { WORK_MS = 2500, LATE_US = 2000 * 1000 };

/* Ends on both ranks at once, however late one of them is. */
static enum status work_long(void *arg)
{
    const struct launch *launch = arg;
    ranks_sleep_ms(WORK_MS);
    board->flag[launch->rank] = WORK_MS;
    while (board->flag[1 - launch->rank] != WORK_MS)
        ranks_sleep_ms(1);
    return STATUS_OK;
}

/* What was computed before took longer than messages may: theirs begins when it is done. */
static int messages_after_long_work(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev_queue *beside = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(dev_queue_create_beside(side.dev, &beside));
    comm_set_deadline(side.comm, LATE_US);
    RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    struct launch self = *launch;
    RANK_TRY(dev_call(beside, work_long, &self));
    RANK_TRY(comm_barrier(side.comm, beside));
    dev_queue_destroy(beside);
    side_close(&side);
    return 0;
}

static void test_messages_after_long_work(void **state)
{
    (void)state;
    ranks_pass(2, messages_after_long_work, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_lists),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_compute_after_sending),
        cmocka_unit_test(test_messages_after_long_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
