/* tuner/explain_term.c -- one number by its name: a term of the memory, a part of the time, an assumption, a field of
 * the plan. */
#include "tuner/explain_answer.h"

#include "base/units.h"

#include <stdlib.h>
#include <string.h>

/* Where the bytes of the chosen plan's memory are and what each term means; work_memory has the formula with its
 * numbers. */
enum { BOTH, UNITS, RUNTIME }; /* whose term: of a harness that goes by units, of a runtime that does not */
static const struct {
    const char *name, *about;
    int whose;
} memory_terms[] = {
    {"params", "the weights in the storage type; ZeRO 3 shards them over its group", BOTH},
    {"grads", "gradients in the storage type; ZeRO 2 and 3 shard them, ZeRO 1 and 2 have none at a step's first loss",
     BOTH},
    {"states", "what the optimizer keeps; every ZeRO stage shards it", BOTH},
    {"step_grads", "gradients in fp32 while the optimizer steps", RUNTIME},
    {"gather", "what ZeRO 3 has whole: weights that it keeps for their next use, gradients of what is in use", BOTH},
    {"buckets", "buffers in which gradients are reduced; ZeRO 1 and 2 have them while layers run backward", BOTH},
    {"communicators", "what ranks reach each other by: NCCL's communicators, or UCX", UNITS},
    {"passing", "pieces of offloaded optimizer states on their way through the device", UNITS},
    {"context", "the device's context, libraries and communicators, before any tensor; our harness has these apart",
     BOTH},
    {"checkpoints", "the input of each layer, from which backward computes the layer again", BOTH},
    {"activations", "what every layer keeps for its backward when nothing is computed again", RUNTIME},
    {"attention", "live while a layer's attention is computed again and differentiated", BOTH},
    {"windows", "ends of memory that ranks map of each other, which no buffer fills", UNITS},
    {"workspace", "what kernels ask for each call, of attention and of products", UNITS},
    {"hidden", "rows of the layer that computes: normalised, gradients, between attention and MLP", UNITS},
    {"kv_copies", "copies of key and value heads, where more ranks share a sequence than there are KV heads", RUNTIME},
    {"rows",
     "rows of all ranks that meet the pieces of weights of this one, and their gradients, where ranks cut a layer",
     UNITS},
    {"mlp", "live while a layer's MLP is computed again and differentiated", BOTH},
    {"logits", "the logits of this rank's tokens in the storage type", BOTH},
    {"logits_fp32", "their copy in fp32", RUNTIME},
    {"logits_grad", "the softmax and the gradients of them", RUNTIME},
    {"host_states", "optimizer states in host memory, of one rank", BOTH},
    {"host_params", "weights in host memory, of one rank", BOTH},
    {"host_checkpoints", "layer inputs in host memory, of one rank", BOTH},
};
enum { MEMORY_TERMS = (int)(sizeof memory_terms / sizeof *memory_terms) };

static const char *const fields[] = {"sp_size",
                                     "dp_shard_size",
                                     "dp_replicate_size",
                                     "zero_stage",
                                     "micro_batch",
                                     "accumulate",
                                     "tokens_per_s_per_device",
                                     "step_us",
                                     "peak_bytes",
                                     "limit_bytes",
                                     "memory",
                                     "time",
                                     "verdict"};
enum { FIELDS = (int)(sizeof fields / sizeof *fields), NAMES_MAX = MEMORY_TERMS + PART_COUNT + FIELDS + 64 };

static int assumption_names(const struct explain_document *d, const char *out[64])
{
    int n = 0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(d->root, "assumptions"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (name != NULL && n < 64)
            out[n++] = name;
    }
    return n;
}

