/* cli/train_options.c -- what `train` was asked, read from its options, and where they are silent from a recommendation's plan. */
#include "cli/train_options.h"

#include "base/log.h"
#include "base/units.h"
#include "cli/train_screen.h"
#include "cli/train_sizes.h"
#include "kernels/attention.h"
#include "sp/exchange.h"
#include "sp/work.h"
#include "train/decoder.h"
#include "train/layout.h"

#include <stdlib.h>
#include <string.h>

const struct opt train_options[] = {
    {"model", 0, OPT_VALUE, "CONFIG", "config.json, its directory, a shipped name or a cached hub id [toy]"},
    {"data", 0, OPT_VALUE, "FILE", "what to train on [this project's sources]"},
    {"tokens", 0, OPT_VALUE, "FORM", "what FILE holds: bytes, u16 or u32 token ids [by its name, else bytes]"},
    {"separator", 0, OPT_VALUE, "TOKENS",
     "pack documents that end with it: \"\\n\\n\", or ids with commas [not packed]"},
    {"plan", 0, OPT_VALUE, "FILE",
     "a recommendation.json of tune, for what no option says: model, length, type, plan and ranks"},
    {"method", 0, OPT_VALUE, "NAME", "how a sequence is split: ulysses, ring, split_gather or ulysses+ring [ulysses]"},
    {"ring", 0, OPT_VALUE, "R", "of ulysses+ring: ranks that pass keys and values round [2]"},
    {"sp", 0, OPT_VALUE, "P", "ranks that share a sequence [1; with no size given and no model 2]"},
    {"tp", 0, OPT_VALUE, "T", "tensor parallelism: ranks that cut layers, for each of sp; P x T share a sequence [1]"},
    {"dp-shard", 0, OPT_VALUE, "D",
     "groups (of sp x tp ranks) that shard parameters with each other [the ranks that remain]"},
    {"dp-replicate", 0, OPT_VALUE, "R", "copies of the sharded parameters [1]"},
    {"zero", 0, OPT_VALUE, "STAGE", "what ZeRO shards: 0 nothing, 1 optimizer, 2 gradients too, 3 weights too [3]"},
    {"seq", 0, OPT_VALUE, "LIST", "tokens of a sequence; of several one is drawn for each step [256; of a model 4096]"},
    {"micro-batch", 0, OPT_VALUE, "B", "sequences of a group at a time [1; of toy 8]"},
    {"accumulate", 0, OPT_VALUE, "A", "micro-steps of an optimizer step [1]"},
    {"checkpointing", 0, OPT_VALUE, "WORD",
     "none, full: layers run again in backward, or offload: and what goes between them waits in host memory [full]"},
    {"offload", 0, OPT_VALUE, "WORD",
     "none, or optimizer: its states are in host memory and pass by at the step [none]"},
    {"loss", 0, OPT_VALUE, "WORD", "plain, or tiled: a tile of logits at a time [tiled]"},
    {"mlp", 0, OPT_VALUE, "WORD", "plain, or tiled: as many rows at a time as the model is wide [plain]"},
    {"exchange", 0, OPT_VALUE, "NAME",
     "`bench exchange --exchange list` names them [direct where it works, else packed; on GPUs push, else nccl]"},
    {"attention", 0, OPT_VALUE, "NAME", "kernel [cpu; cudnn where it can, else flash2]"},
    {"dtype", 0, OPT_VALUE, "TYPE", "of weights and activations [fp32 on CPUs, bf16 on GPUs]"},
    {"steps", 0, OPT_VALUE, "N", "optimizer steps [100; of a model 20]; 0 with --sample"},
    {"epochs", 0, OPT_VALUE, "N", "times through the data at most [1000]"},
    {"lr", 0, OPT_VALUE, "RATE", "after warm-up, then a cosine to a tenth of it [3e-3; of a model 3e-4]"},
    {"warmup", 0, OPT_VALUE, "N", "steps [a tenth of them]"},
    {"clip", 0, OPT_VALUE, "NORM", "of the gradient; 0: none [1]"},
    {"decay", 0, OPT_VALUE, "RATE", "of matrices, per step times the rate [0.1]"},
    {"eval-every", 0, OPT_VALUE, "N", "loss on rows that are not trained on, each N steps [never]"},
    {"loss-norm", 0, OPT_VALUE, "WORD",
     "tokens, or group: a mean for each group, as HF Trainer's recipe gives [tokens]"},
    {"from", 0, OPT_VALUE, "FILE", "initial weights: safetensors with HuggingFace's names, or their directory [drawn]"},
    {"sample", 0, OPT_VALUE, "N",
     "draw N tokens in the end, after the first of the data; with --steps 0 at once [none]"},
    {"temperature", 0, OPT_VALUE, "T", "of --sample; 0: always the likeliest token [0.8]"},
    {"peak", 0, OPT_VALUE, "TFLOPS",
     "what one GPU's datasheet says of the dtype: the share of it is shown (MFU); on CPUs in place of the measured "
     "rate"},
    {"plot", 0, OPT_VALUE, "FILE", "the loss by step as a picture, .svg or .png, by gnuplot"},
    {"save", 0, OPT_VALUE, "DIR", "checkpoints: the last step's, and with --every more"},
    {"every", 0, OPT_VALUE, "N", "steps between checkpoints [none]"},
    {"resume", 0, OPT_FLAG, NULL, "go on from the last checkpoint in --save DIR"},
    {"verify", 0, OPT_FLAG, NULL, "are loss and gradients those of the unsharded run? nothing is trained"},
    {"ranks", 0, OPT_VALUE, "N", "processes started here [the launcher's, else the plan's, else the GPUs, else 2]"},
    {"device", 0, OPT_VALUE, "KIND", "auto, cpu or cuda [auto]"},
    {"oversubscribe", 0, OPT_FLAG, NULL, "ranks may share a GPU: results hold, times mean nothing [one rank a GPU]"},
    {"threads", 0, OPT_VALUE, "N", "CPU threads of each rank's kernels [its share of the CPUs]"},
    {"transport", 0, OPT_VALUE, "NAME",
     "a transport (ucx, nccl), or a part of UCX: shm, sysv or tcp [the best that works]"},
    {"jsonl", 0, OPT_FLAG, NULL, "one JSON row per step, as it ends, and one of the run"},
    {0},
};

