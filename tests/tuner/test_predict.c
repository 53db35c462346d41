/* tuner/test_predict.c -- which row stands for more ranks, by how much its times are scaled, and what is refused. */
#include "tuner/predict.h"

#include "base/check.h"
#include "base/text.h"

#include <string.h>

enum { ROWS = 8 };
static struct sample rows[ROWS], out;
static double times[ROWS][3];
static int n;

static int start(void **state)
{
    (void)state;
    n = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < n; i++) {
        rows[i].times_us = NULL; /* static here */
        sample_free(&rows[i]);
    }
    sample_free(&out);
    return 0;
}

#define PREDICT_CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

static struct sample *add(const char *subject, int ranks, int sp, int64_t seq, double us)
{
    struct sample *row = &rows[n];
    sample_init(row);
    struct sample_key *key = &row->key;
    text_print(key->subject, sizeof key->subject, "%s", subject);
    text_print(key->dtype, sizeof key->dtype, "bf16");
    text_print(key->direction, sizeof key->direction, "fwd");
    key->ranks = ranks;
    key->sp = sp;
    key->heads = 32;
    key->kv_heads = 8;
    key->head_dim = 128;
    key->seq = seq;
    key->batch = key->chunks = 1;
    if (strcmp(subject, "exchange") == 0)
        text_print(key->op, sizeof key->op, "whole");
    else
        key->causal = 1;
    for (int i = 0; i < 3; i++)
        times[n][i] = us * (1 + 0.1 * i);
    row->times_us = times[n];
    row->n = 3;
    row->verified = true;
    n++;
    return row;
}

static void predict(int i, int ranks, int sp)
{
    sample_free(&out);
    CHECK_OK(predict_row(rows, n, i, ranks, sp, &out));
}

static double within(void)
{
    json_t *conditions = json_loads(out.conditions, 0, NULL);
    double value = json_number_value(json_object_get(conditions, "predicted_within"));
    json_decref(conditions);
    return value;
}

/* A rank of 8 sends 7/8 of S/8 where a rank of 2 sends 1/2 of S/2: 7/16 of it, until there are more ranks than KV heads. */
static void test_exchange(void **state)
{
    (void)state;
    add("exchange", 2, 2, 4096, 100);
    predict(0, 8, 8);
    assert_int_equal(out.outcome, SAMPLE_OK);
    assert_true(out.scaled && !out.verified);
    assert_float_equal(out.scale, 7.0 / 16, 1e-9);
    assert_float_equal(out.times_us[2], 120 * 7.0 / 16, 1e-6);
    assert_int_equal(out.key.ranks, 8);
    assert_int_equal(out.key.sp, 8);
    assert_int_equal(out.bytes, 512 * (2 * 32 + 2 * 8) * 128 * 2);
    assert_float_equal(within(), 0.35, 1e-9);
    predict(0, 16, 16); /* 16 copies of 8 KV heads: (64 + 32) / (64 + 16) of the bytes */
    assert_float_equal(out.scale, 15.0 / 16 / 16 * 4 * 96 / 80, 1e-9);
}

/* The length whose bytes are nearest: 7/16 of those of 16,384 tokens are nearer to 8,192's than to 4,096's. */
static void test_nearest_bytes(void **state)
{
    (void)state;
    add("exchange", 2, 2, 4096, 60);
    add("exchange", 2, 2, 8192, 100);
    add("exchange", 2, 2, 16384, 190);
    predict(2, 8, 8);
    assert_float_equal(out.times_us[0], 100 * 14.0 / 16, 1e-6);
    predict(2, 8, 2); /* its own row, whatever the number of ranks */
    assert_float_equal(out.times_us[0], 190, 1e-9);
    assert_float_equal(within(), 0.08, 1e-9); /* but other groups are at work then */
    predict(2, 2, 2);
    assert_float_equal(within(), 0, 1e-9);
}

static void test_largest_group(void **state)
{
    (void)state;
    add("exchange", 2, 2, 8192, 100);
    add("exchange", 4, 4, 8192, 300);
    assert_true(predict_asks(rows, 0));
    assert_false(predict_asks(rows, 1)); /* asks for the same */
    predict(0, 8, 8);
    assert_float_equal(out.times_us[0], 300 * (7.0 / 64) / (3.0 / 16), 1e-6);
    predict(1, 4, 2);
    assert_float_equal(out.times_us[0], 100, 1e-9);
}

/* Half of the time is attention, which has a quarter of the heads; the exchanges 7/16 of the bytes. */
static void test_layer(void **state)
{
    (void)state;
    struct sample *row = add("layer", 2, 2, 32768, 1000);
    text_print(row->key.attention, sizeof row->key.attention, "cudnn");
    row->conditions = strdup("{\"exchange_in_us\": 30, \"attention_us\": 50, \"exchange_out_us\": 20}");
    assert_non_null(row->conditions);
    predict(0, 8, 8);
    assert_float_equal(out.scale, 0.5 * 0.25 + 0.5 * 7 / 16, 1e-9);
    assert_float_equal(within(), (0.125 * 0.08 + 0.21875 * 0.35) / 0.34375, 1e-3);
}

