/* tests/comm/test_large.c -- one message beyond what 31 and 32 bits can count. */
#include "base/mem.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

/* 4 GiB + a bit: an offset kept in 32 bits would wrap to the start. */
static const size_t bytes = ((size_t)4 << 30) + (3 << 20) + 5;
static const int64_t need_bytes = (int64_t)11 << 30;

static uint64_t word(size_t i)
{
    return i * UINT64_C(0x9e3779b97f4a7c15);
}

static int send_large(const struct launch *launch, void *arg)
{
    struct side side;
    uint64_t *data = malloc(bytes + sizeof *data);
    const size_t words = bytes / sizeof *data;
    RANK_CHECK(data != NULL);
    RANK_TRY(side_open(&side, launch, arg));
    comm_set_deadline(side.comm, 120 * 1000 * 1000);
    for (size_t i = 0; launch->rank == 0 && i <= words; i++)
        data[i] = word(i);
    const void *send[] = {NULL, data};
    void *recv[] = {data, NULL};
    const size_t send_bytes[] = {0, launch->rank == 0 ? bytes : 0}, recv_bytes[] = {launch->rank == 1 ? bytes : 0, 0};
    RANK_TRY(comm_alltoallv(side.comm, send, send_bytes, recv, recv_bytes, side.queue));
    uint64_t last = word(words);
    for (size_t i = 0; i < words; i++)
        RANK_CHECK(data[i] == word(i));
    RANK_CHECK(memcmp(&data[words], &last, bytes % sizeof *data) == 0);
    side_close(&side);
    free(data);
    return 0;
}

static void test_large(void **state)
{
    (void)state;
    int64_t available;
    assert_int_equal(mem_available(&available), STATUS_OK);
    if (available < need_bytes) {
        print_message("skipped: needs %lld GiB of memory\n", (long long)(need_bytes >> 30));
        skip();
    }
    ranks_pass(2, send_large, NULL);
    ranks_pass(2, send_large, (void *)(uintptr_t) "tcp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
