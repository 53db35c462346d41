/* bench/check.c -- the checkers, their report, and correctness before time. */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/range.h"
#include "base/text.h"
#include "base/version.h"
#include "bench/group.h"
#include "comm/transport.h"
#include "kernels/gemm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FACT = 512 };

const struct check *const checks[] = {
    &check_kernels,
    &check_transport,
    &check_exchange,
    &check_plan,
    &check_block,
    NULL,
};

void check_report_free(struct check_report *report)
{
    free(report->rows);
    *report = (struct check_report){0};
}

void tally_wrong(struct tally *tally, const char *fmt, ...)
{
    va_list args;
    if (tally->wrong)
        return;
    tally->wrong = true;
    va_start(args, fmt);
    vsnprintf(tally->why, sizeof tally->why, fmt, args);
    va_end(args);
}

void tally_cannot(struct tally *tally, const char *why)
{
    if (tally->wrong || tally->cannot)
        return;
    tally->cannot = true;
    text_print(tally->why, sizeof tally->why, "%s", why);
}

enum status tally_status(struct tally *tally, enum status status)
{
    if (status == STATUS_OK || group_is_over(status))
        return status;
    tally_wrong(tally, "%.250s", status_last()->what);
    status_clear();
    return STATUS_OK;
}

static enum status row_append(struct check_report *report, const struct check_row *row)
{
    size_t cap = (size_t)report->cap;
    TRY(mem_grow((void **)&report->rows, &cap, (size_t)report->nrows + 1, sizeof *report->rows));
    report->cap = (int)cap;
    report->rows[report->nrows++] = *row;
    report->cases += row->cases;
    report->passed += row->outcome == CHECK_PASSED;
    report->failed += row->outcome == CHECK_FAILED;
    report->waived += row->outcome == CHECK_WAIVED;
    return STATUS_OK;
}

static void row_name(struct check_row *row, const char *area, const char *what)
{
    text_print(row->area, sizeof row->area, "%s", area);
    text_print(row->what, sizeof row->what, "%s", what);
}

/* Rank 0 puts together what the ranks say. */
static enum status row_join(struct check_report *report, const char *area, const char *what, const struct tally *all, int ranks,
                            bool spread)
{
    struct check_row row = {.outcome = CHECK_PASSED};
    const struct tally *cannot = NULL;
    row_name(&row, area, what);
    for (int r = 0; r < ranks; r++) {
        if (all[r].cannot && all[r].cases == 0 && cannot == NULL)
            cannot = &all[r];
        row.cases = spread || r == 0 ? row.cases + all[r].cases : row.cases;
        if (!all[r].wrong || row.outcome == CHECK_FAILED)
            continue;
        row.outcome = CHECK_FAILED;
        text_print(row.why, sizeof row.why, "rank %d: %.240s", r, all[r].why);
    }
    if ((row.cases == 0 || cannot != NULL) && row.outcome == CHECK_PASSED) { /* one group may do what another cannot */
        row.outcome = CHECK_WAIVED;
        row.rule = cannot != NULL ? RULE_EXCHANGE_CANNOT : RULE_KERNEL_CANNOT;
        text_print(row.why, sizeof row.why, "%s", cannot != NULL ? cannot->why : "none of the small problems is legal for it");
    }
    return row_append(report, &row);
}

enum status check_row_add(struct bench_env *env, struct check_report *report, const char *area, const char *what,
                          const struct tally *tally, bool spread)
{
    int ranks = comm_size(env->world);
    struct tally *all = NULL, mine = *tally;
    enum status status = group_agree(env, mem_alloc((size_t)ranks * sizeof *all, "a row of a check", (void **)&all));
    if (status == STATUS_OK)
        status = boot_allgather(comm_boot(env->world), &mine, sizeof mine, all, clock_deadline(BOOT_DEADLINE_US));
    if (status == STATUS_OK)
        status = group_agree(env, report != NULL ? row_join(report, area, what, all, ranks, spread) : STATUS_OK);
    free(all);
    return status;
}

enum status check_row_waive(const struct check_order *order, struct check_report *report, const char *area,
                            const char *what, enum rule rule, const char *why)
{
    struct check_row row = {.outcome = CHECK_WAIVED, .rule = rule};
    if (report == NULL || !check_asked(order, what))
        return STATUS_OK;
    row_name(&row, area, what);
    text_print(row.why, sizeof row.why, "%s", why);
    return row_append(report, &row);
}

const struct plan *check_only(const struct check_order *order)
{
    return order->has_only ? &order->only : NULL;
}

bool check_asked(const struct check_order *order, const char *what)
{
    return strstr(what, order->rows) != NULL;
}

void check_begins(const struct check_report *report, const char *area, const char *what)
{
    if (report != NULL && report->begins != NULL)
        report->begins(area, what, report->nrows);
}

