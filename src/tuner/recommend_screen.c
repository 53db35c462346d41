/* tuner/recommend_screen.c -- the answer on one terminal screen, at most 80 columns wide. */
#include "tuner/recommend.h"

#include "base/text.h"
#include "base/units.h"
#include "tuner/parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, INDENT = 5, ROWS_MAX = 24, WHY_MAX = 3, FLIPS_MAX = 3, TERMS_MAX = 4, REFUSED_MAX = 12 };
static const double GiB = 1073741824.0;

/* Columns of UTF-8 text, one per character. */
static int columns(const char *s, size_t bytes)
{
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

/* Prints as a blank, at which no line is broken. */
#define NO_BREAK "\x1f"

/* A line, broken at blanks where it would be too long; what follows is indented. */
static void line(struct text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void line(struct text *out, const char *fmt, ...)
{
    char *all = NULL;
    va_list args;
    va_start(args, fmt);
    int length = vasprintf(&all, fmt, args);
    va_end(args);
    if (length < 0) {
        out->failed = true;
        return;
    }
    int column = 0;
    for (const char *at = all; *at != '\0';) {
        size_t blanks = strspn(at, " "), word = strcspn(at + blanks, " ");
        int width = columns(at + blanks, word);
        if (column > INDENT && column + (int)blanks + width > WIDTH) {
            text_add(out, "\n%*s", INDENT, "");
            column = INDENT;
        } else {
            text_add(out, "%*s", (int)blanks, "");
            column += (int)blanks;
        }
        for (const char *c = at + blanks; c < at + blanks + word; c++)
            text_add_raw(out, *c == NO_BREAK[0] ? " " : c, 1);
        column += width;
        at += blanks + word;
    }
    text_add(out, "\n");
    free(all);
}

static const char *unit_of(const struct recommendation *rec)
{
    return rec->request.dev == DEV_CPU ? "rank" : "GPU";
}

static void head(const struct recommendation *rec, struct text *out)
{
    const struct request *r = &rec->request;
    char params[32] = "", heads[48] = "", hosts[32] = "", seq[UNITS_BUF], limit[UNITS_BUF], name[61];
    const char *device = r->dev != r->planned ? "planned GPU" : r->planned == DEV_CPU ? "CPU rank" : "GPU";
    struct text all = {0};
    text_print(name, sizeof name, "%s", r->model.name);
    text_clean(name);
    if (r->model.params > 0)
        text_print(params, sizeof params, " %.3g B", (double)r->model.params * 1e-9);
    if (!model_is_heads(&r->model)) /* else the name says it */
        text_print(heads, sizeof heads, " %d/%d heads", r->model.heads, r->model.kv_heads);
    if (r->nodes > 1)
        text_print(hosts, sizeof hosts, " on %d hosts", r->nodes);
    line(out, "%s%s%s | seq %s | %d x %s %s%s | target %s", name, params, heads,
         units_format_count(r->problem.seq, seq), r->world, device,
         units_format_bytes((double)r->device_memory_bytes, limit), hosts, r->target->runtime);
    for (int i = 0; i < r->nassumptions; i++)
        text_add(&all, " %s=%s", r->assumptions[i].name, r->assumptions[i].value);
    if (all.len > 0 || r->global_batch_tokens == 0)
        line(out, "assumed:%s%s", text_get(&all), r->global_batch_tokens == 0 ? "; global batch not fixed" : "");
    text_free(&all);
}

/* Which of the open options differ between candidates, so that a row has to name them. */
struct varied {
    bool method, class, micro_batch, exchange, zero, checkpointing, offload, loss;
};

static bool has_choice(const struct plan *plan)
{
    return plan_method_exchange(plan->method) == NULL;
}

static struct varied varied_of(const struct recommendation *rec)
{
    struct varied v = {0};
    const struct plan *p = rec->n > 0 ? &rec->candidates[0].plan : NULL;
    const char *exchange = NULL; /* of those whose method leaves a choice */
    for (int i = 0; i < rec->n; i++) {
        const struct recommend_candidate *c = &rec->candidates[i];
        const struct plan *q = &c->plan;
        if (!c->priced)
            continue;
        v.method = v.method || p->method != q->method;
        v.class = v.class || strcmp(rec->candidates[0].attention_class, c->attention_class) != 0;
        v.micro_batch = v.micro_batch || p->micro_batch != q->micro_batch;
        v.exchange = v.exchange || (exchange != NULL && has_choice(q) && strcmp(exchange, q->exchange) != 0);
        exchange = has_choice(q) ? q->exchange : exchange;
        v.zero = v.zero || p->zero_stage != q->zero_stage;
        v.checkpointing = v.checkpointing || p->checkpointing != q->checkpointing;
        v.offload = v.offload || p->offload != q->offload;
        v.loss = v.loss || p->loss != q->loss;
    }
    return v;
}

static void options_text(const struct varied *v, const struct recommend_candidate *c, char *buf, size_t size)
{
    struct text all = {0};
    const struct plan *p = &c->plan;
    if (v->method)
        text_add(&all, " %s", plan_split_name(p));
    if (v->class)
        text_add(&all, " %s", c->attention_class);
    if (v->micro_batch)
        text_add(&all, " micro_batch=%lld", (long long)p->micro_batch);
    if (v->exchange && has_choice(p)) /* else the method says it */
        text_add(&all, " %s", p->exchange);
    if (v->zero)
        text_add(&all, " zero=%d", p->zero_stage);
    if (v->checkpointing)
        text_add(&all, " checkpointing=%s", plan_checkpointing_name(p->checkpointing));
    if (v->offload)
        text_add(&all, " offload=%s", plan_offload_name(p->offload));
    if (v->loss)
        text_add(&all, " loss=%s", plan_loss_name(p->loss));
    text_print(buf, size, "%s", text_get(&all));
    text_free(&all);
}

static void use(const struct recommendation *rec, const struct varied *varied, struct text *out)
{
    static const char *const words[] = {"USE ", "USE ", "NOT "};
    const struct recommend_candidate *c = &rec->candidates[rec->chosen];
    const struct request *r = &rec->request;
    struct problem problem = r->problem;
    problem.batch = c->plan.micro_batch;
    char speed[UNITS_BUF], lo[UNITS_BUF], hi[UNITS_BUF], step[UNITS_BUF], tokens[UNITS_BUF], options[256],
        zero[64] = "";
    struct varied named = *varied;
    named.class = false;
    options_text(&named, c, options, sizeof options);
    if (r->target->zero_over_world && r->world > 1 && c->plan.zero_stage > 0)
        text_print(zero, sizeof zero, "  (ZeRO-%d" NO_BREAK "over" NO_BREAK "all" NO_BREAK "%d)", c->plan.zero_stage,
                   r->world);
    line(out, "%s sp_size=%d dp_shard_size=%d dp_replicate_size=%d %s%s%s%s", words[rec->verdict], c->plan.sp,
         c->plan.dp_shard, c->plan.dp_replicate, c->attention_class, options, zero,
         rec->verdict == WORK_DOES_NOT_FIT ? "  (the nearest to fitting)" : "");
    line(out, "     %s tok/s/%s [%s..%s, 95 %%]   %s/step   %s%s tok/step",
         units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, speed), unit_of(rec),
         units_format_measured(c->lo, c->lo, c->hi, lo), units_format_measured(c->hi, c->lo, c->hi, hi),
         units_format_us_measured(c->time.step_us, c->time.lo_us, c->time.hi_us, step),
         r->global_batch_tokens == 0 ? ">= " : "", units_format_count(work_step_tokens(&problem, &c->plan), tokens));
    const char *note = request_speed_note(r->dev, r->planned);
    if (note != NULL)
        line(out, "NOTE %s", note);
    if (c->plan.order_n > 0) {
        struct text order = {0};
        for (int i = 0; i < c->plan.order_n; i++)
            text_add(&order, " %d", c->plan.order[i]);
        line(out, "     rank order%s", text_get(&order));
        text_free(&order);
    }
}

static char *gib_text(double bytes, char buf[16])
{
    double gib = bytes / GiB;
    text_print(buf, 16, gib < 9.995 ? "%.2f" : gib < 99.95 ? "%.1f" : "%.0f", gib);
    return buf;
}

/* The terms that make the peak, largest first. */
static void memory(const struct recommendation *rec, struct text *out)
{
    static const char *const says[] = {"fits", "measure first (above 80 %)", "does not fit"};
    const struct recommend_candidate *c = &rec->candidates[rec->chosen];
    const struct work_memory *m = &c->memory;
    const struct request *r = &rec->request;
    char peak[UNITS_BUF], limit[UNITS_BUF], host[UNITS_BUF], host_limit[UNITS_BUF], of_host[64] = "", gib[16];
    struct text terms = {0};
    bool shown[WORK_TERMS] = {false};
    for (int k = 0; k < TERMS_MAX; k++) {
        int largest = -1;
        for (int i = 0; i < m->n; i++)
            if (!shown[i] && m->term[i].live_at_peak && !m->term[i].host && m->term[i].bytes > 0 &&
                (largest < 0 || m->term[i].bytes > m->term[largest].bytes))
                largest = i;
        if (largest < 0)
            break;
        shown[largest] = true;
        text_add(&terms, " %s %s", m->term[largest].name, gib_text((double)m->term[largest].bytes, gib));
    }
    if (r->host_memory_bytes > 0)
        text_print(of_host, sizeof of_host, " of %s", units_format_bytes((double)r->host_memory_bytes, host_limit));
    line(out, "%s  %s of %s: %s; peak at %s:%s GiB | host %s%s", r->planned == DEV_CPU ? "MEM" : "GPU",
         units_format_bytes((double)m->peak_bytes, peak), units_format_bytes((double)r->device_memory_bytes, limit),
         says[rec->verdict], m->peak_at, text_get(&terms),
         units_format_bytes((double)m->host_bytes * (r->host_memory_bytes > 0 ? r->ranks_per_host : 1), host), of_host);
    text_free(&terms);
}

static void why(const struct recommendation *rec, const struct varied *varied, struct text *out)
{
    for (int i = 0, said = 0; i < rec->n && said < WHY_MAX; i++) {
        const struct recommend_candidate *c = &rec->candidates[i];
        char faster[48] = "", options[256];
        if (i == rec->chosen || !c->priced)
            continue;
        if (c->loses_by < -0.005)
            text_print(faster, sizeof faster, "%.0f %% faster%s, but ", 100 * (1 / (1 + c->loses_by) - 1),
                       c->timed ? "" : " by estimate");
        options_text(varied, c, options, sizeof options);
        line(out, "%s sp %d%s: %s%s", said++ == 0 ? "why " : "    ", c->plan.sp, options, faster, c->lost.why);
    }
}

/* "+6 %", "-0.4 %", "0 %" */
static char *percent_text(double percent, int decimals, char buf[16])
{
    double unit = decimals > 0 ? 0.05 : 0.5;
    if (fabs(percent) < unit)
        text_print(buf, 16, "0 %%");
    else
        text_print(buf, 16, "%+.*f %%", fabs(percent) < 99.95 ? decimals : 0, percent);
    return buf;
}

static void flips(const struct recommendation *rec, struct text *out)
{
    for (int i = 0; i < rec->nflips && i < FLIPS_MAX; i++) {
        const struct recommend_flip *f = &rec->flips[i];
        char peak[UNITS_BUF], gain[16];
        line(out, "FLIP %s -> sp %d, %s, %s tok/s%s", f->condition, f->then_plan.sp,
             units_format_bytes((double)f->peak_bytes, peak), percent_text(100 * f->gain, 0, gain),
             f->source == RECOMMEND_ASSUMED ? " by estimate" : "");
    }
    if (rec->fits_if[0] != '\0')
        line(out, "FIT  %s", rec->fits_if);
}

/* Short of its column's width whatever the number. */
static void shorten(char *buf, size_t width, double value)
{
    if (strlen(buf) > width)
        text_print(buf, width + 1, "%.3g", value);
}

static void row(const struct recommendation *rec, const struct recommend_candidate *c, const struct varied *varied,
                struct text *out)
{
    struct problem problem = rec->request.problem;
    char speed[UNITS_BUF], against[16], peak[16], tokens[UNITS_BUF], options[256];
    bool chosen = c == &rec->candidates[rec->chosen];
    problem.batch = c->plan.micro_batch;
    int64_t step = work_step_tokens(&problem, &c->plan);
    shorten(units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, speed), 9, c->tokens_per_s_per_device);
    shorten(gib_text((double)c->memory.peak_bytes, peak), 8, (double)c->memory.peak_bytes / GiB);
    shorten(units_format_count(step, tokens), 12, (double)step);
    percent_text(100 * (1 / (1 + c->loses_by) - 1), c->loses_hi - c->loses_lo < 0.02,
                 against); /* a decimal where the interval has one */
    options_text(varied, c, options, sizeof options);
    line(out, "%4d  %9s  %8s  %8s  %12s  %c  %s%s", c->plan.sp, speed, chosen ? "best" : against, peak, tokens,
         recommend_source_letter(c->time.source),
         !chosen                             ? rule_code(c->lost.rule)
         : rec->verdict == WORK_DOES_NOT_FIT ? "nearest"
                                             : "chosen",
         options);
}

