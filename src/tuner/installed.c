/* tuner/installed.c -- read rows of installed attention, and find the one that says what a plan's attention takes. */
#include "tuner/installed.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"
#include "sp/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] = "sptune.samples/1";

/* ---- reading ---- */

void installed_free(struct installed *installed)
{
    for (int i = 0; i < installed->n; i++)
        sample_free(&installed->rows[i].sample);
    free(installed->rows);
    *installed = (struct installed){0};
}

static bool is_usable(const struct sample *s)
{
    if (s->outcome != SAMPLE_OK || !s->verified || s->n < 1 || s->key.seq < 1 || s->key.batch < 1)
        return false;
    double median = stats_median(s->times_us, s->n);
    return isfinite(median) && median > 0;
}

/* What attention.py writes of software and device. */
static void read_versions(struct installed_row *row)
{
    json_t *versions = row->sample.versions != NULL ? json_loads(row->sample.versions, 0, NULL) : NULL;
    const char *gpu = json_string_value(json_object_get(versions, "gpu"));
    const char *torch = json_string_value(json_object_get(versions, "torch"));
    if (gpu != NULL)
        text_print(row->device, sizeof row->device, "cuda %s", gpu);
    else if (json_object_get(versions, "threads") != NULL)
        text_print(row->device, sizeof row->device, "cpu");
    text_print(row->torch, sizeof row->torch, "%s", torch != NULL ? torch : "");
    text_clean(row->device);
    text_clean(row->torch);
    json_decref(versions);
}

static const char *class_named(const struct target *target, const char *name)
{
    for (int i = 0; target->classes[i] != NULL; i++)
        if (strcmp(target->classes[i], name) == 0)
            return target->classes[i];
    return NULL;
}

/* sdpa-flash: one of the kernels behind a class. */
static bool behind_class(const struct target *target, const char *name)
{
    for (int i = 0; target->classes[i] != NULL; i++) {
        size_t n = strlen(target->classes[i]);
        if (strncmp(target->classes[i], name, n) == 0 && name[n] == '-')
            return true;
    }
    return false;
}

static enum status no_such_class(const struct target *target, const char *name, const char *file)
{
    struct text all = {0};
    for (int i = 0; target->classes[i] != NULL; i++)
        text_add(&all, "%s%s", i > 0 ? ", " : "", target->classes[i]);
    enum status status = HINT(WHERE(FAIL(STATUS_USAGE, "%s has no attention '%.40s'", target->name, name), "%s", file),
                              "rows that scripts/peers/attention.py wrote have one of: %s", text_get(&all));
    text_free(&all);
    return status;
}

/* Takes the sample when it is one of the target's attention; else it is the caller's still. */
static enum status keep(const struct target *target, const char *file, const struct sample *sample, bool *kept,
                        struct installed *out)
{
    const char *name = sample->key.attention;
    *kept = false;
    if (class_named(target, name) == NULL)
        return behind_class(target, name) ? STATUS_OK : no_such_class(target, name, file);
    TRY(mem_grow((void **)&out->rows, &out->cap, (size_t)out->n + 1, sizeof *out->rows));
    struct installed_row *row = &out->rows[out->n++];
    *row = (struct installed_row){.sample = *sample, .usable = is_usable(sample)};
    *kept = true;
    text_print(row->file, sizeof row->file, "%s", file);
    text_clean(row->file);
    text_clean(row->sample.why);
    text_clean(row->sample.kernel);
    read_versions(row);
    return STATUS_OK;
}

static enum status read_row(const json_t *json, const char *file, const struct target *target, int *attention,
                            struct installed *out)
{
    struct sample sample;
    bool kept = false;
    TRY(sample_from_json(json, file, &sample));
    enum status status = STATUS_OK;
    if (strcmp(sample.key.subject, "attention") == 0) {
        (*attention)++;
        status = keep(target, file, &sample, &kept, out);
    }
    if (!kept)
        sample_free(&sample);
    return status;
}

static enum status read_rows(const json_t *document, const char *file, const struct target *target,
                             struct installed *out)
{
    const char *named = NULL;
    json_t *rows = NULL;
    int attention = 0;
    if (!json_is_object(document))
        return WHERE(FAIL(STATUS_USAGE, "this is no %s", schema), "%s", file);
    TRY(json_str(document, "schema", file, "", &named));
    if (strcmp(named, schema) != 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "this is no %s but '%.60s'", schema, named), "%s", file),
                    "scripts/peers/attention.py --out FILE writes one");
    TRY(json_need(document, "samples", file, &rows));
    if (!json_is_array(rows))
        return WHERE(FAIL(STATUS_USAGE, "\"samples\" is not a list"), "%s", file);
    for (size_t i = 0; i < json_array_size(rows); i++)
        TRY(read_row(json_array_get(rows, i), file, target, &attention, out));
    if (attention == 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "it has no attention rows"), "%s", file),
                    "scripts/peers/attention.py --out FILE makes them");
    return STATUS_OK;
}

