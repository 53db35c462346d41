/* bench/test_traffic.c -- bare copies: every byte arrives where it belongs for every group size, size and kind of store; and ceilings made
 * of them. */
#include "bench/bench_test.h"
#include "bench/ceiling.h"
#include "bench/group.h"
#include "kernels/copy_stream.h"

#include <stdlib.h>
#include <unistd.h>

static void *const no_arg = NULL;
static const uint64_t seed = 7;

/* ---- one copy ---- */

static void test_streaming(void **state)
{
    (void)state;
    enum { ROOM = 4096 };
    static const size_t sizes[] = {0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 1000, 2048};
    static unsigned char from[ROOM], to[ROOM];
    for (int i = 0; i < ROOM; i++)
        from[i] = (unsigned char)(i * 7 + 1);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t shift = 0; shift < 130; shift += 13) { /* aligned by nothing */
            memset(to, 0, sizeof to);
            copy_stream_bytes(to + 64 + shift, from + shift / 2, sizes[s]);
            for (size_t i = 0; i < ROOM; i++) {
                bool inside = i >= 64 + shift && i < 64 + shift + sizes[s];
                if (to[i] != (inside ? from[i - 64 - shift + shift / 2] : 0))
                    fail_msg("%zu bytes, shift %zu: byte %zu is %d", sizes[s], shift, i, to[i]);
            }
        }
}

/* ---- all ranks ---- */

static int copies(struct bench_env *env, enum bench_traffic kind, int sp, int64_t bytes, enum traffic_store store)
{
    struct traffic *traffic = NULL;
    char why[256] = "";
    struct dev_queue *queue = NULL;
    RANK_TRY(traffic_open(env, kind, sp, bytes, store == TRAFFIC_PLAIN ? BENCH_USED : BENCH_HOT, &traffic));
    RANK_TRY(traffic_data(traffic, seed));
    RANK_TRY(traffic_poison(traffic));
    RANK_TRY(comm_barrier(env->world, queue));
    bool receives = kind != TRAFFIC_ONE || comm_rank(env->world) == 0;
    bool ok = false;
    RANK_TRY(traffic_verify(traffic, seed, &ok, why));
    RANK_CHECK(!receives || !ok); /* nothing is there yet */
    RANK_TRY(comm_barrier(env->world, queue));
    traffic_use(traffic);
    RANK_TRY(comm_barrier(env->world, queue));
    RANK_TRY(traffic_run(traffic, 0, store));
    RANK_TRY(comm_barrier(env->world, queue));
    traffic_use(traffic); /* changes nothing */
    RANK_TRY(traffic_verify(traffic, seed, &ok, why));
    if (!ok)
        fprintf(stderr, "kind %d sp %d, %lld bytes: %s\n", (int)kind, sp, (long long)bytes, why);
    RANK_CHECK(ok);
    bool crosses = kind == TRAFFIC_PEERS || (kind == TRAFFIC_ALL && sp > 1);
    RANK_CHECK((traffic_carrier(traffic)[0] != '\0') == crosses);
    RANK_TRY(comm_barrier(env->world, queue));
    traffic_close(traffic);
    return 0;
}

static int every_copy(const struct launch *launch, void *arg)
{
    static const int64_t sizes[] = {1, 64, 191, 300001}; /* the last one in slices, by threads */
    struct bench_env env;
    struct side side;
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    RANK_TRY(dev_threads_set(side.dev, 3));
    for (int kind = TRAFFIC_LOCAL; kind <= TRAFFIC_ALL; kind++)
        for (int sp = 1; sp <= launch->size; sp++)
            for (int i = 0; i < 4 * (launch->size % sp == 0); i++) {
                if (kind == TRAFFIC_PEERS && sp == 1)
                    continue;
                int failed =
                    copies(&env, (enum bench_traffic)kind, sp, sizes[i], (enum traffic_store)(i % TRAFFIC_STORES));
                if (failed != 0)
                    return failed;
            }
    struct traffic *traffic = NULL;
    RANK_CHECK(traffic_open(&env, TRAFFIC_PEERS, 1, 64, BENCH_HOT, &traffic) == STATUS_UNSUPPORTED && traffic == NULL);
    side_close(&side);
    return 0;
}

