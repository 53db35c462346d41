/* tuner/recommend_json.c -- sptune.recommendation/1 and sptune.plans/1.
 *
 * Beyond what a reader of the answer needs, the document carries every field of model, problem and plan under its own
 * name, so that `explain --what-if` can decide again without the store.
 */
#include "tuner/recommend.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char *const verdicts[] = {"fits", "measure_first", "does_not_fit"};

static void set_int(json_t *object, const char *key, int64_t value)
{
    json_object_set_new(object, key, json_integer(value));
}

/* Names come from files and paths: bytes that are not UTF-8 must not lose the key. */
static void set_text(json_t *object, const char *key, const char *value)
{
    json_t *string = json_string(value);
    char *copy = string == NULL ? strdup(value) : NULL;
    if (copy != NULL) {
        text_clean(copy);
        string = json_string(copy);
    }
    free(copy);
    json_object_set_new(object, key, string);
}

static void set_num(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, json_num(value, 6));
}

static void set_bool(json_t *object, const char *key, bool value)
{
    json_object_set_new(object, key, json_boolean(value));
}

static json_t *model_fields(const struct model *m)
{
    json_t *o = json_object();
    set_text(o, "name", m->name);
    set_text(o, "type", m->type);
    set_int(o, "layers", m->layers);
    set_int(o, "hidden", m->hidden);
    set_int(o, "heads", m->heads);
    set_int(o, "kv_heads", m->kv_heads);
    set_int(o, "head_dim", m->head_dim);
    set_int(o, "head_dim_v", m->head_dim_v);
    set_int(o, "ffn", m->ffn);
    set_int(o, "ffn_dense", m->ffn_dense);
    set_int(o, "ffn_shared", m->ffn_shared);
    set_int(o, "dense_layers", m->dense_layers);
    set_bool(o, "gated", m->gated);
    set_int(o, "vocab", m->vocab);
    set_bool(o, "tied", m->tied);
    set_int(o, "window", m->window);
    set_int(o, "window_layers", m->window_layers);
    set_int(o, "experts", m->experts);
    set_int(o, "experts_per_token", m->experts_per_token);
    set_int(o, "max_positions", m->max_positions);
    set_bool(o, "qkv_bias", m->qkv_bias);
    set_bool(o, "o_bias", m->o_bias);
    set_bool(o, "mlp_bias", m->mlp_bias);
    set_bool(o, "qk_norm", m->qk_norm);
    set_int(o, "params", m->params);
    set_int(o, "params_layer", m->params_layer);
    set_int(o, "params_embedding", m->params_embedding);
    set_int(o, "params_active", m->params_active);
    set_bool(o, "params_exact", m->params_exact);
    return o;
}

static json_t *problem_fields(const struct request *r)
{
    static const char *const objectives[] = {"tokens-per-gpu", "step-time"};
    const struct problem *p = &r->problem;
    json_t *o = json_object(), *docs = json_array();
    set_int(o, "batch", p->batch);
    set_int(o, "seq", p->seq);
    set_bool(o, "seq_fixed", p->seq_fixed);
    set_int(o, "heads", p->heads);
    set_int(o, "kv_heads", p->kv_heads);
    set_int(o, "head_dim", p->head_dim);
    set_int(o, "head_dim_v", p->head_dim_v);
    set_int(o, "hidden", p->hidden);
    set_int(o, "ffn", p->ffn);
    set_text(o, "dtype", dtype_name(p->dtype));
    set_bool(o, "causal", p->causal);
    set_int(o, "window", p->window);
    for (int i = 0; i < p->docs; i++)
        json_array_append_new(docs, json_integer(p->doc_len[i]));
    set_int(o, "docs", p->docs);
    json_object_set_new(o, "doc_len", docs);
    set_int(o, "direction", p->direction);
    set_int(o, "world", p->world);
    set_int(o, "ranks", r->ranks);
    set_int(o, "ranks_per_host", r->ranks_per_host);
    set_text(o, "device", dev_kind_name(r->dev));
    set_text(o, "planned_device", dev_kind_name(r->planned));
    set_int(o, "global_batch_tokens", r->global_batch_tokens);
    set_int(o, "device_memory_bytes", r->device_memory_bytes);
    set_text(o, "device_memory_from", r->device_memory_from);
    set_int(o, "host_memory_bytes", r->host_memory_bytes);
    set_text(o, "objective", objectives[r->objective]);
    return o;
}

