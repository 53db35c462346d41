/* cli/explain_exchange.c -- every cell carries its token and head through the real exchange; rank 0 collects who holds
 * what.
 *
 * Head dimension 1 and fp32, so that a cell is one number: token * heads + head, exact.
 */
#include "cli/explain_exchange.h"

#include "base/clock.h"
#include "base/mem.h"
#include "bench/group.h"
#include "cli/ranks.h"
#include "sp/exchange.h"

#include <stdlib.h>
#include <string.h>

const struct opt explain_exchange_options[] = {
    {"ranks", 0, OPT_VALUE, "N", "explain exchange: ranks of the sp group [4]"},
    {"heads", 0, OPT_VALUE, "N", "explain exchange: query heads [8]"},
    {"kv-heads", 0, OPT_VALUE, "N", "explain exchange: key/value heads [2]"},
    {"seq", 0, OPT_VALUE, "S", "explain exchange: tokens [8]"},
    {0},
};

/* Beyond these nobody reads the tables; a rank is a bit, a cell a whole float. */
enum { RANKS_MAX = 64, HEADS_MAX = 256, SEQ_MAX = 1024, NAMES = 24 };

struct cells {
    int ranks, heads, kv_heads, seq;
};

/* One tensor of one rank on both sides, and who holds its cells when: at[token * heads + head] has bit r for rank r. */
enum when { BEFORE, AFTER, BACK, WHENS };
struct tensor {
    int heads, local;
    float *seq, *head;
    uint64_t *at[WHENS]; /* one allocation */
};

enum { Q, KV, TENSORS };
struct trial {
    struct cells cells;
    const struct exchange *exchange;
    void *state;
    struct tensor tensor[TENSORS];
};

static enum status take_memory(struct trial *t)
{
    t->tensor[Q].heads = t->cells.heads;
    t->tensor[KV].heads = t->cells.kv_heads;
    for (int i = 0; i < TENSORS; i++) {
        struct tensor *x = &t->tensor[i];
        size_t cells = (size_t)t->cells.seq * (size_t)x->heads;
        TRY(mem_alloc(WHENS * cells * sizeof *x->at[0], "who holds cells", (void **)&x->at[0]));
        for (int when = 1; when < WHENS; when++)
            x->at[when] = x->at[0] + (size_t)when * cells;
    }
    return STATUS_OK;
}

static enum status open_trial(struct bench_env *env, struct trial *t)
{
    const struct exchange_shape shape = {.batch = 1,
                                         .seq_local = t->cells.seq / t->cells.ranks,
                                         .dtype = DTYPE_FP32,
                                         .row_elems_max = model_kv_local(t->cells.heads, t->cells.ranks) +
                                                          2 * model_kv_local(t->cells.kv_heads, t->cells.ranks)};
    t->exchange = exchange_find("packed");
    TRY(t->exchange->create(&shape, env->world, &t->state));
    for (int i = 0; i < TENSORS; i++) {
        struct tensor *x = &t->tensor[i];
        x->local = model_kv_local(x->heads, t->cells.ranks);
        TRY(t->exchange->alloc(t->state, (size_t)shape.seq_local * (size_t)x->heads * sizeof(float), "cells",
                               (void **)&x->seq));
        TRY(t->exchange->alloc(t->state, (size_t)(t->cells.seq * x->local) * sizeof(float), "cells",
                               (void **)&x->head));
        int first = comm_rank(env->world) * (int)shape.seq_local * x->heads;
        for (int c = 0; c < (int)shape.seq_local * x->heads; c++)
            x->seq[c] = (float)(first + c);
    }
    return STATUS_OK;
}

static void close_trial(struct trial *t)
{
    for (int i = 0; i < TENSORS && t->state != NULL; i++) {
        t->exchange->free(t->state, t->tensor[i].seq);
        t->exchange->free(t->state, t->tensor[i].head);
    }
    if (t->state != NULL)
        t->exchange->destroy(t->state);
}

