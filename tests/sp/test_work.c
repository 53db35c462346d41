/* tests/sp/test_work.c -- bytes, FLOPs, products of layers, data-parallel traffic, accumulation: against numbers worked out
 * by hand. */
#include "sp/sp_test.h"

#include "model/model.h"
#include "sp/work.h"

#include <math.h>

static const struct model llama_8b = {.layers = 32,
                                      .hidden = 4096,
                                      .heads = 32,
                                      .kv_heads = 8,
                                      .head_dim = 128,
                                      .head_dim_v = 128,
                                      .ffn = 14336,
                                      .gated = true,
                                      .vocab = 128256,
                                      .params = 8030261248,
                                      .params_layer = 218112000,
                                      .params_embedding = 525336576};

static struct problem of_model(const struct model *model, int64_t seq, int world)
{
    struct problem problem;
    problem_from_model(model, seq, world, &problem);
    return problem;
}

static void exchange_bytes_of_llama(void **state)
{
    (void)state;
    struct problem problem = of_model(&llama_8b, 131072, 8);
    struct plan plan = small_plan(8, 8);
    struct work_exchange fwd, bwd;
    work_exchange(&problem, &plan, false, &fwd);
    work_exchange(&problem, &plan, true, &bwd);
    /* 2 B x 16384 tokens x 128 lanes x heads */
    assert_int_equal(fwd.tensor_bytes[0], INT64_C(2) * 16384 * 128 * 32);
    assert_int_equal(fwd.tensor_bytes[1], INT64_C(2) * 16384 * 128 * 8);
    assert_int_equal(fwd.bytes_in, fwd.tensor_bytes[0] + 2 * fwd.tensor_bytes[1]);
    assert_int_equal(fwd.bytes_out, fwd.tensor_bytes[3]);
    assert_int_equal(fwd.wire_in, fwd.bytes_in / 8 * 7);
    /* published arithmetic: 294 MB per layer and pass */
    assert_in_range((fwd.wire_in + fwd.wire_out) / 1000000, 293, 294);
    assert_int_equal(bwd.bytes_in, fwd.bytes_out);
    assert_int_equal(bwd.bytes_out, fwd.bytes_in);
}

static void c46_sizes_of_llama_at_sp_16(void **state)
{
    (void)state;
    struct problem problem = of_model(&llama_8b, 131072, 16);
    struct plan plan = small_plan(16, 16);
    struct work_exchange out;
    work_exchange(&problem, &plan, false, &out);
    assert_int_equal(out.tensor_bytes[0], 64 << 20);
    assert_int_equal(out.tensor_bytes[3], 64 << 20);
    assert_int_equal(out.tensor_bytes[1], 32 << 20); /* 8 kv heads are sent as 16 */
    assert_int_equal(out.tensor_bytes[2], 32 << 20);
}

static void a_ring_passes_keys_and_values_on(void **state)
{
    (void)state;
    struct problem problem = of_model(&llama_8b, 131072, 8);
    struct plan plan = small_plan(8, 8);
    struct work_exchange fwd, bwd;
    plan.method = PLAN_METHOD_RING;
    strcpy(plan.exchange, PLAN_RING_EXCHANGE);
    work_exchange(&problem, &plan, false, &fwd);
    work_exchange(&problem, &plan, true, &bwd);
    int64_t keys = INT64_C(2) * 16384 * 8 * (128 + 128); /* of a rank, bf16 */
    assert_int_equal(fwd.wire_in, 7 * keys);
    assert_int_equal(fwd.wire_out, 0);
    assert_int_equal(bwd.wire_in, 7 * keys);
    assert_int_equal(bwd.wire_out, 7 * 2 * keys + keys); /* home after 8 passes, in fp32 but for the last */
    assert_int_equal(bwd.bytes_in + bwd.bytes_out, bwd.wire_in + bwd.wire_out);
    plan.method = PLAN_METHOD_ULYSSES_RING; /* 4 ranks exchange, 2 places */
    plan.ring = 2;
    strcpy(plan.exchange, "packed");
    work_exchange(&problem, &plan, false, &fwd);
    int64_t qkv = INT64_C(2) * 16384 * 128 * (32 + 8 + 8);
    assert_int_equal(fwd.wire_in, qkv / 4 * 3 + keys); /* 4 times the tokens, a quarter of the heads */
    assert_int_equal(fwd.wire_out, INT64_C(2) * 16384 * 128 * 32 / 4 * 3);
    /* the same work for each rank, padding apart */
    assert_true(work_attention_flops(&problem, &plan, false) * 8 ==
                work_attention_flops(&problem, &(struct plan){.sp = 1}, false));
}

