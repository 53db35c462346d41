/* cli/sweep.c -- the axes of `bench`, one table row each. */
#include "cli/sweep.h"

#include "base/mem.h"
#include "base/units.h"
#include "kernels/attention.h"
#include "sp/exchange.h"

#include <stdlib.h>
#include <string.h>

enum { COLLECTIVE = 1, EXCHANGE = 2, ATTENTION = 4, GEMM = 8, LAYER = 16, LINK = 32 };
enum { SHAPED = EXCHANGE | ATTENTION | LAYER, MOVING = LINK | COLLECTIVE };

struct sweep_axis {
    const char *option;
    unsigned subjects;
    bool variant;
    bool words; /* list of words, else of numbers */
    int64_t min, max;
    const char *fallback; /* list taken when not given; NULL: the value of the base case stays */
    enum status (*set)(struct bench_case *c, int64_t number, const char *word);
};

const struct opt sweep_options[] = {
    {"sp", 0, OPT_VALUE, "LIST", "ranks per sequence [all ranks]"},
    {"op", 0, OPT_VALUE, "LIST",
     "link: memcpy, memcpy_one, peer; collective: alltoall, allgather, reduce_scatter, allreduce, sendrecv; exchange: "
     "whole, in, out, one [memcpy,peer; alltoall; whole]"},
    {"bytes", 0, OPT_VALUE, "LIST",
     "link, collective: bytes one rank copies or sends, own block included [64k..16M*4]"},
    {"heads", 0, OPT_VALUE, "LIST", "query heads [32]"},
    {"kv-heads", 0, OPT_VALUE, "LIST", "key/value heads [8]"},
    {"head-dim", 0, OPT_VALUE, "LIST", "head dimension [128]"},
    {"seq", 0, OPT_VALUE, "LIST", "tokens of one sequence [4k]"},
    {"batch", 0, OPT_VALUE, "LIST", "sequences [1]"},
    {"m", 0, OPT_VALUE, "LIST", "gemm: rows [1k]"},
    {"n", 0, OPT_VALUE, "LIST", "gemm: columns [1k]"},
    {"k", 0, OPT_VALUE, "LIST", "gemm: inner size [1k]"},
    {"dtype", 0, OPT_VALUE, "LIST", "fp32,bf16,fp16 [fp32; exchange, attention, layer on GPUs: bf16]"},
    {"attention", 0, OPT_VALUE, "LIST", "attention kernels; `list` names them [cpu; flash2 on GPUs]"},
    {"exchange", 0, OPT_VALUE, "LIST", "exchanges, of methods that exchange; `list` names them [packed; nccl on GPUs]"},
    {"span", 0, OPT_VALUE, "LIST",
     "layer: attention (with its exchanges), block (a transformer block: norms, projections, RoPE and MLP too) "
     "[attention]"},
    {"hidden", 0, OPT_VALUE, "LIST", "span block: hidden size [heads x head-dim]"},
    {"ffn", 0, OPT_VALUE, "LIST", "span block: columns of the MLP [3.5 x hidden, up to a multiple of 64]"},
    {"method", 0, OPT_VALUE, "LIST", "layer: ulysses, ring, ulysses+ring, and with span block split_gather [ulysses]"},
    {"ring", 0, OPT_VALUE, "LIST", "layer: ranks of a ring, of method ulysses+ring alone [2]"},
    {"chunks", 0, OPT_VALUE, "LIST", "layer: head groups whose exchange and attention alternate [1]"},
    {"direction", 0, OPT_VALUE, "LIST", "fwd,bwd [fwd]"},
    {"causal", 0, OPT_VALUE, "LIST", "0,1 [1]"},
    {"window", 0, OPT_VALUE, "LIST", "sliding window in tokens, 0 none [0]"},
    {"docs", 0, OPT_VALUE, "SPEC", "packed documents: none, fixed:8k, or a file of lengths [none]"},
    {"timing", 0, OPT_VALUE, "LIST", "stream,loop (graph needs a GPU) [stream]"},
    {"buffers", 0, OPT_VALUE, "LIST", "hot,cold, and of link and exchange used: read and rewritten by their owners before each iteration [hot]"},
    {0},
};

#define SET(name) static enum status set_##name(struct bench_case *c, int64_t number, const char *word)
#define SET_NUMBER(name, field, type)                                                                                  \
    SET(name)                                                                                                          \
    {                                                                                                                  \
        (void)word;                                                                                                    \
        c->field = (type)number;                                                                                       \
        return STATUS_OK;                                                                                              \
    }