/* Device of each rank; null for the identity of a job too large to list. */
static json_t *rank_order(const struct plan *plan, int world)
{
    if (plan->order_n == 0 && world > PLAN_ORDER_MAX)
        return json_null();
    json_t *order = json_array();
    for (int i = 0; i < world; i++)
        json_array_append_new(order, json_integer(plan->order_n > 0 ? plan->order[i] : i));
    return order;
}

static json_t *plan_fields(const struct plan *p, const char *class, int world)
{
    char text[PLAN_TEXT], hash[17];
    json_t *o = json_object();
    if (p->sp > 1)
        set_text(o, "method", plan_method_name(p->method));
    else
        json_object_set_new(o, "method", json_null()); /* nothing is split; a word would be one that --method knows */
    set_int(o, "sp_size", p->sp);
    set_int(o, "dp_shard_size", p->dp_shard);
    set_int(o, "dp_replicate_size", p->dp_replicate);
    set_int(o, "tp_size", p->tp);
    json_object_set_new(o, "rank_order", rank_order(p, world));
    set_text(o, "exchange", p->exchange);
    set_text(o, "attention", p->attention);
    set_text(o, "attention_class", class);
    set_int(o, "chunks", p->chunks);
    set_int(o, "zero_stage", p->zero_stage);
    set_int(o, "micro_batch", p->micro_batch);
    set_int(o, "accumulate", p->accumulate);
    set_text(o, "checkpointing", plan_checkpointing_name(p->checkpointing));
    set_text(o, "offload", plan_offload_name(p->offload));
    set_text(o, "loss", plan_loss_name(p->loss));
    set_text(o, "mlp", plan_mlp_name(p->mlp));
    set_text(o, "text", plan_text(p, text));
    set_text(o, "hash", plan_hash(p, hash));
    return o;
}

static json_t *breakdown(const struct recommend_time *t)
{
    json_t *o = json_object();
    set_num(o, "exchange_in", t->exchange_in);
    set_num(o, "attention", t->attention);
    set_num(o, "exchange_out", t->exchange_out);
    set_num(o, "exposed", t->exposed);
    set_num(o, "gemm", t->gemm);
    set_num(o, "zero", t->zero);
    set_num(o, "optimizer", t->optimizer);
    set_num(o, "logits", t->logits);
    set_num(o, "elementwise", t->elementwise);
    return o;
}

static json_t *predicted(const struct recommend_time *t)
{
    json_t *o = json_object(), *interval = json_object();
    set_num(interval, "lo_us", t->lo_us);
    set_num(interval, "hi_us", t->hi_us);
    set_num(interval, "level", 0.95);
    set_num(o, "step_us", t->step_us);
    json_object_set_new(o, "interval", interval);
    json_object_set_new(o, "breakdown_us", breakdown(t));
    set_text(o, "source", recommend_source_name(t->source));
    return o;
}

/* What was timed here, as opposed to what the job is predicted to take; null where a part that matters was not timed as
 * it will run. */
static json_t *measured(const struct recommend_candidate *c, int ranks)
{
    if (!c->timed || c->time.source > RECOMMEND_INTERPOLATED)
        return json_null();
    json_t *o = json_object();
    set_num(o, "step_us", c->time.step_us);
    set_int(o, "ranks", ranks);
    set_text(o, "composed_of", c->time.composed_of);
    return o;
}

static json_t *memory_fields(const struct recommend_candidate *c, const struct request *r)
{
    json_t *o = json_object(), *terms = json_array();
    for (int i = 0; i < c->memory.n; i++) {
        const struct work_term *t = &c->memory.term[i];
        json_t *term = json_object();
        set_text(term, "name", t->name);
        set_int(term, "bytes", t->bytes);
        set_text(term, "formula", t->formula);
        set_bool(term, "host", t->host);
        set_bool(term, "live_at_peak", t->live_at_peak);
        json_array_append_new(terms, term);
    }
    json_object_set_new(o, "terms", terms);
    set_int(o, "peak_bytes", c->memory.peak_bytes);
    set_text(o, "peak_at", c->memory.peak_at);
    set_int(o, "limit_bytes", r->device_memory_bytes);
    set_int(o, "host_bytes", c->memory.host_bytes);
    set_text(o, "verdict", verdicts[c->fit]);
    return o;
}

