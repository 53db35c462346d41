/* bench/test_check.c -- the checker passes what is right, fails what is wrong, and waives what cannot run. */
#include "bench/bench_test.h"
#include "bench/check_parts.h"
#include "bench/group.h"
#include "comm/comm_group.h"

#include <stdlib.h>

static void *const no_arg = NULL;

static const struct check_row *row_find(const struct check_report *report, const char *area, const char *word)
{
    for (int i = 0; i < report->nrows; i++)
        if (strcmp(report->rows[i].area, area) == 0 && strstr(report->rows[i].what, word) != NULL)
            return &report->rows[i];
    return NULL;
}

static int everything(const struct launch *launch, void *arg)
{
    const struct check_order order = {.seed = 1};
    struct bench_env env;
    struct side side;
    struct check_report report = {0};
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    RANK_TRY(check_run(&env, &order, &report));
    if (launch->rank == 0) {
        for (int i = 0; i < report.nrows; i++)
            if (report.rows[i].outcome == CHECK_FAILED)
                fprintf(stderr, "%s: %s\n", report.rows[i].what, report.rows[i].why);
        RANK_CHECK(report.failed == 0 && report.passed + report.waived == report.nrows && report.cases > 500);
        /* Every kernel and exchange of this device has its row. */
        for (int i = 0; attentions[i] != NULL; i++)
            if (attentions[i]->dev == DEV_CPU)
                RANK_CHECK(row_find(&report, "kernel", attentions[i]->name)->outcome == CHECK_PASSED);
        for (int i = 0; exchanges[i] != NULL; i++)
            if (exchanges[i]->dev == DEV_CPU)
                RANK_CHECK(row_find(&report, "exchange", exchanges[i]->name)->outcome == CHECK_PASSED);
        for (int i = 0; transports[i] != NULL; i++)
            RANK_CHECK(transports[i]->dev != DEV_CPU || row_find(&report, "transport", transports[i]->name) != NULL);
        RANK_CHECK(row_find(&report, "transport", "ucx")->outcome == CHECK_PASSED);
        RANK_CHECK(row_find(&report, "transport", "ucx tcp")->outcome == CHECK_PASSED);
        RANK_CHECK(row_find(&report, "plan", "sp=2 packed cpu")->cases == 42);
        const struct check_row *four = row_find(&report, "plan", "ulysses sp=4");
        RANK_CHECK(four->outcome == CHECK_WAIVED && four->rule == RULE_WORLD && strstr(four->why, "2 ranks") != NULL);
        RANK_CHECK(row_find(&report, "plan", "ring sp=2 sendrecv cpu")->cases == 12); /* all but those with windows */
        RANK_CHECK(row_find(&report, "plan", "ring sp=2 sendrecv reference")->rule == RULE_KERNEL_CANNOT);
        RANK_CHECK(row_find(&report, "plan", "method ring") == NULL);
        RANK_CHECK(row_find(&report, "plan", "method split_gather") == NULL);
        RANK_CHECK(row_find(&report, "block", "split_gather sp=2 allgather cpu")->cases == 8);
        RANK_CHECK(row_find(&report, "block", "ring sp=2 sendrecv cpu")->cases == 8);
        RANK_CHECK(row_find(&report, "block", "ulysses sp=1 packed cpu")->cases == 8);
        RANK_CHECK(row_find(&report, "kernel", "GPU")->rule == RULE_ABSENT);
        check_report_free(&report);
    }
    side_close(&side);
    return 0;
}

static void test_everything(void **state)
{
    (void)state;
    ranks_pass(2, everything, no_arg);
}

static int begun;

static void row_begins(const char *area, const char *what, int rows)
{
    (void)area;
    begun += strstr(what, "sp=2 packed ") != NULL && rows == begun;
}

