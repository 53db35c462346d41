/* bench/subject_exchange.c -- the all-to-all with its change of layout, without attention.
 *
 * op whole: forward q, k, v in, then o out; backward do in, then dq, dk, dv out; per chunk of heads. in and out: one
 * half of it. one: a single tensor (q in; backward: dq out). Both sides carry their origin and are compared exactly.
 *
 * Buffers used: between iterations a rank does what a layer would, attention on the side by heads, projections on the side by tokens. What
 * came there is read, what goes from there is written.
 */
#include "bench/subject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "bench/mirror.h"
#include "bench/phases.h"
#include "bench/use.h"
#include "sp/exchange.h"
#include "sp/exec_chunk.h"

#include <stdlib.h>
#include <string.h>

enum { MOVES_MAX = 8 };
enum op { OP_WHOLE, OP_IN, OP_OUT, OP_ONE, OPS };
static const char *const op_names[OPS] = {"whole", "in", "out", "one"};

/* A tensor that moves: what it is, which way. */
struct move {
    enum data_tensor tensor;
    enum exchange_direction to;
    bool of_kv, backward;
    int heads, local, dim;
    char **seq, **head; /* [rotation.n] */
};

/* One call of the exchange: tensors of moves first..first+n, with the heads of a chunk. */
struct call {
    enum exchange_direction to;
    int n, move[EXCHANGE_TENSORS_MAX], first[EXCHANGE_TENSORS_MAX], count[EXCHANGE_TENSORS_MAX];
};

struct subject {
    struct bench_env *env;
    struct group group;
    struct rotation rotation;
    struct dev_queue *queue;
    const struct exchange *exchange;
    void *exchange_state;
    struct exchange_shape shape;
    uint64_t seed;
    int64_t seq; /* padded */
    int nmoves, ncalls;
    struct move moves[MOVES_MAX];
    struct call *calls;
    struct phases *phases;
};

static enum op op_of(const struct bench_case *c)
{
    int op = 0;
    while (op < OPS && strcmp(op_names[op], c->op) != 0)
        op++;
    return (enum op)op;
}

static void shape_of(const struct bench_case *c, struct exchange_shape *out)
{
    *out = (struct exchange_shape){.batch = c->problem.batch,
                                   .seq_local = problem_local(&c->problem, c->plan.sp),
                                   .dtype = c->problem.dtype,
                                   .row_elems_max = exec_row_elems(&c->problem, &c->plan)};
}

static void move_add(const struct bench_case *c, bool of_kv, bool of_v, enum data_tensor tensor, enum exchange_direction to,
                     bool backward, struct move *moves, int *n)
{
    const struct problem *p = &c->problem;
    struct move move = {.tensor = tensor, .to = to, .of_kv = of_kv, .backward = backward};
    move.heads = of_kv ? p->kv_heads : p->heads;
    move.local = model_kv_local(move.heads, c->plan.sp);
    move.dim = of_v ? problem_dim_v(p) : p->head_dim;
    moves[(*n)++] = move;
}

/* Which tensors move, in the order they do. */
static int moves_of(const struct bench_case *c, struct move moves[MOVES_MAX])
{
    enum op op = op_of(c);
    bool in = op == OP_WHOLE || op == OP_IN, out = op == OP_WHOLE || op == OP_OUT;
    int n = 0;
    if (c->problem.direction & PROBLEM_FORWARD) {
        if (in || op == OP_ONE)
            move_add(c, false, false, DATA_Q, EXCHANGE_TO_HEADS, false, moves, &n);
        if (in) {
            move_add(c, true, false, DATA_K, EXCHANGE_TO_HEADS, false, moves, &n);
            move_add(c, true, true, DATA_V, EXCHANGE_TO_HEADS, false, moves, &n);
        }
        if (out)
            move_add(c, false, true, DATA_O, EXCHANGE_TO_SEQ, false, moves, &n);
    }
    if (c->problem.direction & PROBLEM_BACKWARD) {
        if (in)
            move_add(c, false, true, DATA_DO, EXCHANGE_TO_HEADS, true, moves, &n);
        if (out || op == OP_ONE)
            move_add(c, false, false, DATA_DQ, EXCHANGE_TO_SEQ, true, moves, &n);
        if (out) {
            move_add(c, true, false, DATA_DK, EXCHANGE_TO_SEQ, true, moves, &n);
            move_add(c, true, true, DATA_DV, EXCHANGE_TO_SEQ, true, moves, &n);
        }
    }
    return n;
}

