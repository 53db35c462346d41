/* bench/test_subject.c -- what a case is called, what it moves and computes, and which cases are refused by which rule. */
#include "base/check.h"
#include "bench/check.h"
#include "bench/subject.h"
#include "sp/exchange.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static struct bench_case case_make(const char *subject, int world, int sp)
{
    struct bench_case c;
    bench_case_init(&c);
    snprintf(c.subject, sizeof c.subject, "%s", subject);
    if (strcmp(subject, "exchange") == 0)
        snprintf(c.op, sizeof c.op, "whole");
    if (strcmp(subject, "link") == 0)
        snprintf(c.op, sizeof c.op, "memcpy");
    c.problem.world = world;
    c.plan.sp = sp;
    c.plan.dp_shard = sp > 0 ? world / sp : 1;
    return c;
}

static enum rule rule_of(const struct bench_case *c)
{
    struct verdict verdict = bench_subject_of(c)->check(c, NULL);
    if (!verdict_ok(&verdict))
        assert_true(verdict.why[0] != '\0');
    return verdict.rule;
}

static struct sample key_of(const struct bench_case *c)
{
    struct sample sample;
    sample_init(&sample);
    bench_subject_of(c)->key(c, NULL, &sample);
    return sample;
}

static void test_table(void **state)
{
    (void)state;
    static const char *const names[] = {"link", "collective", "exchange", "attention", "gemm", "layer"};
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        struct bench_case c = case_make(names[i], 2, 2);
        assert_non_null(bench_subject_find(names[i]));
        assert_int_equal(rule_of(&c), RULE_OK);
        struct sample sample = key_of(&c);
        assert_string_equal(sample.key.subject, names[i]);
        assert_int_equal(sample.key.ranks, 2);
        sample_free(&sample);
    }
    assert_null(bench_subject_find("nothing"));
    assert_null(bench_subject_find(NULL));
}

/* Every plug-in file of the room is in its table. Tests run in the source directory. */
static void test_files_are_in_tables(void **state)
{
    (void)state;
    int subjects = 0, checkers = 0;
    DIR *dir = opendir("src/bench");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char name[64] = "";
        if (sscanf(entry->d_name, "subject_%63[a-z_].c", name) == 1 && strstr(entry->d_name, ".c") != NULL) {
            subjects++;
            if (bench_subject_find(name) == NULL)
                fail_msg("%s is not in bench_subjects[]", entry->d_name);
        }
        if (sscanf(entry->d_name, "check_%63[a-z_].c", name) == 1 && strstr(entry->d_name, ".c") != NULL) {
            bool found = false;
            checkers++;
            for (int i = 0; checks[i] != NULL; i++)
                found = found || strncmp(name, checks[i]->area, strlen(checks[i]->area)) == 0;
            if (!found)
                fail_msg("%s is not in checks[]", entry->d_name);
        }
    }
    closedir(dir);
    assert_int_equal(subjects, 6);
    assert_int_equal(checkers, 5);
}

/* Groups matter to peers alone; one rank has none. */
static void test_link(void **state)
{
    (void)state;
    struct bench_case c = case_make("link", 4, 4);
    struct sample sample = key_of(&c);
    assert_string_equal(sample.key.op, "memcpy");
    assert_int_equal(sample.key.bytes, c.bytes);
    assert_int_equal(sample.bytes, c.bytes);
    assert_int_equal(sample.key.sp, -1);
    assert_string_equal(sample.key.dtype, "");
    sample_free(&sample);
    c.plan.sp = 2;
    assert_int_equal(rule_of(&c), RULE_WORLD); /* the same copies as with sp 4: waived, under a key of its own */
    sample = key_of(&c);
    assert_int_equal(sample.key.sp, 2);
    sample_free(&sample);
    snprintf(c.op, sizeof c.op, "peer");
    sample = key_of(&c);
    assert_int_equal(sample.key.sp, 2);
    assert_int_equal(rule_of(&c), RULE_OK);
    sample_free(&sample);
    c.plan.sp = 1;
    assert_int_equal(rule_of(&c), RULE_WORLD);
    c.plan.sp = 4;
    snprintf(c.op, sizeof c.op, "memcpy_one");
    assert_int_equal(rule_of(&c), RULE_OK);
    c.bytes = 0;
    assert_int_equal(rule_of(&c), RULE_INDEX);
    c.bytes = 1;
    snprintf(c.op, sizeof c.op, "alltoall");
    assert_int_equal(rule_of(&c), RULE_ABSENT);
}

