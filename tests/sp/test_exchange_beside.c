/* tests/sp/test_exchange_beside.c -- the packed exchange by UCX beside the transport of a job, here on CPUs: what exchange ucx is on GPUs.
 * Groups of a job included; it names what carries its own data.
 */
#include "sp/layers.h"
#include "sp/sp_test.h"

#include "comm/ranks.h"
#include "sp/exchange_packed.h"

static int in_group(struct side *side, struct comm *group, int *moved)
{
    struct exchange beside = *exchange_find("packed");
    const struct exchange *list[] = {&beside, NULL};
    beside.create = packed_create_beside;
    beside.name = "beside";
    return layers_same_bits(list, group, side->queue, group, side->queue, moved);
}

static int named(struct comm *group)
{
    const struct exchange_shape shape = {.batch = 1, .seq_local = 1, .dtype = DTYPE_FP32, .row_elems_max = 1};
    struct exchange exchange = *exchange_find("packed");
    struct comm *beside = NULL;
    void *state = NULL;
    RANK_TRY(comm_beside(group, &beside));
    RANK_TRY(packed_create_beside(&shape, group, &state));
    RANK_CHECK(exchange_in_use(&exchange, state, group) == comm_transport(beside));
    exchange.in_use = NULL;
    RANK_CHECK(exchange_in_use(&exchange, state, group) == comm_transport(group));
    packed_destroy(state);
    return 0;
}

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *half = NULL;
    int moved = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = in_group(&side, side.comm, &moved);
    if (!failed && launch->size == 4) {
        RANK_TRY(comm_split(side.comm, launch->rank % 2, 0, &half));
        failed = in_group(&side, half, &moved);
        comm_close(half);
    }
    RANK_CHECK(failed || moved == (launch->size == 4 ? 2 : 1) * layers_cases(DEV_CPU));
    failed = failed || launch->size == 1 ? failed : named(side.comm); /* a rank alone needs no UCX */
    side_close(&side);
    return failed;
}

static void packed_beside_gives_the_bits_of_packed(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        ranks_pass(ranks, rank_main, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_beside_gives_the_bits_of_packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
