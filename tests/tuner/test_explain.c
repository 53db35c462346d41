/* tuner/test_explain.c -- every name has an answer, and numbers are work's own. */
#include "tuner/explain_fixture.h"

#include <math.h>

static void test_whole(void **state)
{
    struct fixture *f = *state;
    SAYS(f, (struct explain_options){0}, "llama-3-8b", "131,072 tokens",
         "USE sp_size=8 dp_shard_size=2 dp_replicate_size=1 flash_attention_2", "TIME", "attention 30 %", "MEM",
         "logits", "WHY sp 4", "(slower)", "sp 7 is refused", "heads_not_divisible", "loss=plain");
    char *text = NULL;
    CHECK_OK(explain_run(f->document, NULL, &text));
    free(text);
}

static void test_memory_terms(void **state)
{
    struct fixture *f = *state;
    const struct recommend_candidate *c = &f->rec.candidates[0];
    for (int i = 0; i < c->memory.n; i++) {
        const struct explain_options options = TERM(c->memory.term[i].name);
        json_t *body = explain_to_json(f->document, &options);
        assert_non_null(body);
        assert_int_equal((int64_t)number(body, "bytes"), c->memory.term[i].bytes);
        json_decref(body);
    }
    SAYS(f, TERM("states"), "12 B x 8030261248 parameters / 16", "of device memory");
    SAYS(f, TERM("host_states"), "= 0: this plan has none");
    SAYS(f, TERM("memory"), "* logits", "* live at the peak", "80 %");
}

/* The context is that of the device that the document was made for, also where it is decided again. */
static void test_planned_device(void **state)
{
    struct fixture *f = *state;
    const struct explain_options change = WHAT_IF("loss=tiled");
    const struct target_memory *memory = &f->rec.request.target->memory;
    int64_t peak[2];
    for (int kind = DEV_CPU; kind <= DEV_CUDA; kind++) {
        f->rec.request.planned = (enum dev_kind)kind;
        make_document(f);
        json_t *body = explain_to_json(f->document, &change);
        peak[kind] = (int64_t)number(json_object_get(body, "after"), "peak_bytes");
        json_decref(body);
        SAYS(f, TERM("context"), kind == DEV_CPU ? "process, libraries" : "device context");
        const struct explain_options both[] = {{0}, change}; /* speeds of another kind of device say so */
        for (int i = 0; i < 2; i++) {
            char *said = NULL;
            CHECK_OK(ask(f, both[i], &said));
            assert_int_equal(strstr(said, "NOTE speeds are of CPUs") != NULL, kind == DEV_CUDA);
            free(said);
        }
    }
    assert_int_equal(peak[DEV_CUDA] - peak[DEV_CPU], memory->context_bytes - memory->context_cpu_bytes);
    json_t *problem = json_object_get(f->document, "problem");
    json_object_set_new(problem, "planned_device", json_string("abacus"));
    char *text = NULL;
    CHECK_FAILS(STATUS_USAGE, "abacus", ask(f, TERM("context"), &text));
    json_object_del(problem, "planned_device"); /* as older documents are: the device that was measured */
    SAYS(f, TERM("context"), "process, libraries");
}

static void test_parts(void **state)
{
    struct fixture *f = *state;
    SAYS(f, TERM("exchange_in"), "10.0 %", "32 layers x 1 micro-steps x (2 forward: q, k, v in", "7/8 leave the rank",
         "composed of layer forward");
    SAYS(f, TERM("exchange_out"), "dq, dk, dv out");
    SAYS(f, TERM("attention"), "30.0 %", "TFLOP", "4/32 heads", "not live at", "17.9 x"); /* a time and a memory term */
    SAYS(f, TERM("gemm"), "gate_up", "in 32 layers", "35.0 %");
    SAYS(f, TERM("elementwise"), "2 forward, 1 backward", "at the copy rate");
    SAYS(f, TERM("logits"), "x 3 x the product with the vocabulary, 16384 x 128256 x 4096");
    SAYS(f, TERM("zero"), "stage 3 over 16 ranks");
    SAYS(f, TERM("optimizer"), "elements of this rank");
    SAYS(f, TERM("exposed"), "0 without chunks");
    SAYS(f, TERM("time"), "step_us", "measured");
}

