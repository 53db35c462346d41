/* tests/topo/test_islands.c -- islands, rank orders and the links inside groups: known machines, then random ones. */
#include "topo/make.h"

#include "base/rng.h"

enum { GPUS_MAX = 64 };

static void print_ints(const int *values, int n, char *buf, size_t size)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%d", i ? "," : "", values[i]);
}

/* "0,4,1,5": order of n ranks in groups of sp. */
static void check_order(const struct topo *topo, int n, int sp, const char *expected, enum topo_link_class link)
{
    int order[GPUS_MAX];
    char text[512];
    CHECK_OK(topo_rank_order(topo, n, sp, order));
    print_ints(order, n, text, sizeof text);
    if (strcmp(text, expected) != 0)
        fail_msg("%s, %d ranks, sp %d: order %s, expected %s", topo->source, n, sp, text, expected);
    enum topo_link_class got = topo_group_link(topo, order, n, sp);
    if (got != link)
        fail_msg("%s, %d ranks, sp %d: worst link %s, expected %s", topo->source, n, sp, topo_link_name(got),
                 topo_link_name(link));
}

/* "0,0,1,1": the island of each device. */
static void check_islands(const struct topo *topo, const char *expected)
{
    int island_of[GPUS_MAX], count = 0, highest = -1;
    char text[512];
    CHECK_OK(topo_islands(topo, island_of, &count));
    print_ints(island_of, topo->ngpus, text, sizeof text);
    if (strcmp(text, expected) != 0)
        fail_msg("%s: islands %s, expected %s", topo->source, text, expected);
    for (int i = 0; i < topo->ngpus; i++)
        highest = island_of[i] > highest ? island_of[i] : highest;
    assert_int_equal(count, highest + 1);
}

/* Issue 2: the same eight GPUs, joined by switches or in pairs, want different orders. */
static void test_switched_and_pairs(void **state)
{
    (void)state;
    struct topo switched = make_topo("synth:8xH200,nvlink=18");
    struct topo pairs = make_topo("synth:8xH200,nvlink=4,pairs=0-4,1-5,2-6,3-7");
    check_islands(&switched, "0,0,0,0,0,0,0,0");
    check_islands(&pairs, "0,1,2,3,0,1,2,3");
    check_order(&switched, 8, 2, "0,1,2,3,4,5,6,7", TOPO_LINK_NVSWITCH);
    check_order(&pairs, 8, 2, "0,4,1,5,2,6,3,7", TOPO_LINK_NVLINK);
    check_order(&switched, 8, 4, "0,1,2,3,4,5,6,7", TOPO_LINK_NVSWITCH);
    check_order(&pairs, 8, 4, "0,4,1,5,2,6,3,7", TOPO_LINK_SYS);
    check_order(&pairs, 8, 8, "0,4,1,5,2,6,3,7", TOPO_LINK_SYS);
    check_order(&pairs, 8, 1, "0,1,2,3,4,5,6,7", TOPO_LINK_SELF);
    check_order(&pairs, 2, 2, "0,4", TOPO_LINK_NVLINK);
    check_order(&pairs, 4, 2, "0,4,1,5", TOPO_LINK_NVLINK);
    topo_free(&switched);
    topo_free(&pairs);
}

static void test_hosts(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:2x4xH200,nvlink=18");
    check_islands(&topo, "0,0,0,0,1,1,1,1");
    check_order(&topo, 8, 4, "0,1,2,3,4,5,6,7", TOPO_LINK_NVSWITCH);
    check_order(&topo, 8, 8, "0,1,2,3,4,5,6,7", TOPO_LINK_NET);
    topo_free(&topo);

    topo = make_topo("synth:2x4xA6000,nvlink=4,pairs=0-3,1-2");
    check_islands(&topo, "0,1,1,0,2,3,3,2");
    check_order(&topo, 8, 2, "0,3,1,2,4,7,5,6", TOPO_LINK_NVLINK);
    check_order(&topo, 8, 4, "0,3,1,2,4,7,5,6", TOPO_LINK_SYS);
    topo_free(&topo);

    /* A group of 3 of 2 hosts of 4: one GPU of each host is left out rather than joined over the network. */
    topo = make_topo("synth:2x4xH200,nvlink=18");
    check_order(&topo, 6, 3, "0,1,2,4,5,6", TOPO_LINK_NVSWITCH);
    topo_free(&topo);
}