/* A hint has room for most names; those in host memory, of other targets and of assumptions can still be the nearest. */
static enum status unknown(const struct explain_document *d, const char *term)
{
    const char *names[NAMES_MAX];
    int n = 0, other = d->target->memory.units ? RUNTIME : UNITS;
    struct text list = {0};
    for (int i = 0; i < MEMORY_TERMS; i++)
        names[n++] = memory_terms[i].name;
    for (int i = 0; i < PART_COUNT; i++)
        if (i != PART_ATTENTION && i != PART_LOGITS) /* memory terms, too */
            names[n++] = explain_part_names[i];
    for (int i = 0; i < FIELDS; i++)
        names[n++] = fields[i];
    for (int i = 0; i < n; i++)
        if (strncmp(names[i], "host_", 5) != 0 && (i >= MEMORY_TERMS || memory_terms[i].whose != other))
            text_add(&list, "%s%s", i > 0 ? " " : "", names[i]);
    n += assumption_names(d, names + n);
    const char *near = text_nearest(term, names, (size_t)n);
    enum status status = FAIL(STATUS_USAGE, "there is no term '%.40s'", term);
    status = near != NULL ? HINT(status, "did you mean %.32s? Known: %s", near, text_get(&list))
                          : HINT(status, "known: %s", text_get(&list));
    text_free(&list);
    return status;
}

static void memory_of(const struct explain_document *d, const struct explain_candidate *c, struct work_memory *out)
{
    struct problem problem;
    explain_problem(d, &c->plan, &problem);
    work_memory_on(&d->model, &problem, &c->plan, d->target, d->planned, 1, out);
}

static void memory_term(const struct explain_document *d, const struct explain_candidate *c, int index,
                        struct explain_answer *answer)
{
    struct work_memory memory;
    char size[UNITS_BUF], bytes[UNITS_BUF], peak[UNITS_BUF];
    const char *name = memory_terms[index].name;
    memory_of(d, c, &memory);
    json_object_set_new(answer->body, "term", json_string(name));
    for (int i = 0; i < memory.n; i++) {
        const struct work_term *term = &memory.term[i];
        if (strcmp(term->name, name) != 0)
            continue;
        explain_say(&answer->text, 2, "%s = %s", name, term->formula);
        explain_say(&answer->text, 2, "  = %s B = %s of %s memory", units_format_count(term->bytes, bytes),
                    units_format_bytes((double)term->bytes, size), term->host ? "host" : "device");
        explain_say(&answer->text, 2, "  %s", memory_terms[index].about);
        if (!term->host)
            explain_say(&answer->text, 2, "  %s the peak of %s, which is at %s%s",
                        term->live_at_peak ? "part of" : "not live at",
                        units_format_bytes((double)memory.peak_bytes, peak), memory.peak_at,
                        term->live_at_peak ? "" : ": phases exclude each other");
        json_object_set_new(answer->body, "bytes", json_integer(term->bytes));
        json_object_set_new(answer->body, "formula", json_string(term->formula));
        json_object_set_new(answer->body, "live_at_peak", json_boolean(term->live_at_peak));
        return;
    }
    explain_say(&answer->text, 2, "%s = 0: this plan has none", name);
    explain_say(&answer->text, 2, "  %s", memory_terms[index].about);
    json_object_set_new(answer->body, "bytes", json_integer(0));
}

static void memory_table(const struct explain_document *d, const struct explain_candidate *c,
                         struct explain_answer *answer)
{
    struct work_memory memory;
    char size[UNITS_BUF], limit[UNITS_BUF];
    memory_of(d, c, &memory);
    for (int i = 0; i < memory.n; i++) {
        const struct work_term *term = &memory.term[i];
        explain_say(&answer->text, 30, "%c %-16s %9s  %s",
                    term->host           ? 'h'
                    : term->live_at_peak ? '*'
                                         : ' ',
                    term->name, units_format_bytes((double)term->bytes, size), term->formula);
    }
    explain_say(&answer->text, 2,
                "* live at the peak, at %s: %s of %s, %.0f %%. Fits up to 80 %%, up to 95 %% a run must show it.%s",
                memory.peak_at, units_format_bytes((double)memory.peak_bytes, size),
                units_format_bytes((double)d->device_memory_bytes, limit),
                explain_share(memory.peak_bytes, d->device_memory_bytes),
                memory.host_bytes > 0 ? " h host memory of one rank." : "");
    json_object_set_new(answer->body, "peak_bytes", json_integer(memory.peak_bytes));
    json_object_set_new(answer->body, "limit_bytes", json_integer(d->device_memory_bytes));
}

