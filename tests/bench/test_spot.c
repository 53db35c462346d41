/* bench/test_spot.c -- what verification of real sizes accepts and what it finds: rows against the oracle, identities over everything. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/data.h"
#include "bench/spot.h"
#include "bench/subject.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct layer {
    struct attention_shape shape;
    int64_t *cu;
    struct spot spot;
    void *q, *k, *v, *o, *d_o, *dq, *dk, *dv, *workspace;
    float *lse;
};

static void *tensor(const struct layer *l, enum data_tensor name, int heads, int dim)
{
    int64_t tokens = l->shape.batch * l->shape.seq_q;
    struct data_side side = {.dtype = l->shape.dtype, .batch = tokens / l->spot.padded, .seq = l->spot.padded, .heads = heads,
                             .dim = dim, .token_stride = (int64_t)heads * dim};
    side.base = calloc((size_t)(tokens * heads * dim) + 1, (size_t)dtype_bytes(l->shape.dtype));
    assert_non_null(side.base);
    data_fill(1, name, &side);
    return side.base;
}

/* The CPU kernel's outputs for a problem, whole. */
static void layer_make(const struct problem *problem, struct layer *l)
{
    const struct attention *attention = attention_find("cpu");
    memset(l, 0, sizeof *l);
    CHECK_OK(subject_whole_shape(problem, problem->seq, &l->shape, &l->cu));
    int heads = l->shape.heads, kv = l->shape.kv_heads, dim = l->shape.head_dim, dim_v = l->shape.head_dim_v;
    l->spot = (struct spot){.shape = &l->shape, .seed = 1, .padded = problem->seq, .backward = true};
    shard_whole(problem->seq, &l->spot.shard);
    l->spot.q = l->q = tensor(l, DATA_Q, heads, dim);
    l->spot.k = l->k = tensor(l, DATA_K, kv, dim);
    l->spot.v = l->v = tensor(l, DATA_V, kv, dim_v);
    l->spot.d_o = l->d_o = tensor(l, DATA_DO, heads, dim_v);
    l->spot.o = l->o = tensor(l, DATA_O, heads, dim_v);
    l->spot.dq = l->dq = tensor(l, DATA_DQ, heads, dim);
    l->spot.dk = l->dk = tensor(l, DATA_DK, kv, dim);
    l->spot.dv = l->dv = tensor(l, DATA_DV, kv, dim_v);
    l->lse = calloc((size_t)(l->shape.batch * l->shape.seq_q * heads) + 1, sizeof *l->lse);
    l->spot.lse = l->lse;
    size_t forward = attention->workspace_bytes(&l->shape, false, 1), backward = attention->workspace_bytes(&l->shape, true, 1);
    l->workspace = malloc((forward > backward ? forward : backward) + 1);
    struct attention_args args = {.q = l->q, .k = l->k, .v = l->v, .o = l->o, .lse = l->lse, .d_o = l->d_o, .dq = l->dq,
                                  .dk = l->dk, .dv = l->dv, .workspace = l->workspace};
    CHECK_OK(attention->forward(&l->shape, &args, NULL));
    CHECK_OK(attention->backward(&l->shape, &args, NULL));
}

static void layer_free(struct layer *l)
{
    void *all[] = {l->cu, l->q, l->k, l->v, l->o, l->d_o, l->dq, l->dk, l->dv, l->workspace, l->lse};
    for (int i = 0; i < CHECK_COUNT(all); i++)
        free(all[i]);
}

/* With one thread and with several: the same answer, in the same words. */
static bool rows_drawn_pass(const struct layer *l, uint64_t draw, char why[256])
{
    bool ok = false, alone = false;
    char alone_why[256] = "";
    struct spot spot = l->spot;
    CHECK_OK(spot_rows(&spot, draw, &alone, alone_why));
    spot.threads = 4;
    memset(why, 0, 256);
    CHECK_OK(spot_rows(&spot, draw, &ok, why));
    assert_int_equal(ok, alone);
    assert_string_equal(why, alone_why);
    return ok;
}

static bool rows_pass(const struct layer *l, char why[256])
{
    return rows_drawn_pass(l, 0, why);
}

static bool spot_sums_pass(const struct spot *alone_spot, char why[256])
{
    bool ok = false, alone = false;
    char alone_why[256] = "";
    struct spot spot = *alone_spot;
    CHECK_OK(spot_identities(NULL, &spot, NULL, &alone, alone_why));
    spot.threads = 4;
    memset(why, 0, 256);
    CHECK_OK(spot_identities(NULL, &spot, NULL, &ok, why));
    assert_int_equal(ok, alone);
    assert_string_equal(why, alone_why);
    return ok;
}

static bool sums_pass(const struct layer *l, char why[256])
{
    return spot_sums_pass(&l->spot, why);
}

