/* bench/check_exchange.c -- every exchange on elements that carry their origin: in, the middle layout, and back.
 *
 * The head side has lanes between tokens that must stay as they are, and heads arrive in chunks. Copies of a kv head come back as their
 * sum in fp32, in rank order, rounded once.
 */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/text.h"
#include "bench/data.h"
#include "bench/group.h"
#include "bench/mirror.h"

#include <string.h>

enum { GAP = 5, SYNC_US = 60 * 1000 * 1000 };

/* kv_heads: per rank; 0: one head for all ranks, -2: one for every two. pieces: calls that the local heads move in. */
struct shape_case {
    int64_t batch, seq_local;
    int local, kv_local, dim, dim_v, pieces;
    enum dtype dtype;
};

static const struct shape_case cases[] = {
    {1, 1, 1, 1, 1, 1, 1, DTYPE_FP32},
    {1, 5, 2, 2, 8, 8, 1, DTYPE_FP32},
    {1, 5, 2, 2, 8, 8, 1, DTYPE_BF16},
    {2, 3, 4, 2, 16, 16, 1, DTYPE_BF16},
    {3, 7, 4, 1, 12, 12, 2, DTYPE_FP16},
    {1, 8, 4, 4, 16, 8, 4, DTYPE_FP32},
    {2, 5, 3, 3, 7, 9, 2, DTYPE_BF16},
    {1, 6, 4, 0, 8, 8, 1, DTYPE_FP32},
    {2, 3, 4, 0, 8, 8, 2, DTYPE_BF16},
    {1, 4, 2, -2, 8, 8, 1, DTYPE_BF16},
    {1, 0, 2, 1, 8, 8, 1, DTYPE_FP32},
};
enum { CASES = sizeof cases / sizeof cases[0] };

struct tensor {
    enum data_tensor name, grad; /* going in, coming back with sums */
    int heads, local, dim;
    int64_t stride; /* head side, gap included */
    char *seq, *head;
};

struct trial {
    const struct exchange *exchange;
    const struct group *group;
    void *state;
    struct exchange_shape shape;
    struct dev_queue *queue;
    struct tensor tensor[EXCHANGE_TENSORS_MAX];
    int pieces;
    uint64_t seed;
    struct tally *tally;
    char what[96];
};

static int64_t elem(const struct trial *t)
{
    return dtype_bytes(t->shape.dtype);
}

static size_t seq_bytes(const struct trial *t, const struct tensor *x)
{
    return (size_t)(t->shape.batch * t->shape.seq_local * x->heads * x->dim * elem(t));
}

static size_t head_bytes(const struct trial *t, const struct tensor *x)
{
    return (size_t)(t->shape.batch * t->shape.seq_local * t->group->size * x->stride * elem(t));
}

static struct data_side side_seq(const struct trial *t, const struct tensor *x)
{
    return (struct data_side){.base = x->seq,
                              .dtype = t->shape.dtype,
                              .batch = t->shape.batch,
                              .seq = t->shape.seq_local,
                              .heads = x->heads,
                              .dim = x->dim,
                              .token_stride = (int64_t)x->heads * x->dim,
                              .batch_first = t->group->index * t->shape.batch,
                              .position_first = t->group->rank * t->shape.seq_local};
}

static struct data_side side_head(const struct trial *t, const struct tensor *x)
{
    struct data_side side = side_seq(t, x);
    side.base = x->head;
    side.seq = t->shape.seq_local * t->group->size;
    side.heads = x->local;
    side.token_stride = x->stride;
    side.position_first = 0;
    side.head_first = model_kv_first(x->heads, t->group->size, t->group->rank);
    return side;
}

static enum status compare(const struct trial *t, enum data_tensor name, const struct data_side *side, int copies, const char *where)
{
    struct data_errors errors;
    char why[256];
    TRY(mirror_data_compare(comm_dev(t->group->comm), t->seed, name, side, copies, &errors));
    if (!data_verdict(&errors, name, where, why))
        tally_wrong(t->tally, "%.80s: %.170s", t->what, why);
    return STATUS_OK;
}

static enum status fill(const struct trial *t, enum data_tensor name, const struct data_side *side)
{
    return mirror_data_fill(comm_dev(t->group->comm), t->seed, name, side);
}

