/* tuner/explain_what.c -- decide again under a changed limit, batch or choice, from the numbers of the document alone.
 *
 * Memory is work_memory's, exact as in the search. Times are the stored ones, scaled by how often each part runs:
 * micro-steps, forward passes (2 with checkpointing, else 1), products of the loss (4 where it computes the
 * logits again, else 3), bytes of norms, activations and the like, bytes that ZeRO moves, elements that the optimizer owns. What no
 * stored number holds is said: the time of an optimizer in host memory.
 */
#include "tuner/explain_answer.h"
#include "tuner/request.h"

#include "base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const keys[] = {"device-memory", "host-memory", "global-batch", "loss", "checkpointing",
                                   "offload",       "zero",        "sp",           "use"};
enum { KEYS = (int)(sizeof keys / sizeof *keys), ROWS_MAX = 10 };

/* The limits of the second decision, and what plans must be. */
struct change {
    int64_t device_memory_bytes, host_memory_bytes, global_batch_tokens;
    int loss, checkpointing, offload, zero; /* -1: as it was */
    int nuse;
    struct explain_condition use[EXPLAIN_CONDITIONS];
};

/* One candidate under the change. */
struct row {
    const struct explain_candidate *was;
    struct plan plan;
    struct verdict verdict; /* not admissible: why */
    double step_us, speed;
    int64_t peak_bytes, host_bytes;
    enum work_fit fit;
    bool derived; /* another plan than the one whose time it is, or a scaled time */
};

static enum status word(const struct explain_condition *c, const char *(*name)(int), int n, int *out)
{
    struct text list = {0};
    for (*out = 0; *out < n; ++*out)
        if (strcmp(name(*out), c->value) == 0)
            return STATUS_OK;
    for (int i = 0; i < n; i++)
        text_add(&list, "%s%s", i > 0 ? " " : "", name(i));
    enum status status = HINT(WHERE(FAIL(STATUS_USAGE, "%s cannot be '%.40s'", c->key, c->value), "--what-if"),
                              "known: %s", text_get(&list));
    text_free(&list);
    return status;
}

static const char *loss_name(int i)
{
    return plan_loss_name((enum plan_loss)i);
}

static const char *checkpointing_name(int i)
{
    return plan_checkpointing_name((enum plan_checkpointing)i);
}

static const char *offload_name(int i)
{
    return plan_offload_name((enum plan_offload)i);
}

/* "64" sequences, "1048576tok" tokens. */
static enum status batch_of(const struct explain_document *d, const char *value, int64_t *out)
{
    char digits[64];
    size_t len = strlen(value);
    bool tokens = len > 3 && strcmp(value + len - 3, "tok") == 0;
    int64_t n = 0;
    text_print(digits, sizeof digits, "%.*s", (int)(tokens ? len - 3 : len), value);
    TRY(units_parse_count(digits, "global-batch", 1, INT64_C(1) << 48, &n));
    if (!tokens && n > (INT64_C(1) << 48) / d->problem.seq)
        return WHERE(FAIL(STATUS_USAGE, "global-batch %s is more tokens than can be counted", value), "--what-if");
    *out = tokens ? n : n * d->problem.seq;
    return STATUS_OK;
}

/* The rest of the line after "use=": conditions that plans must meet. */
static enum status take(const struct explain_document *d, const struct explain_condition *c, struct change *out)
{
    int64_t n = 0;
    if (strcmp(c->key, "device-memory") == 0)
        return units_parse_memory(c->value, "device-memory", &out->device_memory_bytes);
    if (strcmp(c->key, "host-memory") == 0)
        return units_parse_memory(c->value, "host-memory", &out->host_memory_bytes);
    if (strcmp(c->key, "global-batch") == 0)
        return batch_of(d, c->value, &out->global_batch_tokens);
    if (strcmp(c->key, "loss") == 0)
        return word(c, loss_name, PLAN_LOSS_COUNT, &out->loss);
    if (strcmp(c->key, "checkpointing") == 0)
        return word(c, checkpointing_name, PLAN_CHECKPOINTING_COUNT, &out->checkpointing);
    if (strcmp(c->key, "offload") == 0)
        return word(c, offload_name, PLAN_OFFLOAD_COUNT, &out->offload);
    if (strcmp(c->key, "zero") == 0) {
        TRY(units_parse_count(c->value, "zero", 0, 3, &n));
        out->zero = (int)n;
        return STATUS_OK;
    }
    out->use[out->nuse] = *c; /* sp=4, and use=4: this sp */
    text_print(out->use[out->nuse++].key, sizeof out->use->key, "sp");
    return units_parse_count(c->value, "sp", 1, 1 << 24, &n);
}