/* How often a micro-step runs forward, and the amounts of one layer. */
static void part_formula(const struct explain_document *d, const struct plan *plan, int part, struct text *out)
{
    struct problem p;
    struct work_exchange forward, backward;
    struct work_zero zero;
    struct work_gemm gemm[WORK_GEMMS];
    char a[UNITS_BUF], b[UNITS_BUF];
    int passes = work_forward_passes(plan), layers = d->model.layers;
    long long steps = (long long)plan->accumulate;
    explain_problem(d, plan, &p);
    work_exchange(&p, plan, false, &forward);
    work_exchange(&p, plan, true, &backward);
    switch ((enum explain_part)part) {
    case PART_EXCHANGE_IN:
        explain_say(out, 2,
                    "  %d layers x %lld micro-steps x (%d forward: q, k, v in, %s; 1 backward: do in, %s), of which "
                    "%d/%d leave the rank",
                    layers, steps, passes, units_format_bytes((double)forward.bytes_in, a),
                    units_format_bytes((double)backward.bytes_in, b), plan->sp - 1, plan->sp);
        return;
    case PART_EXCHANGE_OUT:
        explain_say(out, 2,
                    "  %d layers x %lld micro-steps x (%d forward: o out, %s; 1 backward: dq, dk, dv out, %s), of "
                    "which %d/%d leave the rank",
                    layers, steps, passes, units_format_bytes((double)forward.bytes_out, a),
                    units_format_bytes((double)backward.bytes_out, b), plan->sp - 1, plan->sp);
        return;
    case PART_ATTENTION:
        explain_say(out, 2,
                    "  %d layers x %lld micro-steps x (%d forward of %.3g TFLOP, 1 backward of %.3g TFLOP): %d/%d "
                    "heads over all tokens",
                    layers, steps, passes, work_attention_flops(&p, plan, false) * 1e-12,
                    work_attention_flops(&p, plan, true) * 1e-12, p.heads / plan->sp, p.heads);
        return;
    case PART_GEMM:
        explain_say(
            out, 2,
            "  %lld micro-steps x (forward + 2 backward) x products of a rank's tokens, each in its layers:", steps);
        for (int i = 0, n = work_gemms(&d->model, &p, plan, d->target, gemm); i < n; i++)
            explain_say(out, 4, "    %s: %lld x %lld x %lld, %d times, in %d layers, %d forward", gemm[i].name,
                        (long long)gemm[i].m, (long long)gemm[i].n, (long long)gemm[i].k, gemm[i].count, gemm[i].layers,
                        gemm[i].forwards);
        return;
    case PART_LOGITS:
        gemm[0] = work_logits(&d->model, &p, plan);
        explain_say(out, 2, "  %lld micro-steps x %d x the product with the vocabulary, %lld x %lld x %lld (loss %s%s)",
                    steps, work_loss_products(plan), (long long)gemm[0].m, (long long)gemm[0].n, (long long)gemm[0].k,
                    plan_loss_name(plan->loss), work_loss_products(plan) > 3 ? " computes it again in backward" : "");
        return;
    case PART_ZERO:
        work_zero(&d->model, &p, plan, d->target, &zero);
        explain_say(out, 2,
                    "  ZeRO stage %d over %d ranks: %s gathered and %s reduced into each rank, %d calls; overlapped "
                    "with nothing, so an upper bound",
                    plan->zero_stage, zero.group, units_format_bytes((double)zero.gather_bytes, a),
                    units_format_bytes((double)zero.reduce_bytes, b), zero.calls);
        return;
    case PART_OPTIMIZER:
        work_zero(&d->model, &p, plan, d->target, &zero);
        explain_say(out, 2, "  once a step: %s elements of this rank x %g bytes, read and written at the copy rate",
                    units_format_count(zero.optimizer_elems, a), d->target->optimizer_bytes);
        if (zero.gradient_bytes > 0)
            explain_say(
                out, 2,
                "  %s of whole gradients, copied or cleared, in all micro-steps; overlapped with nothing, so an "
                "upper bound",
                units_format_bytes(zero.gradient_bytes, b));
        return;
    case PART_ELEMENTWISE:
        explain_say(
            out, 2,
            "  %lld micro-steps x %s that norms, rotary positions, activations, residual sums and the loss read and "
            "write (%d forward, 1 backward), at the copy rate",
            steps, units_format_bytes(work_elementwise(&d->model, &p, plan, d->target), a), passes);
        return;
    default:
        explain_say(out, 2,
                    "  what of the exchanges is not hidden behind attention, where chunks overlap; 0 without chunks");
    }
}

