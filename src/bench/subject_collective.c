/* bench/subject_collective.c -- bare collectives of the transport, sized as nccl-tests sizes them.
 *
 * bytes is nccl-tests' "size": of an all-to-all, reduce-scatter or all-reduce what one rank sends, of an all-gather what each rank ends
 * up with, of send/recv one message. It is rounded down to whole elements per rank; the sample carries what really moved. Data of
 * reductions are small integers, so that every order of summing gives the same result and it must match exactly.
 */
#include "bench/mirror.h"
#include "bench/subject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum op { ALLTOALL, ALLGATHER, REDUCE_SCATTER, ALLREDUCE, SENDRECV, OPS };
static const char *const op_names[OPS] = {"alltoall", "allgather", "reduce_scatter", "allreduce", "sendrecv"};

struct collective {
    enum op op;
    struct bench_env *env;
    struct group group;
    struct rotation rotation;
    struct dev_queue *queue;
    uint64_t seed;
    enum dtype dtype;
    int64_t block;          /* bytes per rank */
    int64_t send_bytes, recv_bytes, scratch_bytes;
    char **send, **recv;    /* [rotation.n] */
    int *summed;            /* [rotation.n]: how often since its data were put back, for what is summed in place */
    void *scratch;
};

static enum op op_of(const struct bench_case *c)
{
    int op = 0;
    while (op < OPS && strcmp(op_names[op], c->op) != 0)
        op++;
    return (enum op)op;
}

static bool reduces(enum op op)
{
    return op == REDUCE_SCATTER || op == ALLREDUCE;
}

/* Bytes of one rank's block. */
static int64_t block_of(const struct bench_case *c)
{
    enum op op = op_of(c);
    int64_t elem = reduces(op) ? dtype_bytes(c->problem.dtype) : 1, parts = op == ALLREDUCE || op == SENDRECV ? 1 : c->plan.sp;
    return c->bytes / parts / elem * elem;
}

static struct verdict collective_check(const struct bench_case *c, const struct bench_env *env)
{
    struct verdict verdict = subject_check_world(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (op_of(c) == OPS)
        return verdict_no(RULE_ABSENT, "there is no collective '%.24s'", c->op);
    if (c->plan.sp == 1 && op_of(c) != ALLTOALL) /* an all-to-all of one rank is a copy: the rate that prices an optimizer */
        return verdict_no(RULE_WORLD, "a collective of one rank moves nothing");
    if (reduces(op_of(c)))
        verdict = subject_check_sums(env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (c->bytes < 0 || c->bytes > (int64_t)1 << 50)
        return verdict_no(RULE_INDEX, "%lld bytes: 1 to 2^50 make sense", (long long)c->bytes);
    if (block_of(c) == 0)
        return verdict_no(RULE_INDEX, "%lld bytes leave less than an element for each of %d ranks", (long long)c->bytes,
                          c->plan.sp);
    return VERDICT_YES;
}

static void collective_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    enum op op = op_of(c);
    (void)env;
    subject_key_common(c, out);
    out->key.sp = c->plan.sp;
    out->key.bytes = c->bytes;
    text_print(out->key.op, sizeof out->key.op, "%s", c->op);
    if (!reduces(op))
        out->key.dtype[0] = '\0';
    out->group = c->plan.sp;
    out->bytes = c->plan.sp > 0 ? block_of(c) * (op == ALLREDUCE || op == SENDRECV ? 1 : c->plan.sp) : -1;
}

static void sizes_set(struct collective *s)
{
    int64_t all = s->block * s->group.size;
    s->send_bytes = s->op == ALLTOALL || s->op == REDUCE_SCATTER ? all : s->block;
    s->recv_bytes = s->op == ALLTOALL || s->op == ALLGATHER ? all : s->block;
    if (s->op == REDUCE_SCATTER)
        s->scratch_bytes = all;
    if (s->op == ALLREDUCE) {
        s->recv_bytes = 0;
        s->scratch_bytes =
            (int64_t)comm_allreduce_scratch(s->group.comm, s->block / dtype_bytes(s->dtype), s->dtype);
    }
}

/* Element i of what `rank` brings to a sum: 0 to 3, so that sums stay exact in every type and up to 64 ranks. */
static float term(uint64_t seed, int group, int rank, int64_t i)
{
    return (float)(rng_hash(rng_hash(seed, (uint64_t)group << 32 | (uint64_t)rank), (uint64_t)i) & 3);
}

static enum status terms_fill(const struct collective *s, char *send)
{
    struct mirror mirror;
    TRY(mirror_open(s->env->dev, send, (size_t)s->send_bytes, &mirror));
    for (int64_t i = 0; i < s->send_bytes / dtype_bytes(s->dtype); i++)
        dtype_set(s->dtype, mirror.host, i, term(s->seed, s->group.index, s->group.rank, i));
    enum status status = mirror_store(&mirror);
    mirror_close(&mirror);
    return status;
}

static enum status send_fill(const struct collective *s, char *send)
{
    struct dev *dev = s->env->dev;
    int rank = s->group.rank, base = s->group.index * s->group.size;
    if (reduces(s->op))
        return terms_fill(s, send);
    if (s->op != ALLTOALL)
        return mirror_bytes_fill(dev, s->seed, base + rank, base + rank, s->block, send);
    for (int to = 0; to < s->group.size; to++)
        TRY(mirror_bytes_fill(dev, s->seed, base + rank, base + to, s->block, send + to * s->block));
    return STATUS_OK;
}

static void collective_destroy(void *state)
{
    struct collective *s = state;
    if (s == NULL)
        return;
    for (int i = 0; i < s->rotation.n; i++) {
        if (s->send != NULL)
            dev_free(s->env->dev, s->send[i]);
        if (s->recv != NULL)
            dev_free(s->env->dev, s->recv[i]);
    }
    dev_free(s->env->dev, s->scratch);
    free(s->send);
    free(s->recv);
    free(s->summed);
    dev_queue_destroy(s->queue);
    group_close(&s->group);
    free(s);
}

static enum status buffers_alloc(struct collective *s)
{
    struct dev *dev = s->env->dev;
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->send, "buffers", (void **)&s->send));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->recv, "buffers", (void **)&s->recv));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->summed, "buffers", (void **)&s->summed));
    TRY(dev_queue_create(dev, &s->queue));
    TRY(dev_alloc(dev, (size_t)s->scratch_bytes, "scratch of a collective", &s->scratch));
    for (int i = 0; i < s->rotation.n; i++) {
        TRY(dev_alloc(dev, (size_t)s->send_bytes, "send buffer", (void **)&s->send[i]));
        TRY(dev_alloc(dev, (size_t)s->recv_bytes, "receive buffer", (void **)&s->recv[i]));
        TRY(send_fill(s, s->send[i]));
    }
    return STATUS_OK;
}