static int only_one(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct check_report report = {0};
    struct check_order order = {.seed = 1, .has_only = true};
    struct plan *only = &order.only;
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    plan_default(only);
    only->sp = 2;
    only->chunks = 4;
    RANK_TRY(check_run(&env, &order, &report));
    if (launch->rank == 0) {
        RANK_CHECK(report.failed == 0 && row_find(&report, "plan", "chunks=4")->outcome == CHECK_PASSED);
        RANK_CHECK(row_find(&report, "plan", "reference") == NULL && row_find(&report, "exchange", "separate") == NULL);
        check_report_free(&report);
    }
    only->chunks = 1000000; /* as many as the small problems have room for */
    snprintf(only->attention, sizeof only->attention, "flash_attention_2");
    RANK_TRY(check_run(&env, &order, &report));
    if (launch->rank == 0) {
        RANK_CHECK(report.failed == 0 && row_find(&report, "kernel", "flash_attention_2")->outcome == CHECK_WAIVED);
        check_report_free(&report);
    }
    only->chunks = 0; /* no plan: a row that ran nothing has not passed */
    snprintf(only->attention, sizeof only->attention, "cpu");
    RANK_TRY(check_run(&env, &order, &report));
    if (launch->rank == 0) {
        RANK_CHECK(row_find(&report, "plan", "chunks=0")->outcome == CHECK_WAIVED);
        check_report_free(&report);
    }
    order = (struct check_order){.seed = 1, .areas = 1u << 2 | 1u << 1};
    RANK_TRY(check_run(&env, &order, &report));
    if (launch->rank == 0) {
        RANK_CHECK(report.failed == 0 && report.passed > 0);
        for (int i = 0; i < report.nrows; i++)
            RANK_CHECK(strcmp(report.rows[i].area, "transport") == 0 || strcmp(report.rows[i].area, "exchange") == 0);
        check_report_free(&report);
    }
    order = (struct check_order){.seed = 1, .rows = "sp=2 packed "};
    report = (struct check_report){.begins = row_begins};
    RANK_TRY(check_run(&env, &order, &report));
    if (launch->rank == 0) {
        RANK_CHECK(report.failed == 0 && report.passed == 3 && begun == 3); /* plans of two kernels, and a block */
        for (int i = 0; i < report.nrows; i++)
            RANK_CHECK(strstr(report.rows[i].what, "sp=2 packed ") != NULL);
        check_report_free(&report);
    }
    side_close(&side);
    return 0;
}

static void test_only(void **state)
{
    (void)state;
    ranks_pass(2, only_one, no_arg);
}

/* ---- exchanges that are wrong, each in its way ---- */

enum fault { FAULT_ELEMENT, FAULT_GAP, FAULT_HEADS, FAULT_COPIES, FAULTS };
static enum fault fault;

static enum status wrong_run(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors, int n,
                             struct dev_queue *queue)
{
    struct exchange_tensor changed[EXCHANGE_TENSORS_MAX];
    memcpy(changed, tensors, (size_t)n * sizeof *changed);
    for (int i = 0; i < n; i++) {
        if (fault == FAULT_COPIES)
            changed[i].sum = false;
        if (fault == FAULT_HEADS && changed[i].count > 1)
            changed[i].count--;
    }
    TRY(exchanges[0]->run(state, direction, changed, n, queue));
    unsigned char *head = tensors[0].head;
    if (direction == EXCHANGE_TO_HEADS && tensors[0].count > 0 && fault == FAULT_ELEMENT)
        head[0] ^= 1;
    if (direction == EXCHANGE_TO_HEADS && tensors[0].count == tensors[0].heads / 2 && fault == FAULT_GAP)
        head[tensors[0].head_stride * 2 - 1] ^= 1; /* the last byte before the next token, in every type */
    return STATUS_OK;
}

static int wrong_exchanges(const struct launch *launch, void *arg)
{
    static const char *const words[FAULTS] = {"q by heads are wrong", "beyond its heads", "by heads are wrong", "summed over copies"};
    struct bench_env env;
    struct side side;
    struct group group;
    struct exchange wrong = *exchanges[0];
    (void)arg;
    wrong.run = wrong_run;
    RANK_TRY(bench_test_open(&side, launch, &env));
    RANK_TRY(group_open(&env, 2, &group));
    for (int f = 0; f < FAULTS; f++) {
        struct tally tally = {0};
        struct check_report report = {0};
        fault = (enum fault)f;
        if (f == FAULT_ELEMENT && launch->rank == 0)
            fault = FAULTS; /* on one rank alone */
        RANK_TRY(check_exchange_shapes(&wrong, &group, 1, &tally));
        RANK_TRY(check_row_add(&env, launch->rank == 0 ? &report : NULL, "exchange", "wrong", &tally, false));
        if (launch->rank == 1 && strstr(tally.why, words[f]) == NULL)
            fprintf(stderr, "fault %d: %s\n", f, tally.why);
        RANK_CHECK(launch->rank == 0 || strstr(tally.why, words[f]) != NULL);
        RANK_CHECK(launch->rank != 0 || (report.failed == 1 && report.rows[0].outcome == CHECK_FAILED));
        RANK_CHECK(launch->rank != 0 || strncmp(report.rows[0].why, "rank ", 5) == 0);
        check_report_free(&report);
    }
    group_close(&group);
    side_close(&side);
    return 0;
}