/* Rows are gathered and their sums scattered; products are those of a piece of each weight with the tokens of all. */
static void split_gather_moves_rows(void **state)
{
    (void)state;
    struct problem problem = of_model(&llama_8b, 131072, 16);
    struct plan plan = small_plan(16, 16), whole = small_plan(16, 16);
    struct work_exchange fwd, bwd;
    struct work_gemm gemm[WORK_GEMMS];
    plan.method = PLAN_METHOD_SPLIT_GATHER;
    strcpy(plan.exchange, PLAN_GATHER_EXCHANGE);
    work_exchange(&problem, &plan, false, &fwd);
    work_exchange(&problem, &plan, true, &bwd);
    int64_t rows = INT64_C(2) * 131072 * 4096; /* bf16 */
    assert_int_equal(fwd.bytes_in, 2 * rows);
    assert_int_equal(fwd.bytes_out, 2 * rows);
    assert_int_equal(fwd.wire_in, 2 * rows / 16 * 15);
    assert_int_equal(bwd.bytes_in, 4 * rows);
    assert_int_equal(bwd.wire_out, 2 * rows / 16 * 15);
    assert_true(work_attention_flops(&problem, &plan, true) == work_attention_flops(&problem, &whole, true));
    const int64_t n[] = {256 + 2 * 128, 4096, 2 * 896, 4096},
                  k[] = {4096, 256, 4096, 896}; /* a kv head of 8 on two ranks */
    assert_int_equal(work_gemms(&llama_8b, &problem, &plan, NULL, gemm), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(gemm[i].m, 131072);
        assert_int_equal(gemm[i].n, n[i]);
        assert_int_equal(gemm[i].k, k[i]);
    }
    assert_int_equal(work_logits(&llama_8b, &problem, &plan).m, 8192); /* whole weights, own tokens */
    plan = small_plan(1, 16);
    plan.method = PLAN_METHOD_SPLIT_GATHER;
    work_exchange(&problem, &plan, false, &fwd);
    assert_int_equal(fwd.bytes_in + fwd.bytes_out + fwd.wire_in + fwd.wire_out, 0);
}

/* 4 ranks cut layers, 2 share each piece; what is not cut is shared by all 8. */
static void split_gather_shares_pieces(void **state)
{
    (void)state;
    const struct target *sptune = target_find("sptune");
    struct problem problem = of_model(&llama_8b, 8192, 8);
    struct plan plan = small_plan(4, 8);
    struct work_params params;
    struct work_zero zero;
    plan.method = PLAN_METHOD_SPLIT_GATHER;
    work_params(&llama_8b, &problem, &plan, sptune, &params);
    int64_t norms = 2 * 4096, rest = llama_8b.params - 32 * llama_8b.params_layer;
    int64_t cut = 32 * (norms + (llama_8b.params_layer - norms) / 4);
    assert_true(params.cut == (double)cut && params.whole == (double)rest);
    assert_int_equal(params.cut_group, 2);
    assert_int_equal(params.whole_group, 8);
    plan.zero_stage = 3;
    work_zero(&llama_8b, &problem, &plan, sptune, &zero);
    assert_int_equal(zero.optimizer_elems, cut / 2 + rest / 8);
    assert_int_equal(zero.gather_bytes, 2 * (2 * cut / 2 + 2 * rest / 8 * 7));
    assert_int_equal(zero.reduce_bytes, 2 * cut / 2 + 2 * rest / 8 * 7);
    plan.zero_stage = 0;
    work_zero(&llama_8b, &problem, &plan, sptune, &zero);
    assert_int_equal(zero.optimizer_elems, cut + rest);
    plan.method = PLAN_METHOD_ULYSSES;
    work_params(&llama_8b, &problem, &plan, sptune, &params);
    assert_true(params.cut == 0 && params.whole == (double)llama_8b.params);
}

