/* cli/verb_model.c -- `sptune model`: what the reader understood, and which sp sizes are legal. */
#include "base/units.h"
#include "cli/cli.h"
#include "model/model.h"
#include "results/export.h"
#include "sp/problem.h"

#include <stdlib.h>
#include <string.h>

static const struct opt options[] = {
    {"world", 0, OPT_VALUE, "W", "processes of the job; sp sizes up to W are judged [8]"},
    {"seq", 0, OPT_VALUE, "S", "also say what each size pads S tokens to"},
    {0},
};

static enum status list(struct cli *cli)
{
    enum { ITEMS = 256 };
    struct cli_item items[ITEMS];
    char about[ITEMS][80];
    const char *const *names = model_shipped();
    int n = 0;
    for (; n < ITEMS && names[n] != NULL; n++) {
        struct model m;
        char params[UNITS_BUF];
        TRY(model_load(names[n], &m));
        text_print(about[n], sizeof about[n], "%s parameters, %d layers, %d/%d heads",
                   units_format_count(m.params, params), m.layers, m.heads, m.kv_heads);
        items[n] = (struct cli_item){names[n], about[n]};
    }
    return cli_print_list(cli, items, n);
}

static void describe(const struct model *m, struct text *out)
{
    char params[UNITS_BUF], vocab[UNITS_BUF], active[UNITS_BUF], window[UNITS_BUF], seq[UNITS_BUF];
    text_add(out, "%s (%s)  %s%s parameters\n", m->name, m->type, m->params_exact ? "" : "about ",
             units_format_count(m->params, params));
    if (m->experts > 0)
        text_add(out, "experts %d, %d per token, %s parameters active\n", m->experts, m->experts_per_token,
                 units_format_count(m->params_active, active));
    text_add(out, "layers %d  hidden %lld  heads %d/%d kv  head_dim %d", m->layers, (long long)m->hidden, m->heads,
             m->kv_heads, m->head_dim);
    if (m->head_dim_v != m->head_dim)
        text_add(out, " (v %d)", m->head_dim_v);
    text_add(out, "\nffn %lld%s  vocab %s%s\n", (long long)m->ffn, m->gated ? " gated" : "",
             units_format_count(m->vocab, vocab), m->tied ? " tied" : "");
    if (m->window > 0)
        text_add(out, "window %s on %d of %d layers\n", units_format_count(m->window, window), m->window_layers,
                 m->layers);
    if (m->max_positions > 0)
        text_add(out, "trained for %s positions\n", units_format_count(m->max_positions, seq));
}

enum { LIST_ALL = 64 }; /* beyond that many processes only divisors are listed on the screen; JSON has more */

static int64_t padded(const struct model *m, int sp, int64_t world, int64_t seq)
{
    struct problem problem;
    problem_from_model(m, seq, (int)world, &problem);
    return problem_padded(&problem, sp);
}

static enum status judge(const struct model *m, int64_t world, int64_t seq, struct text *out)
{
    text_add(out, "\n%4s  %-5s %-20s %s\n", "sp", "ok", "rule", "why");
    for (int sp = 1; sp <= world; sp++) {
        if (world > LIST_ALL && world % sp != 0)
            continue;
        struct verdict v = model_sp(m, sp, (int)world);
        struct text line = {0};
        int copies = model_kv_copies(m->kv_heads, sp);
        if (verdict_ok(&v)) {
            text_add(&line, copies > 1 ? "each KV head on %d ranks" : "", copies);
            if (seq % sp != 0)
                text_add(&line, "%spads %lld tokens to %lld", line.len > 0 ? "; " : "", (long long)seq,
                         (long long)padded(m, sp, world, seq));
            text_add(out, line.len > 0 ? "%4d  yes   " : "%4d  yes", sp);
        } else {
            text_add(&line, "%s", v.why);
            text_add(out, "%4d  no    %-20s ", sp, rule_code(v.rule));
        }
        opt_wrap(out, text_get(&line), verdict_ok(&v) ? 12 : 33, verdict_ok(&v) ? 12 : 33);
        text_free(&line);
    }
    return text_status(out);
}

/* What --seq adds to the document: the length, and what each legal size pads it to. */
static void add_seq(json_t *document, const struct model *m, int64_t world, int64_t seq)
{
    size_t i;
    json_t *row;
    json_object_set_new(document, "seq", json_integer(seq));
    json_array_foreach(json_object_get(document, "sp"), i, row)
    {
        int sp = (int)json_integer_value(json_object_get(row, "size"));
        if (json_is_true(json_object_get(row, "ok")))
            json_object_set_new(row, "padded_seq", json_integer(padded(m, sp, world, seq)));
    }
}

static enum status run(struct cli *cli)
{
    const char *config = cli->opts.args[0];
    if (strcmp(config, "list") == 0)
        return list(cli);
    int64_t world = 8, seq = 0;
    TRY(opt_count(&cli->opts, "world", 1, 1 << 16, 8, &world));
    TRY(opt_count(&cli->opts, "seq", 1, (int64_t)1 << 40, 0, &seq));
    struct model model;
    TRY(model_load(config, &model));
    if (cli->json) {
        struct json_envelope envelope = cli_envelope(cli);
        json_t *document = model_to_json(&model, (int)world, &envelope);
        if (document != NULL && seq > 0)
            add_seq(document, &model, world, seq);
        return cli_print_json(cli, document);
    }
    struct text out = {0};
    describe(&model, &out);
    enum status status = judge(&model, world, seq, &out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static const struct opt *const tables[] = {options, NULL};

const struct verb verb_model = {
    .name = "model",
    .usage = "CONFIG [--world W] [--seq S] | list",
    .about = "what a config.json means: sizes, parameters, legal sp sizes",
    .help = "CONFIG is a config.json, a directory that holds one, a shipped name (`sptune model list`) or the id of a "
            "model in "
            "the local hub cache. Every size up to W is judged, with the reason.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