static const struct verdict *verdict_of(const struct recommend_candidate *c)
{
    return verdict_ok(&c->verdict) ? &c->lost : &c->verdict;
}

/* Its class has no measurement at all; a plan that --samples has no row for is told with the reason. */
static bool class_unknown(const struct recommendation *rec, const struct recommend_candidate *c)
{
    return c->verdict.rule == RULE_NOT_MEASURED && !parts_is_installed(&rec->request, &c->plan);
}

/* Plans without a time, one line for each rule: their sizes, and the reason of the first. */
static void refused(const struct recommendation *rec, struct text *out)
{
    for (int rule = 0; rule < RULE_COUNT; rule++) {
        const struct recommend_candidate *first = NULL;
        struct text sizes = {0};
        int last = 0, n = 0;
        for (int i = 0; i < rec->n; i++) {
            const struct recommend_candidate *c = &rec->candidates[i];
            if (c->priced || verdict_of(c)->rule != (enum rule)rule || class_unknown(rec, c) || c->plan.sp == last)
                continue;
            first = first != NULL ? first : c;
            last = c->plan.sp;
            if (++n <= REFUSED_MAX)
                text_add(&sizes, " %d", c->plan.sp);
        }
        if (first != NULL)
            line(out, "refused sp%s%s (%s): %s", text_get(&sizes), n > REFUSED_MAX ? " ..." : "",
                 rule_code((enum rule)rule), verdict_of(first)->why);
        text_free(&sizes);
    }
}