static const char *composed_of(const struct explain_document *d)
{
    const char *text = json_string_value(json_object_get(json_object_get(d->root, "measured"), "composed_of"));
    return text != NULL && text[0] != '\0' ? text : "nothing timed of this plan itself: rates of small shapes";
}

static void part_term(const struct explain_document *d, const struct explain_candidate *c, int part,
                      struct explain_answer *answer)
{
    char us[UNITS_BUF], step[UNITS_BUF];
    double share = c->step_us > 0 ? 100 * c->part_us[part] / c->step_us : 0;
    explain_say(&answer->text, 2, "%s = %s of the step's %s, %.1f %% (%s)", explain_part_names[part],
                units_format_us(c->part_us[part], us), explain_step(c, c->step_us, step), share, c->source);
    part_formula(d, &c->plan, part, &answer->text);
    if (part == PART_ELEMENTWISE && c->part_us[part] == 0 && !model_is_heads(&d->model))
        explain_say(&answer->text, 2, "  the sptune that wrote this document did not price it");
    explain_say(&answer->text, 2, "  composed of %.160s", composed_of(d));
    json_object_set_new(answer->body, "term", json_string(explain_part_names[part]));
    json_object_set_new(answer->body, "us", json_num(c->part_us[part], 6));
    json_object_set_new(answer->body, "share", json_num(share / 100, 4));
}

static void time_table(const struct explain_document *d, const struct explain_candidate *c,
                       struct explain_answer *answer)
{
    char us[UNITS_BUF], lo[UNITS_BUF], hi[UNITS_BUF];
    for (int i = 0; i < PART_COUNT; i++)
        explain_say(&answer->text, 2, "%-13s %9s %6.1f %%", explain_part_names[i], units_format_us(c->part_us[i], us),
                    c->step_us > 0 ? 100 * c->part_us[i] / c->step_us : 0);
    explain_say(&answer->text, 2, "step_us       %9s, 95 %% between %s and %s (%s)", explain_step(c, c->step_us, us),
                units_format_us_measured(c->lo_us, c->lo_us, c->hi_us, lo),
                units_format_us_measured(c->hi_us, c->lo_us, c->hi_us, hi), c->source);
    explain_say(&answer->text, 2, "  composed of %.160s", composed_of(d));
    json_object_set_new(answer->body, "step_us", json_num(c->step_us, 6));
}

/* What makes a fact of it, or that nothing does. */
static const struct {
    const char *name, *instead;
} instead_of[] = {
    {"loss", "--loss says another"},
    {"zero", "--zero says another"},
    {"checkpointing", "--checkpointing says another"},
    {"offload", "--offload says another"},
    {"micro_batch", "--micro-batch says another"},
    {"exchange", "--exchange names another that runs here"},
    {"optimizer", "no option says another: memory is modelled for this one"},
    {"device_memory", "--device-memory says another"},
    {"planned_device", "--device cpu plans for CPUs; sptune on such a device (scripts/package) measures it"},
    {"measured_ranks", "--ranks measures more, where there are devices for them"},
    {"gpus_per_node", "--gpus-per-node says another"},
    {"nodes", "--nodes says another"},
    {"rank_order", "no option says another: only links of the GPUs here are known"},
};