static void test_fields_and_assumptions(void **state)
{
    struct fixture *f = *state;
    SAYS(f, TERM("sp_size"), "1 x 2 x 8 = 16 processes", "16384 of 131072 tokens", "4 of 32 query heads and 1 KV head");
    SAYS(f, TERM("accumulate"), "no global batch", "262,144 tokens");
    f->rec.request.global_batch_tokens = 1048576;
    f->rec.candidates[0].plan.accumulate = 4;
    make_document(f);
    SAYS(f, TERM("accumulate"), "1,048,576 x 8 / (131072 x 1 x 16) = 4");
    SAYS(f, TERM("tokens_per_s_per_device"), "sp 8", "sp 4", "(chosen)");
    SAYS(f, TERM("peak_bytes"), "% of the limit");
    SAYS(f, TERM("limit_bytes"), "80 GiB", "--device-memory");
    SAYS(f, TERM("verdict"), "of the limit");
    SAYS(f, TERM("micro_batch"), "1 sequence that a group of 8 ranks");
    SAYS(f, TERM("zero_stage"), "weights are sharded");
    SAYS(f, TERM("optimizer"), "adamw", "default of accelerate"); /* a time and an assumption */
    SAYS(f, TERM("loss"), "loss = plain: assumed, default of accelerate; --loss says another.");
}

/* What would make a fact of each assumption; of a word that this sptune does not know, nothing. */
static void test_facts(void **state)
{
    struct fixture *f = *state;
    static const char *const facts[][2] = {{"measured_ranks", "--ranks measures more"},
                                           {"planned_device", "--device cpu plans for CPUs"},
                                           {"gpus_per_node", "--gpus-per-node says another"},
                                           {"sdpa", "scripts/peers/attention.py"},
                                           {"flash_attention_3", "--samples takes that"},
                                           {"rank_order", "no option says another"},
                                           {"samples", "where nothing else runs"},
                                           {"colour", "colour = v: assumed, somebody's word."}};
    for (int i = 0; i < CHECK_COUNT(facts); i++)
        request_assume(&f->rec.request, facts[i][0], "v", "somebody's word");
    make_document(f);
    for (int i = 0; i < CHECK_COUNT(facts); i++)
        SAYS(f, TERM(facts[i][0]), "v: assumed, somebody's word", facts[i][1]);
}

/* Few samples need time, not quiet. */
static void test_few_samples(void **state)
{
    struct fixture *f = *state;
    request_assume(&f->rec.request, "samples", "few", "the estimates' share of the budget ended");
    make_document(f);
    SAYS(f, TERM("samples"),
         "samples = few: assumed, the estimates' share of the budget ended; the same command with a longer --budget");
}

/* Every split of the ranks in its own words. */
static void test_groups(void **state)
{
    static const struct {
        int world, sp;
        const char *words;
    } all[] = {{1, 1, "1 process, 1 of them measured"},
               {1, 1, "one rank reads all sequences."},
               {8, 1, "each of 8 ranks reads sequences of its own."},
               {8, 8, "all 8 ranks share each sequence."},
               {8, 4, "4 ranks share each sequence, 2 groups of them read sequences of their own."}};
    struct fixture *f = *state;
    for (int i = 0; i < CHECK_COUNT(all); i++) {
        recommend_free(&f->rec);
        const struct sample_options options = {.model = "llama-3-8b",
                                               .seq = 131072,
                                               .world = all[i].world,
                                               .sp = all[i].sp,
                                               .zero = 3,
                                               .per_host = 8,
                                               .class = "sdpa"};
        CHECK_OK(sample_recommendation(&options, &f->rec));
        f->rec.n = 1; /* the others are of another world */
        make_document(f);
        SAYS(f, (struct explain_options){0}, all[i].words);
    }
}