static enum status change_read(const struct explain_document *d, const char *text, struct change *out)
{
    struct explain_condition conditions[EXPLAIN_CONDITIONS];
    int n = 0;
    *out = (struct change){
        d->device_memory_bytes, d->host_memory_bytes, d->global_batch_tokens, -1, -1, -1, -1, 0, {{{0}, {0}}}};
    /* use=sp=4 is sp=4 */
    TRY(explain_conditions(strncmp(text, "use=sp=", 7) == 0 ? text + 4 : text, "--what-if", keys, KEYS, conditions,
                           &n));
    for (int i = 0; i < n; i++)
        TRY(take(d, &conditions[i], out));
    return STATUS_OK;
}

static double ratio(double now, double was)
{
    return was > 0 ? now / was : 1;
}

static double zero_bytes(const struct explain_document *d, const struct plan *plan, double *optimizer)
{
    struct problem problem;
    struct work_zero zero;
    explain_problem(d, plan, &problem);
    work_zero(&d->model, &problem, plan, d->target, &zero);
    *optimizer = zero.optimizer_bytes + zero.gradient_bytes;
    return (double)zero.gather_bytes + (double)zero.reduce_bytes;
}

/* Bytes of an exchange over all passes of a micro-step; in: q, k, v forward, do backward. */
static double exchanged(const struct explain_document *d, const struct plan *plan, bool in)
{
    struct problem problem;
    struct work_exchange forward, backward;
    explain_problem(d, plan, &problem);
    work_exchange(&problem, plan, false, &forward);
    work_exchange(&problem, plan, true, &backward);
    double f = work_forward_passes(plan);
    return in ? f * (double)forward.bytes_in + (double)backward.bytes_in
              : f * (double)forward.bytes_out + (double)backward.bytes_out;
}

/* Of a micro-step: a share of its time. */
static double multiplied(const struct explain_document *d, const struct plan *plan)
{
    struct problem problem;
    struct work_gemm gemms[WORK_GEMMS];
    double flops = 0;
    explain_problem(d, plan, &problem);
    for (int i = 0, n = work_gemms(&d->model, &problem, plan, d->target, gemms); i < n; i++)
        flops += (double)gemms[i].m * (double)gemms[i].n * (double)gemms[i].k * gemms[i].count * gemms[i].layers *
                 (gemms[i].forwards + 2);
    return flops;
}

static double elementwise(const struct explain_document *d, const struct plan *plan)
{
    struct problem problem;
    explain_problem(d, plan, &problem);
    return work_elementwise(&d->model, &problem, plan, d->target);
}

static void time_again(const struct explain_document *d, struct row *row)
{
    const struct explain_candidate *was = row->was;
    const struct plan *p = &was->plan, *q = &row->plan;
    double scale[PART_COUNT], sum = 0, old = 0;
    double steps = ratio((double)q->accumulate, (double)p->accumulate), fp = work_forward_passes(p),
           fq = work_forward_passes(q);
    double states_p = 0, states_q = 0;
    double bytes_p = zero_bytes(d, p, &states_p), bytes_q = zero_bytes(d, q, &states_q);
    scale[PART_EXCHANGE_IN] = steps * ratio(exchanged(d, q, true), exchanged(d, p, true));
    scale[PART_EXCHANGE_OUT] = steps * ratio(exchanged(d, q, false), exchanged(d, p, false));
    scale[PART_ATTENTION] = steps * (fq + 2.5) / (fp + 2.5);
    scale[PART_GEMM] = steps * ratio(multiplied(d, q), multiplied(d, p));
    scale[PART_LOGITS] = steps * work_loss_products(q) / work_loss_products(p);
    scale[PART_ELEMENTWISE] = steps * ratio(elementwise(d, q), elementwise(d, p));
    scale[PART_ZERO] = ratio(bytes_q, bytes_p);
    scale[PART_OPTIMIZER] = ratio(states_q, states_p);
    for (int i = 0; i < PART_COUNT; i++) {
        if (i == PART_EXPOSED) /* of the exchanges */
            continue;
        sum += was->part_us[i] * scale[i];
        old += was->part_us[i];
        row->derived = row->derived || (scale[i] != 1 && was->part_us[i] > 0);
    }
    /* The parts sum to the step; what rounding left over is kept. */
    row->step_us = was->step_us * ratio(sum, old);
    struct problem problem;
    explain_problem(d, q, &problem);
    row->speed = row->step_us > 0 ? (double)work_step_tokens(&problem, q) * 1e6 / row->step_us / d->problem.world : 0;
}

