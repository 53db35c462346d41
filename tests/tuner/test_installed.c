/* tuner/test_installed.c -- attention as it is installed: what a file must hold, which row a plan takes, and the answer
 * of a search that ranks by such rows. */
#include "tuner/search_fixture.h"

#include "tuner/installed.h"

static struct installed installed;
static struct text rows_text; /* the rows of the file that is being made */

static int start(void **state)
{
    text_free(&rows_text);
    installed_free(&installed);
    return setup(state);
}

static int end(void **state)
{
    text_free(&rows_text);
    installed_free(&installed);
    return teardown(state);
}

#define ROW_CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

struct row {
    const char *attention, *direction, *dtype, *machine, *versions, *outcome, *why;
    int heads, kv_heads, head_dim, causal;
    int64_t seq, batch;
    double us;
};

/* One rank's half of the shipped model, timed here. */
static struct row row_of(const char *attention, int64_t seq, double us)
{
    return (struct row){.attention = attention,
                        .direction = "fwd",
                        .dtype = "bf16",
                        .machine = bench.topo.fingerprint,
                        .versions = "{\"torch\": \"2.9.1\", \"threads\": 2}",
                        .outcome = "ok",
                        .why = "",
                        .heads = 7,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .causal = 1,
                        .seq = seq,
                        .batch = 1,
                        .us = us};
}

static void add(const struct row *r)
{
    text_add(
        &rows_text,
        "%s{\"machine\": \"%s\", \"key\": {\"subject\": \"attention\", \"ranks\": 1, \"sp\": 1, \"heads\": %d, "
        "\"kv_heads\": %d, \"head_dim\": %d, \"seq\": %lld, \"batch\": %lld, \"dtype\": \"%s\", \"attention\": "
        "\"%s\", \"direction\": \"%s\", \"causal\": %d, \"window\": 0, \"docs\": \"none\", \"timing\": \"stream\", "
        "\"buffers\": \"hot\"}, \"times_us\": [%.17g, %.17g, %.17g], \"outcome\": \"%s\", \"rule\": \"ok\", "
        "\"why\": \"%s\", \"verified\": true, \"kernel\": \"torch %s\", \"versions\": %s}",
        rows_text.len > 0 ? ", " : "", r->machine, r->heads, r->kv_heads, r->head_dim, (long long)r->seq,
        (long long)r->batch, r->dtype, r->attention, r->direction, r->causal, r->us, r->us, r->us, r->outcome, r->why,
        r->attention, r->versions);
}

static void put_document(const char *name, const char *schema, const char *rows)
{
    struct text all = {0};
    text_add(&all, "{\"schema\": \"%s\", \"samples\": [%s]}", schema, rows);
    temp_put(&bench.temp, name, text_get(&all));
    text_free(&all);
}

static enum status read_file(const char *name, const char *target)
{
    const char *files[] = {temp_path(&bench.temp, name)};
    return installed_read(files, 1, target_find(target), &installed);
}

static void read_rows(void)
{
    put_document("rows.json", "sptune.samples/1", text_get(&rows_text));
    CHECK_OK(read_file("rows.json", "accelerate"));
}

static void test_refused(void **state)
{
    (void)state;
    struct row row = row_of("cpu", 4096, 1000), waived = row_of("flash_attention_3", 4096, 1000);
    CHECK_FAILS(STATUS_USAGE, "No such file", read_file("nowhere.json", "accelerate"));
    temp_put(&bench.temp, "list.json", "[]");
    CHECK_FAILS(STATUS_USAGE, "this is no sptune.samples/1", read_file("list.json", "accelerate"));
    put_document("topo.json", "sptune.topo/1", "");
    CHECK_FAILS(STATUS_USAGE, "no sptune.samples/1 but 'sptune.topo/1'", read_file("topo.json", "accelerate"));
    put_document("empty.json", "sptune.samples/1", "");
    CHECK_FAILS(STATUS_USAGE, "no attention rows", read_file("empty.json", "accelerate"));
    put_document("gemm.json", "sptune.samples/1", "{\"key\": {\"subject\": \"gemm\", \"m\": 1}, \"times_us\": [1]}");
    CHECK_FAILS(STATUS_USAGE, "no attention rows", read_file("gemm.json", "accelerate"));
    put_document("broken.json", "sptune.samples/1", "{\"times_us\": [1]}");
    CHECK_FAILS(STATUS_USAGE, "\"key\"", read_file("broken.json", "accelerate"));
    add(&row);
    put_document("cpu.json", "sptune.samples/1", text_get(&rows_text));
    CHECK_FAILS(STATUS_USAGE, "accelerate has no attention 'cpu'", read_file("cpu.json", "accelerate"));
    CHECK_FAILS(STATUS_USAGE, "kernels of its own", read_file("cpu.json", "sptune"));
    text_free(&rows_text);
    row = row_of("sdpa-flash", 4096, 1000);
    add(&row);
    put_document("behind.json", "sptune.samples/1", text_get(&rows_text));
    CHECK_FAILS(STATUS_USAGE, "only of kernels behind one", read_file("behind.json", "accelerate"));
    waived.outcome = "waived";
    waived.why = "no module flash_attn_interface";
    add(&waived);
    put_document("waived.json", "sptune.samples/1", text_get(&rows_text));
    CHECK_FAILS(STATUS_USAGE, "no attention was timed: flash_attention_3: no module flash_attn_interface",
                read_file("waived.json", "accelerate"));
}

