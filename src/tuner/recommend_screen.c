/* tuner/recommend_screen.c -- the answer on one terminal screen, 80 columns; and the table of many answers. */
#include "tuner/recommend.h"

#include "base/text.h"
#include "base/units.h"
#include "results/export.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void head(const struct recommendation *rec, struct text *out)
{
    const struct request *r = &rec->request;
    char params[UNITS_BUF], seq[UNITS_BUF], memory[UNITS_BUF];
    text_print(params, sizeof params, "%.3g B", (double)r->model.params * 1e-9);
    text_add(out, "%s %s %d/%d heads | seq %s | ", r->model.name, r->model.params > 0 ? params : "", r->model.heads,
             r->model.kv_heads, units_format_count(r->problem.seq, seq));
    text_add(out, "%d x %s %s | target %s\n", r->world, r->dev == DEV_CPU ? "CPU rank" : "GPU",
             units_format_bytes((double)r->device_memory_bytes, memory), r->target->runtime);
    int column = (int)strlen("assumed:");
    text_add(out, "assumed:");
    for (int i = 0; i < r->nassumptions; i++) {
        const struct request_assumption *a = &r->assumptions[i];
        int width = (int)(strlen(a->name) + strlen(a->value)) + 2;
        if (column + width > 79) {
            text_add(out, "\n        ");
            column = 8;
        }
        text_add(out, " %s=%s", a->name, a->value);
        column += width;
    }
    text_add(out, "%s\n", r->global_batch_tokens == 0 ? "; global batch not fixed" : "");
}

static void use(const struct recommendation *rec, struct text *out)
{
    const struct recommend_candidate *c = &rec->candidates[rec->chosen];
    const struct request *r = &rec->request;
    struct problem problem = r->problem;
    problem.batch = c->plan.micro_batch;
    char speed[UNITS_BUF], lo[UNITS_BUF], hi[UNITS_BUF], step[UNITS_BUF], tokens[UNITS_BUF];
    static const char *const words[] = {"USE ", "USE ", "NOT "};
    text_add(out, "%s sp_size=%d dp_shard_size=%d dp_replicate_size=%d %s", words[rec->verdict], c->plan.sp, c->plan.dp_shard,
             c->plan.dp_replicate, c->attention_class);
    if (r->target->zero_over_world && r->world > 1)
        text_add(out, "  (ZeRO-%d shards over all %d)", c->plan.zero_stage, r->world);
    text_add(out, "\n     %s tok/s/%s [%s..%s, 95 %%]   %s/step   %s%s tok/step\n",
             units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, speed), r->dev == DEV_CPU ? "rank" : "GPU",
             units_format_measured(c->lo, c->lo, c->hi, lo), units_format_measured(c->hi, c->lo, c->hi, hi),
             units_format_us(c->time.step_us, step), r->global_batch_tokens == 0 ? ">= " : "",
             units_format_count(work_step_tokens(&problem, &c->plan), tokens));
    if (c->plan.order_n > 0) {
        text_add(out, "     rank order");
        for (int i = 0; i < c->plan.order_n; i++)
            text_add(out, " %d", c->plan.order[i]);
        text_add(out, "\n");
    }
}

/* The terms that make the peak, largest first. */
static void memory(const struct recommendation *rec, struct text *out)
{
    static const char *const says[] = {"fits", "measure first (above 80 %)", "does not fit"};
    const struct recommend_candidate *c = &rec->candidates[rec->chosen];
    const struct work_memory *m = &c->memory;
    char peak[UNITS_BUF], limit[UNITS_BUF], host[UNITS_BUF];
    text_add(out, "%s  %s of %s: %s; peak at %s:", rec->request.dev == DEV_CPU ? "MEM" : "GPU",
             units_format_bytes((double)m->peak_bytes, peak), units_format_bytes((double)rec->request.device_memory_bytes, limit),
             says[rec->verdict], m->peak_at);
    bool shown[WORK_TERMS] = {false};
    for (int k = 0; k < 4; k++) {
        int largest = -1;
        for (int i = 0; i < m->n; i++)
            if (!shown[i] && m->term[i].live_at_peak && !m->term[i].host && m->term[i].bytes > 0 &&
                (largest < 0 || m->term[i].bytes > m->term[largest].bytes))
                largest = i;
        if (largest < 0)
            break;
        shown[largest] = true;
        text_add(out, "%s%s %.2f", k == 0 ? "\n     " : "  ", m->term[largest].name, (double)m->term[largest].bytes / 1073741824.0);
    }
    text_add(out, " GiB | host %s\n", units_format_bytes((double)m->host_bytes, host));
}