/* Rules first, then the batch, then memory. */
static void judge(const struct explain_document *d, const struct change *change, struct row *row)
{
    struct problem problem;
    struct work_memory memory;
    explain_problem(d, &row->plan, &problem);
    struct plan asked = row->plan; /* as the target is told: the kernel that was timed may be none of this build's */
    bool meets = true;
    text_print(asked.attention, sizeof asked.attention, "%s", row->was->class);
    for (int i = 0; i < change->nuse && meets; i++)
        if (explain_meets(&change->use[i], &row->plan, row->was->class, &meets) != STATUS_OK)
            meets = false;
    row->verdict = meets ? target_check(d->target, &d->model, &problem, &asked)
                         : verdict_no(RULE_WORLD, "not the sp that was asked for");
    if (verdict_ok(&row->verdict) && row->plan.offload == PLAN_OFFLOAD_PARAMS && row->plan.zero_stage != 3)
        row->verdict = verdict_no(RULE_TARGET_CANNOT, "offload=params needs zero stage 3");
    if (verdict_ok(&row->verdict) && change->global_batch_tokens > 0)
        row->verdict = work_accumulate(&problem, &row->plan, change->global_batch_tokens, &row->plan.accumulate);
    if (!verdict_ok(&row->verdict))
        return;
    work_memory_on(&d->model, &problem, &row->plan, d->target, d->planned, 1, &memory);
    row->peak_bytes = memory.peak_bytes;
    row->host_bytes = memory.host_bytes;
    row->fit = work_fit(memory.peak_bytes, change->device_memory_bytes);
    if (change->host_memory_bytes > 0) {
        int64_t all = 0;
        if (__builtin_mul_overflow(memory.host_bytes, (int64_t)d->ranks_per_host, &all))
            all = INT64_MAX;
        enum work_fit host = work_fit(all, change->host_memory_bytes);
        row->fit = host > row->fit ? host : row->fit;
    }
    time_again(d, row);
}

static bool stored(const struct explain_document *d, const struct plan *plan, const char *class)
{
    char text[PLAN_TEXT], other[PLAN_TEXT];
    plan_text(plan, text);
    for (int i = 0; i < d->n; i++)
        if (strcmp(class, d->candidate[i].class) == 0 && strcmp(text, plan_text(&d->candidate[i].plan, other)) == 0)
            return true;
    return false;
}

/* Every candidate with the change applied; one that thereby becomes another candidate is left to that one. */
static int rows_make(const struct explain_document *d, const struct change *change, struct row *rows)
{
    char text[PLAN_TEXT], other[PLAN_TEXT];
    int n = 0;
    for (int i = 0; i < d->n; i++) {
        struct row row = {.was = &d->candidate[i], .plan = d->candidate[i].plan};
        bool same = true, twice = false;
        plan_text(&row.plan, other);
        if (change->loss >= 0)
            row.plan.loss = (enum plan_loss)change->loss;
        if (change->checkpointing >= 0)
            row.plan.checkpointing = (enum plan_checkpointing)change->checkpointing;
        if (change->offload >= 0)
            row.plan.offload = (enum plan_offload)change->offload;
        if (change->zero >= 0)
            row.plan.zero_stage = change->zero;
        same = strcmp(plan_text(&row.plan, text), other) == 0;
        row.derived = !same;
        if (!same && stored(d, &row.plan, row.was->class))
            continue;
        for (int j = 0; j < n && !same; j++)
            twice = twice || (strcmp(plan_text(&rows[j].plan, other), text) == 0 &&
                              strcmp(rows[j].was->class, row.was->class) == 0);
        if (twice)
            continue;
        judge(d, change, &row);
        rows[n++] = row;
    }
    return n;
}

static double worth(const struct explain_document *d, const struct row *row)
{
    return d->step_time ? (row->step_us > 0 ? 1 / row->step_us : 0) : row->speed;
}

/* Fits before measure_first; then the objective. A plan that was tied with the one chosen does not displace it. */
static int choose(const struct explain_document *d, const struct row *rows, int n)
{
    int best = -1;
    for (int fit = WORK_FITS; fit < WORK_DOES_NOT_FIT && best < 0; fit++)
        for (int i = 0; i < n; i++)
            if (verdict_ok(&rows[i].verdict) && (int)rows[i].fit <= fit &&
                (best < 0 || worth(d, &rows[i]) > worth(d, &rows[best])))
                best = i;
    for (int i = 0; best >= 0 && i < n; i++)
        if (rows[i].was->chosen && verdict_ok(&rows[i].verdict) && rows[i].fit <= rows[best].fit &&
            rows[best].was->tied_with != NULL)
            return i;
    return best;
}

static const char *fit_text(enum work_fit fit)
{
    return fit == WORK_FITS ? "fits" : fit == WORK_MEASURE_FIRST ? "measure first" : "does not fit";
}