static const char *instead(const struct explain_document *d, const char *name, const char *value)
{
    if (strcmp(name, "samples") == 0)
        return strcmp(value, "few") == 0 ? "the same command with a longer --budget takes more"
                                         : "the same command where nothing else runs measures again";
    for (size_t i = 0; i < sizeof instead_of / sizeof *instead_of; i++)
        if (strcmp(instead_of[i].name, name) == 0)
            return instead_of[i].instead;
    for (int i = 0; d->target->classes[i] != NULL; i++)
        if (strcmp(d->target->classes[i], name) == 0)
            return "scripts/peers/attention.py, run where the job will run, times what is installed there, and "
                   "--samples takes that";
    return "";
}

static bool assumption(const struct explain_document *d, const char *term, struct explain_answer *answer)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(d->root, "assumptions"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name")),
                   *value = json_string_value(json_object_get(row, "value"));
        const char *from = json_string_value(json_object_get(row, "from"));
        if (name == NULL || strcmp(name, term) != 0)
            continue;
        const char *fact = instead(d, name, value != NULL ? value : "");
        explain_say(&answer->text, 2, "%.32s = %.64s: assumed, %.224s%s%s.", name, value != NULL ? value : "?",
                    from != NULL ? from : "?", fact[0] != '\0' ? "; " : "", fact);
        json_object_set_new(answer->body, "assumption", json_incref(row));
        return true;
    }
    return false;
}

static void accumulate(const struct explain_document *d, const struct plan *p, struct text *out)
{
    struct problem problem;
    char step[UNITS_BUF], global[UNITS_BUF];
    explain_problem(d, p, &problem);
    if (d->global_batch_tokens > 0)
        explain_say(out, 2, "accumulate = G x P / (S x B x W) = %s x %d / (%lld x %lld x %d) = %lld",
                    units_format_count(d->global_batch_tokens, global), p->sp, (long long)problem.seq,
                    (long long)problem.batch, problem.world, (long long)p->accumulate);
    else
        explain_say(out, 2, "accumulate = %lld: no global batch was asked for", (long long)p->accumulate);
    explain_say(out, 2, "  one optimizer step sees %s tokens; with sp P each micro-step sees P times fewer sequences",
                units_format_count(work_step_tokens(&problem, p), step));
}

/* The same number of every candidate. */
static void by_candidate(const struct explain_document *d, bool memory, struct explain_answer *answer)
{
    json_t *rows = json_array();
    for (int i = 0; i < d->n; i++) {
        const struct explain_candidate *c = &d->candidate[i];
        struct text name = {0};
        char size[UNITS_BUF], speed[UNITS_BUF];
        explain_plan_name(d, &c->plan, c->class, &name);
        if (memory)
            explain_say(&answer->text, 4, "  %s: %s, %.0f %% of the limit%s", text_get(&name),
                        units_format_bytes((double)c->peak_bytes, size),
                        explain_share(c->peak_bytes, d->device_memory_bytes), c->chosen ? " (chosen)" : "");
        else
            explain_say(&answer->text, 4, "  %s: %s tokens/s/device, %s a step (%s)%s", text_get(&name),
                        explain_speed(c, c->speed, speed), explain_step(c, c->step_us, size), c->source,
                        c->chosen ? " (chosen)" : "");
        json_array_append_new(rows, json_pack("{s:s, s:I, s:f}", "plan", text_get(&name), "peak_bytes",
                                              (json_int_t)c->peak_bytes, "tokens_per_s_per_device", c->speed));
        text_free(&name);
    }
    json_object_set_new(answer->body, "candidates", rows);
}

static void sizes(const struct explain_document *d, const struct plan *p, struct text *out)
{
    explain_say(out, 2, "dp_replicate_size x dp_shard_size x sp_size = %d x %d x %d = %d processes", p->dp_replicate,
                p->dp_shard, p->sp, d->problem.world);
    explain_say(out, 2,
                "  %d ranks share each sequence: each holds %lld of %lld tokens with all heads, and during attention "
                "all tokens with "
                "%d of %d query heads and %d KV head%s",
                p->sp, (long long)problem_local(&d->problem, p->sp), (long long)problem_padded(&d->problem, p->sp),
                d->problem.heads / p->sp, d->problem.heads, model_kv_local(d->problem.kv_heads, p->sp),
                model_kv_local(d->problem.kv_heads, p->sp) == 1 ? "" : "s");
    if (d->target->zero_over_world)
        explain_say(
            out, 2,
            "  ZeRO shards over all %d processes whatever the two data-parallel sizes are: only their product matters",
            d->problem.world);
}