static enum status poison(const struct trial *t, void *memory, size_t bytes)
{
    TRY(dev_fill(t->queue, memory, 0xa5, bytes));
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

/* Lanes between the heads of one token and those of the next. */
static void gaps_look(const struct trial *t, const struct tensor *x, const unsigned char *head)
{
    int64_t tokens = t->shape.batch * t->shape.seq_local * t->group->size, used = (int64_t)x->local * x->dim;
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t at = (i * x->stride + used) * elem(t); at < (i + 1) * x->stride * elem(t); at++)
            if (head[at] != 0xa5) {
                tally_wrong(t->tally, "%.80s: %s by heads: token %lld was written beyond its heads", t->what,
                            data_tensor_name(x->name), (long long)i);
                return;
            }
}

static enum status compare_gaps(const struct trial *t, const struct tensor *x)
{
    struct mirror mirror;
    TRY(mirror_open(comm_dev(t->group->comm), x->head, head_bytes(t, x), &mirror));
    enum status status = mirror_load(&mirror);
    if (status == STATUS_OK)
        gaps_look(t, x, mirror.host);
    mirror_close(&mirror);
    return status;
}

/* All heads in `pieces` calls, all tensors together; a tensor with fewer heads than pieces moves them in the first calls. */
static enum status move(struct trial *t, enum exchange_direction to, bool sum)
{
    for (int piece = 0; piece < t->pieces; piece++) {
        struct exchange_tensor tensors[EXCHANGE_TENSORS_MAX];
        for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
            const struct tensor *x = &t->tensor[i];
            int each = (x->local + t->pieces - 1) / t->pieces, first = piece * each;
            first = first < x->local ? first : x->local;
            tensors[i] = (struct exchange_tensor){.seq = x->seq,
                                                  .head = x->head + (int64_t)first * x->dim * elem(t),
                                                  .heads = x->heads,
                                                  .first = first,
                                                  .count = first + each < x->local ? each : x->local - first,
                                                  .dim = x->dim,
                                                  .head_stride = x->stride,
                                                  .sum = sum};
        }
        TRY(t->exchange->run(t->state, to, tensors, EXCHANGE_TENSORS_MAX, t->queue));
    }
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

static enum status there(struct trial *t)
{
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
        struct tensor *x = &t->tensor[i];
        struct data_side seq = side_seq(t, x);
        TRY(fill(t, x->name, &seq));
        TRY(poison(t, x->head, head_bytes(t, x)));
    }
    TRY(move(t, EXCHANGE_TO_HEADS, false));
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
        struct data_side head = side_head(t, &t->tensor[i]);
        TRY(compare(t, t->tensor[i].name, &head, 1, "by heads"));
        TRY(compare_gaps(t, &t->tensor[i]));
    }
    return STATUS_OK;
}

static enum status back(struct trial *t)
{
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++)
        TRY(poison(t, t->tensor[i].seq, seq_bytes(t, &t->tensor[i])));
    TRY(move(t, EXCHANGE_TO_SEQ, false));
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
        struct data_side seq = side_seq(t, &t->tensor[i]);
        TRY(compare(t, t->tensor[i].name, &seq, 1, "there and back"));
    }
    return STATUS_OK;
}

/* Gradients: every rank that holds a copy of a head brings values of its own. */
static enum status back_summed(struct trial *t)
{
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
        struct tensor *x = &t->tensor[i];
        struct data_side head = side_head(t, x);
        head.copy = t->group->rank % model_kv_copies(x->heads, t->group->size);
        TRY(poison(t, x->seq, seq_bytes(t, x)));
        TRY(fill(t, x->grad, &head));
    }
    TRY(move(t, EXCHANGE_TO_SEQ, true));
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
        struct tensor *x = &t->tensor[i];
        struct data_side seq = side_seq(t, x);
        TRY(compare(t, x->grad, &seq, model_kv_copies(x->heads, t->group->size), "summed over copies"));
    }
    return STATUS_OK;
}

static enum status trial_open(struct trial *t)
{
    TRY(dev_queue_create(comm_dev(t->group->comm), &t->queue));
    TRY(t->exchange->create(&t->shape, t->group->comm, &t->state));
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++) {
        struct tensor *x = &t->tensor[i];
        TRY(t->exchange->alloc(t->state, seq_bytes(t, x), "check of an exchange", (void **)&x->seq));
        TRY(t->exchange->alloc(t->state, head_bytes(t, x), "check of an exchange", (void **)&x->head));
    }
    return STATUS_OK;
}