static enum status real(const struct cli *cli, const char *name, double fallback, double *out)
{
    const char *text = opt_value(&cli->opts, name);
    char *end;
    *out = fallback;
    if (text == NULL)
        return STATUS_OK;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value <= 1e6))
        return HINT(FAIL(STATUS_USAGE, "--%s is '%s'", name, text), "a number from 0 to 1e6, such as 3e-4");
    *out = value;
    return STATUS_OK;
}

static enum status read_seqs(const struct cli *cli, int64_t fallback, struct trainer_options *o)
{
    const char *text = opt_value(&cli->opts, "seq");
    int64_t *values = NULL;
    int n = 0;
    o->n_seqs = 1;
    o->seqs[0] = fallback;
    if (text == NULL)
        return STATUS_OK;
    TRY(units_parse_list(text, "--seq", 1, (int64_t)1 << 40, &values, &n));
    n = opt_drop_repeats(values, n);
    if (n > TRAINER_SEQS) {
        free(values);
        return FAIL(STATUS_USAGE, "--seq: %d lengths; at most %d", n, TRAINER_SEQS);
    }
    memcpy(o->seqs, values, (size_t)n * sizeof *values);
    o->n_seqs = n;
    free(values);
    return STATUS_OK;
}

static enum status path_of(const struct cli *cli, const char *name, char out[TRAINER_PATH])
{
    const char *path = opt_value(&cli->opts, name);
    if (path != NULL && path[0] == '\0')
        return HINT(FAIL(STATUS_USAGE, "--%s is empty", name), "a path, or leave it out");
    path = path != NULL ? path : "";
    if (strlen(path) >= TRAINER_PATH)
        return FAIL(STATUS_USAGE, "--%s: a path of %zu bytes; at most %d", name, strlen(path), TRAINER_PATH - 1);
    text_print(out, TRAINER_PATH, "%s", path);
    return STATUS_OK;
}

