/* cli/tune_options.c -- what `tune` was asked, read from its options. */
#include "cli/tune_options.h"

#include "base/log.h"
#include "base/units.h"
#include "cli/list.h"
#include "tuner/emit.h"

#include <stdlib.h>
#include <string.h>

const struct opt tune_options[] = {
    {"model", 0, OPT_VALUE, "CONFIG", "config.json, its directory, a shipped name or a cached hub id"},
    {"heads", 0, OPT_VALUE, "LIST", "instead of a model: query heads"},
    {"kv-heads", 0, OPT_VALUE, "LIST", "key/value heads, one for all or one per entry of --heads [heads]"},
    {"head-dim", 0, OPT_VALUE, "D", "head dimension [128]"},
    {"seq", 0, OPT_VALUE, "LIST", "tokens of one sequence"},
    {"ranks", 0, OPT_VALUE, "N", "processes measured here [the launcher's, else the GPUs, else 2]"},
    {"world", 0, OPT_VALUE, "W", "processes of the job; what is not measured is modelled and marked [N, or M times G]"},
    {"nodes", 0, OPT_VALUE, "M", "hosts of the job [as many as --world fills; with --gpus-per-node alone, 1]"},
    {"gpus-per-node", 0, OPT_VALUE, "G", "processes that each host runs [as many as here]"},
    {"target", 0, OPT_VALUE, "NAME", "runtime that will train; `list` names them [accelerate]"},
    {"emit", 0, OPT_VALUE, "LIST", "files to write; `list` names them [the target's]"},
    {"device", 0, OPT_VALUE, "KIND", "auto, cpu or cuda [auto]"},
    {"threads", 0, OPT_VALUE, "N", "CPU threads of each rank's kernels [its share of the CPUs]"},
    {"dtype", 0, OPT_VALUE, "TYPE", "bf16, fp16 or fp32 [bf16]"},
    {"docs", 0, OPT_VALUE, "SPEC", "packed documents: none, fixed:8k, or a file of lengths [none]"},
    {"global-batch", 0, OPT_VALUE, "N", "sequences per optimizer step, or tokens as 4Mtok [not fixed]"},
    {"micro-batch", 0, OPT_VALUE, "LIST", "sequences per micro-step and sp group [1]"},
    {"method", 0, OPT_VALUE, "LIST",
     "ulysses,ring,split_gather or search, of what the target runs [accelerate: ulysses; sptune: all three]"},
    {"sp", 0, OPT_VALUE, "LIST", "fix or restrict sp_size [every legal size]"},
    {"zero", 0, OPT_VALUE, "LIST", "ZeRO stages, or search [target's default]"},
    {"checkpointing", 0, OPT_VALUE, "LIST", "none,full,offload or search [target's default]"},
    {"offload", 0, OPT_VALUE, "LIST", "none,optimizer,params or search [target's default]"},
    {"loss", 0, OPT_VALUE, "LIST", "plain,tiled,fused or search [target's default]"},
    {"attention", 0, OPT_VALUE, "LIST", "attention classes of the target; `list` names them [all it has]"},
    {"samples", 0, OPT_VALUE, "LIST",
     "files of scripts/peers/attention.py: its classes are ranked as they are installed [our kernels stand in]"},
    {"exchange", 0, OPT_VALUE, "LIST", "exchanges; `list` names them [the target's]"},
    {"device-memory", 0, OPT_VALUE, "SIZE",
     "memory of a planned GPU (with --device cpu: of a rank), 80GiB [what is free here]"},
    {"host-memory", 0, OPT_VALUE, "SIZE", "memory of one planned host"},
    {"use-memory", 0, OPT_VALUE, "PCT", "share of free memory that measuring may take [50%]"},
    {"objective", 0, OPT_VALUE, "WORD", "tokens-per-gpu or step-time [tokens-per-gpu]"},
    {"effort", 0, OPT_VALUE, "WORD", "estimate, quick, normal or full [quick]"},
    {"budget", 0, OPT_VALUE, "T", "wall time, checks included [by effort: 10s, 60s, 5m, 30m]"},
    {"oversubscribe", 0, OPT_FLAG, NULL, "go on with more ranks than usable CPUs"},
    {"replay", 0, OPT_VALUE, "STORE", "decide again from recorded samples, measure nothing"},
    {"store", 0, OPT_VALUE, "FILE", "the result store [SPTUNE_STORE, else the user's data directory]"},
    {"name", 0, OPT_VALUE, "NAME", "call this run NAME in the store"},
    {"prove", 0, OPT_FLAG, NULL,
     "take four steps of winner and runner-up with our own harness; of the last three the median is told"},
    {"out", 0, OPT_VALUE, "DIR", "where files are written [./sptune-out]"},
    {"force", 0, OPT_FLAG, NULL, "replace files that were edited since they were written"},
    {0},
};