/* Classes without any measurement, on one line. */
static void not_measured(const struct recommendation *rec, struct text *out)
{
    struct text all = {0};
    for (int i = 0; i < rec->n; i++) {
        const struct recommend_candidate *c = &rec->candidates[i];
        bool said = !class_unknown(rec, c);
        for (int k = 0; k < i && !said; k++)
            said = class_unknown(rec, &rec->candidates[k]) &&
                   strcmp(rec->candidates[k].attention_class, c->attention_class) == 0;
        if (!said)
            text_add(&all, "%s %s", all.len > 0 ? "," : "", c->attention_class);
    }
    if (all.len > 0)
        line(out, "not measured here:%s", text_get(&all));
    text_free(&all);
}

static void table(const struct recommendation *rec, const struct varied *varied, struct text *out)
{
    char speed[16];
    int shown = 0, more = 0;
    text_print(speed, sizeof speed, "tok/s/%s", unit_of(rec));
    line(out, "%4s  %9s  %8s  %8s  %12s  %s %s", "sp", rec->request.dev == DEV_CPU ? "tok/s/rk" : speed, "vs best",
         "peak GiB", "tok/step", "by", "status");
    for (int i = 0; i < rec->n; i++) {
        if (!rec->candidates[i].priced)
            continue;
        if (shown == ROWS_MAX)
            more++;
        else
            row(rec, &rec->candidates[i], varied, out);
        shown += shown < ROWS_MAX;
    }
    if (more > 0)
        line(out, "      and %d more: --json has them all", more);
    refused(rec, out);
    not_measured(rec, out);
    line(out, "by M measured I interpolated X extrapolated P published A assumed");
    for (int i = 0; i < rec->request.nassumptions; i++)
        if (strcmp(rec->request.assumptions[i].name, "samples") == 0)
            line(out, "samples=%s: %s %s; the estimates are rough", rec->request.assumptions[i].value,
                 rec->request.assumptions[i].from,
                 strcmp(rec->request.assumptions[i].value, "few") == 0 ? "before all was timed"
                                                                       : "slowed what was timed");
}