static struct verdict exchange_check(const struct bench_case *c, const struct bench_env *env)
{
    struct verdict verdict = subject_check_heads(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    const struct exchange *exchange = exchange_find(c->plan.exchange);
    if (op_of(c) == OPS)
        return verdict_no(RULE_ABSENT, "exchange has no op '%.24s'; whole, in, out and one there are", c->op);
    if (exchange == NULL || exchange->dev != subject_dev(env))
        return verdict_no(RULE_EXCHANGE_CANNOT, "there is no exchange '%.31s' on %s", c->plan.exchange,
                          dev_kind_name(subject_dev(env)));
    if (c->plan.chunks < 1 || c->plan.chunks > c->problem.heads / c->plan.sp)
        return verdict_no(RULE_EXCHANGE_CANNOT, "%d chunks of %d heads", c->plan.chunks, c->problem.heads / c->plan.sp);
    struct exchange_shape shape;
    shape_of(c, &shape);
    verdict = exchange->supports(&shape, NULL);
    return verdict_ok(&verdict) ? subject_check_paths(c, env) : verdict;
}

static void exchange_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    struct verdict verdict = exchange_check(c, env);
    subject_key_common(c, out);
    subject_key_heads(c, out);
    text_print(out->key.op, sizeof out->key.op, "%s", c->op);
    text_print(out->key.exchange, sizeof out->key.exchange, "%s", c->plan.exchange);
    out->key.chunks = c->plan.chunks;
    out->bytes = -1;
    if (!verdict_ok(&verdict))
        return;
    struct move moves[MOVES_MAX];
    struct exchange_shape shape;
    shape_of(c, &shape);
    out->bytes = 0;
    for (int i = moves_of(c, moves) - 1; i >= 0; i--)
        out->bytes += exchange_bytes(&shape, c->plan.sp, moves[i].local, moves[i].dim);
}

static void move_sides(const struct subject *s, int m, int copy, struct data_side *seq, struct data_side *head)
{
    const struct move *move = &s->moves[m];
    int copies = model_kv_copies(move->heads, s->group.size);
    bool summed = move->to == EXCHANGE_TO_SEQ && move->of_kv && copies > 1;
    *seq = (struct data_side){.base = move->seq[copy],
                              .dtype = s->shape.dtype,
                              .batch = s->shape.batch,
                              .seq = s->shape.seq_local,
                              .heads = move->heads,
                              .dim = move->dim,
                              .token_stride = (int64_t)move->heads * move->dim,
                              .batch_first = s->group.index * s->shape.batch,
                              .position_first = s->group.rank * s->shape.seq_local};
    *head = *seq;
    head->base = move->head[copy];
    head->seq = s->seq;
    head->heads = move->local;
    head->token_stride = (int64_t)move->local * move->dim;
    head->position_first = 0;
    head->head_first = model_kv_first(move->heads, s->group.size, s->group.rank);
    head->copy = summed ? s->group.rank % copies : 0;
}

static void buffers_free(struct subject *s)
{
    for (int m = 0; m < s->nmoves; m++) {
        struct move *move = &s->moves[m];
        for (int i = 0; i < s->rotation.n; i++) {
            if (move->seq != NULL && move->seq[i] != NULL)
                s->exchange->free(s->exchange_state, move->seq[i]);
            if (move->head != NULL && move->head[i] != NULL)
                s->exchange->free(s->exchange_state, move->head[i]);
        }
        free(move->seq);
        free(move->head);
    }
}

static void exchange_destroy(void *state)
{
    struct subject *s = state;
    if (s == NULL)
        return;
    buffers_free(s);
    if (s->exchange_state != NULL)
        s->exchange->destroy(s->exchange_state);
    free(s->phases);
    free(s->calls);
    dev_queue_destroy(s->queue);
    group_close(&s->group);
    free(s);
}

static int64_t seq_bytes(const struct subject *s, const struct move *move)
{
    return s->shape.batch * s->shape.seq_local * move->heads * move->dim * dtype_bytes(s->shape.dtype);
}

static int64_t head_bytes(const struct subject *s, const struct move *move)
{
    return s->shape.batch * s->seq * move->local * move->dim * dtype_bytes(s->shape.dtype);
}

static enum status move_alloc(struct subject *s, struct move *move)
{
    const char *name = data_tensor_name(move->tensor);
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *move->seq, "buffers", (void **)&move->seq));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *move->head, "buffers", (void **)&move->head));
    for (int i = 0; i < s->rotation.n; i++) {
        TRY(s->exchange->alloc(s->exchange_state, (size_t)seq_bytes(s, move), name, (void **)&move->seq[i]));
        TRY(s->exchange->alloc(s->exchange_state, (size_t)head_bytes(s, move), name, (void **)&move->head[i]));
    }
    return STATUS_OK;
}