/* `chosen`: text of the plan that a tied candidate lost to. */
static json_t *candidate_fields(const struct recommend_candidate *c, const char *chosen, const struct request *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "plan", plan_fields(&c->plan, c->attention_class, r->world));
    set_num(o, "tokens_per_s_per_device", c->tokens_per_s_per_device);
    json_object_set_new(o, "predicted", predicted(&c->time));
    json_object_set_new(o, "measured", measured(c, r->ranks));
    set_int(o, "peak_bytes", c->memory.peak_bytes);
    json_object_set_new(o, "memory", memory_fields(c, r));
    set_text(o, "source", recommend_source_name(c->time.source));
    set_num(o, "loses_by", c->loses_by);
    set_num(o, "loses_by_lo", c->loses_lo);
    set_num(o, "loses_by_hi", c->loses_hi);
    json_object_set_new(o, "tied_with", c->tied ? json_string(chosen) : json_null());
    set_text(o, "rule", rule_code(c->lost.rule));
    set_text(o, "why", c->lost.why);
    return o;
}

static void set_candidates(json_t *o, const struct recommendation *rec)
{
    json_t *candidates = json_array(), *rejected = json_array();
    char chosen[PLAN_TEXT] = "";
    if (rec->chosen >= 0)
        plan_text(&rec->candidates[rec->chosen].plan, chosen);
    for (int i = 0; i < rec->n; i++) {
        const struct recommend_candidate *c = &rec->candidates[i];
        if (c->priced) {
            json_array_append_new(candidates, candidate_fields(c, chosen, &rec->request));
            continue;
        }
        json_t *no = json_object();
        json_object_set_new(no, "plan", plan_fields(&c->plan, c->attention_class, rec->request.world));
        const struct verdict *why = verdict_ok(&c->verdict) ? &c->lost : &c->verdict;
        set_text(no, "rule", rule_code(why->rule));
        set_text(no, "why", why->why);
        json_array_append_new(rejected, no);
    }
    json_object_set_new(o, "candidates", candidates);
    json_object_set_new(o, "rejected", rejected);
}

static json_t *parallelism_config(const struct recommend_candidate *c)
{
    json_t *o = json_object();
    set_int(o, "dp_replicate_size", c->plan.dp_replicate);
    set_int(o, "dp_shard_size", c->plan.dp_shard);
    set_int(o, "tp_size", c->plan.tp);
    set_int(o, "cp_size", 1);
    set_int(o, "sp_size", c->plan.sp);
    set_text(o, "sp_backend", "deepspeed");
    set_bool(o, "sp_seq_length_is_variable", true);
    set_text(o, "sp_attn_implementation", c->attention_class);
    return o;
}

static json_t *assumptions(const struct request *r)
{
    json_t *all = json_array();
    for (int i = 0; i < r->nassumptions; i++) {
        json_t *a = json_object();
        set_text(a, "name", r->assumptions[i].name);
        set_text(a, "value", r->assumptions[i].value);
        set_text(a, "from", r->assumptions[i].from);
        json_array_append_new(all, a);
    }
    return all;
}

static json_t *flips(const struct recommendation *rec)
{
    json_t *all = json_array();
    for (int i = 0; i < rec->nflips; i++) {
        const struct recommend_flip *f = &rec->flips[i];
        json_t *o = json_object();
        set_text(o, "if", f->condition);
        json_object_set_new(o, "then_plan", plan_fields(&f->then_plan, f->attention_class, rec->request.world));
        set_num(o, "gain", f->gain);
        set_int(o, "peak_bytes", f->peak_bytes);
        set_text(o, "verdict", verdicts[f->fit]);
        set_text(o, "source", recommend_source_name(f->source));
        json_array_append_new(all, o);
    }
    return all;
}

