/* tests/sp/test_plan.c -- plans as text and hash, and the rules that allow or forbid them. */
#include "sp/sp_test.h"

#include "base/rng.h"
#include "kernels/attention.h"

#include <stdio.h>
#include <stdlib.h>

static void text_is_the_documented_line(void **state)
{
    (void)state;
    struct plan plan;
    char text[PLAN_TEXT];
    plan_default(&plan);
    plan.sp = 4;
    plan.dp_shard = 2;
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    assert_string_equal(plan_text(&plan, text),
                        "ulysses sp=4 dp_shard=2 dp_replicate=1 tp=1 packed cpu chunks=1 zero=3 mb=1 acc=1 ckpt=full "
                        "offload=none loss=plain mlp=plain");
}

static void text_and_back(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct plan plan, back;
        char text[PLAN_TEXT], again[PLAN_TEXT], hash[17], hash_back[17];
        plan_default(&plan);
        plan.method = (enum plan_method)(i % PLAN_METHOD_COUNT);
        plan.sp = 1 + i;
        plan.ring = 1 + i % 5;
        plan.dp_shard = 1 + i * 3 % 7;
        plan.zero_stage = i % 4;
        plan.micro_batch = i % 2 ? INT64_MAX : 1;
        plan.checkpointing = (enum plan_checkpointing)(i % PLAN_CHECKPOINTING_COUNT);
        plan.offload = (enum plan_offload)(i / 3 % PLAN_OFFLOAD_COUNT);
        plan.loss = (enum plan_loss)(i / 5 % PLAN_LOSS_COUNT);
        plan.mlp = (enum plan_mlp)(i / 7 % PLAN_MLP_COUNT);
        snprintf(plan.attention, sizeof plan.attention, "flash_attention_%d", i);
        CHECK_OK(plan_parse(plan_text(&plan, text), &back));
        assert_string_equal(text, plan_text(&back, again));
        assert_string_equal(plan_hash(&plan, hash), plan_hash(&back, hash_back));
    }
}

static void longest_text_fits(void **state)
{
    (void)state;
    struct plan plan, back;
    char text[PLAN_TEXT];
    plan_default(&plan);
    plan.method = PLAN_METHOD_ULYSSES_RING;
    plan.sp = plan.ring = plan.dp_shard = plan.dp_replicate = plan.tp = plan.chunks = INT32_MAX;
    plan.micro_batch = plan.accumulate = INT64_MAX;
    plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
    plan.offload = PLAN_OFFLOAD_OPTIMIZER;
    memset(plan.exchange, 'e', PLAN_NAME - 1);
    plan.exchange[PLAN_NAME - 1] = '\0';
    memset(plan.attention, 'a', PLAN_NAME - 1);
    plan.attention[PLAN_NAME - 1] = '\0';
    CHECK_OK(plan_parse(plan_text(&plan, text), &back));
    assert_true(strlen(text) < PLAN_TEXT - 1);
    assert_memory_equal(&plan, &back, sizeof plan);
}

static void short_text_keeps_defaults(void **state)
{
    (void)state;
    struct plan plan, want;
    plan_default(&want);
    CHECK_OK(plan_parse("ulysses", &plan));
    assert_memory_equal(&plan, &want, sizeof plan);
    CHECK_OK(plan_parse("  ulysses  zero=1 packed-separate sp=2\n", &plan));
    assert_int_equal(plan.zero_stage, 1);
    assert_int_equal(plan.sp, 2);
    assert_string_equal(plan.exchange, "packed-separate");
    assert_string_equal(plan.attention, "cpu");
}