SET_NUMBER(sp, plan.sp, int)
SET_NUMBER(bytes, bytes, int64_t)
SET_NUMBER(heads, problem.heads, int)
SET_NUMBER(kv_heads, problem.kv_heads, int)
SET_NUMBER(head_dim, problem.head_dim, int)
SET_NUMBER(seq, problem.seq, int64_t)
SET_NUMBER(batch, problem.batch, int64_t)
SET_NUMBER(m, m, int64_t)
SET_NUMBER(n, n, int64_t)
SET_NUMBER(k, k, int64_t)
SET_NUMBER(chunks, plan.chunks, int)
SET_NUMBER(ring, plan.ring, int)
SET_NUMBER(causal, problem.causal, bool)
SET_NUMBER(window, problem.window, int64_t)
SET_NUMBER(hidden, problem.hidden, int64_t)
SET_NUMBER(ffn, problem.ffn, int64_t)

/* Is `word` one of the n words? Their index in *out. */
static enum status one_of(const char *option, const char *word, const char *const *words, size_t n, int *out)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(word, words[i]) == 0) {
            *out = (int)i;
            return STATUS_OK;
        }
    }
    return opt_unknown(option, word, words, n);
}

SET(op_link)
{
    static const char *const words[] = {"memcpy", "memcpy_one", "peer"};
    int i = (int)number;
    TRY(one_of("--op", word, words, 3, &i));
    text_print(c->op, sizeof c->op, "%s", word);
    return STATUS_OK;
}

SET(op_collective)
{
    static const char *const words[] = {"alltoall", "allgather", "reduce_scatter", "allreduce", "sendrecv"};
    int i = (int)number;
    TRY(one_of("--op", word, words, 5, &i));
    text_print(c->op, sizeof c->op, "%s", word);
    return STATUS_OK;
}

SET(op_exchange)
{
    static const char *const words[] = {"whole", "in", "out", "one"};
    int i = (int)number;
    TRY(one_of("--op", word, words, 4, &i));
    text_print(c->op, sizeof c->op, "%s", word);
    return STATUS_OK;
}

SET(dtype)
{
    (void)number;
    return dtype_parse(word, "--dtype", &c->problem.dtype);
}

enum { NAMES = 32 };

SET(attention)
{
    const char *names[NAMES];
    size_t n = 0;
    int i = (int)number;
    for (; n < NAMES && attentions[n] != NULL; n++)
        names[n] = attentions[n]->name;
    TRY(one_of("--attention", word, names, n, &i));
    text_print(c->plan.attention, sizeof c->plan.attention, "%s", word);
    return STATUS_OK;
}

SET(exchange)
{
    const char *names[NAMES];
    size_t n = 0;
    int i = (int)number;
    for (; n < NAMES - 2 && exchanges[n] != NULL; n++)
        names[n] = exchanges[n]->name;
    names[n++] = PLAN_RING_EXCHANGE;
    names[n++] = PLAN_GATHER_EXCHANGE;
    TRY(one_of("--exchange", word, names, n, &i));
    text_print(c->plan.exchange, sizeof c->plan.exchange, "%s", word);
    return STATUS_OK;
}

SET(method)
{
    const char *names[PLAN_METHOD_COUNT];
    int i = (int)number;
    for (int m = 0; m < PLAN_METHOD_COUNT; m++)
        names[m] = plan_method_name((enum plan_method)m);
    TRY(one_of("--method", word, names, PLAN_METHOD_COUNT, &i));
    c->plan.method = (enum plan_method)i;
    return STATUS_OK;
}

SET(span)
{
    static const char *const words[] = {"attention", "block"};
    int i = (int)number;
    TRY(one_of("--span", word, words, 2, &i));
    c->span = i == 0 ? BENCH_SPAN_ATTENTION : BENCH_SPAN_BLOCK;
    return STATUS_OK;
}

SET(direction)
{
    static const char *const words[] = {"fwd", "bwd"};
    int i = (int)number;
    TRY(one_of("--direction", word, words, 2, &i));
    c->problem.direction = i == 0 ? PROBLEM_FORWARD : PROBLEM_BACKWARD;
    return STATUS_OK;
}

SET(timing)
{
    static const char *const words[] = {"stream", "graph", "loop"};
    int i = (int)number;
    TRY(one_of("--timing", word, words, 3, &i));
    c->timing = (enum bench_timing)i;
    return STATUS_OK;
}

SET(buffers)
{
    static const char *const words[] = {"hot", "cold", "used"};
    int i = (int)number;
    TRY(one_of("--buffers", word, words, 3, &i));
    c->buffers = (enum bench_buffers)i;
    return STATUS_OK;
}