/* A call, unless no heads move in it. */
static void call_add(struct subject *s, bool backward, enum exchange_direction to, const int first[2], const int count[2])
{
    struct call call = {.to = to};
    for (int m = 0; m < s->nmoves; m++) {
        const struct move *move = &s->moves[m];
        if (move->backward != backward || move->to != to || count[move->of_kv] == 0)
            continue;
        call.move[call.n] = m;
        call.first[call.n] = first[move->of_kv];
        call.count[call.n++] = count[move->of_kv];
    }
    if (call.n > 0)
        s->calls[s->ncalls++] = call;
}

static enum status calls_make(struct subject *s, const struct bench_case *c)
{
    TRY(mem_alloc((size_t)c->plan.chunks * 4 * sizeof *s->calls, "calls of an exchange", (void **)&s->calls));
    for (int backward = 0; backward < 2; backward++)
        for (int chunk = 0; chunk < c->plan.chunks; chunk++) {
            struct exec_chunk heads;
            exec_chunk(&c->problem, &c->plan, s->group.rank, chunk, &heads);
            int first_in[2] = {heads.first, heads.new_first}, count_in[2] = {heads.count, heads.new_count};
            int first_out[2] = {heads.first, heads.out_first}, count_out[2] = {heads.count, heads.out_count};
            call_add(s, backward != 0, EXCHANGE_TO_HEADS, first_in, count_in);
            call_add(s, backward != 0, EXCHANGE_TO_SEQ, first_out, count_out);
        }
    return STATUS_OK;
}

static enum status build(struct subject *s, const struct bench_case *c)
{
    TRY(mem_alloc(sizeof *s->phases, "phases of an exchange", (void **)&s->phases));
    TRY(dev_queue_create(s->env->dev, &s->queue));
    TRY(calls_make(s, c));
    for (int m = 0; m < s->nmoves; m++)
        TRY(move_alloc(s, &s->moves[m]));
    for (int m = 0; m < s->nmoves; m++)
        for (int i = 0; i < s->rotation.n; i++) {
            struct data_side seq, head;
            move_sides(s, m, i, &seq, &head);
            TRY(mirror_data_fill(s->env->dev, s->seed, s->moves[m].tensor, s->moves[m].to == EXCHANGE_TO_HEADS ? &seq : &head));
        }
    return STATUS_OK;
}