static void say_row(const struct explain_document *d, const struct change *change, const struct row *row,
                    const char *label, struct text *out)
{
    struct text name = {0};
    char size[UNITS_BUF], step[UNITS_BUF], speed[UNITS_BUF], limit[UNITS_BUF];
    explain_plan_name(d, &row->plan, row->was->class, &name);
    if (change->loss >= 0 && strstr(text_get(&name), "loss=") == NULL)
        text_add(&name, " loss=%s", plan_loss_name(row->plan.loss));
    if (change->checkpointing >= 0 && strstr(text_get(&name), "checkpointing=") == NULL)
        text_add(&name, " checkpointing=%s", plan_checkpointing_name(row->plan.checkpointing));
    if (change->offload >= 0 && strstr(text_get(&name), "offload=") == NULL)
        text_add(&name, " offload=%s", plan_offload_name(row->plan.offload));
    if (change->zero >= 0 && strstr(text_get(&name), "zero=") == NULL)
        text_add(&name, " zero=%d", row->plan.zero_stage);
    if (change->global_batch_tokens > 0)
        text_add(&name, " accumulate=%lld", (long long)row->plan.accumulate);
    if (!verdict_ok(&row->verdict))
        explain_say(out, 9, "%-7s%s: no, %.200s (%s)", label, text_get(&name), row->verdict.why,
                    rule_code(row->verdict.rule));
    else
        explain_say(out, 9, "%-7s%s: %s tokens/s/device, %s a step%s; %s of %s, %.0f %%: %s", label, text_get(&name),
                    explain_speed(row->was, row->speed, speed), explain_step(row->was, row->step_us, step),
                    row->derived ? " (derived)" : "", units_format_bytes((double)row->peak_bytes, size),
                    units_format_bytes((double)change->device_memory_bytes, limit),
                    explain_share(row->peak_bytes, change->device_memory_bytes), fit_text(row->fit));
    text_free(&name);
}

static json_t *row_json(const struct row *row)
{
    char text[PLAN_TEXT];
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:s, s:b}", "plan", plan_text(&row->plan, text), "rule",
                     rule_code(row->verdict.rule), "why", row->verdict.why, "tokens_per_s_per_device", row->speed,
                     "step_us", row->step_us, "peak_bytes", (json_int_t)row->peak_bytes, "fit", fit_text(row->fit),
                     "derived", row->derived);
}

static void say_change(const struct explain_document *d, const struct change *change, const struct row *rows, int n,
                       int best, struct explain_answer *answer)
{
    struct text *out = &answer->text;
    struct change before = {
        d->device_memory_bytes, d->host_memory_bytes, d->global_batch_tokens, -1, -1, -1, -1, 0, {{{0}, {0}}}};
    const struct explain_candidate *was = &d->candidate[d->chosen];
    struct row old = {.was = was,
                      .plan = was->plan,
                      .step_us = was->step_us,
                      .speed = was->speed,
                      .peak_bytes = was->peak_bytes,
                      .fit = work_fit(was->peak_bytes, d->device_memory_bytes)};
    say_row(d, &before, &old, "before", out);
    json_object_set_new(answer->body, "before", row_json(&old));
    if (best < 0) {
        explain_say(out, 9, "after  no candidate fits or is legal");
        json_object_set_new(answer->body, "after", json_null());
    } else {
        say_row(d, change, &rows[best], "after", out);
        json_object_set_new(answer->body, "after", row_json(&rows[best]));
        if (old.speed > 0)
            explain_say(out, 9, "       %s, %+.1f %% tokens/s per device",
                        rows[best].plan.sp == was->plan.sp ? "the same sp" : "another sp",
                        100 * (rows[best].speed / old.speed - 1));
    }
    for (int i = 0, said = 0; i < n && said < ROWS_MAX; i++)
        if (i != best) {
            say_row(d, change, &rows[i], said == 0 ? "else" : "", out);
            said++;
        }
}

enum status explain_what_if(const struct explain_document *d, const char *text, struct explain_answer *answer)
{
    struct change change;
    TRY(change_read(d, text, &change));
    if (d->chosen < 0)
        return HINT(FAIL(STATUS_USAGE, "no plan was legal, so there are no stored times to decide with"),
                    "run `sptune tune` with the change");
    struct row *rows = calloc((size_t)d->n + 1, sizeof *rows);
    if (rows == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %d plans", d->n);
    int n = rows_make(d, &change, rows), best = choose(d, rows, n);
    json_t *all = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(all, row_json(&rows[i]));
    say_change(d, &change, rows, n, best, answer);
    const char *note = request_speed_note(d->measured, d->planned);
    if (note != NULL)
        explain_say(&answer->text, 2, "NOTE %s.", note);
    if (change.offload > PLAN_OFFLOAD_NONE)
        explain_say(&answer->text, 2,
                    "The time of an optimizer in host memory is in no stored number: these steps lack it.");
    if (change.global_batch_tokens > 0 && d->nrefused > 0)
        explain_say(&answer->text, 2,
                    "Plans refused before they were timed have no stored times and are not among these.");
    json_object_set_new(answer->body, "what_if", json_string(text));
    json_object_set_new(answer->body, "rows", all);
    free(rows);
    return STATUS_OK;
}