static const char *why_unusable(const struct installed_row *row)
{
    return row->sample.why[0] != '\0' ? row->sample.why : "its rows have no verified times";
}

static enum status any_usable(const struct installed *installed)
{
    for (int i = 0; i < installed->n; i++)
        if (installed->rows[i].usable)
            return STATUS_OK;
    if (installed->n == 0)
        return HINT(FAIL(STATUS_USAGE, "--samples has no row of a class, only of kernels behind one"),
                    "attention.py --kernels sdpa,flash_attention_2,flash_attention_3");
    const struct installed_row *first = &installed->rows[0];
    return WHERE(
        FAIL(STATUS_USAGE, "no attention was timed: %s: %.120s", first->sample.key.attention, why_unusable(first)),
        "%s", first->file);
}

enum status installed_read(const char *const *files, int n, const struct target *target, struct installed *out)
{
    if (target->own_kernels)
        return HINT(FAIL(STATUS_USAGE, "--samples is of installed packages, %s runs kernels of its own", target->name),
                    "tune times those itself; leave --samples out");
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        json_t *document = NULL;
        status = json_read(files[i], &document);
        if (status == STATUS_OK)
            status = read_rows(document, files[i], target, out);
        json_decref(document);
    }
    return status == STATUS_OK ? any_usable(out) : status;
}

/* ---- asking ---- */

bool installed_has(const struct installed *installed, const char *class)
{
    for (int i = 0; installed != NULL && i < installed->n; i++)
        if (strcmp(installed->rows[i].sample.key.attention, class) == 0)
            return true;
    return false;
}

static bool elsewhere(const struct installed_row *row, const char *machine)
{
    return row->sample.machine[0] == '\0' || strcmp(row->sample.machine, machine) != 0;
}

void installed_about(const struct installed *installed, const char *class, const char *machine, char value[64],
                     char from[224])
{
    const struct installed_row *first = NULL;
    const char *file = "";
    char more[16] = "";
    int files = 0;
    for (int i = 0; i < installed->n; i++) {
        const struct installed_row *row = &installed->rows[i];
        if (strcmp(row->sample.key.attention, class) != 0)
            continue;
        files += strcmp(row->file, file) != 0; /* rows of one file follow each other */
        file = row->file;
        if (first == NULL || (row->usable && !first->usable))
            first = row;
    }
    value[0] = from[0] = '\0';
    if (first == NULL)
        return;
    const char *slash = strrchr(first->file, '/');
    if (files > 1)
        text_print(more, sizeof more, "+%d", files - 1);
    text_print(value, 64, "%.50s%s", slash != NULL ? slash + 1 : first->file, more);
    text_print(from, 224, "as installed: %s%s%s%s%s%s", first->sample.kernel[0] != '\0' ? first->sample.kernel : class,
               first->torch[0] != '\0' ? ", torch " : "", first->torch, first->device[0] != '\0' ? ", " : "",
               first->device,
               first->sample.machine[0] == '\0' ? ", on a machine that it does not name"
               : elsewhere(first, machine)      ? ", measured on another machine"
                                                : "");
}

static bool device_differs(const struct installed_row *row, enum dev_kind dev)
{
    return row->device[0] != '\0' && (strncmp(row->device, "cuda", 4) == 0) != (dev == DEV_CUDA);
}

/* Everything but length and batch. */
static bool same_call(const struct sample_key *key, const struct installed_ask *ask)
{
    const struct problem *p = ask->problem;
    int64_t dim_v = key->head_dim_v > 0 ? key->head_dim_v : key->head_dim;
    bool plain = key->docs[0] == '\0' || strcmp(key->docs, "none") == 0;
    return key->sp <= 1 && key->heads == p->heads / ask->sp && key->kv_heads == model_kv_local(p->kv_heads, ask->sp) &&
           key->head_dim == p->head_dim && dim_v == problem_dim_v(p) && strcmp(key->dtype, dtype_name(p->dtype)) == 0 &&
           strcmp(key->direction, ask->backward ? "bwd" : "fwd") == 0 && (key->causal > 0) == p->causal &&
           (key->window > 0 ? key->window : 0) == p->window && plain && p->docs == 0 && key->batch <= 1 << 20;
}