#define MANY ((int64_t)1 << 40)
static const struct sweep_axis axes[] = {
    {"op", COLLECTIVE, false, true, 0, 0, "alltoall", set_op_collective},
    {"op", EXCHANGE, false, true, 0, 0, "whole", set_op_exchange},
    {"sp", SHAPED | MOVING, false, false, 1, 4096, NULL, set_sp},
    {"bytes", MOVING, false, false, 1, MANY, "64k..16M*4", set_bytes},
    {"heads", SHAPED, false, false, 1, 1 << 16, "32", set_heads},
    {"kv-heads", SHAPED, false, false, 1, 1 << 16, "8", set_kv_heads},
    {"head-dim", SHAPED, false, false, 1, 1 << 12, "128", set_head_dim},
    {"seq", SHAPED, false, false, 1, MANY, "4k", set_seq},
    {"batch", SHAPED, false, false, 1, 1 << 20, "1", set_batch},
    {"m", GEMM, false, false, 1, MANY, "1k", set_m},
    {"n", GEMM, false, false, 1, MANY, "1k", set_n},
    {"k", GEMM, false, false, 1, MANY, "1k", set_k},
    {"dtype", SHAPED | GEMM | COLLECTIVE, false, true, 0, 0, "fp32", set_dtype},
    {"span", LAYER, false, true, 0, 0, "attention", set_span},
    {"hidden", LAYER, false, false, 1, MANY, NULL, set_hidden},
    {"ffn", LAYER, false, false, 1, MANY, NULL, set_ffn},
    {"direction", SHAPED, false, true, 0, 0, "fwd", set_direction},
    {"causal", ATTENTION | LAYER, false, false, 0, 1, "1", set_causal},
    {"window", ATTENTION | LAYER, false, false, 0, MANY, "0", set_window},
    {"timing", SHAPED | GEMM | MOVING, false, true, 0, 0, "stream", set_timing},
    {"buffers", SHAPED | GEMM | MOVING, false, true, 0, 0, "hot", set_buffers},
    {"op", LINK, true, true, 0, 0, "memcpy,peer", set_op_link},
    {"method", LAYER, true, true, 0, 0, "ulysses", set_method},
    {"ring", LAYER, true, false, 1, 4096, "2", set_ring},
    {"exchange", EXCHANGE | LAYER, true, true, 0, 0, "packed", set_exchange},
    {"attention", ATTENTION | LAYER, true, true, 0, 0, "cpu", set_attention},
    {"chunks", LAYER, true, false, 1, 4096, "1", set_chunks},
};

static unsigned subject_bit(const char *subject)
{
    static const char *const names[] = {"collective", "exchange", "attention", "gemm", "layer", "link"};
    for (unsigned i = 0; i < 6; i++)
        if (strcmp(names[i], subject) == 0)
            return 1u << i;
    return 0;
}

/* An axis option that this subject has no use for is a mistake worth saying. */
static enum status refuse_foreign(struct cli *cli, const char *subject, unsigned bit)
{
    for (const struct opt *o = sweep_options; o->name != NULL; o++) {
        bool known = strcmp(o->name, "docs") == 0 && (bit & (ATTENTION | LAYER)) != 0;
        for (size_t a = 0; a < sizeof axes / sizeof axes[0]; a++)
            known = known || (strcmp(axes[a].option, o->name) == 0 && (axes[a].subjects & bit) != 0);
        if (!known && opt_given(&cli->opts, o->name))
            return HINT(FAIL(STATUS_USAGE, "bench %s has no --%s", subject, o->name),
                        "leave it out, or bench another subject");
    }
    return STATUS_OK;
}

/* Attention alone has no MLP. */
static enum status refuse_unspanned(struct cli *cli)
{
    static const char *const of_block[] = {"hidden", "ffn"};
    const char *span = opt_value(&cli->opts, "span");
    for (int i = 0; i < 2; i++)
        if (opt_given(&cli->opts, of_block[i]) && (span == NULL || strstr(span, "block") == NULL))
            return HINT(FAIL(STATUS_USAGE, "--%s is a size of a transformer block", of_block[i]),
                        "add --span block, or leave it out");
    return STATUS_OK;
}

/* The CPU's names mean nothing to a GPU, and flash2 computes no fp32. */
static const char *fallback_of(const struct cli *cli, const struct sweep_axis *axis, const char *subject)
{
    if (cli->device != DEV_CUDA)
        return axis->fallback;
    return strcmp(axis->option, "exchange") == 0                                        ? "nccl"
           : strcmp(axis->option, "attention") == 0                                     ? "flash2"
           : strcmp(axis->option, "dtype") == 0 && (subject_bit(subject) & SHAPED) != 0 ? "bf16"
                                                                                        : axis->fallback;
}