static struct problem problem;

static struct verdict ask_for(int64_t seq, const char *class, struct installed_found *found)
{
    problem = (struct problem){.batch = 1,
                               .seq = seq,
                               .heads = 14,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .dtype = DTYPE_BF16,
                               .causal = true,
                               .world = 2};
    const struct installed_ask ask = {
        .class = class, .machine = bench.topo.fingerprint, .dev = DEV_CPU, .problem = &problem, .sp = 2};
    *found = (struct installed_found){0};
    return installed_find(&installed, &ask, found);
}

/* Pairs of a causal row. */
static double pairs(double seq)
{
    return seq * (seq + 1) / 2;
}

/* The nearest length, by ratio, scaled by FLOPs; beyond the factor there is none. */
static void test_lengths(void **state)
{
    static const struct {
        int64_t asked, row;
        enum recommend_source source;
    } cases[] = {{4096, 4096, RECOMMEND_MEASURED},       {4095, 4096, RECOMMEND_MEASURED}, /* padded for two ranks */
                 {6144, 4096, RECOMMEND_INTERPOLATED},   {12288, 16384, RECOMMEND_INTERPOLATED},
                 {65536, 16384, RECOMMEND_EXTRAPOLATED}, {1024, 4096, RECOMMEND_EXTRAPOLATED}};
    struct row a = row_of("sdpa", 4096, 1000), b = row_of("sdpa", 16384, 16000);
    struct installed_found found;
    (void)state;
    add(&a);
    add(&b);
    read_rows();
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        struct verdict verdict = ask_for(cases[i].asked, "sdpa", &found);
        assert_int_equal(verdict.rule, RULE_OK);
        assert_int_equal(found.row->key.seq, cases[i].row);
        assert_int_equal(found.source, cases[i].source);
        double padded = (double)problem_padded(&problem, 2);
        CHECK_NEAR(found.times / (pairs(padded) / pairs((double)cases[i].row)), 1, 1e-12);
        assert_int_equal(found.length, cases[i].source != RECOMMEND_MEASURED);
        assert_false(found.elsewhere || found.batch);
    }
    static const int64_t far[] = {1022, 65538};
    for (int i = 0; i < CHECK_COUNT(far); i++) {
        struct verdict verdict = ask_for(far[i], "sdpa", &found);
        assert_int_equal(verdict.rule, RULE_NOT_MEASURED);
        assert_non_null(strstr(verdict.why, "more than 4 times from"));
        assert_null(found.row);
    }
}

/* A row of anything else is not taken, however near. */
static void test_other_calls(void **state)
{
    (void)state;
    const struct row good = row_of("sdpa", 4096, 1000);
    struct row other[8];
    struct installed_found found;
    for (int i = 0; i < CHECK_COUNT(other); i++)
        other[i] = good;
    other[0].dtype = "fp16";
    other[1].head_dim = 128;
    other[2].heads = 14;
    other[3].kv_heads = 7;
    other[4].causal = 0;
    other[5].direction = "bwd";
    other[6].attention = "flash_attention_2";
    other[7].versions = "{\"torch\": \"2.9.1\", \"gpu\": \"NVIDIA H200\"}"; /* the CPU is what is measured */
    for (int i = 0; i < CHECK_COUNT(other); i++)
        add(&other[i]);
    read_rows();
    struct verdict verdict = ask_for(4096, "sdpa", &found);
    assert_int_equal(verdict.rule, RULE_NOT_MEASURED);
    assert_non_null(strstr(verdict.why, "no sdpa forward of 7/1 heads of 64, bf16, causal"));
    installed_free(&installed);
    add(&good);
    read_rows();
    verdict = ask_for(4096, "sdpa", &found);
    assert_int_equal(verdict.rule, RULE_OK);
    CHECK_NEAR(found.times, 1, 1e-12);
    assert_true(found.row == &installed.rows[8].sample);
}

