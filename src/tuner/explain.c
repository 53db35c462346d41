/* tuner/explain.c -- answers from a stored recommendation: the whole of it in words, and the way to the single
 * questions. */
#include "tuner/explain.h"

#include "base/units.h"
#include "tuner/explain_answer.h"
#include "tuner/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void say_problem(const struct explain_document *d, struct text *out)
{
    char seq[UNITS_BUF], tokens[UNITS_BUF];
    const struct problem *p = &d->problem;
    char heads[96] = "", hosts[32] = "";
    if (!model_is_heads(&d->model)) /* else the name says it */
        text_print(heads, sizeof heads, ", %d query and %d KV heads of %d", p->heads, p->kv_heads, p->head_dim);
    if (p->world > d->ranks_per_host)
        text_print(hosts, sizeof hosts, " on %d hosts", (p->world + d->ranks_per_host - 1) / d->ranks_per_host);
    explain_say(out, 5, "%s%s; %s tokens%s; %d process%s%s, %d of them measured; target %s.", d->model.name, heads,
                units_format_count(p->seq, seq), p->docs > 0 ? " of packed documents" : "", p->world,
                p->world == 1 ? "" : "es", hosts, d->ranks < p->world ? d->ranks : p->world, d->target->runtime);
    if (d->global_batch_tokens > 0)
        explain_say(out, 5, "     %s tokens in each optimizer step.",
                    units_format_count(d->global_batch_tokens, tokens));
}

/* Who reads which sequences. */
static void say_groups(const struct plan *p, int world, char *buf, size_t size)
{
    if (world == 1)
        text_print(buf, size, "one rank reads all sequences");
    else if (p->sp == 1)
        text_print(buf, size, "each of %d ranks reads sequences of its own", world);
    else if (p->sp == world)
        text_print(buf, size, "all %d ranks share each sequence", world);
    else
        text_print(buf, size, "%d ranks share each sequence, %d groups of them read sequences of their own", p->sp,
                   world / p->sp);
}

static void say_plan(const struct explain_document *d, const struct explain_candidate *c, struct text *out)
{
    const struct plan *p = &c->plan;
    char groups[112];
    say_groups(p, d->problem.world, groups, sizeof groups);
    explain_say(out, 5,
                "USE  sp_size=%d dp_shard_size=%d dp_replicate_size=%d %s: %s. ZeRO stage %d, micro batch %lld, "
                "accumulation %lld, checkpointing %s, offload %s, loss %s.",
                p->sp, p->dp_shard, p->dp_replicate, c->class, groups, p->zero_stage, (long long)p->micro_batch,
                (long long)p->accumulate, plan_checkpointing_name(p->checkpointing), plan_offload_name(p->offload),
                plan_loss_name(p->loss));
}

static void say_time(const struct explain_document *d, const struct explain_candidate *c, struct text *out)
{
    char step[UNITS_BUF], lo[UNITS_BUF], hi[UNITS_BUF], speed[UNITS_BUF];
    struct text parts = {0};
    for (int i = 0; i < PART_COUNT; i++)
        if (c->step_us > 0 && c->part_us[i] / c->step_us >= 0.005)
            text_add(&parts, "%s%s %.0f %%", parts.len > 0 ? ", " : "", explain_part_names[i],
                     100 * c->part_us[i] / c->step_us);
    explain_say(out, 5,
                "TIME %s for a step, 95 %% between %s and %s (%s): %s. That is %s tokens/s on each of %d devices.",
                explain_step(c, c->step_us, step), units_format_us_measured(c->lo_us, c->lo_us, c->hi_us, lo),
                units_format_us_measured(c->hi_us, c->lo_us, c->hi_us, hi), c->source, text_get(&parts),
                explain_speed(c, c->speed, speed), d->problem.world);
    text_free(&parts);
    const char *note = request_speed_note(d->measured, d->planned);
    if (note != NULL)
        explain_say(out, 5, "NOTE %s.", note);
}

static void say_memory(const struct explain_document *d, const struct explain_candidate *c, struct text *out)
{
    struct work_memory memory;
    struct problem problem;
    struct text terms = {0};
    char size[UNITS_BUF], limit[UNITS_BUF];
    explain_problem(d, &c->plan, &problem);
    work_memory_on(&d->model, &problem, &c->plan, d->target, d->planned, 1, &memory);
    for (int i = 0; i < memory.n; i++)
        if (memory.term[i].live_at_peak && !memory.term[i].host)
            text_add(&terms, "%s%s %s", terms.len > 0 ? ", " : "", memory.term[i].name,
                     units_format_bytes((double)memory.term[i].bytes, size));
    explain_say(out, 5, "MEM  %s of %s (%.0f %%; limit from %.60s): %s. The peak is at %s: %s.",
                units_format_bytes((double)c->peak_bytes, size),
                units_format_bytes((double)d->device_memory_bytes, limit),
                explain_share(c->peak_bytes, d->device_memory_bytes), d->device_memory_from, d->verdict, memory.peak_at,
                text_get(&terms));
    text_free(&terms);
}

/* Times a size has to be doubled or halved to become the other. */
static double distance(int sp, int other)
{
    return fabs(log2((double)sp / other));
}

