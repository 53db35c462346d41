/* cli/train_screen.c -- a run as lines for people, or rows for programs. */
#include "cli/train_screen.h"

#include "base/interrupt.h"
#include "base/log.h"
#include "base/units.h"
#include "sp/work.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- how much work ---- */

double train_screen_flops(const struct run_options *options, int ranks, int64_t tokens)
{
    const struct trainer_options *o = &options->trainer;
    const struct plan *plan = &o->plan;
    struct problem problem;
    struct work_gemm gemms[WORK_GEMMS + 1];
    int groups = ranks / plan_sequence_ranks(plan);
    int64_t rows = plan->micro_batch * plan->accumulate * groups;
    struct plan whole; /* a row has as many however it is split */
    plan_default(&whole);
    problem_from_model(&o->model, tokens / rows, ranks, &problem);
    problem.batch = plan->micro_batch;
    int n = work_gemms(&o->model, &problem, &whole, NULL, gemms);
    gemms[n++] = work_logits(&o->model, &problem, &whole);
    double forward = 0;
    for (int i = 0; i < n; i++)
        forward +=
            2.0 * (double)gemms[i].m * (double)gemms[i].n * (double)gemms[i].k * gemms[i].count * gemms[i].layers;
    if (o->separator.n == 0) /* of documents each step has others: they count for nothing */
        forward += o->model.layers * work_attention_flops(&problem, &whole, false);
    return 3 * forward * (double)plan->accumulate * groups;
}

void train_screen_rate(const struct train_screen *screen, double *flops, double *mfu)
{
    *flops = screen->seconds > 0 ? screen->flops / screen->seconds / screen->ranks : 0;
    double most = screen->peak_flops > 0 ? screen->peak_flops : screen->fma_flops;
    *mfu = most > 0 ? *flops / most : -1;
}

/* ---- begin and steps ---- */

