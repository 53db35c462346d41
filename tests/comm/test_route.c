/* tests/comm/test_route.c -- routes: who has none says so on every rank, a group of one needs none, a refusal is of its group; which an NCCL has, by
 * version, function, switch and driver; which GPU's memory a rank reaches. Over GPUs they are used in tests/sp/test_exchange_gpu.c. */
#include "comm/ranks.h"

#include "base/check.h"
#include "comm/comm_group.h"
#include "comm/route.h"
#if SPTUNE_NCCL
#include "comm/transport_nccl.h"
#endif

#include <stdlib.h>
#include <string.h>

static int rank_refused(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int kind = 0; kind < TRANSPORT_ROUTES; kind++) {
        struct verdict verdict = route_verdict(side.comm, (enum transport_route)kind);
        RANK_CHECK(verdict.rule == RULE_EXCHANGE_CANNOT && strstr(verdict.why, "ucx") != NULL);
        RANK_CHECK(route_open(side.comm, (enum transport_route)kind) == STATUS_UNSUPPORTED);
        RANK_CHECK(strcmp(status_last()->what, verdict.why) == 0);
    }
    side_close(&side);
    return 0;
}

static void a_transport_without_them_says_so(void **state)
{
    (void)state;
    ranks_pass(2, rank_refused, NULL);
}

static int rank_alone(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL;
    char *memory = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank, 0, &group));
    RANK_CHECK(route_verdict(group, TRANSPORT_WINDOW).rule == RULE_OK);
    RANK_TRY(route_open(group, TRANSPORT_WINDOW));
    RANK_TRY(route_alloc(group, TRANSPORT_WINDOW, 1000, "a test", (void **)&memory));
    for (int i = 0; i < 1000; i++)
        RANK_CHECK(memory[i] == 0);
    RANK_TRY(route_alltoall(group, TRANSPORT_WINDOW, (const void *const[]){memory}, (void *const[]){memory + 500}, 500,
                            side.queue));
    route_free(group, TRANSPORT_WINDOW, memory);
    route_free(group, TRANSPORT_WINDOW, NULL);
    comm_close(group);
    side_close(&side);
    return 0;
}

static void a_group_of_one_needs_none(void **state)
{
    (void)state;
    ranks_pass(2, rank_alone, NULL);
}

static struct verdict made_verdict(void *state, enum transport_route kind)
{
    (void)state;
    (void)kind;
    return VERDICT_YES;
}

static enum status made_id(void *state, enum transport_route kind, char id[TRANSPORT_ID_BYTES])
{
    (void)state;
    (void)kind;
    memset(id, 0, TRANSPORT_ID_BYTES);
    return STATUS_OK;
}

static int opened; /* how often this rank was asked */

/* The last rank of ranks 0 and 1 finds out that it has none; other groups have one. */
static enum status made_open(void *state, enum transport_route kind, const int *ranks, int size, int rank,
                             const char id[TRANSPORT_ID_BYTES], void **route)
{
    (void)state;
    (void)kind;
    (void)id;
    opened++;
    if (size == 2 && ranks[0] == 0 && rank == 1)
        return FAIL(STATUS_UNSUPPORTED, "no route after all");
    *route = &opened;
    return STATUS_OK;
}

static void made_close(void *route)
{
    (void)route;
}

/* Four ranks in two pairs: one pair is refused when it tries, which the other does not know; then all four try. */
static int rank_in_pairs(const struct launch *launch, void *arg)
{
    static const struct transport_routes routes = {
        .verdict = made_verdict, .id = made_id, .open = made_open, .close = made_close};
    const bool refused = launch->rank < 2;
    struct transport with_routes;
    struct side side;
    struct comm *pair = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    with_routes = *side.comm->job->transport;
    with_routes.routes = &routes;
    side.comm->job->transport = &with_routes;
    RANK_TRY(comm_split(side.comm, launch->rank / 2, launch->rank, &pair));
    RANK_CHECK(route_open(pair, TRANSPORT_WINDOW) == (refused ? STATUS_UNSUPPORTED : STATUS_OK));
    struct verdict verdict = route_verdict(pair, TRANSPORT_WINDOW);
    RANK_CHECK(verdict.rule == (refused ? RULE_EXCHANGE_CANNOT : RULE_OK));
    RANK_CHECK(!refused || strstr(verdict.why, "no route after all") != NULL);
    RANK_CHECK(route_open(pair, TRANSPORT_WINDOW) == (refused ? STATUS_UNSUPPORTED : STATUS_OK) && opened == 1);
    RANK_CHECK(route_verdict(side.comm, TRANSPORT_WINDOW).rule == RULE_OK);
    RANK_TRY(route_open(side.comm, TRANSPORT_WINDOW));
    RANK_CHECK(opened == 2);
    comm_close(pair);
    side_close(&side);
    return 0;
}

static void a_refusal_is_of_its_group(void **state)
{
    (void)state;
    ranks_pass(4, rank_in_pairs, NULL);
}

#if SPTUNE_NCCL && NCCL_VERSION_CODE >= 22800
enum { DRIVER = 13000 };