static enum status exchange_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct subject *s = NULL;
    TRY(group_alloc(env, sizeof *s, "an exchange", (void **)&s));
    *s = (struct subject){.env = env, .seed = c->seed, .exchange = exchange_find(c->plan.exchange)};
    shape_of(c, &s->shape);
    s->seq = s->shape.seq_local * c->plan.sp;
    s->nmoves = moves_of(c, s->moves);
    int64_t bytes = 0;
    for (int m = 0; m < s->nmoves; m++)
        bytes += seq_bytes(s, &s->moves[m]) + head_bytes(s, &s->moves[m]);
    enum status status = group_open(env, c->plan.sp, &s->group);
    if (status == STATUS_OK)
        status = rotation_open(env, c->buffers, bytes, &s->rotation);
    if (status == STATUS_OK)
        status = group_agree(env, s->exchange->create(&s->shape, s->group.comm, &s->exchange_state));
    if (status == STATUS_OK)
        status = group_agree(env, build(s, c));
    if (status != STATUS_OK) {
        exchange_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static struct exchange_tensor tensor_of(const struct subject *s, const struct call *call, int t, int copy)
{
    const struct move *move = &s->moves[call->move[t]];
    int64_t head = (int64_t)call->first[t] * move->dim * dtype_bytes(s->shape.dtype);
    return (struct exchange_tensor){.seq = move->seq[copy],
                                    .head = move->head[copy] + head,
                                    .heads = move->heads,
                                    .first = call->first[t],
                                    .count = call->count[t],
                                    .dim = move->dim,
                                    .head_stride = (int64_t)move->local * move->dim,
                                    .sum = move->of_kv};
}

static enum status call_run(struct subject *s, const struct call *call, int copy)
{
    struct exchange_tensor tensors[EXCHANGE_TENSORS_MAX];
    for (int t = 0; t < call->n; t++)
        tensors[t] = tensor_of(s, call, t, copy);
    return s->exchange->run(s->exchange_state, call->to, tensors, call->n, s->queue);
}

/* Without phases, which are there only when the queue was waited for. */
static enum status exchange_enqueue(void *state, int iteration)
{
    struct subject *s = state;
    int copy = rotation_pick(&s->rotation, iteration);
    for (int i = 0; i < s->ncalls; i++)
        TRY(call_run(s, &s->calls[i], copy));
    return STATUS_OK;
}

static struct dev_queue *exchange_queue(void *state)
{
    return ((struct subject *)state)->queue;
}

/* An exchange keeps the marks of its last call: those of an iteration of one call are the iteration's. */
static enum status exchange_timed(void *state, bool ran)
{
    struct subject *s = state;
    double us[PHASES] = {0};
    if (ran && s->ncalls == 1) {
        s->exchange->phases(s->exchange_state, &us[0], &us[1], &us[2]);
        phases_add(s->phases, us);
    }
    return STATUS_OK;
}

static enum status exchange_iterate(void *state, int iteration)
{
    struct subject *s = state;
    int copy = rotation_pick(&s->rotation, iteration);
    double all[PHASES] = {0};
    for (int i = 0; i < s->ncalls; i++) {
        TRY(call_run(s, &s->calls[i], copy));
        double us[PHASES] = {0};
        s->exchange->phases(s->exchange_state, &us[0], &us[1], &us[2]);
        for (int p = 0; p < PHASES; p++)
            all[p] += us[p];
    }
    phases_add(s->phases, all);
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

/* What is received, on whichever side. The copy used next is touched first, so that it is the coldest. */
static enum status exchange_poison(void *state)
{
    struct subject *s = state;
    for (int k = 1; k <= s->rotation.n; k++) {
        int copy = (s->rotation.last + k) % s->rotation.n;
        for (int m = 0; m < s->nmoves; m++) {
            const struct move *move = &s->moves[m];
            bool to_heads = move->to == EXCHANGE_TO_HEADS;
            TRY(dev_fill(s->queue, to_heads ? move->head[copy] : move->seq[copy], 0xa5,
                         (size_t)(to_heads ? head_bytes(s, move) : seq_bytes(s, move))));
        }
    }
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

static enum status exchange_verify(void *state, bool *ok, char why[256])
{
    struct subject *s = state;
    *ok = true;
    for (int m = 0; m < s->nmoves && *ok; m++) {
        const struct move *move = &s->moves[m];
        bool to_heads = move->to == EXCHANGE_TO_HEADS;
        struct data_side seq, head;
        struct data_errors errors;
        move_sides(s, m, s->rotation.last, &seq, &head);
        TRY(mirror_data_compare(s->env->dev, s->seed, move->tensor, to_heads ? &head : &seq,
                                !to_heads && move->of_kv ? model_kv_copies(move->heads, s->group.size) : 1, &errors));
        *ok = data_verdict(&errors, move->tensor, to_heads ? "by heads" : "by tokens", why);
    }
    return STATUS_OK;
}

static void side_use(struct subject *s, enum exchange_direction to)
{
    int copy = s->rotation.last;
    for (int m = 0; m < s->nmoves; m++) {
        const struct move *move = &s->moves[m];
        bool heads = to == EXCHANGE_TO_HEADS;
        char *side = heads ? move->head[copy] : move->seq[copy];
        int64_t bytes = heads ? head_bytes(s, move) : seq_bytes(s, move);
        if (move->to == to)
            use_read(s->queue, side, bytes);
        else
            use_write(s->queue, side, bytes);
    }
}

static void exchange_use(void *state)
{
    side_use(state, EXCHANGE_TO_HEADS);
    side_use(state, EXCHANGE_TO_SEQ);
}

static const char *exchange_kernel(void *state)
{
    (void)state;
    return "";
}

static const char *exchange_transport(void *state)
{
    const struct subject *s = state;
    return exchange_in_use(s->exchange, s->exchange_state, s->group.comm);
}

static void exchange_note(void *state, json_t *conditions)
{
    static const char *const names[PHASES] = {"pack_us", "transfer_us", "unpack_us", NULL};
    const struct subject *s = state;
    rotation_note(&s->rotation, conditions);
    phases_note(s->phases, names, (const double[PHASES]){1, 1, 1, 1}, conditions);
}

const struct bench_subject subject_exchange = {
    .name = "exchange",
    .about = "all-to-all with its change of layout: q, k, v in and o out, or the mirror image",
    .layout_included = true,
    .traffic = TRAFFIC_ALL,
    .check = exchange_check,
    .key = exchange_key,
    .create = exchange_create,
    .iterate = exchange_iterate,
    .enqueue = exchange_enqueue,
    .timed = exchange_timed,
    .queue = exchange_queue,
    .poison = exchange_poison,
    .verify = exchange_verify,
    .use = exchange_use,
    .destroy = exchange_destroy,
    .kernel = exchange_kernel,
    .transport = exchange_transport,
    .note = exchange_note,
};
