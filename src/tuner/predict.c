/* tuner/predict.c -- find the row to scale, and by how much. */
#include "tuner/predict.h"

#include "base/text.h"
#include "base/units.h"
#include "sp/plan.h"
#include "sp/problem.h"
#include "sp/work.h"
#include "tuner/parts_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IN, ATTENTION, OUT, PARTS };

/* What one rank does in an iteration: bytes that leave it before and after the attention, FLOPs between them. */
struct load {
    double part[PARTS];
    int64_t bytes; /* as a sample has them: the own block included */
    double flops;
};

static bool is_of(const struct sample_key *key, const char *subject)
{
    return strcmp(key->subject, subject) == 0;
}

static struct verdict predictable(const struct sample_key *key)
{
    bool plain = key->docs[0] == '\0' || strcmp(key->docs, "none") == 0;
    if (!is_of(key, "exchange") && !is_of(key, "attention") && !is_of(key, "layer"))
        return verdict_no(RULE_NOT_MODELLED, "%s: exchange, attention and layer are predicted", key->subject);
    if (is_of(key, "exchange") && strcmp(key->op, "one") == 0)
        return verdict_no(RULE_NOT_MODELLED, "exchange op one: whole, in and out are predicted");
    if (is_of(key, "exchange") && key->sp == 1)
        return verdict_no(RULE_NOT_MODELLED, "sp 1: one rank exchanges nothing");
    if (key->seq < 1)
        return verdict_no(RULE_SEQ, "a sequence without tokens takes no time");
    if (key->method[0] != '\0' && strcmp(key->method, "ulysses") != 0)
        return verdict_no(RULE_NOT_MODELLED, "method %s: ulysses is predicted", key->method);
    if (key->span[0] != '\0' && strcmp(key->span, "attention") != 0)
        return verdict_no(RULE_NOT_MODELLED, "span %s: span attention is predicted", key->span);
    if (is_of(key, "layer") && key->chunks > 1)
        return verdict_no(RULE_NOT_MODELLED, "%lld chunks: what overlaps is not predicted", (long long)key->chunks);
    if (!plain)
        return verdict_no(RULE_NOT_MODELLED, "packed documents are not predicted");
    return VERDICT_YES;
}

static int whole(int64_t value)
{
    return value > 0 && value <= 1 << 24 ? (int)value : 0;
}

static enum status problem_of(const struct sample_key *key, struct problem *out)
{
    *out = (struct problem){.batch = key->batch,
                            .seq = key->seq,
                            .heads = whole(key->heads),
                            .kv_heads = whole(key->kv_heads),
                            .head_dim = whole(key->head_dim),
                            .head_dim_v = whole(key->head_dim_v),
                            .causal = key->causal != 0,
                            .window = key->window > 0 ? key->window : 0,
                            .world = whole(key->ranks)};
    out->direction = strcmp(key->direction, "bwd") == 0 ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
    TRY(dtype_parse(key->dtype, "dtype", &out->dtype));
    return problem_check(out);
}

static enum status load_of(const struct sample_key *key, struct load *out)
{
    struct problem problem;
    struct work_exchange moved;
    struct plan plan;
    TRY(problem_of(key, &problem));
    plan_default(&plan);
    plan.sp = whole(key->sp) > 0 ? whole(key->sp) : 1;
    bool backward = problem.direction == PROBLEM_BACKWARD;
    work_exchange(&problem, &plan, backward, &moved);
    bool in = !is_of(key, "attention") && strcmp(key->op, "out") != 0;
    bool back = !is_of(key, "attention") && strcmp(key->op, "in") != 0;
    *out = (struct load){.flops = is_of(key, "exchange") ? 0 : work_attention_flops(&problem, &plan, backward),
                         .bytes = (in ? moved.bytes_in : 0) + (back ? moved.bytes_out : 0)};
    out->part[IN] = in ? (double)moved.wire_in : 0;
    out->part[ATTENTION] = out->flops;
    out->part[OUT] = back ? (double)moved.wire_out : 0;
    out->bytes = in || back ? out->bytes : -1;
    return STATUS_OK;
}