/* What was timed elsewhere is taken, and says so; so is another batch. Only a GPU's rows on a CPU: none. */
static void test_conditions(void **state)
{
    (void)state;
    struct row there = row_of("sdpa", 4096, 1000), gpu = row_of("flash_attention_2", 4096, 1000);
    struct installed_found found;
    char value[64], from[224];
    there.machine = "0123abcd";
    there.batch = 4;
    gpu.versions = "{\"gpu\": \"NVIDIA H200\"}";
    add(&there);
    add(&gpu);
    read_rows();
    struct verdict verdict = ask_for(4096, "sdpa", &found);
    assert_int_equal(verdict.rule, RULE_OK);
    assert_int_equal(found.source, RECOMMEND_PUBLISHED);
    assert_true(found.elsewhere && found.batch && !found.length);
    CHECK_NEAR(found.times, 0.25, 1e-12);
    installed_about(&installed, "sdpa", bench.topo.fingerprint, value, from);
    assert_string_equal(value, "rows.json");
    assert_string_equal(from, "as installed: torch sdpa, torch 2.9.1, cpu, measured on another machine");
    verdict = ask_for(4096, "flash_attention_2", &found);
    assert_int_equal(verdict.rule, RULE_NOT_MEASURED);
    assert_non_null(strstr(verdict.why, "was not timed on cpu"));
}

/* ---- searches ---- */

enum { SEQ = 16384 };

/* Both directions at this rate, for sp 1 and 2 or sp 2 alone. */
static void add_rates(const char *class, const char *machine, int64_t seq, double GFLOPs, bool alone)
{
    for (int sp = alone ? 2 : 1; sp <= 2; sp++) {
        struct row row = row_of(class, seq, 0);
        double flops = 4.0 * 14 / sp * 64 * pairs((double)seq);
        row.heads = 14 / sp;
        row.kv_heads = 2 / sp;
        row.machine = machine;
        row.us = flops / GFLOPs * 1e-3;
        add(&row);
        row.direction = "bwd";
        row.us *= 2.5;
        add(&row);
    }
}

static void search(const char *target)
{
    fake_request(&bench, "qwen2.5-0.5b", SEQ, 2, &request);
    request.target = target_find(target);
    request.installed = &installed;
    CHECK_OK(request_complete(&request));
    fake_fill_scales(&bench, &fake_default, &request);
    recommend_free(&answer);
    CHECK_OK(search_run(&request, &bench.session, &answer));
}

static const struct recommend_candidate *row_with(int sp, const char *class)
{
    for (int i = 0; i < answer.n; i++)
        if (answer.candidates[i].plan.sp == sp && strcmp(answer.candidates[i].attention_class, class) == 0)
            return &answer.candidates[i];
    fail_msg("no candidate has sp %d and %s", sp, class);
    return NULL;
}

/* What the layers' attention takes at a rate; two forward passes, as the target recomputes. */
static void check_attention(const struct recommend_candidate *c, double GFLOPs)
{
    double flops = 4.0 * 14 / c->plan.sp * 64 * pairs(SEQ);
    double us = request.model.layers * flops * (work_forward_passes(&c->plan) + 2.5) / GFLOPs * 1e-3;
    CHECK_NEAR(c->time.attention / us, 1, 1e-9);
    double sum = c->time.exchange_in + c->time.attention + c->time.exchange_out + c->time.gemm + c->time.zero +
                 c->time.optimizer + c->time.logits + c->time.elementwise;
    CHECK_NEAR(sum / c->time.step_us, 1, 1e-9);
}

static const char *assumed(const char *name)
{
    for (int i = 0; i < answer.request.nassumptions; i++)
        if (strcmp(answer.request.assumptions[i].name, name) == 0)
            return answer.request.assumptions[i].value;
    return "";
}

/* flash_attention_3, for which no kernel here stands in, is ranked and wins; sdpa by its own rate and not the stand-in's,
 * which is that of the fake machine: 50 GFLOP/s. */