static enum status find_target(const struct cli *cli, const struct target **out)
{
    const char *name = opt_value(&cli->opts, "target");
    name = name != NULL ? name : "accelerate";
    *out = target_find(name);
    if (*out != NULL)
        return STATUS_OK;
    const char *names[16];
    size_t n = 0;
    for (; n < 16 && targets[n] != NULL; n++)
        names[n] = targets[n]->name;
    return opt_unknown("--target", name, names, n);
}

/* "kernel cudnn on cuda, cpu on cpu" */
static void say_kernels(const struct target *target, const char *class, unsigned devices, char *out, size_t room)
{
    struct text said = {0};
    for (int kind = DEV_CUDA; kind >= DEV_CPU; kind--) {
        const char *kernel = target_stand_in(target, class, (enum dev_kind)kind);
        if ((devices & 1u << kind) != 0 && kernel != NULL)
            text_add(&said, "%s%s on %s", said.len > 0 ? ", " : "kernel ", kernel, dev_kind_name((enum dev_kind)kind));
    }
    text_print(out, room, "%s", said.len > 0 ? text_get(&said) : "not measured");
    text_free(&said);
}

/* The classes of one target, each with the kernel that stands in for it here. */
static enum status list_classes(struct cli *cli)
{
    struct cli_item items[LIST_ITEMS];
    char about[LIST_ITEMS][64];
    const struct target *target = NULL;
    unsigned devices = 0;
    int n = 0;
    TRY(find_target(cli, &target));
    TRY(list_devices(cli, &devices));
    for (; n < LIST_ITEMS && target->classes[n] != NULL; n++) {
        say_kernels(target, target->classes[n], devices, about[n], sizeof about[n]);
        items[n] = (struct cli_item){target->classes[n], about[n]};
    }
    return cli_print_list(cli, items, n);
}

enum status tune_list_plugins(struct cli *cli, bool *listed)
{
    struct cli_item items[LIST_ITEMS];
    int n = 0;
    *listed = true;
    if (list_asked(cli, "attention"))
        return list_classes(cli);
    if (list_asked(cli, "exchange"))
        return list_exchanges(cli);
    if (list_asked(cli, "target"))
        for (; n < LIST_ITEMS && targets[n] != NULL; n++)
            items[n] = (struct cli_item){targets[n]->name, targets[n]->runtime};
    else if (list_asked(cli, "emit"))
        for (; n < LIST_ITEMS && emits[n] != NULL; n++)
            items[n] = (struct cli_item){emits[n]->name, emits[n]->about};
    *listed = n > 0;
    return n > 0 ? cli_print_list(cli, items, n) : STATUS_OK;
}