/* C47: sizes that do not divide are rounded down, and the row says what really moved; less than an element is no row. */
static void test_collective_bytes(void **state)
{
    (void)state;
    struct bench_case c = case_make("collective", 6, 6);
    c.bytes = 1048576;
    struct sample sample = key_of(&c);
    assert_int_equal(sample.key.bytes, 1048576);
    assert_int_equal(sample.bytes, 1048572);
    assert_int_equal(sample.group, 6);
    assert_string_equal(sample.key.dtype, "");
    c.bytes = 5;
    assert_int_equal(rule_of(&c), RULE_INDEX);
    snprintf(c.op, sizeof c.op, "allreduce");
    c.bytes = 7;
    sample = key_of(&c);
    assert_int_equal(sample.bytes, 4);
    assert_string_equal(sample.key.dtype, "fp32");
    c.bytes = INT64_MAX;
    assert_int_equal(rule_of(&c), RULE_INDEX);
    c.bytes = -1;
    assert_int_equal(rule_of(&c), RULE_INDEX);
    snprintf(c.op, sizeof c.op, "alltoal");
    assert_int_equal(rule_of(&c), RULE_ABSENT);
    c = case_make("collective", 4, 1); /* a copy; other operations of one rank move nothing */
    assert_int_equal(rule_of(&c), RULE_OK);
    snprintf(c.op, sizeof c.op, "allreduce");
    assert_int_equal(rule_of(&c), RULE_WORLD);
    c = case_make("collective", 4, 3);
    assert_int_equal(rule_of(&c), RULE_WORLD);
}

/* S/P * B * D * b * (2 Hq + 2 max(Hkv, P)) for a whole forward, cases.md; backward moves the same. */
static void test_exchange_bytes(void **state)
{
    (void)state;
    static const struct {
        int sp, heads, kv;
    } shapes[] = {{4, 32, 8}, {8, 32, 8}, {8, 32, 2}, {4, 28, 4}, {1, 8, 2}};
    for (int i = 0; i < CHECK_COUNT(shapes); i++) {
        int sp = shapes[i].sp, heads = shapes[i].heads, kv = shapes[i].kv;
        struct bench_case c = case_make("exchange", sp, sp);
        c.problem.heads = heads;
        c.problem.kv_heads = kv;
        c.problem.head_dim = 64;
        c.problem.batch = 3;
        c.problem.seq = 1000;
        c.problem.dtype = DTYPE_BF16;
        int64_t sent = kv > sp ? kv : sp == 1 ? kv : sp > kv ? sp : kv;
        int64_t tokens = (1000 + sp - 1) / sp * 3, want = tokens * 64 * 2 * (2 * heads + 2 * sent);
        struct sample whole = key_of(&c);
        assert_int_equal(whole.bytes, want);
        c.problem.direction = PROBLEM_BACKWARD;
        struct sample backward = key_of(&c);
        assert_int_equal(backward.bytes, want);
        c.problem.direction = PROBLEM_FORWARD;
        snprintf(c.op, sizeof c.op, "in");
        struct sample in = key_of(&c);
        snprintf(c.op, sizeof c.op, "out");
        struct sample out = key_of(&c);
        assert_int_equal(in.bytes + out.bytes, want);
        snprintf(c.op, sizeof c.op, "one");
        struct sample one = key_of(&c);
        assert_int_equal(one.bytes, out.bytes);
        assert_string_equal(one.key.op, "one");
    }
}

/* C37: Q 192, K 192, V 128, O 128 per head. */
static void test_exchange_latent(void **state)
{
    (void)state;
    struct bench_case c = case_make("exchange", 8, 8);
    c.problem.heads = c.problem.kv_heads = 128;
    c.problem.head_dim = 192;
    c.problem.head_dim_v = 128;
    c.problem.seq = 32768;
    c.problem.dtype = DTYPE_BF16;
    struct sample sample = key_of(&c);
    assert_int_equal(sample.bytes, (int64_t)640 << 20);
    assert_int_equal(sample.key.head_dim_v, 128);
}

