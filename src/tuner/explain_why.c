/* tuner/explain_why.c -- why a plan lost: conditions that pick it, then its rule, reason and numbers beside those of
 * the plan chosen. */
#include "tuner/explain_answer.h"

#include "base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const explain_plan_keys[] = {
    "sp",      "dp_shard", "dp_replicate", "zero",     "micro_batch", "chunks", "checkpointing",
    "offload", "loss",     "attention",    "exchange", "method",      NULL};

/* The document's names and those of a plan's text mean the same. */
static const char *canonical(const char *key)
{
    static const char *const also[][2] = {{"sp_size", "sp"},
                                          {"dp_shard_size", "dp_shard"},
                                          {"dp_replicate_size", "dp_replicate"},
                                          {"zero_stage", "zero"},
                                          {"mb", "micro_batch"},
                                          {"micro-batch", "micro_batch"},
                                          {"ckpt", "checkpointing"},
                                          {"device_memory", "device-memory"},
                                          {"host_memory", "host-memory"},
                                          {"global_batch", "global-batch"}};
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (strcmp(key, also[i][0]) == 0)
            return also[i][1];
    return key;
}

static enum status key_unknown(const char *option, const char *key, const char *const *keys, int nkeys)
{
    struct text list = {0};
    for (int i = 0; i < nkeys; i++)
        text_add(&list, "%s%s", i > 0 ? " " : "", keys[i]);
    const char *near = text_nearest(key, keys, (size_t)nkeys);
    enum status status = WHERE(FAIL(STATUS_USAGE, "does not know '%.40s'", key), "%s", option);
    status = near != NULL ? HINT(status, "did you mean %s? Known: %s", near, text_get(&list))
                          : HINT(status, "known: %s", text_get(&list));
    text_free(&list);
    return status;
}

enum status explain_conditions(const char *text, const char *option, const char *const *keys, int nkeys,
                               struct explain_condition out[EXPLAIN_CONDITIONS], int *out_n)
{
    static const char gaps[] = " ,\t\n";
    int n = 0;
    for (const char *at = text + strspn(text, gaps); *at != '\0'; at += strspn(at, gaps)) {
        size_t len = strcspn(at, gaps), key = strcspn(at, "=");
        char name[24];
        if (key >= len || key == 0 || len - key - 1 == 0)
            return HINT(
                WHERE(FAIL(STATUS_USAGE, "'%.*s' is no condition", (int)(len < 40 ? len : 40), at), "%s", option),
                "write key=value, as sp=4");
        if (n == EXPLAIN_CONDITIONS || key >= sizeof name || len - key - 1 >= sizeof out->value)
            return WHERE(FAIL(STATUS_USAGE, "more, or longer, conditions than a plan has"), "%s", option);
        text_print(name, sizeof name, "%.*s", (int)key, at);
        text_print(out[n].key, sizeof out[n].key, "%s", canonical(name));
        text_print(out[n].value, sizeof out[n].value, "%.*s", (int)(len - key - 1), at + key + 1);
        bool known = false;
        for (int i = 0; i < nkeys; i++)
            known = known || strcmp(keys[i], out[n].key) == 0;
        if (!known)
            return key_unknown(option, out[n].key, keys, nkeys);
        n++;
        at += len;
    }
    if (n == 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "no condition is given"), "%s", option), "write key=value, as sp=4");
    *out_n = n;
    return STATUS_OK;
}

static int keys_count(void)
{
    int n = 0;
    while (explain_plan_keys[n] != NULL)
        n++;
    return n;
}

static int64_t number_of(const char *key, const struct plan *p)
{
    return strcmp(key, "sp") == 0             ? p->sp
           : strcmp(key, "dp_shard") == 0     ? p->dp_shard
           : strcmp(key, "dp_replicate") == 0 ? p->dp_replicate
           : strcmp(key, "zero") == 0         ? p->zero_stage
           : strcmp(key, "micro_batch") == 0  ? p->micro_batch
           : strcmp(key, "chunks") == 0       ? p->chunks
                                              : -1;
}

static const char *word_of(const char *key, const struct plan *p, const char *class)
{
    return strcmp(key, "checkpointing") == 0 ? plan_checkpointing_name(p->checkpointing)
           : strcmp(key, "offload") == 0     ? plan_offload_name(p->offload)
           : strcmp(key, "loss") == 0        ? plan_loss_name(p->loss)
           : strcmp(key, "method") == 0      ? plan_method_name(p->method)
           : strcmp(key, "attention") == 0   ? class
                                             : p->exchange;
}

enum status explain_meets(const struct explain_condition *condition, const struct plan *plan, const char *class,
                          bool *out)
{
    int64_t wanted = 0, has = number_of(condition->key, plan);
    if (has < 0) {
        *out = strcmp(word_of(condition->key, plan, class), condition->value) == 0 ||
               (strcmp(condition->key, "attention") == 0 && strcmp(plan->attention, condition->value) == 0);
        return STATUS_OK;
    }
    TRY(units_parse_count(condition->value, condition->key, 0, INT64_C(1) << 40, &wanted));
    *out = wanted == has;
    return STATUS_OK;
}

static enum status meets_all(const struct explain_condition *conditions, int n, const struct plan *plan,
                             const char *class, bool *out)
{
    *out = true;
    for (int i = 0; i < n && *out; i++)
        TRY(explain_meets(&conditions[i], plan, class, out));
    return STATUS_OK;
}