/* Without --emit: the emitter called like the target, when there is one. */
static enum status read_emit(struct cli *cli, struct tune_order *out)
{
    const char *text = opt_value(&cli->opts, "emit");
    if (text == NULL) {
        out->emit[0] = out->target->name;
        out->nemit = emit_find(out->target->name) != NULL;
        return STATUS_OK;
    }
    TRY(WHERE(opt_split(text, &out->emit_storage, out->emit, TUNE_EMITS, &out->nemit), "--emit"));
    const char *names[16];
    size_t n = 0;
    for (; n < 16 && emits[n] != NULL; n++)
        names[n] = emits[n]->name;
    for (int i = 0; i < out->nemit; i++)
        if (emit_find(out->emit[i]) == NULL)
            return opt_unknown("--emit", out->emit[i], names, n);
    return STATUS_OK;
}

/* Pairs of query and kv heads; with one number of kv heads, or none, the query heads alone tell them apart. */
static void drop_repeated_heads(struct tune_order *out)
{
    int n = 0;
    for (int i = 0; i < out->nheads; i++) {
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen = seen || (out->heads[k] == out->heads[i] && (out->nkv == 1 || out->kv_heads[k] == out->kv_heads[i]));
        if (seen)
            continue;
        out->heads[n] = out->heads[i];
        if (out->nkv > 1)
            out->kv_heads[n] = out->kv_heads[i];
        n++;
    }
    out->nkv = out->nkv > 1 ? n : out->nkv;
    out->nheads = n;
}

static enum status read_lists(struct cli *cli, struct tune_order *out)
{
    const char *model = opt_value(&cli->opts, "model"), *heads = opt_value(&cli->opts, "heads");
    const char *kv = opt_value(&cli->opts, "kv-heads"), *seq = opt_value(&cli->opts, "seq");
    if ((model != NULL) == (heads != NULL))
        return HINT(FAIL(STATUS_USAGE,
                         model != NULL ? "--model and --heads contradict each other" : "tune needs --model or --heads"),
                    "sptune tune --model llama-3-8b --seq 32k; `sptune model list` names shipped models");
    if (seq == NULL)
        return HINT(FAIL(STATUS_USAGE, "tune needs --seq"), "--seq 32k, or a list: --seq 8k..128k*2");
    if (model != NULL && (kv != NULL || opt_given(&cli->opts, "head-dim")))
        return HINT(FAIL(STATUS_USAGE, "--kv-heads and --head-dim come from the model"),
                    "leave them out, or give --heads instead of --model");
    TRY(units_parse_list(seq, "--seq", 1, (int64_t)1 << 36, &out->seq, &out->nseq));
    out->nseq = opt_drop_repeats(out->seq, out->nseq);
    out->nheads = 1;
    if (model != NULL)
        return model_load(model, &out->model);
    out->from_heads = true;
    TRY(units_parse_list(heads, "--heads", 1, 1 << 16, &out->heads, &out->nheads));
    TRY(units_parse_list(kv != NULL ? kv : heads, "--kv-heads", 1, 1 << 16, &out->kv_heads, &out->nkv));
    if (out->nkv != 1 && out->nkv != out->nheads)
        return HINT(FAIL(STATUS_USAGE, "--kv-heads has %d entries for %d of --heads", out->nkv, out->nheads),
                    "give one for all, or one per entry");
    drop_repeated_heads(out);
    return opt_count(&cli->opts, "head-dim", 1, 1 << 12, 128, &out->head_dim);
}