/* All functions there; none of them is called. */
static struct nccl_api api_of(int version)
{
    struct nccl_api api;
    memset(&api, 0xff, sizeof api);
    api.version = version;
    return api;
}

static void assert_no(struct verdict verdict, const char *word)
{
    assert_int_equal(verdict.rule, RULE_EXCHANGE_CANNOT);
    if (strstr(verdict.why, word) == NULL)
        fail_msg("'%s' does not name '%s'", verdict.why, word);
}

static void assert_can(const struct nccl_api *api, bool registered, bool window, bool engine)
{
    const bool can[] = {registered, window, engine};
    for (int kind = 0; kind < TRANSPORT_ROUTES; kind++)
        assert_int_equal(nccl_route_can(api, (enum transport_route)kind, DRIVER).rule == RULE_OK, can[kind]);
}

static void an_old_nccl_is_named(void **state)
{
    (void)state;
    struct nccl_api old = api_of(21805), middle = api_of(22602), recent = api_of(22809);
    assert_can(&old, false, false, false);
    assert_can(&middle, true, false, false);
    assert_can(&recent, true, true, true);
    assert_no(nccl_route_can(&old, TRANSPORT_REGISTERED, DRIVER), "NCCL 2.18.5 is loaded");
    assert_no(nccl_route_can(&middle, TRANSPORT_WINDOW, DRIVER), "2.28 or later");
    assert_no(nccl_route_can(&recent, TRANSPORT_ENGINE, 12040), "12.4");
}

static void a_missing_function_is_named(void **state)
{
    (void)state;
    struct nccl_api api = api_of(22809);
    api.ncclAlltoAll = NULL;
    assert_can(&api, true, false, false);
    assert_no(nccl_route_can(&api, TRANSPORT_ENGINE, DRIVER), "ncclAlltoAll");
    api = api_of(22809);
    api.ncclCommRegister = NULL;
    assert_can(&api, false, true, true);
    api = api_of(22809);
    api.ncclMemAlloc = NULL;
    assert_can(&api, false, false, false);
}

static void a_switch_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        bool registered, window, engine;
    } cases[] = {
        {"NCCL_LOCAL_REGISTER", "0", false, true, true}, {"NCCL_WIN_ENABLE", "0", true, false, false},
        {"NCCL_CUMEM_ENABLE", "0", true, false, false},  {"NCCL_P2P_DISABLE", "1", true, false, false},
        {"NCCL_P2P_DISABLE", "0", true, true, true},     {"NCCL_CTA_POLICY", "1", true, true, false},
        {"NCCL_CTA_POLICY", "2", true, true, true},      {"NCCL_WIN_ENABLE", "", true, true, true},
    };
    struct nccl_api api = api_of(22809);
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        setenv(cases[i].name, cases[i].value, 1);
        assert_can(&api, cases[i].registered, cases[i].window, cases[i].engine);
        if (!cases[i].engine)
            assert_no(nccl_route_can(&api, cases[i].registered ? TRANSPORT_ENGINE : TRANSPORT_REGISTERED, DRIVER),
                      cases[i].name);
        unsetenv(cases[i].name);
    }
}

static void a_gpu_out_of_reach_is_named(void **state)
{
    (void)state;
    const struct cuda_card mine = {.rank = 2, .bus = "0000:17:00.0", .host = "here"};
    struct cuda_card other = {.rank = 5, .bus = "0000:CA:00.0", .host = "here"};
    assert_int_equal(cuda_memory_reach(&mine, &other, true, true).rule, RULE_OK);
    assert_no(cuda_memory_reach(&mine, &other, true, false),
              "GPU 0000:17:00.0 of rank 2 has no peer access to 0000:CA:00.0 of rank 5");
    assert_no(cuda_memory_reach(&mine, &other, false, false),
              "rank 2 does not see the GPU 0000:CA:00.0 of rank 5 (CUDA_VISIBLE_DEVICES)");
    memcpy(other.bus, mine.bus, sizeof other.bus); /* the same GPU */
    assert_int_equal(cuda_memory_reach(&mine, &other, false, false).rule, RULE_OK);
    const struct cuda_card third = {.rank = 6, .bus = "0000:CA:00.0", .host = "here"};
    assert_true(cuda_memory_shared((const struct cuda_card[]){mine, third, other}, 3));
    assert_false(cuda_memory_shared((const struct cuda_card[]){mine, third}, 2));
    memcpy(other.host, "there", sizeof "there"); /* where that bus id is another one */
    assert_no(cuda_memory_reach(&mine, &other, true, true), "rank 2 and rank 5 are on different hosts");
    assert_false(cuda_memory_shared((const struct cuda_card[]){mine, third, other}, 3));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transport_without_them_says_so),
        cmocka_unit_test(a_group_of_one_needs_none),
        cmocka_unit_test(a_refusal_is_of_its_group),
#if SPTUNE_NCCL && NCCL_VERSION_CODE >= 22800
        cmocka_unit_test(an_old_nccl_is_named),
        cmocka_unit_test(a_missing_function_is_named),
        cmocka_unit_test(a_switch_is_named),
        cmocka_unit_test(a_gpu_out_of_reach_is_named),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