static void test_wrong_exchanges(void **state)
{
    (void)state;
    ranks_pass(2, wrong_exchanges, no_arg);
}

/* The second of two groups cannot move it: the row is not one that passed. */
static int refused_by_one(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct tally tally = {.cases = launch->rank == 0};
    struct check_report report = {0};
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    if (launch->rank == 1)
        tally_cannot(&tally, "no way");
    RANK_TRY(check_row_add(&env, launch->rank == 0 ? &report : NULL, "exchange", "half", &tally, false));
    RANK_CHECK(launch->rank != 0 || (report.waived == 1 && report.rows[0].rule == RULE_EXCHANGE_CANNOT));
    RANK_CHECK(launch->rank != 0 || strcmp(report.rows[0].why, "no way") == 0);
    check_report_free(&report);
    side_close(&side);
    return 0;
}

static void test_refused_by_one(void **state)
{
    (void)state;
    ranks_pass(2, refused_by_one, no_arg);
}

/* ---- transports that are wrong ---- */

static enum status idle_batch(void *state, const struct transport_xfer *sends, int nsends,
                              const struct transport_xfer *recvs, int nrecvs, struct dev_queue *queue,
                              int64_t deadline_ns)
{
    (void)state, (void)sends, (void)nsends, (void)recvs, (void)nrecvs, (void)queue, (void)deadline_ns;
    return STATUS_OK;
}

static const char *idle_in_use(void *state)
{
    (void)state;
    return "idle";
}

/* As the job's own: what it says fails, and the transports of the table have their rows all the same. */
static int wrong_transports(const struct launch *launch, void *arg)
{
    const struct check_order order = {.seed = 1, .areas = 1u << 1};
    struct bench_env env;
    struct side side;
    struct check_report report = {0};
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    const struct transport *right = side.comm->job->transport;
    struct transport idle = *right, nameless = *right;
    idle.name = nameless.name = "idle";
    idle.in_use = idle_in_use;
    idle.batch = idle_batch;
    const struct transport *const wrong[] = {&idle, &nameless};
    static const char *const rows[] = {"idle: every", "ucx "}, *const words[] = {"alltoall of 1 bytes",
                                                                                 "is not its name"};
    for (int i = 0; i < 2; i++) {
        side.comm->job->transport = wrong[i];
        RANK_TRY(check_run(&env, &order, &report));
        side.comm->job->transport = right;
        if (launch->rank != 0)
            continue;
        const struct check_row *row = row_find(&report, "transport", rows[i]);
        RANK_CHECK(row == &report.rows[0] && row->outcome == CHECK_FAILED && strstr(row->why, words[i]) != NULL);
        RANK_CHECK(report.failed == 1 && row_find(&report, "transport", "ucx tcp")->outcome == CHECK_PASSED);
        check_report_free(&report);
    }
    side_close(&side);
    return 0;
}

static void test_wrong_transports(void **state)
{
    (void)state;
    ranks_pass(2, wrong_transports, no_arg);
}

/* ---- attention that is wrong ---- */

static enum status wrong_scale(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue)
{
    struct attention_shape other = *shape;
    other.scale *= 1.01f;
    return attention_find("reference")->forward(&other, args, queue);
}

static enum status wrong_window(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue)
{
    struct attention_shape other = *shape;
    other.window = other.window > 1 ? other.window - 1 : other.window;
    return attention_find("reference")->forward(&other, args, queue);
}

static enum status wrong_lse(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue)
{
    TRY(attention_find("reference")->forward(shape, args, queue));
    if (shape->batch * shape->seq_q > 0)
        args->lse[0] += 1e-2f;
    return STATUS_OK;
}