/* One for each rule, in the order of the document: the nearest in size to the plan chosen, and how many more there are. */
static void say_refused(const struct explain_document *d, struct text *out)
{
    int chosen = d->chosen >= 0 ? d->candidate[d->chosen].plan.sp : 1;
    for (int i = 0, rules = 0; i < d->nrefused && rules < 6; i++) {
        const struct explain_refused *near = &d->refused[i];
        char more[48] = "";
        bool said = false;
        int n = 0;
        for (int k = 0; k < i && !said; k++)
            said = strcmp(d->refused[k].rule, near->rule) == 0;
        for (int k = i; k < d->nrefused && !said; k++) {
            const struct explain_refused *row = &d->refused[k];
            if (strcmp(row->rule, near->rule) != 0)
                continue;
            n++;
            if (distance(row->plan.sp, chosen) < distance(near->plan.sp, chosen))
                near = row;
        }
        if (said)
            continue;
        rules++;
        struct text name = {0};
        explain_plan_name(d, &near->plan, near->class, &name);
        if (n > 1)
            text_print(more, sizeof more, "; and %d more by this rule", n - 1);
        explain_say(out, 5, "     %s is refused: %.200s (%s)%s", text_get(&name), near->why, near->rule, more);
        text_free(&name);
    }
}

/* The reasons why others lost; of refusals one for each rule. */
static void say_others(const struct explain_document *d, struct text *out)
{
    int said = 0;
    for (int i = 0; i < d->n && said < 4; i++) {
        const struct explain_candidate *c = &d->candidate[i];
        if (c->chosen)
            continue;
        struct text name = {0};
        explain_plan_name(d, &c->plan, c->class, &name);
        explain_say(out, 5, "%s %s: %.200s (%s)", said == 0 ? "WHY " : "    ", text_get(&name), c->why, c->rule);
        text_free(&name);
        said++;
    }
    say_refused(d, out);
    if (d->n - 1 > said || d->nrefused > 0)
        explain_say(out, 5, "     %d candidate%s and %d refused plan%s in all; --why-not sp=P asks for one.", d->n,
                    d->n == 1 ? "" : "s", d->nrefused, d->nrefused == 1 ? "" : "s");
}

static void say_assumed(const struct explain_document *d, struct text *out)
{
    struct text all = {0};
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(d->root, "assumptions"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name")),
                   *value = json_string_value(json_object_get(row, "value"));
        if (name != NULL && value != NULL && i < 32)
            text_add(&all, " %.32s=%.64s", name, value);
    }
    if (all.len > 0)
        explain_say(out, 5, "SET %s: assumed, see the name of each", text_get(&all));
    text_free(&all);
}

static void say_flips(const struct explain_document *d, struct text *out)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(d->root, "flips"), i, row)
    {
        const char *condition = json_string_value(json_object_get(row, "if"));
        const json_t *plan = json_object_get(row, "then_plan"), *gain = json_object_get(row, "gain");
        if (condition != NULL && i < 4)
            explain_say(out, 5, "%s %.96s would give sp %lld, %+.0f %% tokens/s", i == 0 ? "FLIP" : "    ", condition,
                        (long long)json_integer_value(json_object_get(plan, "sp_size")), 100 * json_number_value(gain));
    }
    const char *fits_if = json_string_value(json_object_get(d->root, "fits_if"));
    if (fits_if != NULL && fits_if[0] != '\0')
        explain_say(out, 5, "FIT  %.200s", fits_if);
}

enum status explain_whole(const struct explain_document *d, struct explain_answer *answer)
{
    struct text *out = &answer->text;
    say_problem(d, out);
    if (d->chosen >= 0) {
        const struct explain_candidate *c = &d->candidate[d->chosen];
        char text[PLAN_TEXT];
        say_plan(d, c, out);
        say_time(d, c, out);
        say_memory(d, c, out);
        json_object_set_new(answer->body, "plan", json_string(plan_text(&c->plan, text)));
        json_object_set_new(answer->body, "step_us", json_num(c->step_us, 6));
        json_object_set_new(answer->body, "peak_bytes", json_integer(c->peak_bytes));
    } else {
        explain_say(out, 5, "No plan is legal.");
    }
    say_others(d, out);
    say_assumed(d, out);
    say_flips(d, out);
    explain_say(
        out, 5,
        "ASK  a memory term, a part of the time or an assumption by name; --why-not sp=4; --what-if loss=fused.");
    return STATUS_OK;
}

static enum status ask(const struct explain_document *document, const struct explain_options *options,
                       struct explain_answer *answer)
{
    bool any = false;
    if (options->term != NULL && (any = true))
        TRY(explain_term(document, options->term, answer));
    if (options->why_not != NULL && (any = true))
        TRY(explain_why_not(document, options->why_not, answer));
    if (options->what_if != NULL && (any = true))
        TRY(explain_what_if(document, options->what_if, answer));
    return any ? STATUS_OK : explain_whole(document, answer);
}

static enum status answer_make(const json_t *recommendation, const struct explain_options *options,
                               struct explain_answer *out)
{
    static const struct explain_options nothing = {0};
    struct explain_document document;
    *out = (struct explain_answer){.body = json_object()};
    enum status status = out->body != NULL ? explain_document_read(recommendation, &document)
                                           : FAIL(STATUS_NOMEM, "no memory for an explanation");
    if (status == STATUS_OK) {
        status = ask(&document, options != NULL ? options : &nothing, out);
        explain_document_free(&document);
    }
    if (status == STATUS_OK)
        status = text_status(&out->text);
    if (status != STATUS_OK) {
        text_free(&out->text);
        json_decref(out->body);
    }
    return status;
}

enum status explain_run(const json_t *recommendation, const struct explain_options *options, char **out)
{
    struct explain_answer answer;
    TRY(answer_make(recommendation, options, &answer));
    json_decref(answer.body);
    *out = answer.text.s;
    return STATUS_OK;
}

json_t *explain_to_json(const json_t *recommendation, const struct explain_options *options)
{
    struct explain_answer answer;
    if (answer_make(recommendation, options, &answer) != STATUS_OK)
        return NULL;
    json_object_set_new(answer.body, "text", json_string(text_get(&answer.text)));
    text_free(&answer.text);
    return answer.body;
}