/* C43: every pair says SYS, the CPUs say two NUMA nodes. */
static void test_all_sys(void **state)
{
    (void)state;
    static const int numa[8] = {0, 0, 0, 0, 1, 1, 1, 1}, mixed[8] = {0, 1, 0, 1, 0, 1, 0, 1};
    struct topo topo = make_gpus(8, numa);
    check_islands(&topo, "0,0,0,0,1,1,1,1");
    check_order(&topo, 8, 4, "0,1,2,3,4,5,6,7", TOPO_LINK_SYS);
    topo_free(&topo);

    topo = make_gpus(8, mixed);
    check_islands(&topo, "0,1,0,1,0,1,0,1");
    check_order(&topo, 8, 4, "0,2,4,6,1,3,5,7", TOPO_LINK_SYS);
    check_order(&topo, 8, 2, "0,2,1,3,4,6,5,7", TOPO_LINK_SYS);
    topo_free(&topo);

    topo = make_gpus(4, NULL); /* nodes unknown: the host is the island */
    check_islands(&topo, "0,0,0,0");
    topo_free(&topo);
}

static void join_all(struct topo *topo, int n, int but, enum topo_link_class link, int count)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            if (a != but && b != but)
                make_link(topo, a, b, link, count);
}

/* C53: GPU 3 of eight lost its NVLinks. */
static void test_lost_links(void **state)
{
    (void)state;
    static const int numa[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    struct topo topo = make_gpus(8, numa);
    join_all(&topo, 8, 3, TOPO_LINK_NVSWITCH, 18);
    CHECK_OK(topo_finish(&topo));
    assert_int_equal(topo.nwarnings, 1);
    assert_non_null(strstr(topo.warnings[0], "GPU 3 (0000:13:00.0, made) has no NVLink where its peers have 18"));
    check_islands(&topo, "0,0,0,1,0,0,0,0");
    /* One group of four must hold it, the other need not; four ranks need not at all. */
    check_order(&topo, 8, 4, "0,1,2,3,4,5,6,7", TOPO_LINK_SYS);
    check_order(&topo, 4, 4, "4,5,6,7", TOPO_LINK_NVSWITCH);
    check_order(&topo, 6, 2, "0,1,4,5,6,7", TOPO_LINK_NVSWITCH);
    check_order(&topo, 7, 7, "0,1,2,4,5,6,7", TOPO_LINK_NVSWITCH);
    assert_int_equal(topo_link_at(&topo, 0, 1)->count, 18);
    assert_int_equal(topo.gpus[3].nvlinks, 0);
    topo_free(&topo);
}

static void test_fewer_links(void **state)
{
    (void)state;
    struct topo topo = make_gpus(4, NULL);
    join_all(&topo, 4, -1, TOPO_LINK_NVSWITCH, 18);
    for (int i = 0; i < 3; i++)
        topo_join(&topo, 3, i, (struct topo_link){TOPO_LINK_NVSWITCH, 12, -1.0, "made"});
    topo.gpus[3].nvlinks = 12;
    topo.gpus[0].nvlinks = topo.gpus[1].nvlinks = topo.gpus[2].nvlinks = 18;
    CHECK_OK(topo_finish(&topo));
    assert_int_equal(topo.nwarnings, 1);
    assert_non_null(strstr(topo.warnings[0], "GPU 3"));
    assert_non_null(strstr(topo.warnings[0], "has 12 NVLinks where its peers have 18"));
    check_islands(&topo, "0,0,0,0");
    check_order(&topo, 2, 2, "0,1", TOPO_LINK_NVSWITCH);
    topo_free(&topo);

    /* Where nobody is usual nobody is odd, and unknown counts are not lost ones. */
    topo = make_gpus(4, NULL);
    make_link(&topo, 0, 1, TOPO_LINK_NVLINK, 4);
    CHECK_OK(topo_finish(&topo));
    assert_int_equal(topo.nwarnings, 0);
    for (int i = 0; i < 3; i++)
        topo.gpus[i].nvlinks = 18;
    topo.gpus[3].nvlinks = -1;
    CHECK_OK(topo_finish(&topo));
    assert_int_equal(topo.nwarnings, 0);
    topo_free(&topo);
}

/* A hybrid cube mesh: two links to some peers, one to others, none to the rest. */
static void test_cube_mesh(void **state)
{
    (void)state;
    static const int numa[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    static const int twice[][2] = {{0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7}, {5, 6}, {6, 7}};
    static const int once[][2] = {{0, 1}, {0, 2}, {1, 3}, {2, 6}, {3, 7}, {4, 5}, {4, 6}, {5, 7}};
    struct topo topo = make_gpus(8, numa);
    for (int i = 0; i < 8; i++) {
        make_link(&topo, twice[i][0], twice[i][1], TOPO_LINK_NVLINK, 2);
        make_link(&topo, once[i][0], once[i][1], TOPO_LINK_NVLINK, 1);
    }
    CHECK_OK(topo_finish(&topo));
    assert_int_equal(topo.nwarnings, 0);
    assert_int_equal(topo.gpus[0].nvlinks, 6);
    check_islands(&topo, "0,0,0,0,1,1,1,1");
    check_order(&topo, 8, 2, "0,3,1,2,4,7,5,6", TOPO_LINK_NVLINK);
    check_order(&topo, 8, 4, "0,3,1,2,4,7,5,6", TOPO_LINK_NVLINK);
    check_order(&topo, 8, 8, "0,3,1,2,4,7,5,6", TOPO_LINK_SYS);
    topo_free(&topo);
}

/* 2-0-1-3: taking the lowest pair first would leave 2 and 3 alone. */
static void test_chain(void **state)
{
    (void)state;
    struct topo topo = make_gpus(4, NULL);
    make_link(&topo, 0, 1, TOPO_LINK_NVLINK, 4);
    make_link(&topo, 0, 2, TOPO_LINK_NVLINK, 4);
    make_link(&topo, 1, 3, TOPO_LINK_NVLINK, 4);
    check_islands(&topo, "0,1,0,1");
    check_order(&topo, 4, 2, "0,2,1,3", TOPO_LINK_NVLINK);
    topo_free(&topo);
}

/* A chain is no clique: its ends have no link, so it is no island of three. */
static void test_cliques_only(void **state)
{
    (void)state;
    struct topo topo = make_gpus(3, NULL);
    make_link(&topo, 0, 1, TOPO_LINK_NVLINK, 4);
    make_link(&topo, 1, 2, TOPO_LINK_NVLINK, 4);
    check_islands(&topo, "0,0,1");
    topo_free(&topo);
}

/* PCIe alone: the order follows switches, the islands follow NUMA nodes. */
static void test_pcie(void **state)
{
    (void)state;
    static const int numa[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    struct topo topo = make_gpus(8, numa);
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < a; b++)
            if (a / 4 == b / 4)
                make_link(&topo, a, b, (a ^ b) == 2 ? TOPO_LINK_PIX : TOPO_LINK_NODE, 1);
    check_islands(&topo, "0,0,0,0,1,1,1,1");
    check_order(&topo, 8, 2, "0,2,1,3,4,6,5,7", TOPO_LINK_PIX);
    check_order(&topo, 8, 4, "0,2,1,3,4,6,5,7", TOPO_LINK_NODE);
    topo_free(&topo);
}

/* A host without NVLink beside one with: each has its own kind of island. */
static void test_unlike_hosts(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:2x4xH200,numa=2");
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < a; b++)
            make_link(&topo, a, b, TOPO_LINK_NVSWITCH, 18);
    check_islands(&topo, "0,0,0,0,1,1,2,2");
    topo_free(&topo);
}

/* Eight ranks in pairs: host 0 has three good pairs, host 1 has four, so all run on host 1. */
static void test_fewest_hosts(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:2x8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7");
    topo_join(&topo, 0, 4, (struct topo_link){TOPO_LINK_SYS, 1, -1.0, "made"});
    check_order(&topo, 8, 2, "8,12,9,13,10,14,11,15", TOPO_LINK_NVLINK);
    check_order(&topo, 6, 2, "1,5,2,6,3,7", TOPO_LINK_NVLINK);
    topo_free(&topo);
}

static void test_bad_requests(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:8xH200,nvlink=18"), cpus = make_topo("synth:4xcpu");
    int order[GPUS_MAX];
    CHECK_FAILS(STATUS_USAGE, "1 or more", topo_rank_order(&topo, 0, 1, order));
    CHECK_FAILS(STATUS_USAGE, "1 or more", topo_rank_order(&topo, 8, 0, order));
    CHECK_FAILS(STATUS_USAGE, "1 or more", topo_rank_order(&topo, -8, -2, order));
    CHECK_FAILS(STATUS_USAGE, "whole groups of 3", topo_rank_order(&topo, 8, 3, order));
    CHECK_FAILS(STATUS_USAGE, "9 ranks on 8 GPUs", topo_rank_order(&topo, 9, 3, order));
    CHECK_FAILS(STATUS_USAGE, "whole groups", topo_rank_order(&cpus, 5, 2, order));
    CHECK_OK(topo_rank_order(&cpus, 40, 4, order)); /* more ranks than CPUs: allowed, identity */
    for (int i = 0; i < 40; i++)
        assert_int_equal(order[i], i);
    assert_int_equal(topo_group_link(&cpus, order, 40, 4), TOPO_LINK_SELF);
    int count = -1;
    CHECK_OK(topo_islands(&cpus, order, &count));
    assert_int_equal(count, 0);
    topo_free(&topo);
    topo_free(&cpus);
}

/* Random links: an order is made of different devices, twice the same; an island is a clique of NVLinks. */
static void check_random(struct rng *rng)
{
    int numa[16] = {0}, n = 2 + (int)rng_below(rng, 14), order[16], again[16], island_of[16], count = 0;
    for (int i = 0; i < n; i++)
        numa[i] = (int)rng_below(rng, 3);
    struct topo topo = make_gpus(n, numa);
    bool any = false;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) {
            enum topo_link_class link = (enum topo_link_class)(1 + rng_below(rng, 7));
            any |= link <= TOPO_LINK_NVLINK;
            make_link(&topo, a, b, link, link <= TOPO_LINK_NVLINK ? 1 + (int)rng_below(rng, 3) : 1);
        }
    CHECK_OK(topo_islands(&topo, island_of, &count));
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            if (any && island_of[a] == island_of[b])
                assert_true(topo_link_at(&topo, a, b)->link <= TOPO_LINK_NVLINK);
    for (int sp = 1; sp <= n; sp++) {
        int ranks = sp * (1 + (int)rng_below(rng, n / sp));
        unsigned seen = 0;
        CHECK_OK(topo_rank_order(&topo, ranks, sp, order));
        CHECK_OK(topo_rank_order(&topo, ranks, sp, again));
        for (int r = 0; r < ranks; r++) {
            assert_true(order[r] >= 0 && order[r] < n && !(seen & 1u << order[r]));
            assert_int_equal(order[r], again[r]);
            seen |= 1u << order[r];
        }
    }
    topo_free(&topo);
}