/* Collective: n cells of each rank; their labels say whose they are. */
static enum status collect(struct bench_env *env, const float *cells, int n, int known, uint64_t *holders)
{
    int ranks = comm_size(env->world);
    float *all = NULL;
    TRY(group_alloc(env, (size_t)(n * ranks) * sizeof *all, "cells", (void **)&all));
    enum status status =
        boot_allgather(comm_boot(env->world), cells, (size_t)n * sizeof *cells, all, clock_deadline(BOOT_DEADLINE_US));
    for (int i = 0; i < n * ranks && status == STATUS_OK; i++) {
        int label = (int)all[i];
        if (label < 0 || label >= known)
            status = FAIL(STATUS_CHECK, "rank %d holds a cell that nobody had", i / n);
        else
            holders[label] |= UINT64_C(1) << (i / n);
    }
    free(all);
    return status;
}

static enum status collect_side(struct bench_env *env, struct trial *t, enum when when)
{
    for (int i = 0; i < TENSORS; i++) {
        struct tensor *x = &t->tensor[i];
        int n = when == AFTER ? t->cells.seq * x->local : t->cells.seq / t->cells.ranks * x->heads;
        TRY(collect(env, when == AFTER ? x->head : x->seq, n, t->cells.seq * x->heads, x->at[when]));
    }
    return STATUS_OK;
}

static enum status move(struct bench_env *env, struct trial *t, struct dev_queue *queue)
{
    struct exchange_tensor moved[EXCHANGE_TENSORS_MAX];
    for (int i = 0; i < 3; i++) { /* k and v alike */
        struct tensor *x = &t->tensor[i == 0 ? Q : KV];
        moved[i] = (struct exchange_tensor){
            .seq = x->seq, .head = x->head, .heads = x->heads, .count = x->local, .dim = 1, .head_stride = x->local};
    }
    moved[2].count = 0; /* v would arrive where k does */
    TRY(collect_side(env, t, BEFORE));
    TRY(group_agree(env, t->exchange->run(t->state, EXCHANGE_TO_HEADS, moved, 3, queue)));
    TRY(collect_side(env, t, AFTER));
    memset(t->tensor[Q].seq, 0, (size_t)(t->cells.seq / t->cells.ranks * t->cells.heads) * sizeof(float));
    TRY(group_agree(env,
                    t->exchange->run(t->state, EXCHANGE_TO_SEQ, moved, 1, queue))); /* the output is laid out as q */
    return collect(env, t->tensor[Q].seq, t->cells.seq / t->cells.ranks * t->cells.heads, t->cells.seq * t->cells.heads,
                   t->tensor[Q].at[BACK]);
}

static enum status run_trial(struct bench_env *env, struct trial *t)
{
    struct dev_queue *queue = NULL;
    enum status status = group_agree(env, take_memory(t));
    if (status == STATUS_OK)
        status = group_agree(env, dev_queue_create(env->dev, &queue));
    if (status == STATUS_OK)
        status = group_agree(env, open_trial(env, t));
    if (status == STATUS_OK)
        status = move(env, t, queue);
    close_trial(t);
    dev_queue_destroy(queue);
    return status;
}

static void free_trial(struct trial *t)
{
    for (int i = 0; t != NULL && i < TENSORS; i++)
        free(t->tensor[i].at[0]);
    free(t);
}

enum status explain_exchange_serve(struct bench_env *env, const void *data, size_t bytes)
{
    struct trial *t = NULL;
    if (bytes != sizeof t->cells)
        return FAIL(STATUS_PEER, "an order to explain of %zu bytes", bytes);
    TRY(group_alloc(env, sizeof *t, "cells", (void **)&t));
    memset(t, 0, sizeof *t);
    memcpy(&t->cells, data, sizeof t->cells);
    enum status status = run_trial(env, t);
    free_trial(t);
    return status;
}

/* ---- rank 0: what it looks like ---- */