static bool field(const struct explain_document *d, const struct explain_candidate *c, const char *term,
                  struct explain_answer *answer)
{
    struct text *out = &answer->text;
    struct problem problem;
    char a[UNITS_BUF], b[UNITS_BUF], speed[UNITS_BUF];
    explain_problem(d, &c->plan, &problem);
    if (strcmp(term, "memory") == 0) {
        memory_table(d, c, answer);
    } else if (strcmp(term, "time") == 0 || strcmp(term, "step_us") == 0) {
        time_table(d, c, answer);
    } else if (strcmp(term, "sp_size") == 0 || strcmp(term, "dp_shard_size") == 0 ||
               strcmp(term, "dp_replicate_size") == 0) {
        sizes(d, &c->plan, out);
    } else if (strcmp(term, "accumulate") == 0) {
        accumulate(d, &c->plan, out);
    } else if (strcmp(term, "micro_batch") == 0) {
        explain_say(out, 2, "micro_batch = %lld sequence%s that a group of %d rank%s computes at once",
                    (long long)c->plan.micro_batch, c->plan.micro_batch == 1 ? "" : "s", c->plan.sp,
                    c->plan.sp == 1 ? "" : "s");
    } else if (strcmp(term, "zero_stage") == 0) {
        explain_say(out, 2, "zero_stage = %d: optimizer states%s%s are sharded", c->plan.zero_stage,
                    c->plan.zero_stage >= 2 ? ", gradients" : "", c->plan.zero_stage == 3 ? " and weights" : "");
    } else if (strcmp(term, "tokens_per_s_per_device") == 0) {
        explain_say(out, 2, "tokens_per_s_per_device = tokens of a step / step time / processes = %s / %s / %d = %s",
                    units_format_count(work_step_tokens(&problem, &c->plan), a), explain_step(c, c->step_us, b),
                    problem.world, explain_speed(c, c->speed, speed));
        by_candidate(d, false, answer);
    } else if (strcmp(term, "peak_bytes") == 0) {
        explain_say(out, 2, "peak_bytes = %s = %s (`memory` lists the terms)", units_format_count(c->peak_bytes, a),
                    units_format_bytes((double)c->peak_bytes, b));
        by_candidate(d, true, answer);
    } else if (strcmp(term, "limit_bytes") == 0) {
        explain_say(out, 2, "limit_bytes = %s = %s for each rank, from %.60s",
                    units_format_count(d->device_memory_bytes, a),
                    units_format_bytes((double)d->device_memory_bytes, b), d->device_memory_from);
    } else if (strcmp(term, "verdict") == 0) {
        explain_say(out, 2,
                    "verdict = %.40s: the peak is %.1f %% of the limit; up to 80 %% fits, up to 95 %% a run must show "
                    "it, above it does not",
                    d->verdict, explain_share(c->peak_bytes, d->device_memory_bytes));
    } else {
        return false;
    }
    json_object_set_new(answer->body, "term", json_string(term));
    return true;
}

/* "attention" and "logits" are both memory and time: both are said. */
enum status explain_term(const struct explain_document *d, const char *term, struct explain_answer *answer)
{
    bool found = false;
    if (d->chosen < 0)
        return FAIL(STATUS_USAGE, "no plan was legal, so it has no terms");
    const struct explain_candidate *c = &d->candidate[d->chosen];
    for (int i = 0; i < PART_COUNT; i++)
        if (strcmp(explain_part_names[i], term) == 0) {
            part_term(d, c, i, answer);
            found = true;
        }
    for (int i = 0; i < MEMORY_TERMS; i++)
        if (strcmp(memory_terms[i].name, term) == 0) {
            memory_term(d, c, i, answer);
            found = true;
        }
    found = found || field(d, c, term, answer);
    found = assumption(d, term, answer) || found;
    return found ? STATUS_OK : unknown(d, term);
}