/* The key with what a prediction may change taken out. */
static struct sample_key family_of(const struct sample_key *key, bool lengths)
{
    struct sample_key family = *key;
    family.ranks = family.sp = -1;
    if (lengths)
        family.seq = -1;
    return family;
}

static bool same_family(const struct sample_key *a, const struct sample_key *b, bool lengths)
{
    struct sample_key x = family_of(a, lengths), y = family_of(b, lengths);
    return sample_key_equal(&x, &y);
}

bool predict_asks(const struct sample *rows, int i)
{
    for (int k = 0; k < i; k++)
        if (same_family(&rows[k].key, &rows[i].key, false))
            return false;
    return true;
}

/* How far apart two calls are, as the logarithm of a ratio. */
static double distance(const struct sample_key *key, const struct load *load, const struct sample_key *asked,
                       const struct load *wanted)
{
    if (is_of(key, "exchange"))
        return fabs(log((load->part[IN] + load->part[OUT]) / (wanted->part[IN] + wanted->part[OUT])));
    return fabs(log((double)key->seq / (double)asked->seq));
}

/* Among one rank nothing is exchanged: that says nothing of an exchange. */
static bool usable(const struct sample *row, const struct sample_key *asked)
{
    return row->outcome == SAMPLE_OK && row->verified && row->n > 0 && row->key.seq > 0 && row->key.sp <= asked->sp &&
           (row->key.sp > 1 || is_of(&row->key, "attention") || asked->sp == 1) && same_family(&row->key, asked, true);
}

/* Whose sizes are no problem's, or whose dtype is none, has no load; what is wrong with it stays in `why`. */
static bool has_load(const struct sample_key *key, struct load *out, struct verdict *why)
{
    if (load_of(key, out) == STATUS_OK)
        return true;
    *why = verdict_no(RULE_KERNEL_CANNOT, "%.200s", status_last()->what);
    status_clear();
    return false;
}

/* The index of the row to scale, -1 when none will do. Larger groups first, then the nearest, then more ranks at work. */
static int find_source(const struct sample *rows, int n, const struct sample_key *asked, const struct load *wanted)
{
    double nearest = INFINITY;
    int found = -1;
    for (int i = 0; i < n; i++) {
        struct load load;
        struct verdict why;
        if (!usable(&rows[i], asked) || !has_load(&rows[i].key, &load, &why))
            continue;
        double away = distance(&rows[i].key, &load, asked, wanted);
        const struct sample_key *best = found >= 0 ? &rows[found].key : NULL;
        bool larger = best != NULL && rows[i].key.sp > best->sp, smaller = best != NULL && rows[i].key.sp < best->sp;
        bool nearer = away < nearest || (away == nearest && best != NULL && rows[i].key.ranks > best->ranks);
        if (!(away <= log(PREDICT_FACTOR)) || smaller || (!larger && !nearer))
            continue;
        nearest = away;
        found = i;
    }
    return found;
}

/* What the source's time went to. */
static void shares_of(const struct sample *source, const struct load *load, double share[PARTS])
{
    double moved = load->part[IN] + load->part[OUT];
    if (is_of(&source->key, "layer")) {
        parts_layer_shares(source, share);
        return;
    }
    for (int i = 0; i < PARTS; i++)
        share[i] = moved > 0 ? load->part[i] / moved : i == ATTENTION;
}

/* 95 % half-width that scaling adds to one part (docs/models.md, "Times"); other groups at work are as another length. */
static double slack_of(int part, const struct sample_key *had, const struct sample_key *asked, bool same_load)
{
    if (had->sp == asked->sp && same_load)
        return had->ranks == asked->ranks ? 0 : SLACK_LENGTH;
    return part == ATTENTION ? SLACK_LENGTH : had->sp == asked->sp ? SLACK_EXCHANGE : SLACK_RANKS;
}