static void test_random(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3, 0);
    for (int i = 0; i < 1000; i++)
        check_random(&rng);
}

/* Cliques of pairs are found wherever they hide: 2k devices, random pairing, nothing else joined. */
static void test_hidden_pairs(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 4, 0);
    for (int i = 0; i < 200; i++) {
        int n = 2 * (1 + (int)rng_below(&rng, 16)), shuffled[32], order[32];
        for (int k = 0; k < n; k++)
            shuffled[k] = k;
        rng_shuffle(&rng, shuffled, n);
        struct topo topo = make_gpus(n, NULL);
        for (int k = 0; k < n; k += 2)
            make_link(&topo, shuffled[k], shuffled[k + 1], TOPO_LINK_NVLINK, 4);
        CHECK_OK(topo_rank_order(&topo, n, 2, order));
        assert_int_equal(topo_group_link(&topo, order, n, 2), TOPO_LINK_NVLINK);
        topo_free(&topo);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_switched_and_pairs),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_all_sys),
        cmocka_unit_test(test_lost_links),
        cmocka_unit_test(test_fewer_links),
        cmocka_unit_test(test_cube_mesh),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_cliques_only),
        cmocka_unit_test(test_pcie),
        cmocka_unit_test(test_unlike_hosts),
        cmocka_unit_test(test_fewest_hosts),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_hidden_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
