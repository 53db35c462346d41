/* cli/help.c -- `help`, `VERB --help`, `--version`, and the topics. */
#include "cli/help.h"

#include "base/version.h"

#include <string.h>

struct topic {
    const char *name, *about, *text;
};

static const struct topic topics[] = {
    {"units", "how numbers are written",
     "Tokens, heads, message bytes: exact integers, or k M G = steps of 1024; 128k is\n"
     "131,072. Memory says which GB it means: 80GiB (2^30) or 80GB (10^9).\n"
     "Times: 250ms 10s 5m 1h. Lists take commas and ranges: 1k,4k | 1k..64k*2 (times\n"
     "two) | 2..8+2. GB/s is 10^9 bytes per second. JSON keeps _us _bytes _GBps.\n"},
    {"sizes", "what sp_size, dp_shard_size and dp_replicate_size mean",
     "sp_size P: ranks that share one sequence; each holds S/P tokens. P is legal when\n"
     "heads % P == 0, and kv_heads % P == 0 or P % kv_heads == 0, and P divides the\n"
     "world. With P > kv_heads each KV head is copied P/kv_heads times.\n"
     "dp_replicate_size * dp_shard_size * tp_size * sp_size = processes.\n"
     "With DeepSpeed sequence parallelism ZeRO shards over all processes, sp ranks\n"
     "included, so only the product of the two dp sizes matters there.\n"
     "Global batch in sequences = micro_batch * accumulate * world / sp_size.\n"},
    {"synth", "machines described in one line",
     "synth:HOSTSxGPUSxNAME,option=value,...   or synth:GPUSxNAME\n"
     "  nvlink=18              every pair through switches, 18 links per GPU\n"
     "  nvlink=4,pairs=0-4,1-5 only these pairs, 4 links each\n"
     "  numa=2  mem=141GiB  hostmem=2TiB  nic=8x400G (Gbit/s)  cpus=96\n"
     "synth:4xcpu             a host with 4 cores and no device\n"
     "Example: sptune topo --from synth:2x8xH200,nvlink=18,nic=8x400G\n"},
    {"exit", "exit codes",
     "0  done\n"
     "1  a check failed, nothing fits, a regression or a newly failing row\n"
     "2  wrong usage or input, or hardware or a library asked for by name is absent\n"
     "3  not enough or not comparable data, or another sptune is measuring here\n"
     "4  the machine failed underneath: a rank died, a device error, a timeout, a full\n"
     "   disk\n"
     "130, 143  interrupted; the best answer held was printed\n"
     "141  who read the rows of bench --jsonl has gone (... | head); nothing is said,\n"
     "   the rows are kept, and the same command with --resume goes on\n"},
    {"env", "environment variables",
     "SPTUNE_STORE      the result store (--store wins)\n"
     "XDG_DATA_HOME     where the default store lives (sptune/results.db)\n"
     "HF_HUB_CACHE, HF_HOME   where hub configurations are looked up; none is fetched\n"
     "LC_ALL, LANG      tables are ASCII when the locale is not UTF-8\n"
     "NO_COLOR          respected: there is no colour\n"
     "SPTUNE_NCCL, SPTUNE_UCX (libucp), SPTUNE_CUDNN, SPTUNE_CUBLAS (libcublasLt),\n"
     "SPTUNE_NVML\n"
     "                  files to load instead of the libraries that the system finds\n"
     "SPTUNE_EXCHANGE_BLOCKS   blocks of exchanges push and pull [by size]\n"
     "SPTUNE_RANK, SPTUNE_SIZE, SPTUNE_ROOT (host:port), SPTUNE_TOKEN (32 hex digits)\n"
     "                  start the ranks yourself: all four, on every rank. Open MPI's\n"
     "                  mpirun and Slurm's srun are seen without; of several hosts\n"
     "                  they need SPTUNE_ROOT and SPTUNE_TOKEN\n"
     "NCCL_*, UCX_*, OMP_*, CUDA_VISIBLE_DEVICES and SPTUNE_* are recorded with\n"
     "results, the token apart; no other variable is stored.\n"},
    {"ulysses", "the method in ten lines",
     "Each of P ranks holds S/P tokens with all heads. Before attention an all-to-all\n"
     "turns sequence shards into head shards: every rank then has all S tokens for 1/P\n"
     "of the heads and runs plain attention. A second one turns the output back.\n"
     "Backward is the mirror image. Per rank and layer, forward, the exchanges carry\n"
     "  S/P * B * D * bytes * (2*heads + 2*max(kv_heads, P)),\n"
     "of which (P-1)/P leaves the rank. Attention work per rank does not change with P\n"
     "at equal tokens; what P buys is memory (activations, logits) and a smaller\n"
     "global batch, and what it costs is the exchange.\n"},
};