static void scale_of(const struct sample *source, const struct load *had, const struct sample_key *asked,
                     const struct load *wanted, double *factor, double *within)
{
    double share[PARTS];
    shares_of(source, had, share);
    *factor = *within = 0;
    for (int i = 0; i < PARTS; i++) {
        double times = had->part[i] > 0 ? share[i] * wanted->part[i] / had->part[i] : share[i];
        *factor += times;
        *within += times * slack_of(i, &source->key, asked, wanted->part[i] == had->part[i]);
    }
    *within /= *factor;
}

static enum status note(const struct sample *source, double within, struct sample *out)
{
    json_t *conditions =
        json_pack("{s:{s:I s:I s:I s:s} s:o}", "predicted_from", "ranks", (json_int_t)source->key.ranks, "sp",
                  (json_int_t)source->key.sp, "seq", (json_int_t)source->key.seq, "measured_at", source->measured_at,
                  "predicted_within", json_num(within, 3));
    free(out->conditions);
    out->conditions = conditions != NULL ? json_dumps(conditions, JSON_COMPACT) : NULL;
    json_decref(conditions);
    return out->conditions != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for the conditions of a row");
}

static enum status scale_row(const struct sample *source, const struct sample_key *asked, const struct load *wanted,
                             struct sample *out)
{
    struct load had;
    double factor, within;
    TRY(load_of(&source->key, &had));
    scale_of(source, &had, asked, wanted, &factor, &within);
    TRY(sample_copy(source, out));
    out->key = *asked;
    out->scaled = true;
    out->scale = factor;
    out->verified = false;
    out->ceiling_GBps = out->ceiling_tflops = 0;
    out->bytes = wanted->bytes;
    out->flops = wanted->flops;
    out->group = is_of(asked, "attention") ? 1 : whole(asked->sp);
    for (int i = 0; i < out->n; i++)
        out->times_us[i] *= factor;
    enum status status = note(source, within, out);
    if (status != STATUS_OK)
        sample_free(out);
    return status;
}

static enum status waive(const struct sample_key *asked, const struct verdict *verdict, struct sample *out)
{
    sample_init(out);
    out->key = *asked;
    out->outcome = SAMPLE_WAIVED;
    out->rule = verdict->rule;
    text_print(out->why, sizeof out->why, "%s", verdict->why);
    return STATUS_OK;
}

static struct verdict admit(const struct sample_key *asked, struct load *wanted)
{
    struct verdict verdict = predictable(asked);
    if (verdict_ok(&verdict) && asked->ranks % asked->sp != 0)
        return verdict_no(RULE_WORLD, "sp %lld does not divide the %lld ranks", (long long)asked->sp,
                          (long long)asked->ranks);
    if (verdict_ok(&verdict))
        verdict = model_sp_heads(whole(asked->heads), whole(asked->kv_heads), whole(asked->sp), whole(asked->ranks));
    if (verdict_ok(&verdict))
        (void)has_load(asked, wanted, &verdict);
    return verdict;
}

static struct verdict no_source(const struct sample_key *asked)
{
    char sp[48], seq[UNITS_BUF];
    if (asked->sp == 1)
        text_print(sp, sizeof sp, "1");
    else
        text_print(sp, sizeof sp, "%d to %lld", is_of(asked, "attention") ? 1 : 2, (long long)asked->sp);
    return verdict_no(RULE_NOT_MEASURED,
                      "no row of sp %s whose length or bytes are within %d times of those at %s tokens", sp,
                      PREDICT_FACTOR, units_format_count(asked->seq, seq));
}

enum status predict_row(const struct sample *rows, int n, int i, int ranks, int sp, struct sample *out)
{
    struct sample_key asked = rows[i].key;
    struct load wanted;
    asked.ranks = ranks;
    asked.sp = sp;
    struct verdict verdict = admit(&asked, &wanted);
    int source = verdict_ok(&verdict) ? find_source(rows, n, &asked, &wanted) : -1;
    if (source >= 0)
        return scale_row(&rows[source], &asked, &wanted, out);
    if (verdict_ok(&verdict))
        verdict = no_source(&asked);
    return waive(&asked, &verdict, out);
}