static enum status read_axis(struct cli *cli, const struct sweep_axis *axis, struct sweep *out)
{
    const char *text = opt_value(&cli->opts, axis->option);
    if (text == NULL)
        text = fallback_of(cli, axis, out->base.subject);
    if (text == NULL)
        return STATUS_OK;
    char option[32];
    text_print(option, sizeof option, "--%s", axis->option);
    int a = out->naxes;
    if (axis->words)
        TRY(WHERE(opt_split(text, &out->storage[a], out->words[a], 32, &out->count[a]), "%s", option));
    else
        TRY(units_parse_list(text, option, axis->min, axis->max, &out->numbers[a], &out->count[a]));
    out->count[a] = axis->words ? opt_drop_repeated_words(out->words[a], out->count[a])
                                : opt_drop_repeats(out->numbers[a], out->count[a]);
    for (int i = 0; axis->words && i < out->count[a]; i++) { /* a wrong word is refused before anything runs */
        struct bench_case probe = out->base;
        TRY(axis->set(&probe, 0, out->words[a][i]));
    }
    out->axes[a] = axis;
    out->naxes++;
    int *size = axis->variant ? &out->variants : &out->cells;
    if ((int64_t)*size * out->count[a] > (axis->variant ? BENCH_CASES_MAX : 100000))
        return HINT(
            FAIL(STATUS_USAGE, "these lists make too many %s", axis->variant ? "variants of one cell" : "cells"),
            "give shorter lists");
    *size *= out->count[a];
    out->nvariants += axis->variant;
    return STATUS_OK;
}

/* A method that moves data in a way of its own takes the place of the first of the exchanges, once. Where it is the only method, and exchanges
 * were asked for all the same, they are refused. */
static const char *replaced_exchange(const struct sweep *sweep, bool asked)
{
    const char *first = NULL;
    bool alone = true;
    for (int a = 0; a < sweep->naxes; a++) {
        if (strcmp(sweep->axes[a]->option, "exchange") == 0)
            first = sweep->words[a][0];
        if (strcmp(sweep->axes[a]->option, "method") == 0)
            alone = sweep->count[a] == 1;
    }
    return asked && alone ? NULL : first;
}

/* Axes that count for one word of another axis alone. */
static const struct {
    const char *option, *of, *word;
} sole[] = {{"hidden", "span", "block"}, {"ffn", "span", "block"}, {"ring", "method", "ulysses+ring"}};

/* Which of the values of axis a an index of the product of [.., to) stands for: the last axis turns fastest. */
static int turn_of(const struct sweep *sweep, int to, int index, int a)
{
    for (int b = to - 1; b > a; b--)
        index /= sweep->count[b];
    return index % sweep->count[a];
}

/* Is axis a beyond its first value where it does not count? */
static bool turns_idly(const struct sweep *sweep, int from, int to, int index, int a)
{
    if (turn_of(sweep, to, index, a) == 0)
        return false;
    for (size_t s = 0; s < sizeof sole / sizeof sole[0]; s++)
        for (int b = from; b < to && strcmp(sweep->axes[a]->option, sole[s].option) == 0; b++)
            if (strcmp(sweep->axes[b]->option, sole[s].of) == 0)
                return strcmp(sweep->words[b][turn_of(sweep, to, index, b)], sole[s].word) != 0;
    return false;
}

/* Those of the *n places in the product of axes [from, to) that are not another's again. */
static enum status places(const struct sweep *sweep, int from, int to, int *n, int **out)
{
    int all = *n;
    TRY(mem_alloc((size_t)all * sizeof **out, "a list of cells", (void **)out));
    *n = 0;
    for (int i = 0; i < all; i++) {
        bool again = false;
        for (int a = from; a < to && !again; a++)
            again = turns_idly(sweep, from, to, i, a);
        if (!again)
            (*out)[(*n)++] = i;
    }
    return STATUS_OK;
}