/* Ranks that hold copies are neighbours: "3", "2,3", "0-7". */
static const char *holders_text(uint64_t holders, char buf[NAMES])
{
    size_t n = 0;
    buf[0] = '\0';
    for (int r = 0, last; r < RANKS_MAX; r = last + 1) {
        last = r;
        if ((holders >> r & 1) == 0)
            continue;
        while (last + 1 < RANKS_MAX && (holders >> (last + 1) & 1) != 0)
            last++;
        n += (size_t)snprintf(buf + n, NAMES - n, n > 0 ? ",%d" : "%d", r);
        if (last > r)
            n += (size_t)snprintf(buf + n, NAMES - n, "%c%d", last == r + 1 ? ',' : '-', last);
        if (n >= NAMES)
            break; /* not neighbours: the exchange is wrong, and the table shows enough of it */
    }
    return buf;
}

/* Some heads of one tensor: columns of a table. */
struct block {
    const char *name;
    const uint64_t *holders; /* of all heads */
    int heads, width;        /* of all heads; of the widest cell */
    int first, end;          /* those shown */
};

enum { WIDTH = 80, TOKEN = 5, NAME = 4 };

static int block_columns(const struct block *block)
{
    return NAME + (block->end - block->first) * (block->width + 1);
}

static struct block block_of(const struct trial *t, int which, const char *name, enum when when)
{
    const struct tensor *x = &t->tensor[which];
    struct block block = {name, x->at[when], x->heads, x->heads > 100 ? 3 : 2, 0, x->heads};
    char buf[NAMES];
    for (int c = 0; c < t->cells.seq * x->heads; c++) {
        int width = (int)strlen(holders_text(block.holders[c], buf));
        block.width = width > block.width ? width : block.width;
    }
    return block;
}

static void add_rows(struct text *out, const struct trial *t, const struct block *blocks, int n)
{
    char buf[NAMES];
    text_add(out, "token");
    for (int b = 0; b < n; b++) {
        text_add(out, "  %-2s", blocks[b].name);
        for (int h = blocks[b].first; h < blocks[b].end; h++)
            text_add(out, " %*d", blocks[b].width, h);
    }
    for (int s = 0; s < t->cells.seq; s++) {
        text_add(out, "\n%5d", s);
        for (int b = 0; b < n; b++) {
            text_add(out, "    ");
            for (int h = blocks[b].first; h < blocks[b].end; h++)
                text_add(out, " %*s", blocks[b].width, holders_text(blocks[b].holders[s * blocks[b].heads + h], buf));
        }
    }
    text_add(out, "\n");
}

/* One below the other, as many heads at a time as fit. */
static void add_below(struct text *out, const struct trial *t, struct block block)
{
    int fit = (WIDTH - TOKEN - NAME) / (block.width + 1);
    for (; block.first < block.heads; block.first = block.end) {
        block.end = block.heads - block.first > fit ? block.first + fit : block.heads;
        add_rows(out, t, &block, 1);
    }
}

/* Side by side when the terminal is wide enough. */
static void add_table(struct text *out, const struct trial *t, const char *title, const struct block *blocks, int n)
{
    int width = TOKEN;
    for (int b = 0; b < n; b++)
        width += block_columns(&blocks[b]);
    text_add(out, "\n%s\n", title);
    if (width <= WIDTH)
        add_rows(out, t, blocks, n);
    for (int b = 0; width > WIDTH && b < n; b++)
        add_below(out, t, blocks[b]);
}

