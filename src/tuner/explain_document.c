/* tuner/explain_document.c -- read a sptune.recommendation/1 document back, field by field, each within bounds that
 * keep every later sum within its type. */
#include "tuner/explain_document.h"

#include "base/mem.h"
#include "base/units.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char where[] = "the recommendation";
static const int64_t count_max = INT64_C(1) << 48; /* tokens, bytes, parameters */
enum { SMALL_MAX = 1 << 24 /* heads, layers, ranks */ };

const char *const explain_part_names[PART_COUNT] = {"exchange_in", "attention", "exchange_out", "exposed",    "gemm",
                                                    "zero",        "optimizer", "logits",       "elementwise"};

static enum status get_count(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out)
{
    int64_t value = 0;
    json_t *there = NULL;
    TRY(json_need(object, key, where, &there));
    TRY(json_int(object, key, where, 0, &value));
    if (value < min || value > max)
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is %lld, which cannot be", key, (long long)value), "%s", where);
    *out = value;
    return STATUS_OK;
}

static enum status get_int(const json_t *object, const char *key, int min, int *out)
{
    int64_t value = 0;
    TRY(get_count(object, key, min, SMALL_MAX, &value));
    *out = (int)value;
    return STATUS_OK;
}

static enum status get_text(const json_t *object, const char *key, const char **out)
{
    json_t *there = NULL;
    TRY(json_need(object, key, where, &there));
    return json_str(object, key, where, "", out);
}

static enum status copy_text(const json_t *object, const char *key, char *out, size_t size)
{
    const char *text = "";
    TRY(get_text(object, key, &text));
    text_print(out, size, "%s", text);
    text_clean(out);
    return STATUS_OK;
}

/* A time: finite, not negative. */
static enum status get_us(const json_t *object, const char *key, double *out)
{
    json_t *there = NULL;
    TRY(json_need(object, key, where, &there));
    TRY(json_double(object, key, where, 0, out));
    if (!(*out >= 0 && *out < 1e18))
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is %g microseconds, which cannot be", key, *out), "%s", where);
    return STATUS_OK;
}

