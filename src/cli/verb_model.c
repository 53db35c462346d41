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
    {"seq", 0, OPT_VALUE, "S", "also judge a fixed length of S tokens"},
    {0},
};

static enum status list(struct cli *cli)
{
    const char *const *names = model_shipped();
    if (cli->json) {
        struct json_envelope envelope = cli_envelope(cli);
        json_t *document = json_document("models", &envelope), *all = json_array();
        for (int i = 0; names[i] != NULL; i++)
            json_array_append_new(all, json_string(names[i]));
        if (document != NULL)
            json_object_set_new(document, "names", all);
        return cli_print_json(cli, document);
    }
    struct text out = {0};
    for (int i = 0; names[i] != NULL; i++)
        text_add(&out, "%s\n", names[i]);
    enum status status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static void describe(const struct model *m, struct text *out)
{
    char params[UNITS_BUF], vocab[UNITS_BUF], active[UNITS_BUF], window[UNITS_BUF], seq[UNITS_BUF];
    text_add(out, "%s (%s)  %s%s parameters\n", m->name, m->type, m->params_exact ? "" : "about ",
             units_format_count(m->params, params));
    if (m->experts > 0)
        text_add(out, "experts %d, %d per token, %s parameters active\n", m->experts, m->experts_per_token,
                 units_format_count(m->params_active, active));
    text_add(out, "layers %d  hidden %lld  heads %d/%d kv  head_dim %d", m->layers, (long long)m->hidden, m->heads, m->kv_heads,
             m->head_dim);
    if (m->head_dim_v != m->head_dim)
        text_add(out, " (v %d)", m->head_dim_v);
    text_add(out, "  ffn %lld%s  vocab %s%s\n", (long long)m->ffn, m->gated ? " gated" : "", units_format_count(m->vocab, vocab),
             m->tied ? " tied" : "");
    if (m->window > 0)
        text_add(out, "window %s on %d of %d layers\n", units_format_count(m->window, window), m->window_layers, m->layers);
    if (m->max_positions > 0)
        text_add(out, "trained for %s positions\n", units_format_count(m->max_positions, seq));
}

enum { LIST_ALL = 64 }; /* beyond that many processes only divisors are listed on the screen; JSON has all */

static enum status judge(const struct model *m, int64_t world, int64_t seq, struct text *out)
{
    text_add(out, "\n%4s  %-5s %-20s %s\n", "sp", "ok", "rule", "why");
    for (int sp = 1; sp <= world; sp++) {
        if (world > LIST_ALL && world % sp != 0)
            continue;
        struct verdict v = model_sp(m, sp, (int)world);
        char note[96] = "";
        if (verdict_ok(&v) && model_kv_copies(m->kv_heads, sp) > 1)
            text_print(note, sizeof note, "each KV head on %d ranks", model_kv_copies(m->kv_heads, sp));
        if (verdict_ok(&v) && seq > 0 && seq % sp != 0) {
            struct problem problem;
            problem_from_model(m, seq, (int)world, &problem);
            int64_t padded = problem_padded(&problem, sp);
            text_print(note, sizeof note, "pads %lld tokens to %lld", (long long)seq, (long long)padded);
        }
        if (verdict_ok(&v))
            text_add(out, note[0] != '\0' ? "%4d  yes   %s\n" : "%4d  yes\n", sp, note);
        else
            text_add(out, "%4d  no    %-20s %s\n", sp, rule_code(v.rule), v.why);
    }
    return text_status(out);
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
        return cli_print_json(cli, model_to_json(&model, (int)world, &envelope));
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
    .help = "CONFIG is a config.json, a directory that holds one, a shipped name (`sptune model list`) or\n"
            "the id of a model in the local hub cache. Every size up to W is judged, with the reason.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