enum status check_run(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    struct check_report *mine = comm_rank(env->world) == 0 ? report : NULL;
    if (mine != NULL)
        *mine = (struct check_report){.begins = mine->begins};
    for (int i = 0; checks[i] != NULL; i++) {
        if (order->areas != 0 && !(order->areas >> i & 1))
            continue;
        enum status status = group_hear(env, STATUS_OK);
        if (status == STATUS_OK)
            status = RANGE_AT("check", i, checks[i]->run(env, order, mine));
        if (status != STATUS_OK && mine != NULL)
            check_report_free(mine);
        TRY(status);
    }
    return STATUS_OK;
}

enum status check_serve(struct bench_env *env, const void *data, size_t bytes)
{
    struct check_order order;
    if (bytes != sizeof order)
        return FAIL(STATUS_PEER, "an order to check of %zu bytes, not %zu", bytes, sizeof order);
    memcpy(&order, data, sizeof order);
    enum status status = check_run(env, &order, NULL);
    return group_is_interrupt(status) ? STATUS_OK : status; /* rank 0's, which ends the job */
}

/* What passing means: this build, this machine, so many ranks of so many threads over this transport, these libraries; then the plan's method,
 * exchange, kernel, sp and chunks, or, of area "kernel", the attention alone. */
static void fact_of(const struct bench_env *env, const struct plan *only, bool kernel, char buf[FACT])
{
    const struct attention *attention = only != NULL ? attention_find(only->attention) : NULL;
    char plan[160] = "everything", libraries[160] = "";
    size_t n = 0;
    for (int i = 0; transports[i] != NULL && n < sizeof libraries; i++)
        n += (size_t)snprintf(libraries + n, sizeof libraries - n, "%s ", transports[i]->version());
    if (only != NULL && kernel)
        text_print(plan, sizeof plan, "kernel %s", only->attention);
    else if (only != NULL)
        text_print(plan, sizeof plan, "%s sp=%d ring=%d %s %s chunks=%d", plan_method_name(only->method), only->sp,
                   plan_ring(only), only->exchange, only->attention, only->chunks);
    text_print(buf, FACT, "checked:%s:%s:%dx%d:%s:%s%s %s:%s", version_build(), env->machine, comm_size(env->world),
               dev_threads(env->dev), env->transport, libraries, gemm_name(dev_kind_of(env->dev)),
               attention != NULL && attention->version != NULL ? attention->version() : "", plan);
}

/* How many rows passed when it was remembered; -1: it was not. */
static int recall(struct store *store, const char *fact)
{
    char value[64];
    if (store == NULL || !store_recall(store, fact, value, sizeof value))
        return -1;
    const char *passed = strchr(value, ' ');
    log_verbose("%s: passed before", fact);
    return passed != NULL ? atoi(passed) : 0;
}

static enum status remember(struct store *store, const char *fact, int passed)
{
    char value[64], now[32];
    clock_iso(now);
    text_print(value, sizeof value, "%s %d", now, passed);
    return store != NULL ? store_remember(store, fact, value) : STATUS_OK;
}

static unsigned areas_but(const struct check *left_out)
{
    unsigned areas = 0;
    for (unsigned i = 0; checks[i] != NULL; i++)
        areas |= checks[i] != left_out ? 1u << i : 0;
    return areas;
}

static enum status verdict(const struct check_report *report)
{
    for (int i = 0; i < report->nrows; i++) {
        const struct check_row *row = &report->rows[i];
        if (row->outcome == CHECK_FAILED)
            return HINT(FAIL(STATUS_CHECK, "%d of %d checks failed, first: %.120s: %s", report->failed, report->nrows, row->what,
                             row->why),
                        "nothing is timed that computes wrong results; `sptune check` shows everything");
    }
    return STATUS_OK;
}

enum status check_before(struct bench_session *session, uint64_t seed, const struct plan *only, struct check_report *report)
{
    char fact[FACT], kernel[FACT];
    struct check_order order;
    *report = (struct check_report){0};
    if (session->env == NULL || session->checked)
        return STATUS_OK;
    fact_of(session->env, only, false, fact);
    fact_of(session->env, only, true, kernel);
    int known = recall(session->store, fact);
    bool kernels = false;
    if (known >= 0) {
        report->remembered = known;
        return STATUS_OK;
    }
    memset(&order, 0, sizeof order);
    order.seed = seed;
    order.has_only = only != NULL;
    if (only != NULL) {
        order.only = *only;
        kernels = recall(session->store, kernel) >= 0;
        order.areas = kernels ? areas_but(&check_kernels) : 0;
    }
    if (session->tell != NULL)
        TRY(session->tell(session->tell_arg, "check", &order, sizeof order));
    TRY(check_run(session->env, &order, report));
    TRY(verdict(report));
    if (only != NULL && !kernels)
        TRY(remember(session->store, kernel, 0)); /* rows are counted with the plan that they ran for */
    return remember(session->store, fact, report->passed);
}