static void why(const struct recommendation *rec, struct text *out)
{
    for (int i = 0, said = 0; i < rec->n && said < 3; i++) {
        const struct recommend_candidate *c = &rec->candidates[i];
        if (i == rec->chosen || !c->priced)
            continue;
        char faster[48] = "";
        if (c->loses_by < -0.005)
            text_print(faster, sizeof faster, "%.0f %% faster but ", -100 * c->loses_by);
        text_add(out, "%s sp %d %s%s%s\n", said++ == 0 ? "why " : "    ", c->plan.sp,
                 rec->request.nmicro > 1 ? "with its micro-batch " : "", faster, c->lost.why);
    }
}

static void flips(const struct recommendation *rec, struct text *out)
{
    for (int i = 0; i < rec->nflips && i < 3; i++) {
        char peak[UNITS_BUF];
        text_add(out, "FLIP %s -> sp %d, %s, %+.0f %% tok/s\n", rec->flips[i].condition, rec->flips[i].then_plan.sp,
                 units_format_bytes((double)rec->flips[i].peak_bytes, peak), 100 * rec->flips[i].gain);
    }
    if (rec->fits_if[0] != '\0')
        text_add(out, "FIT  %s\n", rec->fits_if);
}

static void row(const struct recommendation *rec, const struct recommend_candidate *c, struct text *out)
{
    const struct request *r = &rec->request;
    struct problem problem = r->problem;
    problem.batch = c->plan.micro_batch;
    char speed[UNITS_BUF] = "-", against[16] = "-", peak[16] = "-", tokens[UNITS_BUF] = "-";
    bool chosen = c == &rec->candidates[rec->chosen];
    if (c->priced) {
        units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, speed);
        text_print(peak, sizeof peak, "%.2f", (double)c->memory.peak_bytes / 1073741824.0);
        units_format_count(work_step_tokens(&problem, &c->plan), tokens);
        if (chosen)
            text_print(against, sizeof against, "best");
        else
            text_print(against, sizeof against, "%+.1f %%", 100 * (1 / (1 + c->loses_by) - 1));
    }
    const struct verdict *v = c->priced ? &c->lost : &c->verdict;
    text_add(out, "%4d  %-17.17s %9s  %8s  %8s %12s  %c  %s\n", c->plan.sp, c->attention_class, speed, against, peak, tokens,
             c->priced ? recommend_source_letter(c->time.source) : ' ', chosen ? "chosen" : rule_code(v->rule));
}

/* Classes without any measurement, on one line. */
static void not_measured(const struct recommendation *rec, struct text *out)
{
    bool any = false;
    for (int i = 0; i < rec->n; i++) {
        const struct recommend_candidate *c = &rec->candidates[i];
        bool said = c->verdict.rule != RULE_NOT_MEASURED;
        for (int k = 0; k < i && !said; k++)
            said = rec->candidates[k].verdict.rule == RULE_NOT_MEASURED &&
                   strcmp(rec->candidates[k].attention_class, c->attention_class) == 0;
        if (!said)
            text_add(out, "%s %s", any ? "," : "not measured here:", c->attention_class);
        any = any || !said;
    }
    if (any)
        text_add(out, "\n");
}

static void table(const struct recommendation *rec, struct text *out)
{
    text_add(out, "%4s  %-17s %9s  %8s  %8s %12s  %s  %s\n", "sp", "attention", rec->request.dev == DEV_CPU ? "tok/s/rank" : "tok/s/GPU",
             "vs best", "peak GiB", "tok/step", "by", "status");
    for (int i = 0; i < rec->n; i++)
        if (rec->candidates[i].verdict.rule != RULE_NOT_MEASURED)
            row(rec, &rec->candidates[i], out);
    not_measured(rec, out);
    text_add(out, "by M measured I interpolated X extrapolated P published A assumed\n");
}