/* What the host drives is not timed behind a gate; where nothing is exchanged there is nothing to drive. */
static void test_host_driven(void **state)
{
    struct bench_case c;
    (void)state;
    bench_case_init(&c);
    c.plan.sp = 2;
    assert_false(subject_host_driven(&subject_exchange, &c));
    snprintf(c.plan.exchange, sizeof c.plan.exchange, "ucx");
    assert_int_equal(subject_host_driven(&subject_exchange, &c), exchange_find("ucx") != NULL);
    assert_int_equal(subject_host_driven(&subject_layer, &c), exchange_find("ucx") != NULL);
    assert_false(subject_host_driven(&subject_attention, &c));
    c.plan.sp = 1;
    assert_false(subject_host_driven(&subject_exchange, &c));
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const shaped[] = {"exchange", "attention", "layer"};
    for (int i = 0; i < CHECK_COUNT(shaped); i++) {
        struct bench_case c = case_make(shaped[i], 8, 8);
        c.problem.heads = 28;
        c.problem.kv_heads = 4;
        assert_int_equal(rule_of(&c), RULE_HEADS_NOT_DIVISIBLE);
        c = case_make(shaped[i], 7, 7);
        c.problem.heads = 28;
        c.problem.kv_heads = 4;
        assert_int_equal(rule_of(&c), RULE_KV_RULE);
        c = case_make(shaped[i], 8, 3);
        assert_int_equal(rule_of(&c), RULE_WORLD);
        c = case_make(shaped[i], 0, 1);
        assert_int_equal(rule_of(&c), RULE_WORLD);
        c = case_make(shaped[i], 2, 0);
        assert_int_equal(rule_of(&c), RULE_WORLD);
        c = case_make(shaped[i], 2, 2);
        c.problem.seq = 0;
        assert_int_equal(rule_of(&c), RULE_SEQ);
        c = case_make(shaped[i], 2, 2);
        c.problem.seq = 4097;
        c.problem.seq_fixed = true;
        assert_int_equal(rule_of(&c), RULE_SEQ);
        c = case_make(shaped[i], 2, 2);
        c.problem.seq = INT64_MAX - 1;
        assert_int_not_equal(rule_of(&c), RULE_OK);
        c = case_make(shaped[i], 2, 2);
        c.problem.batch = -5;
        assert_int_not_equal(rule_of(&c), RULE_OK);
        c = case_make(shaped[i], 2, 2);
        c.problem.dtype = (enum dtype)77;
        assert_int_not_equal(rule_of(&c), RULE_OK);
    }
    struct bench_case c = case_make("exchange", 2, 2);
    snprintf(c.plan.exchange, sizeof c.plan.exchange, "nothing");
    assert_int_equal(rule_of(&c), RULE_EXCHANGE_CANNOT);
    c = case_make("exchange", 2, 2);
    c.plan.chunks = 17;
    assert_int_equal(rule_of(&c), RULE_EXCHANGE_CANNOT);
    c = case_make("attention", 2, 2);
    snprintf(c.plan.attention, sizeof c.plan.attention, "flash_attention_3");
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
    c = case_make("layer", 2, 2);
    c.plan.method = PLAN_METHOD_SPLIT_GATHER; /* of which attention alone says nothing */
    snprintf(c.plan.exchange, sizeof c.plan.exchange, PLAN_GATHER_EXCHANGE);
    assert_int_equal(rule_of(&c), RULE_NOT_MEASURED);
    c = case_make("gemm", 2, 1);
    c.k = 0;
    assert_int_equal(rule_of(&c), RULE_INDEX);
    c.k = INT64_MAX;
    assert_int_equal(rule_of(&c), RULE_INDEX);
}

static struct bench_case block_make(int sp, enum plan_method method)
{
    struct bench_case c = case_make("layer", sp, sp);
    c.span = BENCH_SPAN_BLOCK;
    c.problem.heads = 8;
    c.problem.kv_heads = 4;
    c.problem.head_dim = 16;
    c.problem.hidden = 96;
    c.problem.ffn = 320;
    c.problem.seq = 64;
    c.plan.method = method;
    if (plan_method_exchange(method) != NULL)
        snprintf(c.plan.exchange, sizeof c.plan.exchange, "%s", plan_method_exchange(method));
    return c;
}