static enum status print(struct trial *t)
{
    struct text out = {0};
    text_add(&out,
             "%d ranks, %d tokens, %d query heads, %d key/value heads. A cell says which rank\nholds that token (row) "
             "of that head "
             "(column).\n",
             t->cells.ranks, t->cells.seq, t->cells.heads, t->cells.kv_heads);
    const struct block before[] = {block_of(t, Q, "q", BEFORE), block_of(t, KV, "kv", BEFORE)};
    const struct block after[] = {block_of(t, Q, "q", AFTER), block_of(t, KV, "kv", AFTER)};
    const struct block back = block_of(t, Q, "o", BACK);
    add_table(&out, t, "before: a rank holds every head of its tokens", before, 2);
    add_table(&out, t, "after exchange 1: a rank holds every token of its heads; attention runs there", after, 2);
    add_table(&out, t, "after exchange 2: the output is back where its tokens are", &back, 1);
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

/* holders[token][head] as lists of ranks. */
static json_t *grid(const struct trial *t, int which, enum when when)
{
    const uint64_t *holders = t->tensor[which].at[when];
    int heads = t->tensor[which].heads;
    json_t *rows = json_array();
    for (int s = 0; s < t->cells.seq; s++) {
        json_t *row = json_array();
        for (int h = 0; h < heads; h++) {
            json_t *ranks = json_array();
            for (int r = 0; r < t->cells.ranks; r++)
                if ((holders[s * heads + h] >> r & 1) != 0)
                    json_array_append_new(ranks, json_integer(r));
            json_array_append_new(row, ranks);
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

static enum status print_document(struct cli *cli, const struct trial *t)
{
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = json_document("exchange", &envelope);
    json_t *body = json_pack("{s:i s:i s:i s:i s:s s:{s:o s:o} s:{s:o s:o} s:{s:o}}", "ranks", t->cells.ranks, "seq",
                             t->cells.seq, "heads", t->cells.heads, "kv_heads", t->cells.kv_heads, "exchange",
                             t->exchange->name, "before", "q", grid(t, Q, BEFORE), "kv", grid(t, KV, BEFORE), "after",
                             "q", grid(t, Q, AFTER), "kv", grid(t, KV, AFTER), "back", "o", grid(t, Q, BACK));
    if (document != NULL && body != NULL)
        json_object_update(document, body);
    json_decref(body);
    return cli_print_json(cli, document);
}

static enum status root(struct ranks *ranks, void *arg)
{
    struct trial *t = arg;
    TRY(ranks_tell(ranks, "explain", &t->cells, sizeof t->cells));
    TRY(group_agree(&ranks->env, STATUS_OK)); /* they have memory */
    TRY(run_trial(&ranks->env, t));
    return ranks->cli->json ? print_document(ranks->cli, t) : print(t);
}

static enum status read_cells(struct cli *cli, const struct topo *topo, struct cells *out)
{
    int64_t ranks = 0, heads = 0, kv_heads = 0, seq = 0;
    struct problem problem = {
        .batch = 1, .seq_fixed = true, .head_dim = 1, .dtype = DTYPE_FP32, .direction = PROBLEM_FORWARD};
    struct plan plan;
    TRY(opt_count(&cli->opts, "ranks", 1, RANKS_MAX, 4, &ranks));
    TRY(ranks_count(cli, topo, ranks, &ranks));
    if (ranks > RANKS_MAX)
        return FAIL(STATUS_USAGE, "the launcher's %lld ranks are more than the %d whose cells are shown",
                    (long long)ranks, RANKS_MAX);
    TRY(opt_count(&cli->opts, "heads", 1, HEADS_MAX, 8, &heads));
    TRY(opt_count(&cli->opts, "kv-heads", 1, HEADS_MAX, 2, &kv_heads));
    TRY(opt_count(&cli->opts, "seq", 1, SEQ_MAX, 8, &seq));
    *out = (struct cells){(int)ranks, (int)heads, (int)kv_heads, (int)seq};
    problem.heads = out->heads;
    problem.kv_heads = out->kv_heads;
    problem.seq = seq;
    problem.world = out->ranks;
    plan_default(&plan);
    plan.sp = out->ranks;
    TRY(problem_check(&problem));
    struct verdict verdict = plan_check(&problem, &plan, DEV_CPU);
    if (!verdict_ok(&verdict))
        return HINT(FAIL(STATUS_USAGE, "%s", verdict.why), "rule %s; `sptune help ulysses` says what is legal",
                    rule_code(verdict.rule));
    return STATUS_OK;
}

enum status explain_exchange(struct cli *cli)
{
    struct trial *t = NULL;
    struct topo topo;
    struct ranks_options how = {.device = "cpu", .lock_us = -1, .kept = ""};
    TRY(mem_alloc(sizeof *t, "cells", (void **)&t));
    memset(t, 0, sizeof *t);
    enum status status = topo_open("local", &topo);
    if (status == STATUS_OK) {
        status = read_cells(cli, &topo, &t->cells);
        how.n = t->cells.ranks;
        if (status == STATUS_OK)
            status = ranks_run(cli, &topo, &how, root, t);
        topo_free(&topo);
    }
    free_trial(t);
    return status;
}