static struct problem problem_make(int64_t batch, int64_t seq, int heads, int kv, int dim, enum dtype dtype)
{
    struct problem p;
    memset(&p, 0, sizeof p);
    p.batch = batch, p.seq = seq, p.heads = heads, p.kv_heads = kv, p.head_dim = dim, p.dtype = dtype, p.causal = true;
    p.world = 1, p.direction = PROBLEM_BOTH;
    return p;
}

static void test_right_is_accepted(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int kind = 0; kind < 7; kind++) {
            static const int64_t seqs[] = {1, 2, 65, 300, 700, 129, 40};
            struct problem p = problem_make(kind % 2 + 1, seqs[kind], 4, kind % 3 == 0 ? 1 : 2, kind == 3 ? 64 : 16,
                                            (enum dtype)dtype);
            struct layer l;
            char why[256] = "";
            p.causal = kind != 4;
            p.window = kind == 5 ? 17 : 0;
            if (kind == 6) {
                p.docs = 4;
                p.doc_len[0] = 7, p.doc_len[1] = 0, p.doc_len[2] = 1, p.doc_len[3] = 32;
            }
            layer_make(&p, &l);
            for (uint64_t draw = 0; draw < 3; draw++) {
                if (!rows_drawn_pass(&l, draw, why))
                    fail_msg("%s, kind %d: %s", dtype_name(p.dtype), kind, why);
            }
            if (!sums_pass(&l, why))
                fail_msg("%s, kind %d: %s", dtype_name(p.dtype), kind, why);
            layer_free(&l);
        }
}

/* First and last token are always among the rows; a short document is checked whole, gradients of its keys included. */
static void test_wrong_rows_are_found(void **state)
{
    (void)state;
    struct problem p = problem_make(1, 60, 2, 1, 16, DTYPE_FP32);
    struct layer l;
    char why[256];
    layer_make(&p, &l);
    struct {
        const char *name;
        float *at;
    } places[] = {{"o", l.o}, {"dq", (float *)l.dq + 1}, {"dk", (float *)l.dk + 30 * 16}, {"dv", (float *)l.dv + 59 * 16 + 15},
                  {"lse", l.lse}};
    assert_true(rows_pass(&l, why));
    for (int i = 0; i < CHECK_COUNT(places); i++) {
        float held = *places[i].at;
        *places[i].at = held + 1e-3f;
        assert_false(rows_pass(&l, why));
        assert_true(strncmp(why, places[i].name, strlen(places[i].name)) == 0);
        *places[i].at = NAN;
        assert_false(rows_pass(&l, why));
        *places[i].at = held;
    }
    float *q = l.q; /* inputs are made again, not believed */
    q[0] += 1;
    assert_true(rows_pass(&l, why));
    layer_free(&l);
}

static void scale_all(enum dtype dtype, void *base, int64_t from, int64_t n, float by)
{
    for (int64_t i = from; i < from + n; i++)
        dtype_set(dtype, base, i, by * dtype_get(dtype, base, i));
}

/* A gradient that is doubled, that misses a kv head, or that holds a NaN far from the rows that are looked at. */
static void test_identities_find(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct problem p = problem_make(1, 600, 4, 2, 16, (enum dtype)dtype);
        struct layer l;
        char why[256];
        layer_make(&p, &l);
        int64_t kv = 600 * 2 * 16, q = 600 * 4 * 16;
        assert_true(sums_pass(&l, why));
        scale_all(p.dtype, l.dk, 0, kv, 2);
        assert_false(sums_pass(&l, why));
        assert_non_null(strstr(why, "<dK,K>"));
        scale_all(p.dtype, l.dk, 0, kv, 0.5f);
        scale_all(p.dtype, l.dv, 0, kv, 0);
        assert_false(sums_pass(&l, why));
        layer_free(&l);
        layer_make(&p, &l);
        scale_all(p.dtype, l.dq, 0, q / 2, 1.5f);
        assert_false(sums_pass(&l, why));
        layer_free(&l);
        layer_make(&p, &l);
        dtype_set(p.dtype, l.dv, kv / 2, NAN);
        assert_false(sums_pass(&l, why));
        layer_free(&l);
    }
}

enum { ELEMENTS_MAX = 70001 };

/* Four tensors of n elements, one to a token; what identities hold is no matter here. */
static struct spot line_make(struct attention_shape *shape, enum dtype dtype, int64_t n, float memory[4][ELEMENTS_MAX])
{
    *shape = (struct attention_shape){.dtype = dtype,
                                      .batch = 1,
                                      .seq_q = n,
                                      .seq_k = n,
                                      .heads = 1,
                                      .kv_heads = 1,
                                      .group = 1,
                                      .head_dim = 1,
                                      .head_dim_v = 1};
    struct spot spot = {.shape = shape,
                        .padded = n,
                        .backward = true,
                        .v = memory[0],
                        .dv = memory[1],
                        .o = memory[2],
                        .d_o = memory[3],
                        .q = memory[2],
                        .dq = memory[3],
                        .k = memory[0],
                        .dk = memory[1]};
    shard_whole(n, &spot.shard);
    for (int i = 0; i < 4; i++) {
        struct data_side side = {
            .base = memory[i], .dtype = dtype, .batch = 1, .seq = n, .heads = 1, .dim = 1, .token_stride = 1};
        data_fill(1, (enum data_tensor)i, &side);
    }
    return spot;
}