/* One line for a rule: the size nearest to the choice, and how many more. */
static void test_refusals(void **state)
{
    enum { REFUSED = 8 };
    struct fixture *f = *state;
    struct recommendation *rec = &f->rec;
    rec->candidates = realloc(rec->candidates, (2 + REFUSED) * sizeof *rec->candidates);
    assert_non_null(rec->candidates);
    for (int i = 0; i < REFUSED; i++) {
        struct recommend_candidate *c = &rec->candidates[2 + i];
        *c = rec->candidates[0];
        c->priced = c->timed = false;
        c->plan.sp = 1 << i / 2;
        c->plan.dp_shard = 16 / c->plan.sp;
        text_print(c->attention_class, sizeof c->attention_class, "%s", i % 2 ? "flash_attention_3" : "sdpa");
        c->verdict = i == 0 ? verdict_no(RULE_GLOBAL_BATCH, "too few sequences")
                            : verdict_no(RULE_NOT_MEASURED, "nothing of %s", c->attention_class);
    }
    rec->n = 2 + REFUSED;
    make_document(f);
    SAYS(f, (struct explain_options){0}, "sp 1 sdpa is refused: too few sequences (global_batch) sp 8 sdpa",
         "sp 8 sdpa is refused: nothing of sdpa (not_measured); and 6 more by this rule",
         "2 candidates and 8 refused plans in all");
}

/* The step and speed of the screen, digit by digit. */
static void test_as_on_the_screen(void **state)
{
    struct fixture *f = *state;
    struct recommend_candidate *c = &f->rec.candidates[0];
    c->time.step_us = 154860e6;
    c->time.lo_us = 113880e6;
    c->time.hi_us = 197820e6;
    c->tokens_per_s_per_device = 0.105795;
    c->lo = c->tokens_per_s_per_device * c->time.step_us / c->time.hi_us;
    c->hi = c->tokens_per_s_per_device * c->time.step_us / c->time.lo_us;
    make_document(f);
    char *screen = NULL;
    CHECK_OK(recommend_screen(&f->rec, &screen));
    assert_non_null(strstr(screen, "     0.106 tok/s/rank"));
    assert_non_null(strstr(screen, " 43h00m/step"));
    free(screen);
    SAYS(f, (struct explain_options){0}, "TIME 43h00m for a step", "That is 0.106 tokens/s");
    SAYS(f, TERM("time"), "step_us 43h00m");
    SAYS(f, TERM("gemm"), "of the step's 43h00m");
    SAYS(f, TERM("tokens_per_s_per_device"), "/ 43h00m / 16 = 0.106", "0.106 tokens/s/device, 43h00m a step");
    SAYS(f, WHY_NOT("sp=4"), "chosen: 0.106 tokens/s/device");
    SAYS(f, WHAT_IF("device-memory=79GiB"), "before sp 8: 0.106 tokens/s/device, 43h00m a step");
}