static enum status read_data(const struct cli *cli, struct trainer_options *o)
{
    const char *path = opt_value(&cli->opts, "data");
    const char *form = opt_value(&cli->opts, "tokens"), *separator = opt_value(&cli->opts, "separator");
    TRY(path_of(cli, "data", o->data));
    TRY(data_form_parse(form != NULL ? form : "auto", "--tokens", path != NULL ? path : "", &o->form));
    return separator != NULL ? data_separator_parse(separator, "--separator", o->form, &o->separator) : STATUS_OK;
}

static enum status check_verify(const struct opt_set *opts)
{
    static const char *const trains[] = {"sample", "plot", "eval-every"};
    if (opt_given(opts, "save"))
        return HINT(FAIL(STATUS_USAGE, "--verify trains and saves nothing"),
                    "without --save; --from DIR/step-N takes the weights of a checkpoint");
    for (size_t i = 0; i < sizeof trains / sizeof *trains; i++)
        if (opt_given(opts, trains[i]))
            return HINT(FAIL(STATUS_USAGE, "--verify trains nothing that --%s could be of", trains[i]),
                        "one of the two");
    return STATUS_OK;
}

/* What the loop needs; sizes come later. */
static enum status read_schedule(const struct cli *cli, bool toy, struct run_options *out)
{
    struct trainer_options *o = &out->trainer;
    const struct opt_set *opts = &cli->opts;
    TRY(opt_count(opts, "sample", 1, 1 << 20, 0, &out->sample));
    TRY(opt_count(opts, "steps", 0, INT64_C(1) << 40, toy ? 100 : 20, &o->steps));
    TRY(real(cli, "temperature", 0.8, &out->temperature));
    out->trains = o->steps > 0;
    if (!out->trains && out->sample == 0)
        return HINT(FAIL(STATUS_USAGE, "--steps 0 trains nothing"), "1 or more, or --sample N as well");
    TRY(opt_count(opts, "epochs", 1, 1000000, 1000, &o->epochs));
    TRY(real(cli, "lr", toy ? 3e-3 : 3e-4, &o->lr));
    TRY(opt_count(opts, "warmup", 0, INT64_C(1) << 40, -1, &o->warmup));
    TRY(real(cli, "clip", 1, &o->clip));
    TRY(real(cli, "decay", 0.1, &o->decay));
    TRY(opt_count(opts, "eval-every", 1, INT64_C(1) << 40, 0, &out->eval_every));
    TRY(opt_count(opts, "every", 1, INT64_C(1) << 40, 0, &out->save_every));
    if ((out->save_every > 0 || opt_given(opts, "resume")) && opt_value(opts, "save") == NULL)
        return HINT(FAIL(STATUS_USAGE, "--%s without --save", out->save_every > 0 ? "every" : "resume"),
                    "--save DIR names where");
    TRY(path_of(cli, "save", o->save));
    TRY(path_of(cli, "from", o->from));
    o->resume = opt_given(opts, "resume");
    if (opt_given(opts, "verify"))
        TRY(check_verify(opts));
    if (opt_value(opts, "loss-norm") != NULL)
        TRY(loss_norm_parse(opt_value(opts, "loss-norm"), "--loss-norm", &o->norm));
    out->eval_steps = 4;
    o->min_lr = o->lr / 10;
    o->beta1 = 0.9;
    o->beta2 = 0.95;
    o->eps = 1e-8;
    o->seed = cli->seed;
    o->timed = opt_given(opts, "verbose");
    out->verify = opt_given(opts, "verify");
    return opt_given(opts, "plot") ? train_plot_check(opt_value(opts, "plot")) : STATUS_OK;
}

