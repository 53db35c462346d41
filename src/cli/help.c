/* cli/help.c -- `help`, `VERB --help`, `--version`, and the topics. */
#include "cli/help.h"

#include "base/version.h"

#include <stdio.h>
#include <string.h>

struct topic {
    const char *name, *about, *text;
};

static const struct topic topics[] = {
    {"units", "how numbers are written",
     "Tokens, heads and message bytes: exact integers, or k M G = 1024 steps; 128k is\n"
     "131,072. Memory says which GB it means: 80GiB (2^30) or 80GB (10^9). Times: 250ms\n"
     "10s 5m 1h. Lists take commas and ranges: 1k,4k | 1k..64k*2 (times two) | 2..8+2.\n"
     "GB/s is 10^9 bytes per second. JSON keeps _us _bytes _GBps.\n"},
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
     "4  the machine failed underneath: a rank died, a device error, a timeout, a full disk\n"
     "130, 143  interrupted; the best answer held was printed\n"},
    {"env", "environment variables",
     "SPTUNE_STORE     the result store (--store wins)\n"
     "NO_COLOR         no colour\n"
     "XDG_DATA_HOME    where the default store lives (sptune/results.db)\n"
     "HF_HUB_CACHE, HF_HOME   where hub configurations are looked up; nothing is fetched\n"
     "NCCL_*, UCX_*, OMP_*, CUDA_VISIBLE_DEVICES and SPTUNE_* are recorded with results;\n"
     "no other variable is stored.\n"},
    {"ulysses", "the method in ten lines",
     "Each of P ranks holds S/P tokens with all heads. Before attention an all-to-all\n"
     "turns sequence shards into head shards: every rank then has all S tokens for 1/P\n"
     "of the heads and runs plain attention. A second all-to-all turns the output back.\n"
     "Backward is the mirror image. Per rank and layer, forward, the exchanges carry\n"
     "  S/P * B * D * bytes * (2*heads + 2*max(kv_heads, P)),\n"
     "of which (P-1)/P leaves the rank. Attention work per rank does not change with P\n"
     "at equal tokens; what P buys is memory (activations, logits) and a smaller global\n"
     "batch, and what it costs is the exchange.\n"},
};

static enum status help_topic(const struct topic *topic)
{
    return cli_print(topic->text);
}

enum status help_short(void)
{
    return cli_print("sptune: how to split GPUs between sequence and data parallelism for long sequences\n"
                     "\n"
                     "  sptune tune --model llama-3-8b --seq 32k   measure here and recommend\n"
                     "  sptune topo                                what this machine is\n"
                     "  sptune model llama-3-8b --world 8          which sp_size values are legal\n"
                     "\n"
                     "sptune help lists everything.\n");
}

enum status help_all(void)
{
    struct text out = {0};
    text_add(&out, "usage: sptune VERB [options]\n\n");
    for (int i = 0; verbs[i] != NULL; i++)
        text_add(&out, "  %-9s %s\n", verbs[i]->name, verbs[i]->about);
    text_add(&out, "\ntopics (sptune help TOPIC):\n");
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++)
        text_add(&out, "  %-9s %s\n", topics[i].name, topics[i].about);
    text_add(&out, "\nsptune VERB --help lists a verb's options; sptune --version.\n");
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

enum status help_version(void)
{
    char line[96];
    text_print(line, sizeof line, "sptune %s (build %s)\n", SPTUNE_VERSION, version_build());
    return cli_print(line);
}

enum status help_verb(const struct verb *verb)
{
    struct text out = {0};
    text_add(&out, "usage: sptune %s%s%s\n\n%s\n", verb->name, verb->usage[0] != '\0' ? " " : "", verb->usage, verb->help);
    for (int t = 0; verb->tables[t] != NULL; t++) {
        text_add(&out, "%s", t == 0 ? "\noptions:\n" : "\n");
        opt_help(verb->tables[t], &out);
    }
    text_add(&out, "\nof every verb:\n");
    opt_help(cli_common, &out);
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static enum status run(struct cli *cli)
{
    if (cli->opts.nargs == 0)
        return help_all();
    const char *word = cli->opts.args[0];
    const struct verb *verb = verb_find(word);
    if (verb != NULL)
        return help_verb(verb);
    const char *names[32];
    size_t n = 0;
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++) {
        if (strcmp(topics[i].name, word) == 0)
            return help_topic(&topics[i]);
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