static void test_every_copy(void **state)
{
    (void)state;
    ranks_pass(1, every_copy, no_arg);
    ranks_pass(2, every_copy, no_arg);
    ranks_pass(6, every_copy, no_arg);
}

/* Cold: the copies in turn are all there, and the one verified is the last. */
static int cold(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct traffic *traffic = NULL;
    char why[256] = "";
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    RANK_TRY(traffic_open(&env, TRAFFIC_LOCAL, launch->size, 8 << 20, BENCH_COLD, &traffic));
    RANK_CHECK(traffic_rotation(traffic)->n > 1);
    RANK_TRY(traffic_data(traffic, seed));
    RANK_TRY(traffic_poison(traffic));
    RANK_TRY(traffic_run(traffic, 1, TRAFFIC_PLAIN));
    RANK_CHECK(traffic_rotation(traffic)->last == 1);
    bool ok = false;
    RANK_TRY(traffic_verify(traffic, seed, &ok, why));
    RANK_CHECK(ok);
    RANK_TRY(comm_barrier(env.world, NULL));
    traffic_close(traffic);
    side_close(&side);
    return 0;
}

static void test_cold(void **state)
{
    (void)state;
    ranks_pass(2, cold, no_arg);
}

/* ---- ceilings ---- */

static int ceilings(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct ceiling *ceiling = NULL;
    struct bench_case c = bench_test_case("exchange", 4, 2);
    const bool windows = *(const bool *)arg;
    c.buffers = windows ? BENCH_USED : BENCH_HOT;
    RANK_TRY(side_open(&side, launch, windows ? NULL : "tcp"));
    env = (struct bench_env){.world = side.comm, .dev = side.dev, .usable_cpus = 1};
    RANK_TRY(ceiling_open(&env, &c, TRAFFIC_ALL, 4096, &ceiling));
    RANK_CHECK(ceiling_result(ceiling).samples == 0 && ceiling_result(ceiling).GBps <= 0);
    RANK_TRY(ceiling_take(ceiling, NULL));
    RANK_TRY(ceiling_take(ceiling, NULL));
    struct ceiling_result result = ceiling_result(ceiling);
    RANK_CHECK(result.samples >= 4 && result.GBps > 0);
    RANK_CHECK((strstr(result.by, "stores to all ranks") != NULL) == windows);
    RANK_CHECK((strstr(result.by, "copies within ranks") != NULL) == !windows);
    ceiling_restart(ceiling);
    RANK_CHECK(ceiling_result(ceiling).samples == 0 && ceiling_result(ceiling).GBps <= 0);
    /* Shared by rows of equal traffic alone. */
    RANK_CHECK(ceiling_is_of(ceiling, &c, TRAFFIC_ALL, 4096));
    RANK_CHECK(!ceiling_is_of(ceiling, &c, TRAFFIC_PEERS, 4096) && !ceiling_is_of(ceiling, &c, TRAFFIC_ALL, 4095));
    struct bench_case other = c;
    other.buffers = BENCH_COLD;
    RANK_CHECK(!ceiling_is_of(ceiling, &other, TRAFFIC_ALL, 4096));
    other = c;
    other.plan.sp = 4;
    RANK_CHECK(!ceiling_is_of(ceiling, &other, TRAFFIC_ALL, 4096));
    RANK_TRY(comm_barrier(env.world, NULL));
    ceiling_close(ceiling);
    ceiling_close(NULL);
    side_close(&side);
    return 0;
}

/* Where peers cannot be stored to, as over sockets, copies within ranks stand in and say so. */
static void test_ceilings(void **state)
{
    (void)state;
    bool windows = true;
    ranks_pass(4, ceilings, &windows);
    windows = false;
    ranks_pass(4, ceilings, &windows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_every_copy),
        cmocka_unit_test(test_cold),
        cmocka_unit_test(test_ceilings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