static enum status read_plan(const struct cli *cli, bool toy, const struct train_plan *planned, struct plan *plan)
{
    static const char *const checkpointing[] = {"none", "full", "offload"}, *const tiles[] = {"plain", "tiled"},
                             *const offload[] = {"none", "optimizer"};
    const char *methods[PLAN_METHOD_COUNT];
    const struct opt_set *opts = &cli->opts;
    int64_t zero, batch, accumulate, ring;
    int picked;
    plan_default(plan);
    plan->checkpointing = PLAN_CHECKPOINTING_FULL;
    plan->loss = PLAN_LOSS_TILED;
    plan->micro_batch = toy ? 8 : 1;
    if (planned->file != NULL)
        *plan = planned->plan;
    for (int m = 0; m < PLAN_METHOD_COUNT; m++)
        methods[m] = plan_method_name((enum plan_method)m);
    TRY(opt_word(opts, "method", methods, PLAN_METHOD_COUNT, (int)plan->method, &picked));
    plan->method = (enum plan_method)picked;
    if (opt_given(opts, "method") && plan->method != PLAN_METHOD_ULYSSES)
        plan->chunks = 1; /* of the file's plan: the others take no more */
    if (opt_given(opts, "ring") && plan->method != PLAN_METHOD_ULYSSES_RING)
        return HINT(FAIL(STATUS_USAGE, "--ring with method %s", plan_method_name(plan->method)),
                    "it is of ulysses+ring; in method ring all of --sp are one");
    int fallback = plan->method != PLAN_METHOD_ULYSSES_RING ? 1 : plan->ring > 1 ? plan->ring : 2;
    TRY(opt_count(opts, "ring", 1, 1 << 16, fallback, &ring));
    plan->ring = (int)ring;
    if (opt_given(opts, "checkpointing")) {
        TRY(opt_word(opts, "checkpointing", checkpointing, 3, 1, &picked));
        plan->checkpointing = (enum plan_checkpointing)picked;
    }
    if (opt_given(opts, "offload")) {
        TRY(opt_word(opts, "offload", offload, 2, 0, &picked));
        plan->offload = (enum plan_offload)picked;
    }
    if (opt_given(opts, "loss")) {
        TRY(opt_word(opts, "loss", tiles, 2, 1, &picked));
        plan->loss = picked == 0 ? PLAN_LOSS_PLAIN : PLAN_LOSS_TILED;
    }
    TRY(opt_word(opts, "mlp", tiles, 2, (int)plan->mlp, &picked));
    plan->mlp = (enum plan_mlp)picked;
    if (trainer_cannot(plan)[0] != '\0')
        return WHERE(HINT(FAIL(STATUS_USAGE, "%s", trainer_cannot(plan)),
                          plan->offload == PLAN_OFFLOAD_PARAMS ? "--offload none, or optimizer, takes its place"
                                                               : "--loss plain, or tiled, takes its place"),
                     "--plan %s", planned->file);
    TRY(opt_count(opts, "zero", 0, 3, plan->zero_stage, &zero));
    TRY(opt_count(opts, "micro-batch", 1, 1 << 20, plan->micro_batch, &batch));
    TRY(opt_count(opts, "accumulate", 1, 1 << 20, plan->accumulate, &accumulate));
    plan->zero_stage = (int)zero;
    plan->micro_batch = batch;
    plan->accumulate = accumulate;
    return STATUS_OK;
}

enum status train_options_read(struct cli *cli, struct train_plan *planned, struct run_options *out)
{
    const char *model = opt_value(&cli->opts, "model"), *file = opt_value(&cli->opts, "plan");
    struct trainer_options *o = &out->trainer;
    *planned = (struct train_plan){.file = NULL};
    if (file != NULL)
        TRY(train_plan_read(file, planned));
    bool toy = model == NULL && planned->model[0] == '\0';
    TRY(model == NULL && !toy ? train_plan_model(planned, &o->model) : model_load(toy ? "toy" : model, &o->model));
    TRY(read_data(cli, o));
    TRY(read_schedule(cli, toy, out));
    TRY(read_plan(cli, toy, planned, &o->plan));
    return read_seqs(cli, planned->seq > 0 ? planned->seq : toy ? 256 : 4096, o);
}