static void test_sums_are_of_all_elements(void **state)
{
    (void)state;
    static float memory[4][ELEMENTS_MAX];
    static const int64_t sizes[] = {1, 7, 8, 1023, 1024, 1025, 65535, 65536, 65537, ELEMENTS_MAX};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int i = 0; i < CHECK_COUNT(sizes); i++) {
            struct attention_shape shape;
            struct spot spot = line_make(&shape, (enum dtype)dtype, sizes[i], memory);
            char why[256];
            double want[2] = {0}, got[2], sizes_added = 0;
            dtype_set(shape.dtype, memory[1], sizes[i] - 1, 1e4f); /* the last one counts, and the sums differ */
            for (int64_t e = 0; e < sizes[i]; e++)
                for (int pair = 0; pair < 2; pair++) {
                    double term = (double)dtype_get(shape.dtype, memory[2 * pair], e);
                    term *= (double)dtype_get(shape.dtype, memory[2 * pair + 1], e);
                    want[pair] += term;
                    sizes_added += fabs(term);
                }
            assert_false(spot_sums_pass(&spot, why));
            assert_int_equal(sscanf(why, "<dV,V> and <dO,O>: %lf and %lf", &got[0], &got[1]), 2);
            for (int pair = 0; pair < 2; pair++)
                assert_true(fabs(got[pair] - want[pair]) <= 1e-8 * fabs(want[pair]) + 1e-14 * sizes_added);
        }
}

/* Terms that cancel leave what was rounded off, in which the order of adding shows. */
static void test_sums_have_an_order(void **state)
{
    (void)state;
    static float memory[4][ELEMENTS_MAX];
    struct attention_shape shape;
    struct spot spot = line_make(&shape, DTYPE_FP32, ELEMENTS_MAX, memory);
    char first[256] = "", why[256];
    double left = 0;
    for (int64_t i = 0, half = ELEMENTS_MAX / 2; i < half; i++) {
        int64_t other = half + i * 10007 % half;
        memory[0][other] = memory[0][i];
        memory[1][other] = -memory[1][i];
    }
    memory[0][ELEMENTS_MAX - 1] = 0;
    for (int i = 0; i < 20; i++) {
        assert_false(spot_sums_pass(&spot, why));
        assert_true(i == 0 || strcmp(why, first) == 0);
        memcpy(first, why, sizeof first);
    }
    assert_int_equal(sscanf(why, "<dV,V> and <dO,O>: %lf", &left), 1);
    assert_true(left != 0 && fabs(left) < 1e-6);
}

/* ---- a thread that has no memory ---- */

static bool scarce;
static atomic_bool lacked;
static pthread_t caller;

enum status __real_mem_alloc(size_t bytes, const char *what, void **out);
enum status __wrap_mem_alloc(size_t bytes, const char *what, void **out);
enum status __wrap_mem_alloc(size_t bytes, const char *what, void **out)
{
    if (scarce && strcmp(what, "scores of a check") == 0) {
        if (!pthread_equal(pthread_self(), caller)) {
            atomic_store(&lacked, true);
            return FAIL(STATUS_NOMEM, "no memory for %s", what);
        }
        int64_t deadline = clock_deadline(20 * 1000 * 1000);
        while (!atomic_load(&lacked) && !clock_passed(deadline)) /* so that another takes the next task */
            sched_yield();
        if (!atomic_load(&lacked))
            fail_msg("no other thread took a task within 20 s");
    }
    return __real_mem_alloc(bytes, what, out);
}

static void test_failures_of_threads_are_told(void **state)
{
    (void)state;
    struct problem p = problem_make(1, 60, 4, 4, 16, DTYPE_FP32);
    struct layer l;
    bool ok;
    char why[256];
    layer_make(&p, &l);
    l.spot.threads = 2;
    caller = pthread_self();
    scarce = true;
    CHECK_FAILS(STATUS_NOMEM, "no memory for scores of a check", spot_rows(&l.spot, 0, &ok, why));
    scarce = false;
    layer_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_is_accepted),  cmocka_unit_test(test_wrong_rows_are_found),
        cmocka_unit_test(test_identities_find),    cmocka_unit_test(test_sums_are_of_all_elements),
        cmocka_unit_test(test_sums_have_an_order), cmocka_unit_test(test_failures_of_threads_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