static void bad_text_is_refused_by_name(void **state)
{
    (void)state;
    struct plan plan;
    char longer[PLAN_TEXT + 2];
    CHECK_FAILS(STATUS_USAGE, "no method", plan_parse("", &plan));
    CHECK_FAILS(STATUS_USAGE, "method", plan_parse("ulyses sp=4", &plan));
    assert_string_equal(status_last()->hint, "did you mean ulysses?");
    CHECK_FAILS(STATUS_USAGE, "no key 'spp'", plan_parse("ulysses spp=4", &plan));
    CHECK_FAILS(STATUS_USAGE, "twice", plan_parse("ulysses sp=4 sp=4", &plan));
    CHECK_FAILS(STATUS_USAGE, "", plan_parse("ulysses sp=0", &plan));
    CHECK_FAILS(STATUS_USAGE, "", plan_parse("ulysses sp=-1", &plan));
    CHECK_FAILS(STATUS_USAGE, "", plan_parse("ulysses sp=", &plan));
    CHECK_FAILS(STATUS_USAGE, "", plan_parse("ulysses sp=2147483648", &plan));
    CHECK_FAILS(STATUS_USAGE, "", plan_parse("ulysses acc=1000000000000000000000000000000", &plan));
    CHECK_FAILS(STATUS_USAGE, "loss", plan_parse("ulysses loss=none", &plan));
    CHECK_FAILS(STATUS_USAGE, "exchange", plan_parse("ulysses pack;ed", &plan));
    CHECK_FAILS(STATUS_USAGE, "no place", plan_parse("ulysses packed cpu again", &plan));
    CHECK_FAILS(STATUS_USAGE, "attention",
                plan_parse("ulysses packed a-name-that-is-longer-than-any-kernel-has", &plan));
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    CHECK_FAILS(STATUS_USAGE, "longer", plan_parse(longer, &plan));
}

/* Whatever one changes in a line: a plan comes out whole, or a refusal with its message. */
static void any_text_gives_a_plan_or_a_refusal(void **state)
{
    (void)state;
    static const char alphabet[] = " =sp124-k.xulyses\n\t\x7f\xff%";
    struct rng rng;
    struct plan plan;
    char text[PLAN_TEXT], again[PLAN_TEXT];
    int accepted = 0;
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < 20000; i++) {
        plan_default(&plan);
        size_t len = strlen(plan_text(&plan, text));
        for (int64_t n = rng_below(&rng, 4); n >= 0; n--)
            text[rng_below(&rng, (int64_t)len)] = alphabet[rng_below(&rng, (int64_t)sizeof alphabet - 1)];
        status_clear();
        if (plan_parse(text, &plan) != STATUS_OK) {
            assert_true(status_last()->what[0] != '\0');
            continue;
        }
        accepted++;
        CHECK_OK(plan_parse(plan_text(&plan, again), &plan));
    }
    assert_in_range(accepted, 100, 19000);
}

static void hash_sees_the_order(void **state)
{
    (void)state;
    struct plan plan;
    char a[17], b[17];
    plan_default(&plan);
    plan_hash(&plan, a);
    assert_int_equal(strlen(a), 16);
    assert_int_equal(strspn(a, "0123456789abcdef"), 16);
    plan.order_n = 2;
    plan.order[0] = 1;
    assert_string_not_equal(a, plan_hash(&plan, b));
    plan.order_n = PLAN_ORDER_MAX;
    for (int i = 0; i < PLAN_ORDER_MAX; i++)
        plan.order[i] = INT16_MIN;
    assert_int_equal(strlen(plan_hash(&plan, b)), 16);
}

static void chunks_cover_the_heads(void **state)
{
    (void)state;
    for (int heads = 1; heads <= 12; heads++)
        for (int chunks = 1; chunks <= heads; chunks++) {
            struct problem problem = small_problem(heads, heads, 4, 1);
            struct plan plan = small_plan(1, 1);
            int at = 0;
            plan.chunks = chunks;
            for (int c = 0; c < chunks; c++) {
                int first, count;
                plan_chunk(&problem, &plan, c, &first, &count);
                assert_int_equal(first, at);
                assert_in_range(count, heads / chunks, heads / chunks + 1);
                at += count;
            }
            assert_int_equal(at, heads);
        }
}

static void refused(const struct problem *problem, const struct plan *plan, enum rule rule, const char *word)
{
    struct verdict verdict = plan_check(problem, plan, DEV_CPU);
    if (verdict.rule != rule || strstr(verdict.why, word) == NULL)
        fail_msg("expected %s '%s', got %s '%s'", rule_code(rule), word, rule_code(verdict.rule), verdict.why);
}