static enum status collective_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct collective *s = NULL;
    TRY(group_alloc(env, sizeof *s, "a collective", (void **)&s));
    *s = (struct collective){.op = op_of(c), .env = env, .seed = c->seed, .dtype = c->problem.dtype, .block = block_of(c)};
    enum status status = group_open(env, c->plan.sp, &s->group);
    if (status == STATUS_OK && reduces(s->op))
        status = group_agree(env, comm_sums_open(s->group.comm));
    if (status == STATUS_OK) {
        sizes_set(s);
        status = rotation_open(env, c->buffers, s->send_bytes + s->recv_bytes, &s->rotation);
    }
    if (status == STATUS_OK)
        status = group_agree(env, buffers_alloc(s));
    if (status != STATUS_OK) {
        collective_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static enum status collective_enqueue(void *state, int iteration)
{
    struct collective *s = state;
    struct comm *comm = s->group.comm;
    int i = rotation_pick(&s->rotation, iteration), size = s->group.size, rank = s->group.rank;
    int64_t elems = s->block / dtype_bytes(s->dtype);
    enum status status = STATUS_OK;
    s->summed[i]++;
    switch (s->op) {
    case ALLTOALL:
        status = comm_alltoall(comm, s->send[i], s->recv[i], (size_t)s->block, s->queue);
        break;
    case ALLGATHER:
        status = comm_allgather(comm, s->send[i], s->recv[i], (size_t)s->block, s->queue);
        break;
    case REDUCE_SCATTER:
        status = comm_reduce_scatter(comm, s->send[i], s->recv[i], elems, s->dtype, s->scratch, s->queue);
        break;
    case ALLREDUCE:
        status = comm_allreduce(comm, s->send[i], elems, s->dtype, s->scratch, s->queue);
        break;
    default:
        status = comm_sendrecv(comm, s->send[i], (rank + 1) % size, s->recv[i], (rank + size - 1) % size, (size_t)s->block,
                               s->queue);
    }
    return status;
}

static struct dev_queue *collective_queue(void *state)
{
    return ((struct collective *)state)->queue;
}

static enum status collective_iterate(void *state, int iteration)
{
    TRY(collective_enqueue(state, iteration));
    return dev_sync(collective_queue(state), clock_deadline(SUBJECT_SYNC_US));
}

/* In place, so what was summed before is put back. The copy used next is touched first, so that it is the coldest. */
static enum status collective_poison(void *state)
{
    struct collective *s = state;
    for (int k = 1; k <= s->rotation.n; k++) {
        int i = (s->rotation.last + k) % s->rotation.n;
        s->summed[i] = 0;
        if (s->op == ALLREDUCE)
            TRY(send_fill(s, s->send[i]));
        else
            TRY(dev_fill(s->queue, s->recv[i], 0xa5, (size_t)s->recv_bytes));
    }
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

static float rounded(enum dtype dtype, float value)
{
    uint32_t bits = 0;
    dtype_set(dtype, &bits, 0, value);
    return dtype_get(dtype, &bits, 0);
}

/* What an element becomes: the sum of all ranks' terms, and with every further round in place the sum of as many equal ones. */
static float sum_expect(const struct collective *s, int64_t i, int rounds)
{
    float sum = 0;
    for (int r = 0; r < s->group.size; r++)
        sum += term(s->seed, s->group.index, r, i);
    sum = rounded(s->dtype, sum);
    for (int round = 1; round < rounds; round++) {
        float next = 0;
        for (int r = 0; r < s->group.size; r++)
            next += sum;
        sum = rounded(s->dtype, next);
    }
    return sum;
}

static bool sums_are(const struct collective *s, const void *got, int64_t first, int rounds, char why[256])
{
    int64_t wrong = 0, where = 0, elems = s->block / dtype_bytes(s->dtype);
    for (int64_t i = 0; i < elems; i++)
        if (dtype_get(s->dtype, got, i) != sum_expect(s, first + i, rounds) && wrong++ == 0)
            where = i;
    if (wrong > 0)
        text_print(why, 256, "%lld of %lld sums are wrong, first at element %lld: %g, not %g", (long long)wrong, (long long)elems,
                   (long long)where, (double)dtype_get(s->dtype, got, where), (double)sum_expect(s, first + where, rounds));
    return wrong == 0;
}

static enum status sums_right(const struct collective *s, void *got, int64_t first, int rounds, bool *ok, char why[256])
{
    struct mirror mirror;
    TRY(mirror_open(s->env->dev, got, (size_t)s->block, &mirror));
    enum status status = mirror_load(&mirror);
    *ok = status == STATUS_OK && sums_are(s, mirror.host, first, rounds, why);
    mirror_close(&mirror);
    return status;
}

static enum status collective_verify(void *state, bool *ok, char why[256])
{
    struct collective *s = state;
    int i = s->rotation.last, base = s->group.index * s->group.size, me = base + s->group.rank;
    int left = base + (s->group.rank + s->group.size - 1) % s->group.size;
    *ok = true;
    if (s->op == ALLREDUCE)
        return sums_right(s, s->send[i], 0, s->summed[i], ok, why);
    if (s->op == REDUCE_SCATTER)
        return sums_right(s, s->recv[i], s->group.rank * (s->block / dtype_bytes(s->dtype)), 1, ok, why);
    if (s->op == SENDRECV)
        return mirror_bytes_verify(s->env->dev, s->seed, left, left, s->block, s->recv[i], "", ok, why);
    for (int r = 0; r < s->group.size && *ok; r++)
        TRY(mirror_bytes_verify(s->env->dev, s->seed, base + r, s->op == ALLTOALL ? me : base + r, s->block,
                                s->recv[i] + r * s->block, "", ok, why));
    return STATUS_OK;
}

static const char *collective_kernel(void *state)
{
    (void)state;
    return "";
}

static const char *collective_transport(void *state)
{
    return comm_transport(((struct collective *)state)->group.comm);
}

static void collective_note(void *state, json_t *conditions)
{
    rotation_note(&((struct collective *)state)->rotation, conditions);
}

const struct bench_subject subject_collective = {
    .name = "collective",
    .about = "bare all-to-all, all-gather, reduce-scatter, all-reduce, send/recv",
    .layout_included = false,
    .traffic = TRAFFIC_PEERS,
    .check = collective_check,
    .key = collective_key,
    .create = collective_create,
    .iterate = collective_iterate,
    .enqueue = collective_enqueue,
    .queue = collective_queue,
    .poison = collective_poison,
    .verify = collective_verify,
    .destroy = collective_destroy,
    .kernel = collective_kernel,
    .transport = collective_transport,
    .note = collective_note,
};