static void native(const struct recommendation *rec, struct text *out)
{
    char speed[UNITS_BUF];
    if (rec->native_best >= 0)
        text_add(out, "native harness at sp %d (%s): %s tok/s (%+.1f %%)\n", rec->native.plan.sp, rec->native.plan.exchange,
                 units_format_measured(rec->native.tokens_per_s_per_device, rec->native.lo, rec->native.hi, speed),
                 100 * (rec->native.tokens_per_s_per_device / rec->candidates[rec->chosen].tokens_per_s_per_device - 1));
}

enum status recommend_screen(const struct recommendation *rec, char **out)
{
    struct text text = {0};
    head(rec, &text);
    use(rec, &text);
    memory(rec, &text);
    why(rec, &text);
    flips(rec, &text);
    table(rec, &text);
    native(rec, &text);
    text_add(&text, "%schecked %d of %d | %.0f s of %.0f s%s | seed %llu\n", rec->interrupted ? "INTERRUPTED | " : "", rec->checked,
             rec->check_total, rec->wall_s, rec->budget_s, rec->budget_ended ? ", budget ended" : "",
             (unsigned long long)rec->request.seed);
    if (rec->next_measurement[0] != '\0')
        text_add(&text, "to know more: %s\n", rec->next_measurement);
    enum status status = text_status(&text);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    *out = text.s;
    return STATUS_OK;
}

enum { LIST_COLUMNS = 8 };

static void list_cells(const struct recommendation *a, char cells[LIST_COLUMNS][UNITS_BUF])
{
    const struct recommend_candidate *c = &a->candidates[a->chosen];
    static const char *const words[] = {"fits", "measure first", "does not fit"};
    text_print(cells[0], UNITS_BUF, "%d/%d", a->request.model.heads, a->request.model.kv_heads);
    units_format_count(a->request.problem.seq, cells[1]);
    text_print(cells[2], UNITS_BUF, "%d", c->plan.sp);
    text_print(cells[3], UNITS_BUF, "%s", c->attention_class);
    units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, cells[4]);
    units_format_bytes((double)c->memory.peak_bytes, cells[5]);
    text_print(cells[6], UNITS_BUF, "%s", words[a->verdict]);
    text_print(cells[7], UNITS_BUF, "%c", recommend_source_letter(c->time.source));
}

/* Lengths between which the chosen sp changes, per heads. */
static void crossovers(const struct recommendation *const *answers, int n, struct text *out)
{
    for (int i = 1; i < n; i++) {
        const struct recommendation *a = answers[i - 1], *b = answers[i];
        int before = a->candidates[a->chosen].plan.sp, after = b->candidates[b->chosen].plan.sp;
        char from[UNITS_BUF], to[UNITS_BUF];
        if (a->request.model.heads != b->request.model.heads || a->request.model.kv_heads != b->request.model.kv_heads || before == after)
            continue;
        text_add(out, "heads %d/%d: sp %d -> %d between %s and %s tokens\n", b->request.model.heads, b->request.model.kv_heads, before,
                 after, units_format_count(a->request.problem.seq, from), units_format_count(b->request.problem.seq, to));
    }
}

enum status recommend_list_screen(const struct recommendation *const *answers, int n, char **out)
{
    static const struct export_column columns[LIST_COLUMNS] = {{"heads", true}, {"seq", true}, {"sp", true}, {"attention", false},
                                                               {"tok/s/dev", true}, {"peak", true}, {"memory", false}, {"by", false}};
    char(*text)[LIST_COLUMNS][UNITS_BUF] = calloc((size_t)n + 1, sizeof *text);
    const char **cells = calloc((size_t)n * LIST_COLUMNS + 1, sizeof *cells);
    struct text all = {0};
    char *grid = NULL;
    enum status status = text != NULL && cells != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for %d answers", n);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        list_cells(answers[i], text[i]);
        for (int c = 0; c < LIST_COLUMNS; c++)
            cells[i * LIST_COLUMNS + c] = text[i][c];
    }
    if (status == STATUS_OK)
        status = export_grid(columns, LIST_COLUMNS, cells, n, &grid);
    if (status == STATUS_OK) {
        text_add(&all, "%s", grid);
        crossovers(answers, n, &all);
        status = text_status(&all);
    }
    free(grid);
    free(cells);
    free(text);
    if (status != STATUS_OK) {
        text_free(&all);
        return status;
    }
    *out = all.s;
    return STATUS_OK;
}