enum status train_options_peak(const struct cli *cli, double *flops)
{
    double peak_tflops;
    TRY(real(cli, "peak", 0, &peak_tflops));
    if (opt_given(&cli->opts, "peak") && peak_tflops < 1e-6)
        return HINT(FAIL(STATUS_USAGE, "--peak is '%s'", opt_value(&cli->opts, "peak")),
                    "TFLOP/s of a datasheet, such as 989 of an H200 in bf16");
    *flops = peak_tflops * 1e12;
    return STATUS_OK;
}

enum { NAMES = 32 };

/* NULL: no plan names one that this device has. */
static const struct attention *planned_kernel(const struct train_plan *planned, enum dev_kind device)
{
    const struct attention *kernel = planned->file != NULL ? attention_find(planned->plan.attention) : NULL;
    return kernel != NULL && kernel->dev == device ? kernel : NULL;
}

/* In this build, and its library on this host? */
static bool has_cudnn(void)
{
    const struct attention *cudnn = attention_find("cudnn");
    return cudnn != NULL && cudnn->version()[0] != '\0';
}

/* cudnn has no fp32, and no documents of which a call sees queries or keys alone, as rings have them. */
static const char *usual_kernel(const struct trainer_options *o, enum dev_kind device)
{
    if (device == DEV_CPU)
        return "cpu";
    if (o->dtype == DTYPE_FP32)
        return "gpu_reference";
    if (o->separator.n > 0 && plan_ring(&o->plan) > 1)
        return "flash2";
    if (has_cudnn())
        return "cudnn";
    log_info("attention flash2: there is no cuDNN here");
    return "flash2";
}

static enum status kernel(const struct cli *cli, const struct train_plan *of_plan, enum dev_kind device,
                          struct trainer_options *o)
{
    const char *name = opt_value(&cli->opts, "attention"), *names[NAMES];
    size_t n = 0;
    struct plan *plan = &o->plan;
    const struct attention *planned = planned_kernel(of_plan, device);
    if (name == NULL)
        name = planned != NULL ? planned->name : usual_kernel(o, device);
    for (int i = 0; attentions[i] != NULL && n < NAMES; i++)
        if (attentions[i]->dev == device)
            names[n++] = attentions[i]->name;
    if (attention_find(name) == NULL)
        return opt_unknown("--attention", name, names, n);
    text_print(plan->attention, sizeof plan->attention, "%s", name);
    return STATUS_OK;
}

/* The fastest one wherever ranks reach each other's memory, and what takes its place where they do not. */
static const char *const usual_exchange[][2] = {[DEV_CPU] = {"direct", "packed"}, [DEV_CUDA] = {"push", "nccl"}};

static enum status exchange(const struct cli *cli, enum dev_kind device, struct plan *plan)
{
    const char *name = opt_value(&cli->opts, "exchange"), *names[NAMES];
    size_t n = 0;
    const char *fixed = plan_method_exchange(plan->method);
    if (fixed != NULL && name != NULL && strcmp(name, fixed) != 0)
        return HINT(FAIL(STATUS_USAGE, "--exchange %s: method %s moves data by %s", name,
                         plan_method_name(plan->method), fixed),
                    "leave it out");
    if (fixed != NULL) {
        text_print(plan->exchange, sizeof plan->exchange, "%s", fixed);
        return STATUS_OK;
    }
    const struct exchange *planned = opt_given(&cli->opts, "plan") ? exchange_find(plan->exchange) : NULL;
    if (name == NULL)
        name = planned != NULL && planned->dev == device ? planned->name : usual_exchange[device][0];
    for (int i = 0; exchanges[i] != NULL && n < NAMES; i++)
        if (exchanges[i]->dev == device)
            names[n++] = exchanges[i]->name;
    if (exchange_find(name) == NULL)
        return opt_unknown("--exchange", name, names, n);
    text_print(plan->exchange, sizeof plan->exchange, "%s", name);
    return STATUS_OK;
}