/* The last key's gradient is left as it was. */
static enum status wrong_dv(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue)
{
    TRY(attention_find("reference")->backward(shape, args, queue));
    int64_t token = shape->batch * shape->seq_k - 1;
    if (token >= 0)
        memset((char *)args->dv + token * shape->v_stride * dtype_bytes(shape->dtype), 0xff,
               (size_t)(shape->head_dim_v * dtype_bytes(shape->dtype)));
    return STATUS_OK;
}

static enum status failing(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue)
{
    (void)shape;
    (void)args;
    (void)queue;
    return FAIL(STATUS_USAGE, "failed on purpose");
}

/* A kernel that runs what it was told of beforehand, and nothing else. */
static struct attention_shape told_of[128];
static int prepared, unprepared;

static bool alike(const struct attention_shape *a, const struct attention_shape *b)
{
    return a->batch == b->batch && a->seq_q == b->seq_q && a->seq_k == b->seq_k && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->dtype == b->dtype && a->causal == b->causal &&
           a->window == b->window && a->docs == b->docs && a->group_first == b->group_first;
}

static void prepare(const struct attention_shape *const *shapes, int n, bool backward)
{
    assert_true(backward);
    for (int i = 0; i < n && prepared < (int)(sizeof told_of / sizeof *told_of); i++)
        told_of[prepared++] = *shapes[i];
}

static enum status run_prepared(const struct attention_shape *shape, const struct attention_args *args,
                                struct dev_queue *queue)
{
    bool told = false;
    for (int i = 0; i < prepared && !told; i++)
        told = alike(&told_of[i], shape);
    unprepared += !told;
    return attention_find("reference")->forward(shape, args, queue);
}

static void test_prepared_before_it_runs(void **state)
{
    (void)state;
    struct attention kernel = *attention_find("reference");
    struct check_variant variant = {.attention = &kernel, .isa = -1};
    struct dev *dev = NULL;
    int share[2];
    kernel.prepare = prepare;
    kernel.forward = run_prepared;
    assert_int_equal(dev_open(DEV_CPU, 0, &dev), STATUS_OK);
    for (int rank = 0; rank < 2; rank++) {
        prepared = unprepared = 0;
        variant.tally = (struct tally){0};
        assert_int_equal(check_attention(dev, &variant, 1, 1, rank, 2), STATUS_OK);
        assert_false(variant.tally.wrong);
        assert_int_equal(unprepared, 0);
        assert_true(variant.tally.cases > 20 && variant.tally.cases <= prepared);
        share[rank] = prepared;
    }
    prepared = 0;
    assert_int_equal(check_attention(dev, &variant, 1, 1, 0, 1), STATUS_OK);
    assert_int_equal(prepared, share[0] + share[1]);
    dev_close(dev);
}

static void test_wrong_attentions(void **state)
{
    (void)state;
    struct check_variant variants[6];
    static const char *const words[] = {NULL, "lse at", "o at", "lse at", "dv at", "failed on purpose"};
    struct attention wrong[6];
    for (int i = 0; i < 6; i++) {
        wrong[i] = *attention_find("reference");
        variants[i] = (struct check_variant){.attention = &wrong[i], .isa = -1};
    }
    wrong[1].forward = wrong_scale;
    wrong[2].forward = wrong_window;
    wrong[3].forward = wrong_lse;
    wrong[4].backward = wrong_dv;
    wrong[5].forward = failing;
    struct dev *dev = NULL;
    assert_int_equal(dev_open(DEV_CPU, 0, &dev), STATUS_OK);
    assert_int_equal(check_attention(dev, variants, 6, 1, 0, 1), STATUS_OK);
    dev_close(dev);
    for (int i = 0; i < 6; i++) {
        if (variants[i].tally.wrong != (words[i] != NULL) || (words[i] != NULL && strstr(variants[i].tally.why, words[i]) == NULL))
            fail_msg("kernel %d: %s", i, variants[i].tally.why);
        assert_true(i == 5 || variants[i].tally.cases > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),       cmocka_unit_test(test_only),
        cmocka_unit_test(test_wrong_exchanges),  cmocka_unit_test(test_refused_by_one),
        cmocka_unit_test(test_wrong_transports), cmocka_unit_test(test_prepared_before_it_runs),
        cmocka_unit_test(test_wrong_attentions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