static void a_ring_asks_for_other_things(void **state)
{
    (void)state;
    const struct problem problem = small_problem(6, 3, 64, 8);
    struct problem other;
    struct plan good = small_plan(4, 8), p;
    good.method = PLAN_METHOD_RING;
    strcpy(good.exchange, PLAN_RING_EXCHANGE);
    struct verdict verdict = plan_check(&problem, &good, DEV_CPU); /* 6 heads over 4 ranks: each has all of them */
    assert_int_equal(verdict.rule, RULE_OK);
    refused(&problem, (p = good, strcpy(p.exchange, "packed"), &p), RULE_EXCHANGE_CANNOT, "sendrecv");
    refused(&problem, (p = good, p.method = PLAN_METHOD_ULYSSES, &p), RULE_HEADS_NOT_DIVISIBLE, "");
    refused(&problem, (p = good, p.chunks = 2, &p), RULE_EXCHANGE_CANNOT, "it takes 1");
    refused(&problem, (p = good, p.sp = 3, &p), RULE_WORLD, "8 processes");
    refused((other = problem, other.window = 63, &other), &good, RULE_KERNEL_CANNOT, "window 63 in rows of 64 tokens");
    verdict = plan_check((other.window = 64, &other), &good, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK);
    refused((other.seq = 60, other.window = 60, &other), &good, RULE_KERNEL_CANNOT, "window 60 in rows of 64 tokens");
    refused(&problem, (p = good, strcpy(p.attention, "reference"), &p), RULE_KERNEL_CANNOT, "all keys");
    other = problem;
    other.direction = PROBLEM_FORWARD;
    verdict = plan_check(&other, &p, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK);
    other = problem;
    other.seq = 20;
    other.seq_fixed = true;
    refused(&other, &good, RULE_SEQ, "8 does not divide seq 20; 16 and 24 would work");
    p = good;
    p.sp = 1;
    p.dp_shard = 8;
    other.seq = 21;
    other.window = 4; /* alone it is the kernel's */
    verdict = plan_check(&other, &p, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK);
    p = good; /* two factors: heads are shared by 2 ranks, not by 4 */
    p.method = PLAN_METHOD_ULYSSES_RING;
    strcpy(p.exchange, "packed");
    p.ring = 2;
    other = problem;
    other.kv_heads = 2;
    verdict = plan_check(&other, &p, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK);
    refused(&problem, &p, RULE_KV_RULE, "");
    refused(&other, (p.ring = 3, &p), RULE_WORLD, "rings of 3");
    refused(&other, (p.ring = 8, &p), RULE_WORLD, "rings of 8");
    refused(&other, (p.ring = 2, strcpy(p.exchange, PLAN_RING_EXCHANGE), &p), RULE_EXCHANGE_CANNOT,
            "there is no exchange");
}

/* A step of a ring may have queries or keys alone of a document: cuDNN takes no such call. It says so before it looks for its library. */
static void a_ring_cuts_documents(void **state)
{
    (void)state;
    struct problem problem = small_problem(4, 2, 64, 2);
    struct plan plan = small_plan(2, 2);
    plan.method = PLAN_METHOD_RING;
    strcpy(plan.exchange, PLAN_RING_EXCHANGE);
    problem.docs = 2;
    problem.doc_len[0] = 20;
    problem.doc_len[1] = 44;
    struct verdict verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_string_equal(verdict.why, "");
    if (attention_find("cudnn") == NULL) /* a build for CPUs */
        return;
    strcpy(plan.attention, "cudnn");
    problem.dtype = DTYPE_BF16;
    problem.head_dim = problem.head_dim_v = 64;
    verdict = plan_check(&problem, &plan, DEV_CUDA);
    assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);
    assert_non_null(strstr(verdict.why, "documents or padding, cut in a ring"));
    problem.docs = 1;
    problem.doc_len[0] = 64;
    verdict = plan_check(&problem, &plan, DEV_CUDA);
    assert_null(strstr(verdict.why, "documents or padding, cut in a ring"));
}

/* Heads and the columns of the MLP are cut; nothing is exchanged. */
static void split_gather_cuts_weights(void **state)
{
    (void)state;
    struct problem problem = small_problem(12, 4, 64, 12);
    struct plan good = small_plan(4, 12), p;
    problem.hidden = 96;
    problem.ffn = 40;
    good.method = PLAN_METHOD_SPLIT_GATHER;
    strcpy(good.exchange, PLAN_GATHER_EXCHANGE);
    struct verdict verdict = plan_check(&problem, &good, DEV_CPU);
    assert_string_equal(verdict.why, "");
    p = small_plan(12, 12);
    p.method = PLAN_METHOD_SPLIT_GATHER;
    strcpy(p.exchange, PLAN_GATHER_EXCHANGE);
    refused(&problem, &p, RULE_FFN_NOT_DIVISIBLE, "40 columns of the MLP over 12 ranks leave 4 over");
    p = good;
    problem.ffn = 0;
    verdict = plan_check(&problem, &p, DEV_CPU); /* attention alone */
    assert_int_equal(verdict.rule, RULE_OK);
    refused(&problem, (p = good, p.sp = 3, p.dp_shard = 4, &p), RULE_KV_RULE, "4 KV heads");
    refused(&problem, (p = good, p.chunks = 2, &p), RULE_EXCHANGE_CANNOT, "takes 1");
    refused(&problem, (p = good, strcpy(p.exchange, "direct"), &p), RULE_EXCHANGE_CANNOT, "allgather, not direct");
}