static void one_rank_exchanges_nothing(void **state)
{
    (void)state;
    struct problem problem = of_model(&llama_8b, 4096, 1);
    struct plan plan = small_plan(1, 1);
    struct work_exchange out;
    work_exchange(&problem, &plan, false, &out);
    assert_int_equal(out.wire_in, 0);
    assert_int_equal(out.wire_out, 0);
}

static void c37_latent_attention(void **state)
{
    (void)state;
    struct problem problem = small_problem(128, 128, 32768, 8);
    struct plan plan = small_plan(8, 8);
    struct work_exchange out;
    problem.head_dim = 192;
    problem.head_dim_v = 128;
    work_exchange(&problem, &plan, false, &out);
    assert_int_equal(out.tensor_bytes[0], 192 << 20);
    assert_int_equal(out.tensor_bytes[1], 192 << 20);
    assert_int_equal(out.tensor_bytes[2], 128 << 20);
    assert_int_equal(out.tensor_bytes[3], 128 << 20);
    assert_int_equal(out.bytes_in + out.bytes_out, 640 << 20);
}

static void padding_is_paid_for(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 10, 4);
    struct plan plan = small_plan(4, 4);
    struct work_exchange out;
    work_exchange(&problem, &plan, false, &out);
    assert_int_equal(out.tensor_bytes[0], 3 * 8 * 8 * 2); /* 12 / 4 tokens */
    assert_true(work_attention_flops(&problem, &plan, false) == 2.0 * 2 * (8 + 8) * (12 * 13 / 2));
}

static void c11_flops_are_per_document(void **state)
{
    (void)state;
    struct problem problem = small_problem(2, 2, 8, 2);
    struct plan plan = small_plan(2, 2);
    const double pair = 2.0 * 1 * (8 + 8); /* one head per rank */
    assert_true(work_attention_flops(&problem, &plan, false) == 36 * pair);
    problem.docs = 2;
    problem.doc_len[0] = 3;
    problem.doc_len[1] = 5;
    assert_true(work_attention_flops(&problem, &plan, false) == 21 * pair);
    assert_true(work_attention_flops(&problem, &plan, true) == 2.5 * 21 * pair);
    problem.batch = 3;
    assert_true(work_attention_flops(&problem, &plan, false) == 3 * 21 * pair);
}

static void flops_of_masks(void **state)
{
    (void)state;
    struct problem problem = small_problem(4, 4, 8, 1);
    struct plan plan = small_plan(1, 1);
    const double pair = 2.0 * 4 * (8 + 8);
    problem.causal = false;
    assert_true(work_attention_flops(&problem, &plan, false) == 64 * pair);
    problem.causal = true;
    problem.window = 3; /* 1 + 2 + 3 x 6 */
    assert_true(work_attention_flops(&problem, &plan, false) == 21 * pair);
    problem.window = 0;
    problem.seq = 0;
    assert_true(work_attention_flops(&problem, &plan, false) == 0);
    problem = small_problem(4, 4, 7, 2); /* full mask, padded to 8: the padding is a document of its own */
    problem.causal = false;
    plan = small_plan(2, 2);
    assert_true(work_attention_flops(&problem, &plan, false) == (49 + 1) * pair / 2);
    problem = small_problem(32, 8, 131072, 8); /* 4 B H S^2 D halved */
    problem.head_dim = 128;
    plan = small_plan(8, 8);
    double exact = 2.0 * 4 * 256 * (131072.0 * 131073.0 / 2);
    assert_true(work_attention_flops(&problem, &plan, false) == exact);
}

static void products_of_a_layer_are_its_weights(void **state)
{
    (void)state;
    struct problem problem = of_model(&llama_8b, 8192, 8);
    struct plan plan = small_plan(4, 8);
    struct work_gemm gemm[WORK_GEMMS];
    int n = work_gemms(&llama_8b, &problem, &plan, NULL, gemm);
    int64_t weights = 0;
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++) {
        assert_int_equal(gemm[i].m, 2048);
        assert_int_equal(gemm[i].layers, 32);
        assert_int_equal(gemm[i].rows, 2048);
        weights += gemm[i].n * gemm[i].k * gemm[i].count;
    }
    assert_int_equal(weights, llama_8b.params_layer - 2 * 4096); /* all but the two norms */
    struct work_gemm logits = work_logits(&llama_8b, &problem, &plan);
    assert_int_equal(logits.m, 2048);
    assert_int_equal(logits.n, 128256);
    assert_int_equal(logits.k, 4096);
    assert_int_equal(logits.count, 1);
}