/* The block is in the key of its rows alone: those of attention are called as before there was a choice. */
static void test_span(void **state)
{
    (void)state;
    struct bench_case c = block_make(4, PLAN_METHOD_ULYSSES);
    struct sample block = key_of(&c);
    assert_int_equal(rule_of(&c), RULE_OK);
    assert_string_equal(block.key.span, "block");
    assert_int_equal(block.key.hidden, 96);
    assert_int_equal(block.key.ffn, 320);
    c.span = BENCH_SPAN_ATTENTION;
    struct sample layer = key_of(&c);
    char *text = sample_key_text(&layer.key);
    assert_string_equal(
        text, "subject=layer ranks=4 sp=4 heads=8 kv_heads=4 head_dim=16 seq=64 batch=1 dtype=fp32 attention=cpu "
              "exchange=packed method=ulysses chunks=1 direction=fwd causal=1 window=0 docs=none span=attention "
              "timing=stream buffers=hot");
    free(text);
    /* Weights whole and a quarter of the rows, or a quarter of the weights and all rows: as many products. */
    double weights = 96.0 * ((8 + 2 * 4 + 8) * 16 + 3 * 320), products = 2 * 16 * weights;
    assert_true(block.flops == layer.flops + products);
    assert_int_equal(block.bytes, layer.bytes);
    c = block_make(4, PLAN_METHOD_SPLIT_GATHER);
    struct sample cut = key_of(&c);
    assert_int_equal(rule_of(&c), RULE_OK);
    assert_true(cut.flops == block.flops);
    assert_int_equal(cut.bytes, 4 * 64 * 96 * 4); /* two gathers, two sums of all rows */
    c.problem.direction = PROBLEM_BACKWARD;
    struct sample back = key_of(&c);
    assert_true(back.flops == 2.5 * layer.flops + 2 * products);
    assert_int_equal(back.bytes, 6 * 64 * 96 * 4);
}

static void test_span_refusals(void **state)
{
    (void)state;
    struct bench_case c = block_make(4, PLAN_METHOD_SPLIT_GATHER);
    c.problem.ffn = 322;
    assert_int_equal(rule_of(&c), RULE_FFN_NOT_DIVISIBLE);
    c = block_make(4, PLAN_METHOD_ULYSSES);
    c.problem.ffn = 322;
    assert_int_equal(rule_of(&c), RULE_OK);
    c.problem.hidden = 0;
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
    c = block_make(4, PLAN_METHOD_ULYSSES);
    c.problem.head_dim = 15;
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
    c = block_make(4, PLAN_METHOD_ULYSSES);
    c.heads_timed = 1;
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
    c = block_make(4, PLAN_METHOD_ULYSSES);
    c.problem.direction = PROBLEM_BOTH;
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
    c.problem.direction = PROBLEM_BACKWARD;
    assert_int_equal(rule_of(&c), RULE_OK);
    c.timing = BENCH_LOOP;
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
}

static void test_flops(void **state)
{
    (void)state;
    struct bench_case c = case_make("attention", 4, 4);
    c.problem.heads = 8;
    c.problem.kv_heads = 8;
    c.problem.head_dim = 64;
    c.problem.seq = 128;
    c.problem.causal = false;
    struct sample forward = key_of(&c);
    assert_true(forward.flops == 4.0 * 2 * 128 * 128 * 64);
    snprintf(c.subject, sizeof c.subject, "layer");
    struct sample layer = key_of(&c);
    assert_true(layer.flops == forward.flops);
    c.problem.direction = PROBLEM_BACKWARD;
    struct sample backward = key_of(&c);
    assert_true(backward.flops == 2.5 * forward.flops);
    assert_string_equal(backward.key.direction, "bwd");
    c = case_make("gemm", 4, 1);
    c.m = 3, c.n = 5, c.k = 7;
    struct sample gemm = key_of(&c);
    assert_true(gemm.flops == 2.0 * 3 * 5 * 7);
}