static enum status name_cells(struct tune_order *out)
{
    int64_t cells = (int64_t)out->nseq * out->nheads;
    if (cells > 512)
        return HINT(FAIL(STATUS_USAGE, "%lld cells are too many for one command", (long long)cells),
                    "give shorter lists");
    out->ncells = (int)cells;
    out->cell_name = calloc((size_t)cells, sizeof *out->cell_name);
    if (out->cell_name == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %lld cells", (long long)cells);
    for (int i = 0; i < out->ncells; i++) {
        int h = i / out->nseq;
        char seq[UNITS_BUF];
        units_format_count(out->seq[i % out->nseq], seq);
        if (out->from_heads)
            text_print(out->cell_name[i], 64, "heads %lld, seq %s", (long long)out->heads[h], seq);
        else
            text_print(out->cell_name[i], 64, "seq %s", seq);
    }
    return STATUS_OK;
}

static enum status read_samples(struct cli *cli, struct tune_order *out)
{
    const char *text = opt_value(&cli->opts, "samples"), *files[TUNE_SAMPLES];
    char *storage = NULL;
    int n = 0;
    if (text == NULL)
        return STATUS_OK;
    enum status status = WHERE(opt_split(text, &storage, files, TUNE_SAMPLES, &n), "--samples");
    if (status == STATUS_OK)
        status = installed_read(files, n, out->target, &out->installed);
    free(storage);
    return status;
}

enum status tune_read(struct cli *cli, const struct topo *topo, struct tune_order *out)
{
    static const char *const efforts[] = {"estimate", "quick", "normal", "full"};
    static const int64_t budgets_s[] = {10, 60, 300, 1800};
    int64_t ranks = 0, world = 0, nodes = 0, gpus = 0;
    int effort = REQUEST_QUICK;
    *out = (struct tune_order){0};
    TRY(find_target(cli, &out->target));
    TRY(read_emit(cli, out));
    TRY(read_samples(cli, out));
    TRY(read_lists(cli, out));
    TRY(name_cells(out));
    TRY(ranks_device(cli, &out->devices));
    TRY(ranks_count(cli, topo, 0, &ranks));
    TRY(opt_count(&cli->opts, "world", 1, REQUEST_WORLD, 0, &world));
    TRY(opt_count(&cli->opts, "nodes", 1, REQUEST_WORLD, 0, &nodes));
    TRY(opt_count(&cli->opts, "gpus-per-node", 1, REQUEST_WORLD, 0, &gpus));
    TRY(opt_word(&cli->opts, "effort", efforts, 4, REQUEST_QUICK, &effort));
    out->ranks = (int)ranks;
    out->world = (int)world;
    out->nodes = (int)nodes;
    out->gpus_per_node = (int)gpus;
    out->effort = (enum request_effort)effort;
    TRY(opt_duration(&cli->opts, "budget", budgets_s[effort] * 1000 * 1000, &out->budget_us));
    const char *dir = opt_value(&cli->opts, "out");
    out->out_dir = dir != NULL ? dir : "./sptune-out";
    return STATUS_OK;
}

void tune_free(struct tune_order *order)
{
    free(order->emit_storage);
    installed_free(&order->installed);
    free(order->seq);
    free(order->heads);
    free(order->kv_heads);
    free(order->cell_name);
    *order = (struct tune_order){0};
}

/* Words of a searched field; `search` means all of them. Fills a list of enum values. */
static enum status read_space(struct cli *cli, const char *name, const char *const *words, int n, int first,
                              int *values, int *count)
{
    const char *text = opt_value(&cli->opts, name);
    unsigned mask = 0;
    *count = 0;
    if (text == NULL)
        return STATUS_OK;
    if (strcmp(text, "search") == 0)
        mask = (1u << n) - 1u;
    else
        TRY(opt_words(&cli->opts, name, words, n, &mask));
    for (int i = 0; i < n; i++)
        if ((mask & (1u << i)) != 0)
            values[(*count)++] = first + i;
    return STATUS_OK;
}

static enum status read_names(struct cli *cli, const char *name, char names[PLAN_LIST_MAX][PLAN_NAME], int *n)
{
    const char *text = opt_value(&cli->opts, name), *pieces[PLAN_LIST_MAX];
    char *storage = NULL;
    *n = 0;
    if (text == NULL)
        return STATUS_OK;
    TRY(WHERE(opt_split(text, &storage, pieces, PLAN_LIST_MAX, n), "--%s", name));
    for (int i = 0; i < *n; i++)
        text_print(names[i], PLAN_NAME, "%s", pieces[i]);
    free(storage);
    return STATUS_OK;
}

static enum status read_sizes(struct cli *cli, const char *name, int64_t max, int64_t *values, int *n)
{
    const char *text = opt_value(&cli->opts, name);
    char option[32];
    int64_t *list = NULL;
    *n = 0;
    if (text == NULL)
        return STATUS_OK;
    text_print(option, sizeof option, "--%s", name);
    TRY(units_parse_list(text, option, 1, max, &list, n));
    if (*n > PLAN_LIST_MAX) {
        free(list);
        return HINT(FAIL(STATUS_USAGE, "--%s has %d entries", name, *n), "at most %d", PLAN_LIST_MAX);
    }
    for (int i = 0; i < *n; i++)
        values[i] = list[i];
    free(list);
    return STATUS_OK;
}

static enum status read_search(struct cli *cli, struct request *out)
{
    static const char *const zero[] = {"0", "1", "2", "3"}, *const checkpointing[] = {"none", "full", "offload"};
    static const char *const offload[] = {"none", "optimizer", "params"}, *const loss[] = {"plain", "tiled", "fused"};
    static const char *const methods[] = {"ulysses", "ring", "split_gather"}; /* in the order of enum plan_method */
    struct plan_space *space = &out->space;
    int values[8], n = 0;
    int64_t sizes[PLAN_LIST_MAX] = {0};
    TRY(read_sizes(cli, "sp", 1 << 20, sizes, &n));
    space->nsp = n;
    for (int i = 0; i < n; i++)
        space->sp[i] = (int)sizes[i];
    out->sp_fixed = n == 1;
    TRY(read_sizes(cli, "micro-batch", 1 << 20, out->micro_batch, &out->nmicro));
    TRY(read_names(cli, "attention", out->classes, &out->nclasses));
    TRY(read_names(cli, "exchange", space->exchange, &space->nexchange));
    TRY(read_space(cli, "method", methods, 3, PLAN_METHOD_ULYSSES, values, &space->nmethod));
    for (int i = 0; i < space->nmethod; i++)
        space->method[i] = (enum plan_method)values[i];
    TRY(read_space(cli, "zero", zero, 4, 0, space->zero, &space->nzero));
    TRY(read_space(cli, "checkpointing", checkpointing, 3, 0, values, &space->ncheckpointing));
    for (int i = 0; i < space->ncheckpointing; i++)
        space->checkpointing[i] = (enum plan_checkpointing)values[i];
    TRY(read_space(cli, "offload", offload, 3, 0, values, &space->noffload));
    for (int i = 0; i < space->noffload; i++)
        space->offload[i] = (enum plan_offload)values[i];
    TRY(read_space(cli, "loss", loss, 3, 0, values, &space->nloss));
    for (int i = 0; i < space->nloss; i++)
        space->loss[i] = (enum plan_loss)values[i];
    return STATUS_OK;
}

/* --global-batch N sequences or Ntok tokens; the request counts tokens. */
static enum status read_batch(struct cli *cli, int64_t seq, int64_t *out_tokens)
{
    const char *text = opt_value(&cli->opts, "global-batch");
    *out_tokens = 0;
    if (text == NULL)
        return STATUS_OK;
    size_t len = strlen(text);
    if (len > 3 && strcmp(text + len - 3, "tok") == 0) {
        char number[48];
        text_print(number, sizeof number, "%.*s", (int)(len - 3), text);
        return units_parse_count(number, "--global-batch", 1, (int64_t)1 << 50, out_tokens);
    }
    int64_t sequences = 0;
    TRY(units_parse_count(text, "--global-batch", 1, (int64_t)1 << 30, &sequences));
    if (sequences > ((int64_t)1 << 60) / seq)
        return HINT(FAIL(STATUS_USAGE, "--global-batch of %lld sequences of %lld tokens is absurd",
                         (long long)sequences, (long long)seq),
                    "give fewer sequences");
    *out_tokens = sequences * seq;
    return STATUS_OK;
}

static enum status read_memory(struct cli *cli, const char *name, int64_t *out_bytes)
{
    const char *text = opt_value(&cli->opts, name);
    char option[32];
    if (text == NULL)
        return STATUS_OK;
    text_print(option, sizeof option, "--%s", name);
    TRY(units_parse_memory(text, option, out_bytes));
    if (*out_bytes > 0)
        return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "%.60s is no memory at all", text), "%s", option), "as in 80GiB");
}