static enum status model_read(const json_t *root, struct model *m)
{
    json_t *o = NULL;
    TRY(json_need(root, "model", where, &o));
    *m = (struct model){0};
    TRY(copy_text(o, "name", m->name, sizeof m->name));
    TRY(copy_text(o, "type", m->type, sizeof m->type));
    struct {
        const char *key;
        int *out;
    } ints[] = {{"layers", &m->layers},
                {"heads", &m->heads},
                {"kv_heads", &m->kv_heads},
                {"head_dim", &m->head_dim},
                {"head_dim_v", &m->head_dim_v},
                {"dense_layers", &m->dense_layers},
                {"window_layers", &m->window_layers},
                {"experts", &m->experts},
                {"experts_per_token", &m->experts_per_token}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        TRY(get_int(o, ints[i].key, 0, ints[i].out));
    struct {
        const char *key;
        int64_t *out;
    } counts[] = {{"hidden", &m->hidden},
                  {"ffn", &m->ffn},
                  {"ffn_dense", &m->ffn_dense},
                  {"ffn_shared", &m->ffn_shared},
                  {"vocab", &m->vocab},
                  {"window", &m->window},
                  {"max_positions", &m->max_positions},
                  {"params", &m->params},
                  {"params_layer", &m->params_layer},
                  {"params_embedding", &m->params_embedding},
                  {"params_active", &m->params_active}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        TRY(get_count(o, counts[i].key, 0, count_max, counts[i].out));
    struct {
        const char *key;
        bool *out;
    } bools[] = {
        {"gated", &m->gated},       {"tied", &m->tied},       {"qkv_bias", &m->qkv_bias},        {"o_bias", &m->o_bias},
        {"mlp_bias", &m->mlp_bias}, {"qk_norm", &m->qk_norm}, {"params_exact", &m->params_exact}};
    for (size_t i = 0; i < sizeof bools / sizeof *bools; i++)
        TRY(json_bool(o, bools[i].key, where, false, bools[i].out));
    return STATUS_OK;
}

static enum status docs_read(const json_t *o, struct problem *p)
{
    json_t *lengths = NULL;
    TRY(get_int(o, "docs", 0, &p->docs));
    TRY(json_need(o, "doc_len", where, &lengths));
    if (!json_is_array(lengths) || json_array_size(lengths) != (size_t)p->docs || p->docs > PROBLEM_MAX_DOCS)
        return WHERE(FAIL(STATUS_USAGE, "\"doc_len\" is not the lengths of %d documents", p->docs), "%s", where);
    for (int i = 0; i < p->docs; i++) {
        const json_t *length = json_array_get(lengths, (size_t)i);
        p->doc_len[i] = json_integer_value(length);
        if (!json_is_integer(length) || p->doc_len[i] < 0 || p->doc_len[i] > count_max)
            return WHERE(FAIL(STATUS_USAGE, "entry %d of \"doc_len\" is no length", i), "%s", where);
    }
    return STATUS_OK;
}

static enum status device_read(const json_t *o, const char *key, enum dev_kind *out)
{
    const char *name = "";
    TRY(get_text(o, key, &name));
    for (*out = DEV_CPU; *out <= DEV_CUDA; ++*out)
        if (strcmp(name, dev_kind_name(*out)) == 0)
            return STATUS_OK;
    return WHERE(FAIL(STATUS_USAGE, "\"%s\" is '%.40s', which this sptune does not know", key, name), "%s", where);
}

static enum status problem_read(const json_t *root, struct explain_document *out)
{
    struct problem *p = &out->problem;
    json_t *o = NULL;
    const char *dtype = "", *objective = "";
    int direction = 0;
    TRY(json_need(root, "problem", where, &o));
    TRY(get_count(o, "batch", 1, SMALL_MAX, &p->batch));
    TRY(get_count(o, "seq", 1, count_max, &p->seq));
    TRY(json_bool(o, "seq_fixed", where, false, &p->seq_fixed));
    TRY(get_int(o, "heads", 1, &p->heads));
    TRY(get_int(o, "kv_heads", 1, &p->kv_heads));
    TRY(get_int(o, "head_dim", 1, &p->head_dim));
    TRY(get_int(o, "head_dim_v", 0, &p->head_dim_v));
    TRY(get_count(o, "hidden", 0, count_max, &p->hidden));
    TRY(get_count(o, "ffn", 0, count_max, &p->ffn));
    TRY(get_text(o, "dtype", &dtype));
    TRY(WHERE(dtype_parse(dtype, "dtype", &p->dtype), "%s", where));
    TRY(json_bool(o, "causal", where, true, &p->causal));
    TRY(get_count(o, "window", 0, count_max, &p->window));
    TRY(docs_read(o, p));
    TRY(get_int(o, "direction", 1, &direction));
    p->direction = direction & PROBLEM_BOTH ? (enum problem_direction)(direction & PROBLEM_BOTH) : PROBLEM_BOTH;
    TRY(get_int(o, "world", 1, &p->world));
    TRY(device_read(o, "device", &out->measured));
    out->planned = out->measured; /* as an older sptune has it, which wrote no other */
    if (json_object_get(o, "planned_device") != NULL)
        TRY(device_read(o, "planned_device", &out->planned));
    TRY(get_int(o, "ranks", 1, &out->ranks));
    TRY(get_int(o, "ranks_per_host", 1, &out->ranks_per_host));
    TRY(get_count(o, "global_batch_tokens", 0, count_max, &out->global_batch_tokens));
    TRY(get_count(o, "device_memory_bytes", 1, count_max, &out->device_memory_bytes));
    TRY(get_text(o, "device_memory_from", &out->device_memory_from));
    TRY(get_count(o, "host_memory_bytes", 0, count_max, &out->host_memory_bytes));
    TRY(get_text(o, "objective", &objective));
    out->step_time = strcmp(objective, "step-time") == 0;
    return WHERE(problem_check(p), "%s", where);
}

/* One word of a list of names, as plan's own functions spell them. */
static enum status get_word(const json_t *o, const char *key, const char *(*name)(int), int n, int *out)
{
    const char *text = "";
    TRY(get_text(o, key, &text));
    for (*out = 0; *out < n; ++*out)
        if (strcmp(text, name(*out)) == 0)
            return STATUS_OK;
    return WHERE(FAIL(STATUS_USAGE, "\"%s\" is '%.40s', which this sptune does not know", key, text), "%s", where);
}

#define WORD(function, type)                                                                                           \
    static const char *word_##function(int value)                                                                      \
    {                                                                                                                  \
        return plan_##function##_name((enum plan_##type)value);                                                        \
    }
WORD(method, method)
WORD(checkpointing, checkpointing)
WORD(offload, offload)
WORD(loss, loss)
WORD(mlp, mlp)

static enum status choices_read(const json_t *o, struct plan *p)
{
    int method = p->method, checkpointing = 0, offload = 0, loss = 0, mlp = 0;
    if (p->sp > 1) /* else none is named */
        TRY(get_word(o, "method", word_method, PLAN_METHOD_COUNT, &method));
    TRY(get_word(o, "checkpointing", word_checkpointing, PLAN_CHECKPOINTING_COUNT, &checkpointing));
    TRY(get_word(o, "offload", word_offload, PLAN_OFFLOAD_COUNT, &offload));
    TRY(get_word(o, "loss", word_loss, PLAN_LOSS_COUNT, &loss));
    TRY(get_word(o, "mlp", word_mlp, PLAN_MLP_COUNT, &mlp));
    p->method = (enum plan_method)method;
    p->checkpointing = (enum plan_checkpointing)checkpointing;
    p->offload = (enum plan_offload)offload;
    p->loss = (enum plan_loss)loss;
    p->mlp = (enum plan_mlp)mlp;
    return STATUS_OK;
}

static enum status plan_read(const json_t *parent, struct plan *p, char class[PLAN_NAME])
{
    json_t *o = NULL;
    TRY(json_need(parent, "plan", where, &o));
    plan_default(p);
    TRY(get_int(o, "sp_size", 1, &p->sp));
    TRY(get_int(o, "dp_shard_size", 1, &p->dp_shard));
    TRY(get_int(o, "dp_replicate_size", 1, &p->dp_replicate));
    TRY(get_int(o, "tp_size", 1, &p->tp));
    TRY(get_int(o, "chunks", 1, &p->chunks));
    TRY(get_int(o, "zero_stage", 0, &p->zero_stage));
    TRY(get_count(o, "micro_batch", 1, SMALL_MAX, &p->micro_batch));
    TRY(get_count(o, "accumulate", 1, count_max, &p->accumulate));
    TRY(copy_text(o, "exchange", p->exchange, sizeof p->exchange));
    TRY(copy_text(o, "attention", p->attention, sizeof p->attention));
    TRY(copy_text(o, "attention_class", class, PLAN_NAME));
    return choices_read(o, p);
}

static enum status time_read(const json_t *o, struct explain_candidate *c)
{
    json_t *predicted = NULL, *interval = NULL, *parts = NULL;
    TRY(json_need(o, "predicted", where, &predicted));
    TRY(get_us(predicted, "step_us", &c->step_us));
    TRY(json_need(predicted, "interval", where, &interval));
    TRY(get_us(interval, "lo_us", &c->lo_us));
    TRY(get_us(interval, "hi_us", &c->hi_us));
    TRY(json_need(predicted, "breakdown_us", where, &parts));
    for (int i = 0; i < PART_COUNT; i++)
        if (i != PART_ELEMENTWISE || json_object_get(parts, explain_part_names[i]) != NULL)
            TRY(get_us(parts, explain_part_names[i], &c->part_us[i]));
    return STATUS_OK;
}

static enum status candidate_read(const json_t *o, struct explain_candidate *c)
{
    json_t *memory = NULL;
    *c = (struct explain_candidate){0};
    TRY(plan_read(o, &c->plan, c->class));
    TRY(time_read(o, c));
    TRY(get_us(o, "tokens_per_s_per_device", &c->speed));
    TRY(json_need(o, "memory", where, &memory));
    TRY(get_count(memory, "peak_bytes", 0, INT64_MAX, &c->peak_bytes));
    TRY(get_count(memory, "host_bytes", 0, INT64_MAX, &c->host_bytes));
    TRY(json_double(o, "loses_by", where, 0, &c->loses_by));
    TRY(get_text(o, "source", &c->source));
    TRY(get_text(o, "rule", &c->rule));
    TRY(get_text(o, "why", &c->why));
    c->tied_with = json_string_value(json_object_get(o, "tied_with"));
    return STATUS_OK;
}

/* What later arithmetic relies on: sizes whose product is the world, a micro-batch whose tokens can be counted. */
static enum status candidate_check(const struct explain_document *d, const struct explain_candidate *c)
{
    const struct plan *p = &c->plan;
    int left = d->problem.world / p->sp;
    if (d->problem.world % p->sp != 0 || left % p->dp_shard != 0 || left / p->dp_shard != p->dp_replicate || p->tp != 1)
        return WHERE(FAIL(STATUS_USAGE, "a candidate of sp %d x dp_shard %d x dp_replicate %d x tp %d for %d processes",
                          p->sp, p->dp_shard, p->dp_replicate, p->tp, d->problem.world),
                     "%s", where);
    if (p->micro_batch == d->problem.batch)
        return STATUS_OK;
    struct problem problem;
    explain_problem(d, p, &problem);
    return WHERE(problem_check(&problem), "%s", where);
}

static enum status candidates_read(const json_t *root, struct explain_document *out)
{
    json_t *rows = NULL, *refused = NULL;
    TRY(json_need(root, "candidates", where, &rows));
    TRY(json_need(root, "rejected", where, &refused));
    if (!json_is_array(rows) || !json_is_array(refused))
        return WHERE(FAIL(STATUS_USAGE, "\"candidates\" and \"rejected\" are not both lists"), "%s", where);
    size_t n = json_array_size(rows), m = json_array_size(refused);
    out->candidate = calloc(n + 1, sizeof *out->candidate);
    out->refused = calloc(m + 1, sizeof *out->refused);
    if (out->candidate == NULL || out->refused == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %zu candidates", n + m);
    for (size_t i = 0; i < n; i++, out->n++) {
        TRY(candidate_read(json_array_get(rows, i), &out->candidate[i]));
        TRY(candidate_check(out, &out->candidate[i]));
    }
    for (size_t i = 0; i < m; i++, out->nrefused++) {
        const json_t *row = json_array_get(refused, i);
        TRY(plan_read(row, &out->refused[i].plan, out->refused[i].class));
        TRY(get_text(row, "rule", &out->refused[i].rule));
        TRY(get_text(row, "why", &out->refused[i].why));
    }
    return STATUS_OK;
}

static enum status chosen_find(const json_t *root, struct explain_document *out)
{
    char wanted[PLAN_TEXT], text[PLAN_TEXT], class[PLAN_NAME];
    struct plan plan;
    out->chosen = -1;
    if (json_object_get(root, "plan") == NULL)
        return STATUS_OK;
    TRY(plan_read(root, &plan, class));
    plan_text(&plan, wanted);
    for (int i = 0; i < out->n && out->chosen < 0; i++)
        if (strcmp(plan_text(&out->candidate[i].plan, text), wanted) == 0 &&
            strcmp(out->candidate[i].class, class) == 0)
            out->chosen = i;
    if (out->chosen < 0)
        return WHERE(FAIL(STATUS_USAGE, "the plan chosen is not among the candidates"), "%s", where);
    out->candidate[out->chosen].chosen = true;
    return STATUS_OK;
}

static enum status schema_check(const json_t *root)
{
    static const char ours[] = "sptune.recommendation/";
    const char *schema = "";
    if (!json_is_object(root))
        return HINT(FAIL(STATUS_USAGE, "this is no recommendation: a JSON object is expected"),
                    "`sptune tune` writes recommendation.json");
    TRY(get_text(root, "schema", &schema));
    if (strcmp(schema, "sptune.recommendation/1") == 0)
        return STATUS_OK;
    if (strcmp(schema, "sptune.plans/1") == 0)
        return HINT(FAIL(STATUS_USAGE, "this is a table of answers, one recommendation is expected"),
                    "run `sptune tune` for one length alone");
    if (strncmp(schema, ours, sizeof ours - 1) == 0)
        return HINT(
            FAIL(STATUS_USAGE, "schema %.60s is of another sptune; this one reads sptune.recommendation/1", schema),
            "explain it with the sptune that wrote it");
    return HINT(FAIL(STATUS_USAGE, "schema '%.60s' is no recommendation", schema),
                "sptune.recommendation/1 is expected");
}

static enum status read_all(const json_t *root, struct explain_document *out)
{
    const char *target = "";
    TRY(schema_check(root));
    TRY(get_text(root, "target", &target));
    out->target = target_find(target);
    if (out->target == NULL)
        return WHERE(FAIL(STATUS_USAGE, "target '%.40s' is not known to this sptune", target), "%s", where);
    TRY(model_read(root, &out->model));
    TRY(problem_read(root, out));
    TRY(candidates_read(root, out));
    TRY(get_text(root, "verdict", &out->verdict));
    return chosen_find(root, out);
}

enum status explain_document_read(const json_t *root, struct explain_document *out)
{
    *out = (struct explain_document){.root = root, .chosen = -1};
    enum status status = read_all(root, out);
    if (status != STATUS_OK)
        explain_document_free(out);
    return status;
}

void explain_document_free(struct explain_document *document)
{
    free(document->candidate);
    free(document->refused);
    document->candidate = NULL;
    document->refused = NULL;
    document->n = document->nrefused = 0;
}

char *explain_step(const struct explain_candidate *c, double step_us, char *buf)
{
    double scale = c->step_us > 0 ? step_us / c->step_us : 1;
    return units_format_us_measured(step_us, c->lo_us * scale, c->hi_us * scale, buf);
}

char *explain_speed(const struct explain_candidate *c, double speed, char *buf)
{
    bool known = c->lo_us > 0 && c->hi_us > 0;
    return units_format_measured(speed, known ? speed * c->step_us / c->hi_us : speed,
                                 known ? speed * c->step_us / c->lo_us : speed, buf);
}

void explain_problem(const struct explain_document *document, const struct plan *plan, struct problem *out)
{
    *out = document->problem;
    out->batch = plan->micro_batch;
}

double explain_share(int64_t bytes, int64_t limit)
{
    return limit > 0 ? 100.0 * (double)bytes / (double)limit : 0;
}

/* Which fields beside sp tell plans apart. */
struct apart {
    bool micro_batch, zero, checkpointing, offload, loss, chunks, class;
};

static void compare(const struct plan *p, const char *p_class, const struct plan *q, const char *q_class,
                    struct apart *out)
{
    out->micro_batch = out->micro_batch || p->micro_batch != q->micro_batch;
    out->zero = out->zero || p->zero_stage != q->zero_stage;
    out->checkpointing = out->checkpointing || p->checkpointing != q->checkpointing;
    out->offload = out->offload || p->offload != q->offload;
    out->loss = out->loss || p->loss != q->loss;
    out->chunks = out->chunks || p->chunks != q->chunks;
    out->class = out->class || strcmp(p_class, q_class) != 0;
}

void explain_plan_name(const struct explain_document *document, const struct plan *plan, const char *class,
                       struct text *out)
{
    const struct explain_candidate *first = document->candidate;
    struct apart apart = {false, false, false, false, false, false, document->n == 0};
    for (int i = 1; i < document->n; i++)
        compare(&first->plan, first->class, &document->candidate[i].plan, document->candidate[i].class, &apart);
    if (document->n > 0)
        compare(&first->plan, first->class, plan, class, &apart);
    text_add(out, "sp %d", plan->sp);
    if (apart.micro_batch)
        text_add(out, " micro_batch=%lld", (long long)plan->micro_batch);
    if (apart.zero)
        text_add(out, " zero=%d", plan->zero_stage);
    if (apart.checkpointing)
        text_add(out, " checkpointing=%s", plan_checkpointing_name(plan->checkpointing));
    if (apart.offload)
        text_add(out, " offload=%s", plan_offload_name(plan->offload));
    if (apart.loss)
        text_add(out, " loss=%s", plan_loss_name(plan->loss));
    if (apart.chunks)
        text_add(out, " chunks=%d", plan->chunks);
    if (apart.class)
        text_add(out, " %s", class);
}

/* Columns of the word at `at`, and in *bytes its length; a unit stays with its number. */
static int word_width(const char *at, int *bytes)
{
    static const char *const units[] = {"%", "B", "KiB", "MiB", "GiB", "TiB", "us", "ms", "s"};
    int width = 0;
    *bytes = (int)strcspn(at, " ");
    if (*bytes > 0 && at[*bytes - 1] >= '0' && at[*bytes - 1] <= '9' && at[*bytes] == ' ') {
        size_t len = strcspn(at + *bytes + 1, " ,.:;)");
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strlen(units[i]) == len && strncmp(at + *bytes + 1, units[i], len) == 0) {
                *bytes += 1 + (int)strcspn(at + *bytes + 1, " ");
                break;
            }
    }
    for (int i = 0; i < *bytes; i++)
        width += ((unsigned char)at[i] & 0xc0) != 0x80;
    return width;
}

void explain_say(struct text *out, int indent, const char *fmt, ...)
{
    enum { WIDTH = 80 };
    char *all = NULL;
    va_list args;
    va_start(args, fmt);
    int length = vasprintf(&all, fmt, args);
    va_end(args);
    if (length < 0) {
        out->failed = true;
        return;
    }
    text_clean(all);
    int column = 0;
    for (const char *at = all; *at != '\0';) {
        int blanks = (int)strspn(at, " "), word = 0, width = word_width(at + blanks, &word);
        if (column > indent && column + blanks + width > WIDTH) {
            text_add(out, "\n%*s", indent, "");
            column = indent;
            blanks = 0;
            at += strspn(at, " ");
        }
        text_add(out, "%*s%.*s", blanks, "", word, at + blanks);
        column += blanks + width;
        at += blanks + word;
    }
    text_add(out, "\n");
    free(all);
}