static void test_unknown_words(void **state)
{
    struct fixture *f = *state;
    char *text = NULL;
    CHECK_FAILS(STATUS_USAGE, "no term 'logitz'", ask(f, TERM("logitz"), &text));
    assert_non_null(strstr(status_last()->hint, "did you mean logits?"));
    assert_non_null(strstr(status_last()->hint, " verdict")); /* the list is whole */
    CHECK_FAILS(STATUS_USAGE, "no term ''", ask(f, TERM(""), &text));
    CHECK_FAILS(STATUS_USAGE, "does not know 'spp'", ask(f, WHY_NOT("spp=4"), &text));
    assert_non_null(strstr(status_last()->hint, "did you mean sp?"));
    CHECK_FAILS(STATUS_USAGE, "no condition", ask(f, WHY_NOT(""), &text));
    CHECK_FAILS(STATUS_USAGE, "no condition", ask(f, WHY_NOT("sp="), &text));
    CHECK_FAILS(STATUS_USAGE, "no condition", ask(f, WHY_NOT("four sp=4"), &text));
    CHECK_FAILS(STATUS_USAGE, "'many'", ask(f, WHY_NOT("sp=many"), &text));
    CHECK_FAILS(STATUS_USAGE, "does not know 'los'", ask(f, WHAT_IF("los=fused"), &text));
    assert_non_null(strstr(status_last()->hint, "did you mean loss?"));
    CHECK_FAILS(STATUS_USAGE, "loss cannot be 'quick'", ask(f, WHAT_IF("loss=quick"), &text));
    CHECK_FAILS(STATUS_USAGE, "", ask(f, WHAT_IF("device-memory=80"), &text));
    CHECK_FAILS(STATUS_USAGE, "", ask(f, WHAT_IF("zero=4"), &text));
    CHECK_FAILS(STATUS_USAGE, "", ask(f, WHAT_IF("global-batch=0"), &text));
    CHECK_FAILS(STATUS_USAGE, "more tokens", ask(f, WHAT_IF("global-batch=200000000000000"), &text));
    CHECK_FAILS(STATUS_USAGE, "", ask(f, WHAT_IF("global-batch=99999999999999999999999999tok"), &text));
    assert_null(text);
}

static void test_why_not(void **state)
{
    struct fixture *f = *state;
    SAYS(f, WHY_NOT("sp=4"), "sp 4: 50 % slower than the plan chosen (slower)", "takes longer by 50.0 %",
         "attention +");
    SAYS(f, WHY_NOT("sp_size=4,loss=plain"), "(slower)");
    SAYS(f, WHY_NOT("sp=8"), "sp 8 is the plan chosen");
    SAYS(f, WHY_NOT("sp=7"), "refused", "32 heads cannot be split among 7 ranks", "heads_not_divisible");
    SAYS(f, WHY_NOT("sp=5"), "heads_not_divisible", "legal below it: 4", "legal above it: 8");
    SAYS(f, WHY_NOT("sp=4 loss=fused"), "not among what was searched", "--what-if loss=fused");
    SAYS(f, WHY_NOT("zero=3"), "sp 8", "sp 4", "sp 7");
}

/* Another loss of the chosen plan: memory as the model has it, its products times `products` / 3, and the bytes of what goes over elements. */
static void check_loss(struct fixture *f, enum plan_loss loss, double products)
{
    char change[32];
    text_print(change, sizeof change, "loss=%s", plan_loss_name(loss));
    const struct explain_options options = WHAT_IF(change);
    json_t *body = explain_to_json(f->document, &options), *after = json_object_get(body, "after");
    struct work_memory memory;
    struct plan plan = f->rec.candidates[0].plan;
    double bytes = work_elementwise(&f->rec.request.model, &f->rec.request.problem, &plan, f->rec.request.target);
    plan.loss = loss;
    bytes = work_elementwise(&f->rec.request.model, &f->rec.request.problem, &plan, f->rec.request.target) / bytes;
    work_memory(&f->rec.request.model, &f->rec.request.problem, &plan, f->rec.request.target, &memory);
    assert_non_null(after);
    assert_int_equal((int64_t)number(after, "peak_bytes"), memory.peak_bytes);
    /* the loss is 6 % of the step, what goes over elements 2 % */
    assert_true(fabs(number(after, "step_us") / 2e6 - (0.92 + 0.06 * products / 3 + 0.02 * bytes)) < 1e-3);
    assert_true(loss == PLAN_LOSS_FUSED ? bytes < 0.95 : bytes > 1.01);
    json_decref(body);
}

static void test_what_if_loss(void **state)
{
    struct fixture *f = *state;
    check_loss(f, PLAN_LOSS_TILED, 4); /* the logits once more */
    check_loss(f, PLAN_LOSS_FUSED, 3);
    SAYS(f, WHAT_IF("loss=fused"), "before sp 8", "after sp 8 loss=fused", "(derived)", "the same sp",
         "else sp 4 loss=fused");
}