static void trial_close(struct trial *t)
{
    for (int i = 0; i < EXCHANGE_TENSORS_MAX && t->state != NULL; i++) {
        if (t->tensor[i].seq != NULL)
            t->exchange->free(t->state, t->tensor[i].seq);
        if (t->tensor[i].head != NULL)
            t->exchange->free(t->state, t->tensor[i].head);
    }
    if (t->state != NULL)
        t->exchange->destroy(t->state);
    dev_queue_destroy(t->queue);
}

static void tensor_set(struct trial *t, int i, enum data_tensor name, enum data_tensor grad, int heads, int dim)
{
    struct tensor *x = &t->tensor[i];
    *x = (struct tensor){.name = name, .grad = grad, .heads = heads, .dim = dim};
    x->local = model_kv_local(heads, t->group->size);
    x->stride = (int64_t)x->local * dim + GAP;
}

static enum status trial_run(const struct exchange *exchange, const struct group *group, const struct shape_case *c, uint64_t seed,
                             struct tally *tally)
{
    struct trial t = {.exchange = exchange, .group = group, .pieces = c->pieces, .seed = seed, .tally = tally};
    int size = group->size, kv = c->kv_local > 0 ? c->kv_local * size : c->kv_local == 0 || size == 1 ? 1 : size / 2;
    if (c->kv_local < 0 && size % 2 != 0)
        return STATUS_OK;
    tensor_set(&t, 0, DATA_Q, DATA_DQ, c->local * size, c->dim);
    tensor_set(&t, 1, DATA_K, DATA_DK, kv, c->dim);
    tensor_set(&t, 2, DATA_V, DATA_DV, kv, c->dim_v);
    t.shape = (struct exchange_shape){.batch = c->batch, .seq_local = c->seq_local, .dtype = c->dtype};
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++)
        t.shape.row_elems_max += (int64_t)t.tensor[i].local * t.tensor[i].dim;
    text_print(t.what, sizeof t.what, "batch %lld, %lld tokens each, %d/%d heads, %s, in %d calls", (long long)c->batch,
               (long long)c->seq_local, c->local * size, kv, dtype_name(c->dtype), c->pieces);
    struct verdict verdict = exchange->supports(&t.shape, group->comm);
    if (!verdict_ok(&verdict)) {
        tally_cannot(tally, verdict.why);
        return STATUS_OK;
    }
    enum status status = trial_open(&t);
    if (status == STATUS_UNSUPPORTED && tally->cases == 0) /* found only by trying, on all ranks of the group alike */
        tally_cannot(tally, status_last()->what);
    if (status == STATUS_OK)
        status = there(&t);
    if (status == STATUS_OK)
        status = back(&t);
    if (status == STATUS_OK)
        status = back_summed(&t);
    trial_close(&t);
    tally->cases += tally->cannot ? 0 : 1;
    return status;
}

enum status check_exchange_shapes(const struct exchange *exchange, const struct group *group, uint64_t seed,
                                  struct tally *tally)
{
    for (int i = 0; i < CASES; i++) {
        enum status status = trial_run(exchange, group, &cases[i], seed + (uint64_t)i, tally);
        if (status == STATUS_UNSUPPORTED && tally->cannot) {
            status_clear();
            return STATUS_OK;
        }
        TRY(status);
    }
    return STATUS_OK;
}

static enum status exchange_row(struct bench_env *env, const struct check_order *order, const struct exchange *exchange,
                                int sp, struct check_report *report)
{
    struct tally tally = {0};
    struct group group;
    char what[192];
    text_print(what, sizeof what, "%s sp=%d: in, middle, back; chunks, copies summed", exchange->name, sp);
    if (!check_asked(order, what))
        return STATUS_OK;
    check_begins(report, "exchange", what);
    TRY(group_open(env, sp, &group));
    enum status status = tally_status(&tally, check_exchange_shapes(exchange, &group, order->seed, &tally));
    group_close(&group);
    TRY(status);
    return check_row_add(env, report, "exchange", what, &tally, false);
}

static enum status exchange_run(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    const struct plan *only = check_only(order);
    int ranks = comm_size(env->world);
    for (int i = 0; exchanges[i] != NULL; i++) {
        if (exchanges[i]->dev != dev_kind_of(env->dev) || (only != NULL && strcmp(only->exchange, exchanges[i]->name) != 0))
            continue;
        for (int sp = 1; sp <= ranks; sp++)
            if (ranks % sp == 0 && (only == NULL || only->sp == sp))
                TRY(exchange_row(env, order, exchanges[i], sp, report));
    }
    return STATUS_OK;
}

const struct check check_exchange = {.area = "exchange", .run = exchange_run};