void train_screen_line(struct text *out, const char *label, int indent, const char *fmt, ...)
{
    char words[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    text_add(out, "%s", label);
    opt_wrap(out, words, (int)strlen(label), indent);
}

static enum status say(struct text *out, enum status (*print)(const char *))
{
    enum status status = text_status(out);
    progress_clear();
    if (status == STATUS_OK)
        status = print(text_get(out));
    text_free(out);
    return status;
}

static enum status begin(void *arg, struct trainer *trainer, int64_t steps)
{
    struct train_screen *screen = arg;
    const struct trainer_options *o = &screen->options->trainer;
    char plan[PLAN_TEXT], params[UNITS_BUF];
    int64_t left = steps - trainer_first(trainer);
    screen->steps = steps;
    if (left > 0)
        progress_begin("training", left < INT_MAX ? (int)left : 0);
    if (screen->cli->json || screen->cli->jsonl)
        return STATUS_OK;
    struct text out = {0};
    text_add(&out, "%s  %s parameters, %s\n", o->model.name, units_format_count(o->model.params, params),
             dtype_name(o->dtype));
    train_screen_line(&out, "plan  ", 6, "%s", plan_text(&o->plan, plan));
    if (left > 0)
        text_add(&out, "%6s  %8s  %9s  %8s  %10s\n", "step", "loss", "grad norm", "lr", "tokens/s");
    return say(&out, cli_print);
}

static json_t *step_json(const struct trainer_report *r, const double *eval)
{
    double rate = r->seconds > 0 ? (double)r->tokens / r->seconds : 0;
    json_t *row = json_pack("{s:I s:f s:f s:f s:I s:I s:f s:f}", "step", (json_int_t)r->step + 1, "loss", r->loss,
                            "grad_norm", r->grad_norm, "lr", r->lr, "tokens", (json_int_t)r->tokens, "valid",
                            (json_int_t)r->valid, "step_us", r->seconds * 1e6, "tokens_per_s", rate);
    if (row != NULL && eval != NULL)
        json_object_set_new(row, "eval_loss", json_real(*eval));
    return row;
}

/* The first ten, then about forty more, and the last. */
static bool shown(const struct train_screen *screen, int64_t step)
{
    int64_t every = screen->steps / 40 > 1 ? screen->steps / 40 : 1;
    return step < 10 || step % every == every - 1 || step + 1 == screen->steps;
}

static enum status print_step(const struct trainer_report *r, const double *eval)
{
    struct text out = {0};
    text_add(&out, "%6lld  %8.4f  %9.3g  %8.2e  %10.0f", (long long)r->step + 1, r->loss, r->grad_norm, r->lr,
             r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
    if (eval != NULL)
        text_add(&out, "  eval %.4f", *eval);
    text_add(&out, "%s\n", r->valid == 0 ? "  no label is valid: nothing was learnt" : "");
    return say(&out, cli_stream);
}

enum status train_screen_row(json_t *row)
{
    char *line = row != NULL ? json_dumps(row, JSON_COMPACT) : NULL;
    struct text out = {0};
    json_decref(row);
    if (line == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a row");
    text_add(&out, "%s\n", line);
    free(line);
    return say(&out, cli_stream);
}

static enum status keep_point(struct train_screen *screen, const struct trainer_report *r, const double *eval)
{
    if (screen->n_points == screen->cap_points) {
        int64_t cap = screen->cap_points > 0 ? 2 * screen->cap_points : 256;
        struct train_point *more = realloc(screen->points, (size_t)cap * sizeof *more);
        if (more == NULL)
            return FAIL(STATUS_NOMEM, "no memory for a curve of %lld steps", (long long)cap);
        screen->points = more;
        screen->cap_points = cap;
    }
    screen->points[screen->n_points++] = (struct train_point){r->loss, eval != NULL ? *eval : NAN, r->step + 1};
    return STATUS_OK;
}

static enum status step(void *arg, const struct trainer_report *r, const double *eval)
{
    struct train_screen *screen = arg;
    char label[32];
    if (screen->tokens == 0)
        screen->first_loss = r->loss;
    screen->tokens += r->tokens;
    screen->seconds += r->seconds;
    screen->flops += train_screen_flops(screen->options, screen->ranks, r->tokens);
    TRY(keep_point(screen, r, eval));
    if (r->valid == 0)
        log_warn("step %lld: no label of any rank is valid; its loss and gradient are 0", (long long)r->step + 1);
    if (screen->cli->json)
        json_array_append_new(screen->rows, step_json(r, eval));
    else if (screen->cli->jsonl)
        TRY(train_screen_row(step_json(r, eval)));
    else if (shown(screen, r->step) || eval != NULL)
        TRY(print_step(r, eval));
    text_print(label, sizeof label, "loss %.4f", r->loss);
    progress_step(screen->n_points < INT_MAX ? (int)screen->n_points : INT_MAX, label, -1);
    return STATUS_OK;
}

static bool stop(void *arg)
{
    (void)arg;
    return interrupt_pending() != 0;
}

/* ---- a sample ---- */

/* Bytes as text: what would not print is escaped. */
static void add_bytes(struct text *out, const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t c = tokens[i];
        if (c == '\\')
            text_add(out, "\\\\");
        else if (c == '\n' || (c >= ' ' && c < 127))
            text_add(out, "%c", (char)c);
        else if (c == '\t')
            text_add(out, "\\t");
        else
            text_add(out, "\\x%02x", (unsigned)c);
    }
}

static void add_ids(struct text *out, const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        text_add(out, "%s%d", i == 0 ? "" : i % 12 == 0 ? "\n" : " ", (int)tokens[i]);
}

static json_t *ids_json(const int32_t *tokens, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(tokens[i]));
    return list;
}

static json_t *sample_json(const struct run_options *o, const int32_t *tokens, int64_t prompt, int64_t n)
{
    json_t *sample = json_pack("{s:o s:o s:f}", "given", ids_json(tokens, prompt), "drawn",
                               ids_json(tokens + prompt, n), "temperature", o->temperature);
    struct text text = {0};
    if (o->trainer.form == DATA_BYTES && sample != NULL) {
        add_bytes(&text, tokens + prompt, n);
        json_object_set_new(sample, "text", json_string(text_get(&text)));
        text_free(&text);
    }
    return sample;
}

static enum status sample(void *arg, const int32_t *tokens, int64_t prompt, int64_t n)
{
    struct train_screen *screen = arg;
    const struct run_options *o = screen->options;
    void (*add)(struct text *, const int32_t *, int64_t) = o->trainer.form == DATA_BYTES ? add_bytes : add_ids;
    struct text out = {0};
    if (screen->cli->json) {
        screen->sample = sample_json(o, tokens, prompt, n);
        return screen->sample != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for a sample");
    }
    if (screen->cli->jsonl)
        return train_screen_row(json_pack("{s:o}", "sample", sample_json(o, tokens, prompt, n)));
    text_add(&out, "given, the first %lld tokens of the data:\n", (long long)prompt);
    add(&out, tokens, prompt);
    text_add(&out, "\ndrawn, %lld tokens at temperature %g:\n", (long long)n, o->temperature);
    add(&out, tokens + prompt, n);
    text_add(&out, "\n");
    return say(&out, cli_print);
}

/* ---- the end ---- */

enum { INDENT = 13 };
static const char BLANKS[INDENT + 1] = "             ";

static void add_rate(struct text *out, const struct train_screen *screen)
{
    static const char label[] = "model FLOPs  ";
    double flops, mfu;
    train_screen_rate(screen, &flops, &mfu);
    if (mfu < 0)
        train_screen_line(out, label, INDENT, "%.3g TFLOP/s per rank", flops * 1e-12);
    else if (screen->peak_flops > 0)
        train_screen_line(out, label, INDENT, "%.3g TFLOP/s per rank, %.2g %% of the %.4g TFLOP/s of --peak",
                          flops * 1e-12, 100 * mfu, screen->peak_flops * 1e-12);
    else
        train_screen_line(out, label, INDENT,
                          "%.3g GFLOP/s per rank, %.2g %% of the %.3g GFLOP/s that multiply-adds reach on its CPUs",
                          flops * 1e-9, 100 * mfu, screen->fma_flops * 1e-9);
    train_screen_line(out, BLANKS, INDENT + 1, "(3 x a forward pass; %s; what runs again is not counted again)",
                      screen->options->trainer.separator.n > 0 ? "attention of documents not counted"
                                                               : "of attention the pairs that the mask allows");
}

enum { TERMS_MAX = 5 };

/* The largest of what is there at the peak. */
static void add_terms(struct text *out, const struct work_memory *m)
{
    char buf[UNITS_BUF];
    bool said[WORK_TERMS] = {false};
    for (int k = 0; k < TERMS_MAX; k++) {
        int largest = -1;
        for (int i = 0; i < m->n; i++)
            if (!said[i] && m->term[i].live_at_peak && !m->term[i].host && m->term[i].bytes > 0 &&
                (largest < 0 || m->term[i].bytes > m->term[largest].bytes))
                largest = i;
        if (largest < 0)
            return;
        said[largest] = true;
        text_add(out, "%s%s %s", k == 0 ? "" : ", ", m->term[largest].name,
                 units_format_bytes((double)m->term[largest].bytes, buf));
    }
}

/* Measured beside what `tune` would have said. */
static void add_memory(struct text *out, const struct train_screen *screen, const struct run_result *result)
{
    char buf[UNITS_BUF];
    struct text words = {0};
    const struct work_memory *m = &result->predicted;
    text_add(&words, "%s %s at most", units_format_bytes((double)result->peak_bytes, buf),
             screen->dev == DEV_CPU ? "resident in a process" : "in use on a GPU after the steps");
    text_add(&words, ", predicted %s", units_format_bytes((double)m->peak_bytes, buf));
    if (m->host_bytes > 0)
        text_add(&words, " and of the host %s", units_format_bytes((double)m->host_bytes, buf));
    train_screen_line(out, "memory       ", INDENT, "%s", text_get(&words));
    text_free(&words);
    add_terms(&words, m);
    train_screen_line(out, BLANKS, INDENT + 1, "(%s)", text_get(&words));
    text_free(&words);
}

enum status train_screen_end(const struct train_screen *screen, const struct run_result *result)
{
    char memory[UNITS_BUF], host[UNITS_BUF] = "";
    struct text out = {0};
    double rate = screen->seconds > 0 ? (double)screen->tokens / screen->seconds : 0;
    if (result->steps == 0)
        return STATUS_OK;
    if (result->host_bytes > 0)
        units_format_bytes((double)result->host_bytes, host);
    train_screen_line(&out, "", 2,
                      "%lld of %lld steps, %.0f tokens/s, %.0f per rank, %s%s%s on the largest rank, loss %.4f -> %.4f",
                      (long long)result->steps, (long long)screen->steps, rate, rate / screen->ranks,
                      units_format_bytes((double)result->bytes, memory), host[0] != '\0' ? " and of the host " : "",
                      host, screen->first_loss, result->last.loss);
    add_rate(&out, screen);
    add_memory(&out, screen, result);
    if (screen->options->trainer.timed)
        text_add(&out, "exposed exchange  %.3g of the %.3g ms of the last step, on rank 0\n",
                 result->last.exposed_us * 1e-3, result->last.seconds * 1e3);
    return say(&out, cli_print);
}

enum status train_screen_open(struct train_screen *screen, struct run_sink *out)
{
    screen->rows = json_array();
    *out = (struct run_sink){.arg = screen, .begin = begin, .step = step, .sample = sample, .stop = stop};
    return screen->rows != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for rows");
}

void train_screen_close(struct train_screen *screen)
{
    progress_end();
    free(screen->points);
    json_decref(screen->rows);
    json_decref(screen->sample);
}
