/* tests/cli/test_sweep.c -- what `bench` measures where nothing but a subject, or a suite, is named: on each kind of device what runs there.
 * No device is opened.
 */
#include "base/check.h"
#include "bench/subject.h"
#include "cli/worklist.h"
#include "kernels/attention.h"
#include "sp/exchange.h"

#include <stdlib.h>
#include <string.h>

static bool uses(const char *subject, const char *what)
{
    return strcmp(subject, "layer") == 0 || strcmp(subject, what) == 0;
}

static void assert_runs_on(enum dev_kind device, const struct bench_case *c)
{
    if (uses(c->subject, "exchange"))
        assert_int_equal(exchange_find(c->plan.exchange)->dev, device);
    if (!uses(c->subject, "attention"))
        return;
    const struct attention *attention = attention_find(c->plan.attention);
    struct attention_shape shape;
    int64_t *cu = NULL;
    assert_int_equal(attention->dev, device);
    CHECK_OK(subject_attention_shape(&c->problem, c->plan.sp, 0, &shape, &cu));
    struct verdict verdict = strcmp(attention->name, "cudnn") == 0 ? VERDICT_YES : attention->supports(&shape);
    if (!verdict_ok(&verdict))
        fail_msg("%s: %s", c->subject, verdict.why);
    free(cu);
}

static int assert_all_run(enum dev_kind device, const struct worklist *work)
{
    struct bench_case cases[BENCH_CASES_MAX];
    int rows = 0;
    for (int w = 0; w < work->n; w++)
        for (int i = 0; i < work->sweeps[w].cells; i++) {
            CHECK_OK(sweep_cell(&work->sweeps[w], i, cases));
            for (int v = 0; v < work->sweeps[w].variants; v++, rows++)
                assert_runs_on(device, &cases[v]);
        }
    return rows;
}

static void on_device(enum dev_kind device, int suite_rows)
{
    static const char *const subjects[] = {"link", "collective", "exchange", "attention", "gemm", "layer"};
    struct cli cli = {.device = device};
    struct worklist work;
    for (int i = 0; i < CHECK_COUNT(subjects); i++) {
        CHECK_OK(worklist_open(&cli, subjects[i], NULL, 2, &work));
        assert_true(assert_all_run(device, &work) > 0);
        worklist_close(&work);
    }
    CHECK_OK(worklist_open(&cli, "suite", suite_find("ci"), 2, &work));
    assert_int_equal(assert_all_run(device, &work), suite_rows);
    worklist_close(&work);
}

static void test_cpus(void **state)
{
    (void)state;
    on_device(DEV_CPU, 39);
}

#if SPTUNE_CUDA
static void test_gpus(void **state)
{
    (void)state;
#if SPTUNE_CUDNN
    on_device(DEV_CUDA, 39);
#else
    on_device(DEV_CUDA, 37);
#endif
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpus),
#if SPTUNE_CUDA
        cmocka_unit_test(test_gpus),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