static void native(const struct recommendation *rec, struct text *out)
{
    char speed[UNITS_BUF], gain[16];
    const struct recommend_candidate *c = &rec->native;
    bool exchanges = c->plan.sp > 1;
    if (rec->native_best >= 0)
        line(out, "native harness at sp %d%s%s%s: %s tok/s/%s (%s)", c->plan.sp, exchanges ? " (" : "",
             exchanges ? c->plan.exchange : "", exchanges ? ")" : "",
             units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, speed), unit_of(rec),
             percent_text(100 * (c->tokens_per_s_per_device / rec->candidates[rec->chosen].tokens_per_s_per_device - 1),
                          0, gain));
}

static const char *checks_text(const struct recommendation *rec, char *buf, size_t size)
{
    char remembered[48] = "";
    if (rec->check_remembered > 0)
        text_print(remembered, sizeof remembered, " (%d remembered)", rec->check_remembered);
    if (rec->request.replay)
        text_print(buf, size, "replay: nothing measured or checked");
    else
        text_print(buf, size, "checked %d of %d%s", rec->checked, rec->check_total, remembered);
    return buf;
}

static void proofs(const struct recommendation *rec, struct text *out)
{
    for (int i = 0; i < rec->nproofs; i++) {
        const struct recommend_proof *p = &rec->proofs[i];
        const struct recommend_candidate *c = &rec->candidates[p->candidate];
        char predicted[UNITS_BUF], measured[UNITS_BUF], peak[UNITS_BUF], bytes[UNITS_BUF];
        if (p->why[0] != '\0') {
            line(out, "proof sp %d: none, %s", c->plan.sp, p->why);
            continue;
        }
        line(out, "proof sp %d: %s/step by our harness, %s predicted (%.2f); %s %s, peak of the target %s predicted",
             c->plan.sp, units_format_us(p->step_us, measured),
             units_format_us_measured(c->time.step_us, c->time.lo_us, c->time.hi_us, predicted),
             p->step_us / c->time.step_us, units_format_bytes((double)p->bytes, bytes),
             rec->request.dev == DEV_CPU ? "resident" : "in use",
             units_format_bytes((double)c->memory.peak_bytes, peak));
    }
}

enum status recommend_screen(const struct recommendation *rec, char **out)
{
    struct text text = {0};
    char checks[96];
    struct varied varied = varied_of(rec);
    head(rec, &text);
    if (rec->chosen >= 0) {
        use(rec, &varied, &text);
        memory(rec, &text);
        why(rec, &varied, &text);
        flips(rec, &text);
        table(rec, &varied, &text);
        native(rec, &text);
        proofs(rec, &text);
    }
    line(&text, "%s%s | %.0f s of %.0f s%s | seed %llu", rec->interrupted ? "INTERRUPTED | " : "",
         checks_text(rec, checks, sizeof checks), rec->wall_s, rec->budget_s, rec->budget_ended ? ", budget ended" : "",
         (unsigned long long)rec->request.seed);
    if (rec->next_measurement[0] != '\0')
        line(&text, "to know more: %s", rec->next_measurement);
    enum status status = text_status(&text);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    *out = text.s;
    return STATUS_OK;
}