static void test_ranked(void **state)
{
    (void)state;
    add_rates("sdpa", bench.topo.fingerprint, SEQ, 20, false);
    add_rates("flash_attention_3", bench.topo.fingerprint, SEQ, 200, false);
    read_rows();
    search("accelerate");
    assert_string_equal(chosen()->attention_class, "flash_attention_3");
    assert_string_equal(chosen()->plan.attention, "flash_attention_3");
    assert_true(chosen()->timed);
    assert_int_equal(chosen()->time.source, RECOMMEND_MEASURED);
    assert_non_null(strstr(chosen()->time.composed_of, "attention of --samples"));
    for (int sp = 1; sp <= 2; sp++) {
        check_attention(row_with(sp, "flash_attention_3"), 200);
        check_attention(row_with(sp, "sdpa"), 20);
        assert_false(row_with(sp, "flash_attention_2")->priced); /* neither rows nor a stand-in */
    }
    const struct recommend_candidate *other = row_with(chosen()->plan.sp, "sdpa"); /* the same exchange, or none */
    assert_int_equal(other->lost.rule, RULE_SLOWER);
    assert_non_null(strstr(other->lost.why, " % slower than flash_attention_3"));
    assert_string_equal(assumed("sdpa"), "rows.json");
    assert_string_equal(assumed("flash_attention_3"), "rows.json");
    char *screen = NULL;
    CHECK_OK(recommend_screen(&answer, &screen));
    assert_non_null(strstr(screen, "not measured here: flash_attention_2\n"));
    assert_non_null(strstr(screen, "sdpa=rows.json"));
    free(screen);
}

/* Half the length: scaled, with more uncertainty; of another machine: said, with yet more. */
static void test_sources(void **state)
{
    (void)state;
    double width[3];
    static const enum recommend_source sources[] = {RECOMMEND_MEASURED, RECOMMEND_EXTRAPOLATED, RECOMMEND_PUBLISHED};
    for (int i = 0; i < CHECK_COUNT(sources); i++) {
        text_free(&rows_text);
        installed_free(&installed);
        add_rates("sdpa", i < 2 ? bench.topo.fingerprint : "0123abcd", i == 1 ? SEQ / 2 : SEQ, 20, false);
        read_rows();
        search("accelerate");
        assert_int_equal(chosen()->time.source, sources[i]);
        check_attention(chosen(), 20);
        width[i] = (chosen()->time.hi_us - chosen()->time.lo_us) / chosen()->time.step_us;
    }
    assert_true(width[0] < width[1] && width[1] < width[2]);
    assert_non_null(strstr(answer.next_measurement, "attention.py on this machine"));
}

/* A size without rows is refused with what is missing; without any, the whole is. */
static void test_missing(void **state)
{
    (void)state;
    add_rates("sdpa", bench.topo.fingerprint, SEQ, 20, true);
    read_rows();
    search("accelerate");
    assert_int_equal(chosen()->plan.sp, 2);
    const struct recommend_candidate *one = row_with(1, "sdpa");
    assert_int_equal(one->verdict.rule, RULE_NOT_MEASURED);
    assert_non_null(strstr(one->verdict.why, "no sdpa forward of 14/2 heads of 64"));
    char *screen = NULL;
    CHECK_OK(recommend_screen(&answer, &screen));
    assert_non_null(strstr(screen, "refused sp 1 (not_measured): --samples has no sdpa forward"));
    assert_non_null(strstr(screen, "not measured here: flash_attention_2, flash_attention_3\n"));
    free(screen);
    request.space.nsp = 1;
    request.space.sp[0] = 1;
    CHECK_FAILS(STATUS_USAGE, "no sdpa forward of 14/2 heads", search_refuse(&request));
}

/* The second line of the answer is of our own kernels, whatever is installed. */
static void test_native(void **state)
{
    (void)state;
    add_rates("sdpa", bench.topo.fingerprint, SEQ, 20, false);
    read_rows();
    search("accelerate");
    assert_true(answer.native_best >= 0);
    assert_string_equal(answer.native.plan.attention, "cpu");
    check_attention(row_with(1, "sdpa"), 20);
    assert_true(answer.native.time.attention < chosen()->time.attention / 2); /* 50 and 40 GFLOP/s */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROW_CASE(test_refused), ROW_CASE(test_lengths), ROW_CASE(test_other_calls), ROW_CASE(test_conditions),
        ROW_CASE(test_ranked),  ROW_CASE(test_sources), ROW_CASE(test_missing),     ROW_CASE(test_native),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