/* C18: which heads are timed depends on the case alone; part of a group keeps the kv heads legal. */
static void test_heads_timed(void **state)
{
    (void)state;
    static const struct {
        int heads, kv, sp, chunks, timed, want_heads, want_kv, want_chunks;
        double scale;
    } good[] = {
        {32, 8, 2, 1, 0, 32, 8, 1, 1},    {32, 8, 2, 1, 16, 32, 8, 1, 1},   {32, 8, 2, 1, 4, 8, 2, 1, 4},
        {32, 8, 2, 1, 8, 16, 4, 1, 2},    {32, 8, 2, 1, 2, 4, 2, 1, 8},     {32, 8, 2, 4, 8, 16, 4, 2, 2},
        {32, 2, 8, 1, 2, 16, 2, 1, 2},    {14, 2, 2, 1, 1, 2, 2, 1, 7},     {14, 2, 2, 7, 1, 2, 2, 1, 7},
        {28, 28, 4, 1, 3, 12, 12, 1, 7.0 / 3}, {32, 8, 2, 1, 7, 8, 2, 1, 4},  {32, 8, 2, 1, 99, 32, 8, 1, 1},
        {32, 8, 2, 16, 4, 8, 2, 4, 4},    {32, 8, 2, 5, 4, 8, 2, 1, 4},     {32, 2, 8, 3, 2, 16, 2, 1, 2},
    };
    for (int i = 0; i < CHECK_COUNT(good); i++) {
        struct bench_case c = case_make("layer", good[i].sp, good[i].sp), timed;
        double scale = 0;
        c.problem.heads = good[i].heads;
        c.problem.kv_heads = good[i].kv;
        c.plan.chunks = good[i].chunks;
        c.heads_timed = good[i].timed;
        assert_int_equal(rule_of(&c), RULE_OK);
        struct verdict verdict = subject_timed(&c, &timed, &scale);
        assert_true(verdict_ok(&verdict));
        assert_int_equal(timed.problem.heads, good[i].want_heads);
        assert_int_equal(timed.problem.kv_heads, good[i].want_kv);
        assert_int_equal(timed.plan.chunks, good[i].want_chunks);
        assert_true(fabs(scale - good[i].scale) < 1e-12);
        struct sample sample = key_of(&c); /* names the whole problem */
        assert_int_equal(sample.key.heads, good[i].heads);
        assert_int_equal(sample.scaled, scale > 1);
        assert_true(fabs(sample.scale - scale) < 1e-12);
    }
    struct bench_case c = case_make("layer", 2, 2);
    c.heads_timed = -1;
    assert_int_equal(rule_of(&c), RULE_KERNEL_CANNOT);
}

/* Rank r's query heads use the kv head that the exchange gives it (C16). */
static void test_shapes_of_ranks(void **state)
{
    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        struct bench_case c = case_make("attention", 4, 4);
        struct attention_shape shape;
        int64_t *cu = NULL;
        c.problem.heads = 8;
        c.problem.kv_heads = 2;
        c.problem.seq = 30;
        CHECK_OK(subject_attention_shape(&c.problem, 4, rank, &shape, &cu));
        assert_int_equal(shape.heads, 2);
        assert_int_equal(shape.kv_heads, 1);
        assert_int_equal(shape.group, 4);
        assert_int_equal(shape.group_first, rank % 2 * 2);
        assert_int_equal(shape.seq_q, 32);
        assert_null(cu);
        CHECK_OK(attention_shape_check(&shape));
    }
}

static void test_docs_text(void **state)
{
    (void)state;
    struct problem problem = {.docs = 0};
    char a[SAMPLE_NAME], b[SAMPLE_NAME];
    subject_docs_text(&problem, a);
    assert_string_equal(a, "none");
    problem.docs = 3;
    problem.doc_len[0] = problem.doc_len[1] = 8192;
    problem.doc_len[2] = 100;
    subject_docs_text(&problem, a);
    assert_string_equal(a, "fixed:8k");
    problem.doc_len[1] = 8191;
    subject_docs_text(&problem, a);
    problem.doc_len[1] = 8190;
    subject_docs_text(&problem, b);
    assert_true(strncmp(a, "3docs-", 6) == 0 && strcmp(a, b) != 0);
}

/* A case is broadcast as bytes and compared by key: two made alike are alike. */
static void test_case_init(void **state)
{
    (void)state;
    struct bench_case a, b;
    memset(&a, 0x11, sizeof a);
    memset(&b, 0xee, sizeof b);
    bench_case_init(&a);
    bench_case_init(&b);
    assert_memory_equal(&a, &b, sizeof a);
    struct bench_options quick, full;
    bench_options_effort("quick", &quick);
    bench_options_effort("full", &full);
    assert_true(quick.samples_min >= 10 && full.samples_min > quick.samples_min && full.ci_target < quick.ci_target);
    bench_options_effort("nonsense", &full);
    assert_int_equal(full.samples_min, quick.samples_min);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),          cmocka_unit_test(test_files_are_in_tables),
        cmocka_unit_test(test_link),           cmocka_unit_test(test_collective_bytes),
        cmocka_unit_test(test_exchange_bytes), cmocka_unit_test(test_exchange_latent),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_flops),
        cmocka_unit_test(test_span),           cmocka_unit_test(test_span_refusals),
        cmocka_unit_test(test_heads_timed),    cmocka_unit_test(test_shapes_of_ranks),
        cmocka_unit_test(test_docs_text),      cmocka_unit_test(test_host_driven),
        cmocka_unit_test(test_case_init),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