/* Said before any rank is started. */
static enum status trainable(const struct trainer_options *o)
{
    struct layout layout;
    TRY(layout_create(&o->model, o->dtype, &layout));
    layout_free(&layout);
    if (o->model.dropout > 0)
        log_warn("%s: its attention_dropout of %g is left out: there is none here, so that every split has the same "
                 "gradients",
                 o->model.name, o->model.dropout);
    return STATUS_OK;
}

enum status train_options_plan(struct cli *cli, const struct train_plan *planned, int ranks, int64_t ranks_most,
                               enum dev_kind device, struct run_options *out)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const enum dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    struct trainer_options *o = &out->trainer;
    int picked, usual = device == DEV_CPU ? 0 : 1;
    for (int i = 0; i < 3 && planned->seq > 0; i++)
        usual = types[i] == planned->dtype ? i : usual;
    TRY(opt_word(&cli->opts, "dtype", dtypes, 3, usual, &picked));
    o->dtype = types[picked];
    TRY(trainable(o));
    TRY(train_sizes_read(cli, ranks, &o->plan));
    TRY(kernel(cli, planned, device, o));
    TRY(exchange(cli, device, &o->plan));
    TRY(train_sizes_check(cli, ranks, ranks_most, device, o));
    train_plan_compare(planned, o);
    return STATUS_OK;
}

/* What the exchange of a layer holds on a rank, of the longest rows; 0: nothing is exchanged. */
static enum status layer_bytes(const struct trainer_options *o, int ranks, int64_t *out)
{
    struct problem problem;
    struct plan plan = o->plan;
    trainer_longest(o, ranks, &problem);
    TRY(plan_cut(&problem, &plan));
    *out = plan_head_ranks(&plan) > 1 ? work_exec_bytes(&problem, &plan) : 0;
    return STATUS_OK;
}

/* Where nobody names one: whether cudnn can is known once there is a device. */
static void kernel_finish(struct ranks *ranks, const struct train_plan *planned, struct trainer_options *o)
{
    const struct opt_set *opts = &ranks->cli->opts;
    struct problem problem;
    bool named = opt_given(opts, "attention") || planned_kernel(planned, dev_kind_of(ranks->env.dev)) != NULL;
    if (named || strcmp(o->plan.attention, "cudnn") != 0)
        return;
    trainer_longest(o, comm_size(ranks->env.world), &problem);
    struct verdict verdict = plan_check(&problem, &o->plan, DEV_CUDA);
    if (verdict.rule != RULE_KERNEL_CANNOT)
        return;
    log_info("attention flash2: %s", verdict.why);
    text_print(o->plan.attention, sizeof o->plan.attention, "flash2");
}

enum status train_options_finish(struct ranks *ranks, const struct train_plan *planned, struct run_options *options)
{
    struct trainer_options *o = &options->trainer;
    struct plan *plan = &o->plan;
    kernel_finish(ranks, planned, o);
    const struct exchange *exchange = exchange_find(plan->exchange);
    int64_t bytes = 0;
    if (exchange == NULL) /* a method moves data in a way of its own */
        return STATUS_OK;
    TRY(layer_bytes(o, comm_size(ranks->env.world), &bytes));
    if (bytes == 0)
        return STATUS_OK;
    struct verdict verdict =
        bench_exchange_verdict(&ranks->env, exchange->name, bytes, decoder_sets(plan, o->model.layers));
    const char *instead = usual_exchange[exchange->dev][1];
    if (verdict_ok(&verdict))
        return STATUS_OK;
    if (opt_given(&ranks->cli->opts, "exchange"))
        return HINT(WHERE(FAIL(STATUS_UNSUPPORTED, "%s", verdict.why), "--exchange %s", exchange->name),
                    "leave it out, and %s takes its place", instead);
    log_info("exchange %s: %s", instead, verdict.why);
    text_print(plan->exchange, sizeof plan->exchange, "%s", instead);
    return STATUS_OK;
}