/* A limit given by hand is that of the planned machine's devices: GPUs, unless --device cpu says otherwise. */
static enum dev_kind planned_device(struct cli *cli, const struct tune_order *order)
{
    bool cpu = strcmp(order->devices.word, "cpu") == 0;
    return opt_given(&cli->opts, "device-memory") && !cpu ? DEV_CUDA : order->devices.kind;
}

static enum status read_limits(struct cli *cli, const struct tune_order *order, struct request *out)
{
    static const char *const objectives[] = {"tokens-per-gpu", "step-time"};
    const char *use = opt_value(&cli->opts, "use-memory");
    int objective = 0;
    TRY(read_memory(cli, "device-memory", &out->device_memory_bytes));
    if (opt_given(&cli->opts, "device-memory"))
        text_print(out->device_memory_from, sizeof out->device_memory_from, "--device-memory");
    out->planned = planned_device(cli, order);
    if (out->planned != order->devices.kind)
        request_assume(out, "planned_device", dev_kind_name(out->planned), "as --device-memory is of GPUs");
    TRY(read_memory(cli, "host-memory", &out->host_memory_bytes));
    if (use != NULL)
        TRY(units_parse_percent(use, "--use-memory", &out->use_memory));
    if (out->use_memory <= 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "%.40s leaves nothing to measure with", use), "--use-memory"),
                    "as in 50%%");
    TRY(opt_word(&cli->opts, "objective", objectives, 2, 0, &objective));
    out->objective = (enum request_objective)objective;
    return STATUS_OK;
}