static json_t *files(const struct recommendation *rec)
{
    json_t *all = json_array();
    for (int i = 0; i < rec->nfiles; i++) {
        json_t *o = json_object();
        set_text(o, "path", rec->files[i].path);
        set_text(o, "kind", rec->files[i].kind);
        set_text(o, "sha256", rec->files[i].sha256);
        json_array_append_new(all, o);
    }
    return all;
}

static json_t *proofs(const struct recommendation *rec)
{
    json_t *all = json_array();
    for (int i = 0; i < rec->nproofs; i++) {
        const struct recommend_proof *p = &rec->proofs[i];
        const struct recommend_candidate *c = &rec->candidates[p->candidate];
        json_t *o = json_object();
        json_object_set_new(o, "plan", plan_fields(&c->plan, c->attention_class, rec->request.world));
        set_num(o, "predicted_us", c->time.step_us);
        set_int(o, "predicted_peak_bytes", c->memory.peak_bytes);
        if (p->why[0] != '\0')
            set_text(o, "why", p->why);
        else {
            set_num(o, "measured_us", p->step_us);
            set_int(o, "measured_bytes", p->bytes);
        }
        json_array_append_new(all, o);
    }
    return all;
}

static void set_answer(json_t *o, const struct recommendation *rec)
{
    const struct request *r = &rec->request;
    set_text(o, "target", r->target->name);
    json_object_set_new(o, "model", model_fields(&r->model));
    json_object_set_new(o, "problem", problem_fields(r));
    if (rec->chosen >= 0) {
        const struct recommend_candidate *c = &rec->candidates[rec->chosen];
        json_object_set_new(o, "plan", plan_fields(&c->plan, c->attention_class, r->world));
        bool accelerate = strcmp(r->target->name, "accelerate") == 0;
        json_object_set_new(o, "parallelism_config", accelerate ? parallelism_config(c) : json_null());
        json_object_set_new(o, "measured", measured(c, r->ranks));
        json_object_set_new(o, "predicted", predicted(&c->time));
        set_num(o, "tokens_per_s_per_device", c->tokens_per_s_per_device);
        json_object_set_new(o, "memory", memory_fields(c, r));
    }
    set_text(o, "verdict", verdicts[rec->verdict]);
    set_candidates(o, rec);
    json_object_set_new(o, "native_best", rec->native_best < 0 ? json_null() : candidate_fields(&rec->native, "", r));
    json_object_set_new(o, "assumptions", assumptions(r));
    json_object_set_new(o, "flips", flips(rec));
    if (rec->nproofs > 0)
        json_object_set_new(o, "proofs", proofs(rec));
    set_text(o, "next_measurement", rec->next_measurement);
    set_text(o, "fits_if", rec->fits_if);
    set_int(o, "checked", rec->checked);
    set_int(o, "check_total", rec->check_total);
    set_int(o, "check_remembered", rec->check_remembered);
    set_num(o, "wall_s", rec->wall_s);
    set_num(o, "budget_s", rec->budget_s);
    set_bool(o, "interrupted", rec->interrupted);
    set_bool(o, "budget_ended", rec->budget_ended);
    set_int(o, "cases_measured", rec->measured);
    json_object_set_new(o, "files", files(rec));
}

/* Beside the log's. */
static void add_note(json_t *document, const struct request *r)
{
    const char *note = request_speed_note(r->dev, r->planned);
    if (note != NULL)
        json_array_append_new(json_object_get(document, "warnings"), json_string(note));
}

json_t *recommend_to_json(const struct recommendation *recommendation, const struct json_envelope *envelope)
{
    json_t *document = json_document("recommendation", envelope);
    if (document == NULL)
        return NULL;
    add_note(document, &recommendation->request);
    set_answer(document, recommendation);
    return document;
}

json_t *recommend_list_to_json(const struct recommendation *const *answers, int n, const struct json_envelope *envelope)
{
    json_t *document = json_document("plans", envelope);
    if (document == NULL)
        return NULL;
    json_t *all = json_array();
    if (n > 0)
        add_note(document, &answers[0]->request);
    for (int i = 0; i < n; i++) {
        json_t *one = json_object();
        set_answer(one, answers[i]);
        json_array_append_new(all, one);
    }
    json_object_set_new(document, "answers", all);
    return document;
}
