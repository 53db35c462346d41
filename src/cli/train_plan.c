/* cli/train_plan.c -- of a sptune.recommendation/1: the chosen plan, the model, the problem's length, type and documents.
 *
 * The plan alone has to be there, so that a file with one line of text is enough.
 */
#include "cli/train_plan.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <string.h>

static const char from_tune[] = "right would be a recommendation.json that `sptune tune` wrote";

static enum status ranks_of(const struct plan *plan, int64_t *out)
{
    TRY(mem_mul(plan->sp, plan->tp, "sp x tp", out));
    TRY(mem_mul(*out, plan->dp_shard, "sp x tp x dp_shard", out));
    return mem_mul(*out, plan->dp_replicate, "sp x tp x dp_shard x dp_replicate", out);
}

static enum status plan_read(const json_t *document, struct train_plan *out)
{
    const json_t *plan = json_object_get(document, "plan"), *order = json_object_get(plan, "rank_order");
    const char *text = json_string_value(json_object_get(plan, "text"));
    if (text == NULL)
        return HINT(FAIL(STATUS_USAGE, "there is no plan in it"), "%s", from_tune);
    TRY(plan_parse(text, &out->plan));
    for (size_t r = 0; r < json_array_size(order); r++)
        if (json_integer_value(json_array_get(order, r)) != (json_int_t)r)
            return HINT(FAIL(STATUS_UNSUPPORTED,
                             "its rank_order is another than that of the devices, which this trainer keeps"),
                        "CUDA_VISIBLE_DEVICES puts devices in another order");
    return ranks_of(&out->plan, &out->ranks);
}

static enum status problem_read(const json_t *problem, struct train_plan *out)
{
    const int64_t seq_max = (int64_t)1 << 40;
    const char *dtype;
    int64_t docs;
    TRY(json_int(problem, "seq", "problem", 0, &out->seq));
    TRY(json_str(problem, "dtype", "problem", "", &dtype));
    TRY(json_int(problem, "docs", "problem", 0, &docs));
    if (out->seq < 1 || out->seq > seq_max)
        return HINT(FAIL(STATUS_USAGE, "its problem is %lld tokens long", (long long)out->seq), "%s", from_tune);
    out->packed = docs > 0;
    return dtype_parse(dtype, "dtype", &out->dtype);
}

static enum status document_read(const json_t *document, struct train_plan *out)
{
    const json_t *model = json_object_get(document, "model"), *problem = json_object_get(document, "problem");
    const char *name = "";
    TRY(plan_read(document, out));
    if (model != NULL) {
        TRY(json_str(model, "name", "model", "", &name));
        TRY(json_int(model, "params", "model", 0, &out->params));
    }
    text_print(out->model, sizeof out->model, "%s", name);
    text_clean(out->model);
    return problem != NULL ? problem_read(problem, out) : STATUS_OK;
}

enum status train_plan_read(const char *file, struct train_plan *out)
{
    json_t *document = NULL;
    struct train_plan planned = {.file = file};
    enum status read = json_read(file, &document);
    if (read != STATUS_OK)
        return HINT(WHERE(read, "--plan %s", file), "%s", from_tune);
    enum status status = document_read(document, &planned);
    json_decref(document);
    if (status != STATUS_OK)
        return WHERE(status, "--plan %s", file);
    *out = planned;
    return STATUS_OK;
}

enum status train_plan_model(const struct train_plan *planned, struct model *out)
{
    struct model model;
    enum status status = model_load(planned->model, &model);
    if (status == STATUS_OK && model.params != planned->params)
        status = FAIL(STATUS_USAGE, "\"%s\" has %lld parameters here, the plan is for one of %lld", planned->model,
                      (long long)model.params, (long long)planned->params);
    if (status != STATUS_OK)
        return HINT(WHERE(status, "--plan %s", planned->file), "--model CONFIG says where the model is that it is for");
    *out = model;
    return STATUS_OK;
}

/* ---- the same and not the same ---- */

static bool has_word(const char *text, const char *word, size_t len)
{
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += len)
        if ((at == text || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0'))
            return true;
    return false;
}

/* Words of `text` that `other` has not. */
static void add_others(struct text *out, const char *text, const char *other)
{
    char word[160];
    for (size_t len; *text != '\0'; text += len + (text[len] == ' ')) {
        len = strcspn(text, " ");
        text_print(word, sizeof word, "%.*s", (int)len, text);
        if (len > 0 && !has_word(other, word, strlen(word)))
            text_add(out, " %s", word);
    }
}

void train_plan_compare(const struct train_plan *planned, const struct trainer_options *run)
{
    struct text theirs = {0}, ours = {0}, there = {0}, here = {0};
    char text[PLAN_TEXT];
    if (planned->file == NULL)
        return;
    text_add(&theirs, "%s", plan_text(&planned->plan, text));
    text_add(&ours, "%s", plan_text(&run->plan, text));
    if (planned->seq > 0) {
        text_add(&theirs, " %s %s seq=%lld", dtype_name(planned->dtype), planned->packed ? "packed-rows" : "whole-rows",
                 (long long)planned->seq);
        text_add(&ours, " %s %s seq=", dtype_name(run->dtype), run->separator.n > 0 ? "packed-rows" : "whole-rows");
        for (int i = 0; i < run->n_seqs; i++)
            text_add(&ours, "%s%lld", i > 0 ? "," : "", (long long)run->seqs[i]);
    }
    if (planned->model[0] != '\0') {
        text_add(&theirs, " params=%lld %s", (long long)planned->params, planned->model);
        text_add(&ours, " params=%lld %s", (long long)run->model.params, run->model.name);
    }
    add_others(&there, text_get(&theirs), text_get(&ours));
    add_others(&here, text_get(&ours), text_get(&theirs));
    if (here.len > 0)
        log_info("--plan %s: this run has%s, the plan%s", planned->file, text_get(&here), text_get(&there));
    text_free(&theirs);
    text_free(&ours);
    text_free(&there);
    text_free(&here);
}