/* Lengths are compared by their ratio. */
static double distance(const struct sample_key *key, const struct installed_ask *ask)
{
    return fabs(log((double)key->seq / (double)problem_padded(ask->problem, ask->sp)));
}

static struct verdict no_row(const struct installed *installed, const struct installed_ask *ask)
{
    const struct problem *p = ask->problem;
    const struct installed_row *first = NULL;
    bool any = false, here = false;
    char window[40] = "";
    for (int i = 0; i < installed->n; i++) {
        const struct installed_row *row = &installed->rows[i];
        if (strcmp(row->sample.key.attention, ask->class) != 0)
            continue;
        first = first != NULL ? first : row;
        any = any || row->usable;
        here = here || (row->usable && !device_differs(row, ask->dev));
    }
    if (!any)
        return verdict_no(RULE_NOT_MEASURED, "%s in %.60s: %.120s", ask->class, first->file, why_unusable(first));
    if (!here)
        return verdict_no(RULE_NOT_MEASURED, "%s in %.60s was not timed on %s, which is measured here", ask->class,
                          first->file, dev_kind_name(ask->dev));
    if (p->window > 0)
        text_print(window, sizeof window, ", window %lld", (long long)p->window);
    return verdict_no(RULE_NOT_MEASURED, "--samples has no %s %s of %d/%d heads of %d, %s, %s%s%s", ask->class,
                      ask->backward ? "backward" : "forward", p->heads / ask->sp, model_kv_local(p->kv_heads, ask->sp),
                      p->head_dim, dtype_name(p->dtype), p->causal ? "causal" : "no mask", window,
                      p->docs > 0 ? ", packed documents" : "");
}

static struct verdict too_far(const struct installed_ask *ask, int64_t nearest)
{
    char seq[UNITS_BUF], asked[UNITS_BUF];
    return verdict_no(RULE_NOT_MEASURED,
                      "--samples has %s %s of %d heads at %s tokens at the nearest, more than %d "
                      "times from %s",
                      ask->class, ask->backward ? "backward" : "forward", ask->problem->heads / ask->sp,
                      units_format_count(nearest, seq), INSTALLED_FACTOR,
                      units_format_count(problem_padded(ask->problem, ask->sp), asked));
}

static double flops_of(const struct problem *like, int64_t heads, int64_t batch, int64_t seq, bool backward)
{
    struct problem p = *like;
    struct plan plan;
    plan_default(&plan);
    p.heads = (int)heads;
    p.kv_heads = 1;
    p.batch = batch;
    p.seq = seq;
    return work_attention_flops(&p, &plan, backward);
}

static void fill(const struct installed_row *row, const struct installed_ask *ask, bool between,
                 struct installed_found *out)
{
    const struct problem *p = ask->problem;
    const struct sample_key *key = &row->sample.key;
    struct plan plan;
    plan_default(&plan);
    plan.sp = ask->sp;
    *out = (struct installed_found){.row = &row->sample,
                                    .length = key->seq != p->seq && key->seq != problem_padded(p, ask->sp),
                                    .batch = key->batch != p->batch,
                                    .elsewhere = elsewhere(row, ask->machine)};
    out->times =
        work_attention_flops(p, &plan, ask->backward) / flops_of(p, key->heads, key->batch, key->seq, ask->backward);
    out->source = out->elsewhere ? RECOMMEND_PUBLISHED
                  : !out->length ? RECOMMEND_MEASURED
                  : between      ? RECOMMEND_INTERPOLATED
                                 : RECOMMEND_EXTRAPOLATED;
}

struct verdict installed_find(const struct installed *installed, const struct installed_ask *ask,
                              struct installed_found *out)
{
    const struct installed_row *best = NULL;
    bool shorter = false, longer = false;
    int64_t asked = problem_padded(ask->problem, ask->sp);
    for (int i = 0; i < installed->n; i++) {
        const struct installed_row *row = &installed->rows[i];
        const struct sample_key *key = &row->sample.key;
        if (strcmp(key->attention, ask->class) != 0 || !row->usable || device_differs(row, ask->dev) ||
            !same_call(key, ask))
            continue;
        shorter = shorter || key->seq < asked;
        longer = longer || key->seq > asked;
        double gain = best != NULL ? distance(&best->sample.key, ask) - distance(key, ask) : INFINITY;
        if (gain > 0 || (gain == 0 && key->batch == ask->problem->batch && best->sample.key.batch != key->batch))
            best = row;
    }
    if (best == NULL)
        return no_row(installed, ask);
    if (distance(&best->sample.key, ask) > log(INSTALLED_FACTOR) + 1e-9)
        return too_far(ask, best->sample.key.seq);
    fill(best, ask, shorter && longer, out);
    return VERDICT_YES;
}