/* tp first, then sp of the heads that it leaves. */
static void tp_cuts_what_sp_shares(void **state)
{
    (void)state;
    struct problem problem = small_problem(12, 6, 50, 12), other;
    struct plan good = small_plan(3, 12), p;
    problem.hidden = 96;
    problem.ffn = 40;
    good.tp = 2;
    good.dp_shard = 2;
    struct verdict verdict = plan_check(&problem, &good, DEV_CPU);
    assert_string_equal(verdict.why, "");
    refused(&problem, (p = good, p.tp = 4, p.dp_shard = 1, &p), RULE_KV_RULE, "tp 4: 6 KV heads and 4 ranks: neither");
    refused(&problem, (p = good, p.tp = 3, p.sp = 2, &p), RULE_FFN_NOT_DIVISIBLE,
            "tp 3: 40 columns of the MLP over 3 ranks leave 1 over");
    refused(&problem, (p = good, p.sp = 4, p.dp_shard = 1, &p), RULE_WORLD, "tp 2: 12 processes in groups of 2 x sp 4");
    refused(&problem, (p = good, p.tp = 5, &p), RULE_HEADS_NOT_DIVISIBLE, "tp 5: 12 query heads over 5 ranks");
    other = problem;
    other.kv_heads = 4;
    refused(&other, &good, RULE_KV_RULE, "beside tp 2: 2 KV heads and 3 ranks");
    other = problem;
    other.seq_fixed = true;
    refused(&other, &good, RULE_SEQ, "sp x tp 6 does not divide seq 50");
    p = good;
    p.method = PLAN_METHOD_SPLIT_GATHER;
    strcpy(p.exchange, PLAN_GATHER_EXCHANGE);
    refused(&problem, &p, RULE_TARGET_CANNOT, "whose sp 3 ranks cut layers already");
    p = good; /* a ring has any heads */
    p.method = PLAN_METHOD_RING;
    strcpy(p.exchange, PLAN_RING_EXCHANGE);
    other.seq_fixed = false;
    other.kv_heads = 2;
    verdict = plan_check(&other, &p, DEV_CPU);
    assert_string_equal(verdict.why, "");
}

static void check_names_the_rule(void **state)
{
    (void)state;
    const struct problem problem = small_problem(8, 4, 64, 8);
    const struct plan good = small_plan(4, 8);
    struct plan p;
    struct verdict verdict = plan_check(&problem, &good, DEV_CPU);
    assert_string_equal(verdict.why, "");
    assert_int_equal(verdict.rule, RULE_OK);
    refused(&problem, (p = good, p.method = PLAN_METHOD_SPLIT_GATHER, &p), RULE_EXCHANGE_CANNOT,
            "allgather, not packed");
    refused(&problem, (p = good, p.method = (enum plan_method)99, &p), RULE_KERNEL_CANNOT, "unknown");
    refused(&problem, (p = good, p.dp_shard = 4, &p), RULE_WORLD, "not the 8 processes");
    refused(&problem, (p = good, p.dp_shard = INT32_MAX, &p), RULE_WORLD, "not the 8 processes");
    refused(&problem, (p = good, p.sp = 0, &p), RULE_WORLD, "1 or more");
    refused(&problem, (p = good, p.sp = -4, &p), RULE_WORLD, "1 or more");
    refused(&problem, (p = good, p.tp = 2, &p), RULE_WORLD, "not the 8 processes");
    refused(&problem, (p = good, p.tp = INT32_MAX, &p), RULE_HEADS_NOT_DIVISIBLE, "fewer than 2147483647");
    refused(&problem, (p = good, p.tp = 0, &p), RULE_WORLD, "1 or more");
    refused(&problem, (p = good, p.order_n = 3, &p), RULE_WORLD, "rank order");
    refused(&problem, (p = good, p.order_n = 8, &p), RULE_WORLD, "rank 1 on device 0"); /* all on device 0 */
    for (int i = 0; i < 8; i++)
        p.order[i] = (int16_t)(7 - i);
    verdict = plan_check(&problem, &p, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK);
    p.order[5] = 8;
    refused(&problem, &p, RULE_WORLD, "rank 5 on device 8");
    p.order[5] = -1;
    refused(&problem, &p, RULE_WORLD, "rank 5 on device -1");
    struct problem many = problem;
    many.world = 2 * PLAN_ORDER_MAX; /* an order that long has no room in a plan */
    refused(&many, (p = good, p.dp_shard = many.world / 4, p.order_n = many.world, &p), RULE_WORLD, "256");
    refused(&problem, (p = good, p.zero_stage = 4, &p), RULE_TARGET_CANNOT, "zero stage 4");
    refused(&problem, (p = good, p.zero_stage = -1, &p), RULE_TARGET_CANNOT, "zero stage -1");
    refused(&problem, (p = good, p.micro_batch = 0, &p), RULE_GLOBAL_BATCH, "micro batch 0");
    refused(&problem, (p = good, p.accumulate = -1, &p), RULE_GLOBAL_BATCH, "accumulation -1");
    refused(&problem, (p = good, p.chunks = 3, &p), RULE_EXCHANGE_CANNOT, "2 heads that a rank holds");
    refused(&problem, (p = good, p.chunks = 0, &p), RULE_EXCHANGE_CANNOT, "0 chunks");
    refused(&problem, (p = good, p.offload = (enum plan_offload)9, &p), RULE_TARGET_CANNOT, "offload");
    refused(&problem, (p = good, p.zero_stage = 2, p.offload = PLAN_OFFLOAD_PARAMS, &p), RULE_TARGET_CANNOT, "stage 3");
}