static void say_candidate(const struct explain_document *d, const struct explain_candidate *c,
                          struct explain_answer *answer, json_t *rows)
{
    const struct explain_candidate *best = &d->candidate[d->chosen];
    struct text name = {0};
    char size[UNITS_BUF], step[UNITS_BUF], speed[UNITS_BUF];
    explain_plan_name(d, &c->plan, c->class, &name);
    if (c->chosen)
        explain_say(&answer->text, 2, "%s is the plan chosen.", text_get(&name));
    else
        explain_say(&answer->text, 2, "%s: %.224s (%s)", text_get(&name), c->why, c->rule);
    explain_say(&answer->text, 4, "  %s tokens/s/device%s, %s a step (%s); %s, %.0f %% of the limit",
                explain_speed(c, c->speed, speed), c->chosen ? "" : " here", explain_step(c, c->step_us, step),
                c->source, units_format_bytes((double)c->peak_bytes, size),
                explain_share(c->peak_bytes, d->device_memory_bytes));
    if (!c->chosen) {
        explain_say(&answer->text, 4, "  chosen: %s tokens/s/device, %s; this one %s %.1f %%%s",
                    explain_speed(best, best->speed, speed), units_format_bytes((double)best->peak_bytes, size),
                    c->loses_by >= 0 ? "takes longer by" : "would be faster by",
                    100 * (c->loses_by >= 0 ? c->loses_by : 1 / (1 + c->loses_by) - 1),
                    c->tied_with != NULL ? ", which is not certain: tied" : "");
        for (int i = 0; i < PART_COUNT; i++) {
            double more = c->part_us[i] - best->part_us[i];
            if (best->step_us > 0 && (more > 0.02 * best->step_us || more < -0.02 * best->step_us))
                explain_say(&answer->text, 6, "    %s %s%s", explain_part_names[i], more > 0 ? "+" : "-",
                            units_format_us(more > 0 ? more : -more, step));
        }
    }
    json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:f, s:I}", "plan", text_get(&name), "rule", c->rule, "why",
                                          c->why, "tokens_per_s_per_device", c->speed, "peak_bytes",
                                          (json_int_t)c->peak_bytes));
    text_free(&name);
}

/* An sp that was never looked at, because it does not divide the world or was not asked for. */
static enum status not_visited(const struct explain_document *d, const struct explain_condition *conditions, int n,
                               struct explain_answer *answer)
{
    int64_t sp = 0;
    for (int i = 0; i < n; i++)
        if (strcmp(conditions[i].key, "sp") == 0)
            TRY(units_parse_count(conditions[i].value, "sp", 1, 1 << 24, &sp));
    if (sp > 0) {
        struct verdict verdict = model_sp_heads(d->problem.heads, d->problem.kv_heads, (int)sp, d->problem.world);
        if (!verdict_ok(&verdict)) {
            explain_say(&answer->text, 2, "sp %lld: %s (%s)", (long long)sp, verdict.why, rule_code(verdict.rule));
            for (int i = 0; i < 2; i++)
                if (verdict.nearest[i] > 0)
                    explain_say(&answer->text, 2, "  legal %s it: %lld", i == 0 ? "below" : "above",
                                (long long)verdict.nearest[i]);
            json_object_set_new(answer->body, "rule", json_string(rule_code(verdict.rule)));
            json_object_set_new(answer->body, "why", json_string(verdict.why));
            return STATUS_OK;
        }
    }
    explain_say(
        &answer->text, 2,
        "No plan like this was looked at: it was not among what was searched. --what-if %s=%s decides again with it.",
        conditions[n - 1].key, conditions[n - 1].value);
    json_object_set_new(answer->body, "rule", json_string("not_searched"));
    return STATUS_OK;
}

enum status explain_why_not(const struct explain_document *d, const char *which, struct explain_answer *answer)
{
    enum { SAID_MAX = 6 };
    struct explain_condition conditions[EXPLAIN_CONDITIONS];
    int n = 0, found = 0;
    bool meets = false;
    TRY(explain_conditions(which, "--why-not", explain_plan_keys, keys_count(), conditions, &n));
    json_t *rows = json_array();
    json_object_set_new(answer->body, "why_not", rows);
    for (int i = 0; i < d->n; i++) {
        TRY(meets_all(conditions, n, &d->candidate[i].plan, d->candidate[i].class, &meets));
        if (d->chosen >= 0 && meets && found++ < SAID_MAX)
            say_candidate(d, &d->candidate[i], answer, rows);
    }
    for (int i = 0; i < d->nrefused; i++) {
        const struct explain_refused *row = &d->refused[i];
        TRY(meets_all(conditions, n, &row->plan, row->class, &meets));
        if (!meets || found++ >= SAID_MAX)
            continue;
        struct text name = {0};
        explain_plan_name(d, &row->plan, row->class, &name);
        explain_say(&answer->text, 2, "%s is refused: %.224s (%s)", text_get(&name), row->why, row->rule);
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:s}", "plan", text_get(&name), "rule", row->rule, "why", row->why));
        text_free(&name);
    }
    if (found > SAID_MAX)
        explain_say(&answer->text, 2, "and %d more; add conditions, as loss=plain", found - SAID_MAX);
    return found > 0 ? STATUS_OK : not_visited(d, conditions, n, answer);
}