static void products_of_experts_and_of_heads_alone(void **state)
{
    (void)state;
    struct model moe = llama_8b;
    struct problem problem = of_model(&llama_8b, 8192, 8);
    struct plan plan = small_plan(8, 8);
    struct work_gemm gemm[WORK_GEMMS];
    moe.experts = 8;
    moe.experts_per_token = 2;
    moe.gated = false;
    assert_int_equal(work_gemms(&moe, &problem, &plan, NULL, gemm), 5);
    assert_string_equal(gemm[2].name, "router");
    assert_int_equal(gemm[2].n, 8);
    assert_string_equal(gemm[3].name, "up");
    assert_int_equal(gemm[3].n, 14336);
    assert_int_equal(gemm[3].count, 2);
    assert_int_equal(gemm[3].rows, 256); /* of 1,024 tokens, 2 of 8 experts each */
    moe.dense_layers = 3;
    moe.ffn_dense = 18432;
    moe.ffn_shared = 2048;
    const struct {
        const char *name;
        int64_t n, k;
        int count, layers, forwards;
    } want[] = {{"qkv", 6144, 4096, 1, 32, 2},         {"o", 4096, 4096, 1, 32, 2},
                {"router", 8, 4096, 1, 29, 2},         {"up", 14336, 4096, 2, 29, 2},
                {"down", 4096, 14336, 2, 29, 2},       {"shared_up", 2048, 4096, 1, 29, 2},
                {"shared_down", 4096, 2048, 1, 29, 2}, {"dense_up", 18432, 4096, 1, 3, 2},
                {"dense_down", 4096, 18432, 1, 3, 1}};
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    assert_int_equal(work_gemms(&moe, &problem, &plan, NULL, gemm), CHECK_COUNT(want));
    for (int i = 0; i < CHECK_COUNT(want); i++) {
        assert_string_equal(gemm[i].name, want[i].name);
        assert_int_equal(gemm[i].m, 1024);
        assert_int_equal(gemm[i].n, want[i].n);
        assert_int_equal(gemm[i].k, want[i].k);
        assert_int_equal(gemm[i].count, want[i].count);
        assert_int_equal(gemm[i].layers, want[i].layers);
        assert_int_equal(gemm[i].forwards, want[i].forwards);
    }
    assert_int_equal(work_gemms(&llama_8b, &problem, &plan, NULL, gemm), 4);
    for (int i = 0; i < 4; i++) /* of a layer that runs again nobody needs its output */
        assert_int_equal(gemm[i].forwards, strcmp(gemm[i].name, "down") == 0 ? 1 : 2);
    const struct target *accelerate = target_find("accelerate");
    for (int stage = 1; stage <= 3; stage++) { /* DeepSpeed's product of stage 3 has run before it keeps its input */
        plan.zero_stage = stage;
        assert_int_equal(work_gemms(&llama_8b, &problem, &plan, accelerate, gemm), 4);
        assert_int_equal(gemm[3].forwards, stage == 3 ? 2 : 1);
        assert_int_equal(work_gemms(&llama_8b, &problem, &plan, target_find("sptune"), gemm), 4);
        assert_int_equal(gemm[3].forwards, 1);
    }
    plan.checkpointing = PLAN_CHECKPOINTING_NONE;
    assert_int_equal(work_gemms(&llama_8b, &problem, &plan, NULL, gemm), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(gemm[i].forwards, 1);
    struct model heads = {.layers = 1, .heads = 32, .kv_heads = 8, .head_dim = 128, .head_dim_v = 128};
    assert_int_equal(work_gemms(&heads, &problem, &plan, NULL, gemm), 0);
    assert_int_equal(work_logits(&heads, &problem, &plan).count, 0);
}

static void same_bytes(double a, double b)
{
    if (fabs(a / b - 1) > 1e-12)
        fail_msg("%.17g bytes, not %.17g", a, b);
}

/* By hand: 16,384 tokens of a rank, 2 norms and 2 residual sums of 4,096 elements, q and k of 40 heads, 14,336 of the MLP; forward twice but for
 * a layer's last sum. Once, a last norm. */
static void elementwise_bytes(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate"), *sptune = target_find("sptune");
    struct problem problem = of_model(&llama_8b, 32768, 2);
    struct plan plan = small_plan(2, 2);
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    const double s = 16384, rows = 2 * s * 4096, turned = s * 40 * 128, inner = s * 14336,
                 logits = s * (double)llama_8b.vocab;
    double ours = 32 * (rows * (2 * 4 + 8) + rows / 2 * (3 * 6) + turned * (2 * 4 + 4) + inner * (2 * 6 + 16)) +
                  rows / 2 * (4 + 8) + logits * 18;
    same_bytes(work_elementwise(&llama_8b, &problem, &plan, sptune), ours);
    const double norm = 36 + 92, last = rows / 2 * norm;
    double eager =
        last + 32 * (rows * (2 * 36 + 92) + rows * (1.5 * 6 + 15) + turned * (2 * 20 + 34) + inner * (2 * 10 + 18));
    same_bytes(work_elementwise(&llama_8b, &problem, &plan, accelerate), eager + logits * 48);
    plan.loss = PLAN_LOSS_FUSED;
    same_bytes(work_elementwise(&llama_8b, &problem, &plan, accelerate), eager + logits * 6);
    plan.checkpointing = PLAN_CHECKPOINTING_NONE;
    eager = last + 32 * (rows * norm + rows * (6 + 15) + turned * (20 + 34) + inner * (10 + 18));
    same_bytes(work_elementwise(&llama_8b, &problem, &plan, accelerate), eager + logits * 6);
    struct model with_norms = llama_8b;
    with_norms.qk_norm = true;
    same_bytes(work_elementwise(&with_norms, &problem, &plan, accelerate), eager + 32 * turned * norm + logits * 6);
    plan.method = PLAN_METHOD_SPLIT_GATHER; /* as many elements, cut another way */
    same_bytes(work_elementwise(&llama_8b, &problem, &plan, accelerate), eager + logits * 6);
    plan.method = PLAN_METHOD_ULYSSES;
    /* eight experts of 1,000, of which a token visits two, one of 500 for all, and in the first 4 layers 2,000 without experts; no gate */
    struct model experts = llama_8b;
    experts.ffn = 1000;
    experts.experts = 8;
    experts.experts_per_token = 2;
    experts.ffn_shared = 500;
    experts.ffn_dense = 2000;
    experts.dense_layers = 4;
    experts.gated = false;
    double inside = s * (28 * (2 * 1000 + 500) + 4 * 2000);
    eager = last + 32 * (rows * norm + rows * (6 + 15) + turned * (20 + 34)) + inside * (4 + 6);
    same_bytes(work_elementwise(&experts, &problem, &plan, accelerate), eager + logits * 6);
    struct model heads;
    CHECK_OK(model_from_heads(32, 8, 128, &heads));
    assert_true(work_elementwise(&heads, &problem, &plan, accelerate) == 0);
}

/* By hand. A profiled step on one H200 (4 layers of Llama-3-8B's, docs/models.md): the embedding and the head, 525 M elements each, are above
 * the bucket of 500 M, and so are not copied into it. */
static void optimizer_bytes(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate"), *sptune = target_find("sptune");
    struct model four = llama_8b;
    four.layers = 4;
    four.params = 4 * four.params_layer + 2 * four.params_embedding + 4096;
    struct problem problem = of_model(&four, 32768, 1);
    struct plan plan = small_plan(1, 1);
    struct work_zero zero;
    const double all = (double)four.params, outer = 2 * (double)four.params_embedding;
    plan.zero_stage = 3;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    /* into the bucket, laid out, divided, moved: 4 each */
    same_bytes(zero.optimizer_bytes, all * 70);
    same_bytes(zero.gradient_bytes, all * 16 - outer * 8);
    plan.accumulate = 2;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    same_bytes(zero.gradient_bytes, all * (16 + 18) - outer * 16); /* the second is added to the first */
    plan.accumulate = 1;
    plan.zero_stage = 2;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    same_bytes(zero.gradient_bytes, all * 8 - outer * 4);
    work_zero(&four, &problem, &plan, sptune, &zero);
    same_bytes(zero.optimizer_bytes, all * 38);
    same_bytes(zero.gradient_bytes, 0);
    plan.zero_stage = 1;
    work_zero(&four, &problem, &plan, sptune, &zero);
    same_bytes(zero.gradient_bytes, all * 4);
    /* Of 8 ranks, 4 to a sequence: sums in fp32. */
    problem = of_model(&four, 32768, 8);
    plan = small_plan(4, 8);
    plan.zero_stage = 3;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    same_bytes(zero.optimizer_bytes, all / 8 * 70);
    same_bytes(zero.gradient_bytes, all * (6 + 8 + 8) - outer * 8 + all / 8 * (6 + 4));
    plan.zero_stage = 2;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    same_bytes(zero.gradient_bytes, all * (4 + 4 + 2 * 6) - outer * 4);
    plan.zero_stage = 3;
    /* An MLP above it; experts are not. */
    four.hidden = 65536;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    same_bytes(zero.gradient_bytes, all * 22 - (outer + 4.0 * 3 * 65536 * 14336) * 8 + all / 8 * 10);
    four.experts = 2;
    four.experts_per_token = 1;
    work_zero(&four, &problem, &plan, accelerate, &zero);
    same_bytes(zero.gradient_bytes, all * 22 - outer * 8 + all / 8 * 10);
}

static void zero_traffic(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate"), *sptune = target_find("sptune");
    struct problem problem = of_model(&llama_8b, 8192, 8);
    struct plan plan = small_plan(4, 8);
    struct work_zero out;
    int64_t whole = 2 * llama_8b.params, part = whole / 8 * 7;
    plan.accumulate = 3;
    plan.zero_stage = 3;
    work_zero(&llama_8b, &problem, &plan, accelerate, &out);
    assert_int_equal(out.group, 8);
    assert_int_equal(out.gather_bytes, 3 * 2 * part); /* forward and backward of each micro-step */
    assert_int_equal(out.reduce_bytes, 3 * 2 * part); /* sums of sp 4 are in fp32 */
    assert_int_equal(out.optimizer_elems, llama_8b.params / 8);
    assert_int_equal(out.calls, 3 * 3 * (32 + 2));
    plan.zero_stage = 2;
    work_zero(&llama_8b, &problem, &plan, accelerate, &out);
    assert_int_equal(out.gather_bytes, part);
    assert_int_equal(out.reduce_bytes, 3 * 2 * 2 * part); /* and DeepSpeed all-reduces them */
    work_zero(&llama_8b, &problem, &plan, sptune, &out);
    assert_int_equal(out.reduce_bytes, 3 * part);
    plan.zero_stage = 1;
    work_zero(&llama_8b, &problem, &plan, accelerate, &out);
    assert_int_equal(out.reduce_bytes, 2 * 2 * part);
    assert_int_equal(out.optimizer_elems, llama_8b.params / 8);
    plan.zero_stage = 0;
    work_zero(&llama_8b, &problem, &plan, sptune, &out);
    assert_int_equal(out.group, 1);
    assert_int_equal(out.gather_bytes, 0);
    assert_int_equal(out.reduce_bytes, 2 * part); /* all-reduce */
    assert_int_equal(out.optimizer_elems, llama_8b.params);
    plan.zero_stage = 3;
    plan.dp_shard = 1;
    plan.dp_replicate = 2;
    work_zero(&llama_8b, &problem, &plan, sptune, &out);
    assert_int_equal(out.group, 4); /* shard x sp: replicas stay whole in our harness */
    work_zero(&llama_8b, &problem, &plan, accelerate, &out);
    assert_int_equal(out.group, 8); /* DeepSpeed shards over everything */
    problem.world = 1;
    plan = small_plan(1, 1);
    work_zero(&llama_8b, &problem, &plan, accelerate, &out);
    assert_int_equal(out.gather_bytes + out.reduce_bytes + out.calls, 0);
}

/* The largest problem that problem_check takes, and the longest accumulation that a plan can hold. */
static void nothing_wraps_at_the_limits(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate");
    struct problem problem = small_problem(1, 1, 0, 1);
    struct plan plan = small_plan(1, 1);
    struct work_zero zero;
    struct model model = llama_8b;
    problem.head_dim = 1;
    problem.dtype = DTYPE_FP32;
    for (int64_t step = INT64_C(1) << 61; step > 0; step /= 2) {
        problem.seq += step;
        problem.seq -= problem_check(&problem) == STATUS_OK ? 0 : step;
    }
    assert_true(problem.seq >= INT64_C(1) << 50);
    assert_true(work_exec_bytes(&problem, &plan) > problem.seq);
    problem.world = 2;
    plan.accumulate = INT64_MAX;
    for (plan.zero_stage = 2; plan.zero_stage <= 3; plan.zero_stage++) {
        model.params = INT64_C(1) << 60;
        work_zero(&model, &problem, &plan, accelerate, &zero);
        assert_int_equal(zero.calls, INT32_MAX);
    }
}

static void forward_passes(void **state)
{
    (void)state;
    struct plan plan = small_plan(1, 1);
    assert_int_equal(work_forward_passes(&plan), 1);
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    assert_int_equal(work_forward_passes(&plan), 2);
    plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
    assert_int_equal(work_forward_passes(&plan), 2);
}

static void accumulation_is_a_whole_number(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 4096, 2);
    struct plan plan = small_plan(1, 2);
    int64_t accumulate = -1;
    struct verdict verdict = work_accumulate(&problem, &plan, 4096, &accumulate);
    assert_int_equal(verdict.rule, RULE_GLOBAL_BATCH); /* two ranks already see 8192 */
    assert_int_equal(verdict.nearest[0], 0);
    assert_int_equal(verdict.nearest[1], 8192);
    assert_int_equal(accumulate, -1);
    plan = small_plan(2, 2);
    verdict = work_accumulate(&problem, &plan, 4096, &accumulate);
    assert_int_equal(verdict.rule, RULE_OK);
    assert_int_equal(accumulate, 1);
    problem.batch = 2;
    verdict = work_accumulate(&problem, &plan, 65536, &accumulate);
    assert_int_equal(verdict.rule, RULE_OK);
    assert_int_equal(accumulate, 8);
    plan.accumulate = accumulate;
    assert_int_equal(work_step_tokens(&problem, &plan), 65536);
    verdict = work_accumulate(&problem, &plan, 65537, &accumulate);
    assert_int_equal(verdict.rule, RULE_GLOBAL_BATCH);
    assert_int_equal(verdict.nearest[0], 65536);
    assert_int_equal(verdict.nearest[1], 65536 + 8192);
    const int64_t bad[] = {0, -1, INT64_MIN, INT64_MAX};
    for (int i = 0; i < CHECK_COUNT(bad); i++)
        assert_int_equal(work_accumulate(&problem, &plan, bad[i], &accumulate).rule, RULE_GLOBAL_BATCH);
    problem.seq = 0;
    assert_int_equal(work_accumulate(&problem, &plan, 4096, &accumulate).rule, RULE_GLOBAL_BATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_bytes_of_llama),
        cmocka_unit_test(c46_sizes_of_llama_at_sp_16),
        cmocka_unit_test(a_ring_passes_keys_and_values_on),
        cmocka_unit_test(split_gather_moves_rows),
        cmocka_unit_test(split_gather_shares_pieces),
        cmocka_unit_test(one_rank_exchanges_nothing),
        cmocka_unit_test(c37_latent_attention),
        cmocka_unit_test(padding_is_paid_for),
        cmocka_unit_test(c11_flops_are_per_document),
        cmocka_unit_test(flops_of_masks),
        cmocka_unit_test(products_of_a_layer_are_its_weights),
        cmocka_unit_test(products_of_experts_and_of_heads_alone),
        cmocka_unit_test(elementwise_bytes),
        cmocka_unit_test(optimizer_bytes),
        cmocka_unit_test(zero_traffic),
        cmocka_unit_test(nothing_wraps_at_the_limits),
        cmocka_unit_test(forward_passes),
        cmocka_unit_test(accumulation_is_a_whole_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