static void check_names_parts_that_are_absent(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 4, 64, 8);
    struct plan plan = small_plan(4, 8);
    strcpy(plan.exchange, "carrier-pigeon");
    refused(&problem, &plan, RULE_EXCHANGE_CANNOT, "carrier-pigeon");
    plan = small_plan(4, 8);
    strcpy(plan.attention, "flash_attention_3");
    refused(&problem, &plan, RULE_NOT_MEASURED, "flash_attention_3");
    strcpy(plan.attention, "wishful");
    refused(&problem, &plan, RULE_KERNEL_CANNOT, "wishful");
    plan = small_plan(4, 8);
    struct verdict verdict = plan_check(&problem, &plan, DEV_CUDA);
    assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);
    problem.head_dim = 100000; /* wider than any kernel here */
    verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);
    problem.head_dim = -1;
    verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_not_equal(verdict.rule, RULE_OK);
}

static void c12_a_fixed_length_is_not_padded(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 4097, 8);
    struct plan plan = small_plan(8, 8);
    struct verdict verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK); /* searched: padded */
    problem.seq_fixed = true;
    verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_SEQ);
    assert_int_equal(verdict.nearest[0], 4096);
    assert_int_equal(verdict.nearest[1], 4104);
    assert_non_null(strstr(verdict.why, "4096 and 4104"));
    problem.seq = 10;
    plan = small_plan(4, 8);
    verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_equal(verdict.nearest[0], 8);
    assert_int_equal(verdict.nearest[1], 12);
    problem.seq = 3; /* nothing below */
    verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_equal(verdict.nearest[0], 0);
    assert_int_equal(verdict.nearest[1], 4);
}

static void c37_two_widths_of_latent_attention(void **state)
{
    (void)state;
    struct problem problem = small_problem(128, 128, 64, 8);
    struct plan plan = small_plan(8, 8);
    problem.head_dim = 192;
    problem.head_dim_v = 128;
    struct verdict verdict = plan_check(&problem, &plan, DEV_CPU);
    assert_int_equal(verdict.rule, RULE_OK); /* the CPU kernel takes q and k wider than v */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_the_documented_line),
        cmocka_unit_test(text_and_back),
        cmocka_unit_test(longest_text_fits),
        cmocka_unit_test(short_text_keeps_defaults),
        cmocka_unit_test(bad_text_is_refused_by_name),
        cmocka_unit_test(any_text_gives_a_plan_or_a_refusal),
        cmocka_unit_test(hash_sees_the_order),
        cmocka_unit_test(chunks_cover_the_heads),
        cmocka_unit_test(check_names_the_rule),
        cmocka_unit_test(split_gather_cuts_weights),
        cmocka_unit_test(tp_cuts_what_sp_shares),
        cmocka_unit_test(a_ring_asks_for_other_things),
        cmocka_unit_test(a_ring_cuts_documents),
        cmocka_unit_test(check_names_parts_that_are_absent),
        cmocka_unit_test(c12_a_fixed_length_is_not_padded),
        cmocka_unit_test(c37_two_widths_of_latent_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