enum status tune_request(struct cli *cli, const struct tune_order *order, int cell, const struct topo *topo,
                         struct request *out)
{
    int64_t seq = order->seq[cell % order->nseq];
    request_init(out);
    out->target = order->target;
    out->installed = order->installed.n > 0 ? &order->installed : NULL;
    out->topo = topo;
    out->dev = order->devices.kind;
    out->dev_memory_bytes = order->devices.memory_bytes;
    out->ranks = order->ranks;
    out->world = order->world;
    out->nodes = order->nodes;
    out->ranks_per_host = order->gpus_per_node;
    out->effort = order->effort;
    out->budget_us = order->budget_us / order->ncells;
    out->seed = cli->seed;
    out->replay = opt_given(&cli->opts, "replay");
    out->oversubscribe = opt_given(&cli->opts, "oversubscribe");
    out->model = order->model;
    if (order->from_heads) {
        int h = cell / order->nseq;
        TRY(model_from_heads((int)order->heads[h], (int)order->kv_heads[order->nkv == 1 ? 0 : h], (int)order->head_dim,
                             &out->model));
    }
    problem_from_model(&out->model, seq, 1, &out->problem); /* request_complete knows how many */
    const char *dtype = opt_value(&cli->opts, "dtype"), *docs = opt_value(&cli->opts, "docs");
    out->problem.dtype = DTYPE_BF16;
    if (dtype != NULL)
        TRY(dtype_parse(dtype, "--dtype", &out->problem.dtype));
    if (docs != NULL)
        TRY(problem_set_docs(&out->problem, docs));
    TRY(read_search(cli, out));
    TRY(read_batch(cli, seq, &out->global_batch_tokens));
    TRY(read_limits(cli, order, out));
    return request_complete(out);
}
