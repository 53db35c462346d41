/* tests/bench/test_check_gpus.c -- what `check` holds layers of GPUs to: kernels that take few shapes meet every kind of problem all the same.
 * No GPU is asked.
 */
#include "bench/admitted.h"
#include "bench/check_parts.h"
#include "bench/subject.h"
#include "sp/exchange.h"
#include "sp/plan_check.h"

#include <stdio.h>

enum { LOCAL = 4 };

static bool is_here(const struct attention *attention)
{
    return attention->dev == DEV_CUDA && (attention->version == NULL || attention->version()[0] != '\0');
}

static void layer_of(int index, int sp, const struct attention *attention, struct bench_case *out)
{
    bench_case_init(out);
    check_problem(index, sp, sp, LOCAL, &out->problem);
    out->plan.sp = sp;
    snprintf(out->plan.attention, sizeof out->plan.attention, "%s", attention->name);
    snprintf(out->plan.exchange, sizeof out->plan.exchange, "%s", exchange_first(DEV_CUDA)->name);
}

/* Windows, documents, several rows, a full mask, and kv heads that ranks have copies of. */
static void test_every_kind(void **state)
{
    (void)state;
    for (int a = 0; attentions[a] != NULL; a++)
        for (int sp = 1; sp <= 8 && is_here(attentions[a]); sp++) {
            int windows = 0, documents = 0, rows = 0, full = 0, copies = 0;
            for (int i = 0; i < CHECK_PROBLEMS; i++) {
                struct bench_case c;
                layer_of(i, sp, attentions[a], &c);
                const struct problem *p = &c.problem;
                struct verdict verdict = plan_check(p, &c.plan, DEV_CUDA);
                if (!verdict_ok(&verdict))
                    continue;
                windows += p->window > 0;
                documents += p->docs > 0;
                rows += p->batch > 1;
                full += !p->causal;
                copies += p->kv_heads < sp;
            }
            assert_true(windows > 0 && documents > 0 && rows > 0 && full > 0 && (copies > 0 || sp == 1));
        }
}

/* A layer whose plan is admitted makes calls that its kernel takes: also where a full mask would see padding, and documents end it. */
static void test_admitted_calls(void **state)
{
    char why[256];
    (void)state;
    for (int a = 0; attentions[a] != NULL; a++)
        for (int sp = 1; sp <= 8 && is_here(attentions[a]); sp++)
            for (int i = 0; i < CHECK_PROBLEMS; i++) {
                struct bench_case c;
                layer_of(i, sp, attentions[a], &c);
                struct verdict verdict = plan_check(&c.problem, &c.plan, DEV_CUDA);
                snprintf(c.subject, sizeof c.subject, "attention");
                if (verdict_ok(&verdict) && !is_admitted(&c, DEV_CUDA, why))
                    fail_msg("problem %d, %s at sp %d: %s", i, attentions[a]->name, sp, why);
            }
}

/* Of a full mask in a ring, too: there a piece of padding alone has no keys that count. */
static void test_padding_in_a_ring(void **state)
{
    (void)state;
    for (int a = 0; attentions[a] != NULL; a++)
        for (int padding = 0; padding < 2 && is_here(attentions[a]); padding++) {
            struct bench_case c;
            layer_of(CHECK_PROBLEMS - 1, 4, attentions[a], &c);
            c.problem.batch = 1;
            c.problem.seq -= padding;
            c.plan.method = PLAN_METHOD_RING;
            snprintf(c.plan.exchange, sizeof c.plan.exchange, "%s", PLAN_RING_EXCHANGE);
            struct verdict verdict = plan_check(&c.problem, &c.plan, DEV_CUDA);
            bool takes = strcmp(attentions[a]->name, "flash2") == 0 || padding == 0;
            if (!attentions[a]->own_softmax)
                assert_int_equal(verdict_ok(&verdict), takes);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_admitted_calls),
        cmocka_unit_test(test_padding_in_a_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