static const char noun[] = "help";

enum status help_short(struct cli *cli)
{
    return cli_print_text(cli, noun,
                          "sptune: how to split GPUs between sequence and data parallelism\n"
                          "\n"
                          "  sptune tune --model llama-3-8b --seq 32k   measure here and recommend\n"
                          "  sptune topo                                what this machine is\n"
                          "  sptune model llama-3-8b --world 8          which sp_size values are legal\n"
                          "\n"
                          "sptune help lists everything.\n");
}

static enum status show(struct cli *cli, struct text *out)
{
    enum status status = text_status(out);
    if (status == STATUS_OK)
        status = cli_print_text(cli, noun, text_get(out));
    text_free(out);
    return status;
}

static void add_line(struct text *out, const char *name, const char *about)
{
    enum { COLUMN = 11 };
    text_add(out, "  %-*s", COLUMN - 2, name);
    opt_wrap(out, about, COLUMN, COLUMN);
}

enum status help_all(struct cli *cli)
{
    struct text out = {0};
    text_add(&out, "usage: sptune VERB [options]\n\n");
    for (int i = 0; verbs[i] != NULL; i++)
        add_line(&out, verbs[i]->name, verbs[i]->about);
    text_add(&out, "\ntopics (sptune help TOPIC):\n");
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++)
        add_line(&out, topics[i].name, topics[i].about);
    text_add(&out, "\nsptune VERB --help lists a verb's options; sptune --version.\n");
    return show(cli, &out);
}

enum status help_version(struct cli *cli)
{
    char line[96];
    text_print(line, sizeof line, "sptune %s (build %s)\n", SPTUNE_VERSION, version_build());
    return cli_print_text(cli, "version", line);
}

enum status help_verb(struct cli *cli, const struct verb *verb)
{
    struct text out = {0};
    text_add(&out, "usage: sptune %s ", verb->name);
    opt_wrap(&out, verb->usage, 15 + (int)strlen(verb->name), 9);
    text_add(&out, "\n");
    opt_wrap(&out, verb->help, 0, 0);
    for (int t = 0; verb->tables[t] != NULL; t++) {
        text_add(&out, "%s", t == 0 ? "\noptions:\n" : "\n");
        opt_help(verb->tables[t], &out);
    }
    text_add(&out, "\nof every verb:\n");
    opt_help(cli_common, &out);
    return show(cli, &out);
}

static enum status run(struct cli *cli)
{
    if (cli->opts.nargs == 0)
        return help_all(cli);
    const char *word = cli->opts.args[0];
    const struct verb *verb = verb_find(word);
    if (verb != NULL)
        return help_verb(cli, verb);
    const char *names[32];
    size_t n = 0;
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++) {
        if (strcmp(topics[i].name, word) == 0)
            return cli_print_text(cli, noun, topics[i].text);
        names[n++] = topics[i].name;
    }
    for (int i = 0; verbs[i] != NULL; i++)
        names[n++] = verbs[i]->name;
    const char *near = text_nearest(word, names, n);
    enum status status = FAIL(STATUS_USAGE, "no verb or topic '%.40s'", word);
    return near != NULL ? HINT(status, "did you mean %s? `sptune help` lists both", near)
                        : HINT(status, "`sptune help` lists both");
}

static const struct opt *const tables[] = {NULL};

const struct verb verb_help = {
    .name = "help",
    .usage = "[VERB | TOPIC]",
    .about = "help on a verb or a topic",
    .help = "Without an argument: every verb and topic.",
    .tables = tables,
    .max_args = 1,
    .run = run,
};