static void test_what_if_checkpointing(void **state)
{
    struct fixture *f = *state;
    const struct explain_options options = WHAT_IF("checkpointing=none device-memory=4TiB");
    json_t *body = explain_to_json(f->document, &options), *after = json_object_get(body, "after");
    /* attention 30 % x 3.5/4.5, gemm 35 % x 3/4, exchanges 15 % less by bytes, the rest as it was */
    double q = 32, kv = 8, in = (q + 2 * kv + q) / (2 * (q + 2 * kv) + q),
           out = (q + q + 2 * kv) / (2 * q + q + 2 * kv);
    struct plan plan = f->rec.candidates[0].plan;
    double bytes = work_elementwise(&f->rec.request.model, &f->rec.request.problem, &plan, f->rec.request.target);
    plan.checkpointing = PLAN_CHECKPOINTING_NONE;
    bytes = work_elementwise(&f->rec.request.model, &f->rec.request.problem, &plan, f->rec.request.target) / bytes;
    double step = 0.10 * in + 0.30 * 3.5 / 4.5 + 0.05 * out + 0.35 * 3 / 4 + 0.10 + 0.02 + 0.06 + 0.02 * bytes;
    assert_true(bytes < 0.9);
    assert_non_null(after);
    assert_true(fabs(number(after, "step_us") / 2e6 - step) < 1e-3);
    json_decref(body);
    SAYS(f, WHAT_IF("checkpointing=offload"), "target_cannot", "no candidate fits or is legal");
}

static void test_what_if_memory(void **state)
{
    struct fixture *f = *state;
    /* sp 4 made faster, so that only memory is against it */
    f->rec.candidates[1].time.step_us /= 3;
    f->rec.candidates[1].tokens_per_s_per_device *= 3;
    make_document(f);
    SAYS(f, WHAT_IF("device-memory=141GiB"), "after sp 4", "another sp", "141 GiB");
    SAYS(f, WHAT_IF("device-memory=1GiB"), "no candidate fits");
    SAYS(f, WHAT_IF("use=8"), "after sp 8", "world");
    SAYS(f, WHAT_IF("use=sp=8"), "after sp 8");
    SAYS(f, WHAT_IF("sp=4 device-memory=500GiB"), "after sp 4");
    SAYS(f, WHAT_IF("offload=optimizer host-memory=1GiB"), "no candidate fits", "in no stored number");
    SAYS(f, WHAT_IF("offload=params zero=2"), "target_cannot");
    SAYS(f, WHAT_IF("zero=0"), "target_cannot");
}

static void test_what_if_batch(void **state)
{
    struct fixture *f = *state;
    SAYS(f, WHAT_IF("global-batch=8"), "after sp 8 accumulate=4");
    SAYS(f, WHAT_IF("global-batch=262144tok"), "after sp 8 accumulate=1", "global_batch"); /* sp 4 sees twice as much */
    SAYS(f, WHAT_IF("global-batch=100tok"), "no candidate fits or is legal");
}

/* A tied plan that would be a little faster does not become the answer because somebody asked again. */
static void test_tied_stays(void **state)
{
    struct fixture *f = *state;
    f->rec.candidates[1].tied = true;
    f->rec.candidates[1].time.step_us /= 1.6;
    f->rec.candidates[1].tokens_per_s_per_device *= 1.6;
    make_document(f);
    SAYS(f, WHAT_IF("device-memory=900GiB"), "after sp 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_whole),
        TEST(test_memory_terms),
        TEST(test_facts),
        TEST(test_few_samples),
        TEST(test_groups),
        TEST(test_refusals),
        TEST(test_as_on_the_screen),
        TEST(test_planned_device),
        TEST(test_parts),
        TEST(test_fields_and_assumptions),
        TEST(test_unknown_words),
        TEST(test_why_not),
        TEST(test_what_if_loss),
        TEST(test_what_if_checkpointing),
        TEST(test_what_if_memory),
        TEST(test_what_if_batch),
        TEST(test_tied_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