/* Attention alone has no exchange: a row of one rank will do, and another length too. */
static void test_attention(void **state)
{
    (void)state;
    add("attention", 1, 1, 8192, 800);
    add("attention", 1, 1, 100, 1);
    predict(0, 8, 8);
    assert_float_equal(out.times_us[0], 100, 1e-6);
    assert_int_equal(out.bytes, -1);
    rows[1].outcome = SAMPLE_FAILED;
    rows[1].key.seq = 16384;
    predict(1, 8, 8); /* n * (n + 1) pairs */
    assert_float_equal(out.times_us[0], 100.0 * 2 * 16385 / 8193, 1e-6);
}

static void refused(int i, int ranks, int sp, enum rule rule, const char *word)
{
    predict(i, ranks, sp);
    assert_int_equal(out.outcome, SAMPLE_WAIVED);
    assert_int_equal(out.rule, rule);
    assert_non_null(strstr(out.why, word));
    assert_int_equal(out.n, 0);
    assert_int_equal(out.key.sp, sp);
}

static void test_refused(void **state)
{
    (void)state;
    add("exchange", 1, 1, 4096, 100);
    refused(0, 8, 8, RULE_NOT_MEASURED, "no row of sp 2 to 8");
    rows[0].key.sp = rows[0].key.ranks = 2;
    refused(0, 8, 3, RULE_WORLD, "sp 3 does not divide the 8 ranks");
    refused(0, 64, 64, RULE_HEADS_NOT_DIVISIBLE, "32");
    rows[0].verified = false;
    refused(0, 8, 8, RULE_NOT_MEASURED, "no row");
    text_print(rows[0].key.op, sizeof rows[0].key.op, "one");
    refused(0, 8, 8, RULE_NOT_MODELLED, "op one");
    struct sample *layer = add("layer", 2, 2, 4096, 100);
    layer->key.chunks = 4;
    refused(1, 8, 8, RULE_NOT_MODELLED, "4 chunks");
    layer->key.chunks = 1;
    text_print(layer->key.docs, sizeof layer->key.docs, "fixed:1k");
    refused(1, 8, 8, RULE_NOT_MODELLED, "packed documents");
    text_print(layer->key.method, sizeof layer->key.method, "ring");
    refused(1, 8, 8, RULE_NOT_MODELLED, "method ring");
    add("gemm", 1, 1, 4096, 100);
    refused(2, 8, 8, RULE_NOT_MODELLED, "gemm");
}

/* One rank has no exchange to predict; of attention, and of layers of one rank, it says something. */
static void test_one_rank(void **state)
{
    (void)state;
    add("exchange", 2, 2, 4096, 100);
    refused(0, 8, 1, RULE_NOT_MODELLED, "sp 1: one rank exchanges nothing");
    rows[0].key.sp = rows[0].key.ranks = 1;
    refused(0, 8, 1, RULE_NOT_MODELLED, "sp 1: one rank exchanges nothing");
    add("layer", 2, 2, 4096, 100);
    refused(1, 8, 1, RULE_NOT_MEASURED, "no row of sp 1 whose");
    add("attention", 8, 8, 4096, 100);
    refused(2, 4, 4, RULE_NOT_MEASURED, "no row of sp 1 to 4 whose");
    rows[1].key.sp = rows[1].key.ranks = 1;
    rows[1].conditions = strdup("{\"exchange_in_us\": 0, \"attention_us\": 50, \"exchange_out_us\": 0}");
    assert_non_null(rows[1].conditions);
    predict(1, 8, 1);
    assert_int_equal(out.outcome, SAMPLE_OK);
    assert_float_equal(out.scale, 1, 1e-9);
}

/* A file may hold anything. */
static void test_absurd(void **state)
{
    (void)state;
    add("exchange", 2, 2, INT64_MAX, 100);
    refused(0, 8, 8, RULE_KERNEL_CANNOT, "seq 9223372036854775807 is beyond any machine");
    add("exchange", 2, 2, 4096, 100); /* of the same family: the other is no source, and no harm */
    predict(1, 8, 8);
    assert_int_equal(out.outcome, SAMPLE_OK);
    rows[0].key.seq = 4096;
    text_print(rows[0].key.dtype, sizeof rows[0].key.dtype, "int3");
    refused(0, 8, 8, RULE_KERNEL_CANNOT, "'int3' is not a data type");
    rows[0].key.seq = 0;
    refused(0, 8, 8, RULE_SEQ, "without tokens");
    rows[0].key.seq = 4096;
    rows[0].key.heads = -1;
    predict(0, 8, 8);
    assert_int_equal(out.outcome, SAMPLE_WAIVED);
    sample_init(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PREDICT_CASE(test_exchange), PREDICT_CASE(test_nearest_bytes), PREDICT_CASE(test_largest_group),
        PREDICT_CASE(test_layer),    PREDICT_CASE(test_attention),     PREDICT_CASE(test_refused),
        PREDICT_CASE(test_one_rank), PREDICT_CASE(test_absurd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