enum status sweep_open(struct cli *cli, const char *subject, int ranks, struct sweep *out)
{
    unsigned bit = subject_bit(subject);
    *out = (struct sweep){.cells = 1, .variants = 1};
    bench_case_init(&out->base);
    text_print(out->base.subject, sizeof out->base.subject, "%s", subject);
    out->base.seed = cli->seed;
    out->base.plan.sp = ranks;
    out->base.problem.world = ranks;
    TRY(refuse_foreign(cli, subject, bit));
    TRY(refuse_unspanned(cli));
    out->docs = opt_value(&cli->opts, "docs");
    if (out->docs != NULL) {
        struct bench_case probe = out->base; /* a file that cannot be read is known before anything runs */
        TRY(WHERE(problem_set_docs(&probe.problem, out->docs), "--docs"));
    }
    enum status status = STATUS_OK;
    for (size_t a = 0; a < sizeof axes / sizeof axes[0] && status == STATUS_OK; a++)
        if ((axes[a].subjects & bit) != 0)
            status = read_axis(cli, &axes[a], out);
    int outer = out->naxes - out->nvariants;
    if (status == STATUS_OK)
        status = places(out, 0, outer, &out->cells, &out->cell);
    if (status == STATUS_OK)
        status = places(out, outer, out->naxes, &out->variants, &out->variant);
    if (status != STATUS_OK)
        sweep_close(out);
    else
        out->replaced = replaced_exchange(out, opt_given(&cli->opts, "exchange"));
    return status;
}

void sweep_close(struct sweep *sweep)
{
    for (int a = 0; a < SWEEP_AXES; a++) {
        free(sweep->numbers[a]);
        free(sweep->storage[a]);
    }
    free(sweep->cell);
    free(sweep->variant);
    *sweep = (struct sweep){0};
}

static enum status apply(const struct sweep *sweep, int from, int to, int index, struct bench_case *c)
{
    for (int a = from; a < to; a++) {
        int i = turn_of(sweep, to, index, a);
        const struct sweep_axis *axis = sweep->axes[a];
        TRY(axis->set(c, axis->words ? 0 : sweep->numbers[a][i], axis->words ? sweep->words[a][i] : NULL));
    }
    return STATUS_OK;
}

/* What was not given follows from the heads, in the proportions of Llama-3-8B. */
static void sizes_of_block(struct bench_case *c)
{
    struct problem *problem = &c->problem;
    if (c->span == BENCH_SPAN_ATTENTION)
        problem->hidden = problem->ffn = 0;
    if (c->span == BENCH_SPAN_BLOCK && problem->hidden == 0)
        problem->hidden = (int64_t)problem->heads * problem->head_dim;
    if (c->span == BENCH_SPAN_BLOCK && problem->ffn == 0)
        problem->ffn = (problem->hidden * 7 / 2 + 63) / 64 * 64;
}

enum status sweep_cell(const struct sweep *sweep, int i, struct bench_case *out)
{
    int outer = sweep->naxes - sweep->nvariants;
    for (int v = 0; v < sweep->variants; v++) {
        out[v] = sweep->base;
        TRY(apply(sweep, 0, outer, sweep->cell[i], &out[v]));
        TRY(apply(sweep, outer, sweep->naxes, sweep->variant[v], &out[v]));
        if (sweep->docs != NULL)
            TRY(WHERE(problem_set_docs(&out[v].problem, sweep->docs), "--docs"));
        sizes_of_block(&out[v]);
        struct plan *plan = &out[v].plan;
        const char *only = plan_method_exchange(plan->method);
        if (only != NULL && sweep->replaced != NULL && strcmp(plan->exchange, sweep->replaced) == 0)
            text_print(plan->exchange, sizeof plan->exchange, "%s", only);
        plan->dp_shard = plan->sp > 0 && out[v].problem.world % plan->sp == 0 ? out[v].problem.world / plan->sp : 1;
    }
    return STATUS_OK;
}

enum status sweep_legal(const struct sweep *sweep, bool *out)
{
    struct bench_case cases[BENCH_CASES_MAX];
    bool legal = false;
    for (int i = 0; i < sweep->cells && !legal; i++) {
        TRY(sweep_cell(sweep, i, cases));
        for (int v = 0; v < sweep->variants && !legal; v++) {
            struct verdict verdict = bench_subject_of(&cases[v])->check(&cases[v], NULL);
            legal = verdict_ok(&verdict);
        }
    }
    *out = legal;
    return STATUS_OK;
}

const char *sweep_label(const struct sweep *sweep, int i, char buf[96])
{
    struct text label = {0};
    int outer = sweep->naxes - sweep->nvariants;
    for (int a = outer - 1; a >= 0; a--) {
        int at = turn_of(sweep, outer, sweep->cell[i], a);
        if (sweep->count[a] == 1)
            continue;
        text_add(&label, label.len > 0 ? " %s=" : "%s=", sweep->axes[a]->option);
        if (sweep->axes[a]->words)
            text_add(&label, "%s", sweep->words[a][at]);
        else
            text_add(&label, "%lld", (long long)sweep->numbers[a][at]);
    }
    text_print(buf, 96, "%s", text_get(&label));
    text_free(&label);
    return buf;
}
