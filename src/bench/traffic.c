/* bench/traffic.c -- who stores how much to whom.
 *
 * With n parts, part i goes d = i + 1 ranks on (PEERS), or d = i + 1 with the last to itself (ALL). It has the same place in the source
 * and at the destination: of all senders one alone is d ranks before a receiver, so places do not collide and every rank receives as many
 * bytes as it sends.
 */
#include "bench/traffic.h"

#include "base/clock.h"
#include "base/mem.h"
#include "bench/group.h"
#include "bench/mirror.h"
#include "bench/use.h"
#include "comm/window.h"
#include "kernels/copy.h"
#include "kernels/copy_stream.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, SLICE = 64 << 10 /* less is not worth a thread's waking */, SYNC_US = 60 * 1000 * 1000 };

struct traffic {
    struct bench_env *env;
    enum bench_traffic kind;
    struct group group;
    struct rotation rotation;
    struct dev_queue *queue;
    struct dev_queue *beside; /* of a GPU, where the own part crosses no link: it goes at the same time; else NULL */
    struct dev_event *forks, *joins;
    struct copy_job *jobs; /* [parts], of a kernel that copies them all */
    int64_t bytes, stride; /* of one copy; between copies */
    int parts;
    char *from;            /* rotation.n copies */
    struct window *window; /* the same of every rank, where peers store */
    char *to;              /* or here */
};

const char *traffic_store_name(const struct traffic *t, enum traffic_store store)
{
    if (store == TRAFFIC_PLAIN)
        return "memcpy";
    return traffic_behind(t) ? "kernel" : "streaming stores";
}

void traffic_close(struct traffic *traffic)
{
    if (traffic == NULL)
        return;
    window_destroy(traffic->window);
    dev_free(traffic->env->dev, traffic->from);
    dev_free(traffic->env->dev, traffic->to);
    dev_event_destroy(traffic->forks);
    dev_event_destroy(traffic->joins);
    dev_queue_destroy(traffic->beside);
    dev_queue_destroy(traffic->queue);
    group_close(&traffic->group);
    free(traffic->jobs);
    free(traffic);
}

static bool is_idle(const struct traffic *t)
{
    return t->kind == TRAFFIC_ONE && comm_rank(t->env->world) != 0;
}

static bool has_peers(const struct traffic *t)
{
    return t->parts > 1 || t->kind == TRAFFIC_PEERS;
}

/* Bytes from part_at(i) to part_at(i + 1) are part i. */
static int64_t part_at(const struct traffic *t, int i)
{
    return i == t->parts ? t->bytes : t->bytes / LINE * i / t->parts * LINE;
}

/* How many ranks on part i goes. */
static int distance(const struct traffic *t, int i)
{
    return has_peers(t) ? (i + 1) % t->group.size : 0;
}

static int target_of(const struct traffic *t, int rank, int i)
{
    return (rank + distance(t, i)) % t->group.size;
}

static int source_of(const struct traffic *t, int rank, int i)
{
    return (rank + t->group.size - distance(t, i)) % t->group.size;
}

static char *inbox_of(const struct traffic *t, int rank, int copy)
{
    char *base = t->window != NULL ? window_peer(t->window, rank) : t->to;
    return base + copy * t->stride;
}

static enum status buffers_alloc(struct traffic *t)
{
    size_t all = (size_t)(t->stride * t->rotation.n);
    TRY(mem_alloc((size_t)t->parts * sizeof *t->jobs, "parts of copies", (void **)&t->jobs));
    TRY(dev_queue_create(t->env->dev, &t->queue));
    if (traffic_behind(t) && t->kind == TRAFFIC_ALL && has_peers(t)) {
        TRY(dev_queue_create(t->env->dev, &t->beside));
        TRY(dev_event_create(t->env->dev, &t->forks));
        TRY(dev_event_create(t->env->dev, &t->joins));
    }
    TRY(dev_alloc(t->env->dev, all, "source of copies", (void **)&t->from));
    TRY(dev_fill(t->queue, t->from, 1, all));
    if (!has_peers(t)) {
        TRY(dev_alloc(t->env->dev, all, "destination of copies", (void **)&t->to));
        TRY(dev_fill(t->queue, t->to, 2, all));
    }
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

/* Every page of one's own memory is touched first by oneself. */
static enum status window_open(struct traffic *t)
{
    TRY(window_create(t->group.comm, (size_t)(t->stride * t->rotation.n), "copies to peers", &t->window));
    TRY(dev_fill(t->queue, window_local(t->window), 2, window_bytes(t->window)));
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

static enum status open_all(struct traffic *t, int sp, enum bench_buffers buffers)
{
    TRY(group_open(t->env, sp, &t->group));
    t->parts = t->kind == TRAFFIC_PEERS ? t->group.size - 1 : t->kind == TRAFFIC_ALL ? t->group.size : 1;
    if (t->kind == TRAFFIC_PEERS && t->parts < 1)
        return FAIL(STATUS_UNSUPPORTED, "a group of one rank has no peers");
    TRY(rotation_open(t->env, buffers, 2 * t->stride, &t->rotation));
    TRY(group_agree(t->env, buffers_alloc(t)));
    return has_peers(t) ? group_agree(t->env, window_open(t)) : STATUS_OK;
}

enum status traffic_open(struct bench_env *env, enum bench_traffic kind, int sp, int64_t bytes,
                         enum bench_buffers buffers, struct traffic **out)
{
    struct traffic *t = NULL;
    TRY(group_alloc(env, sizeof *t, "copies", (void **)&t));
    *t = (struct traffic){.env = env, .kind = kind, .bytes = bytes, .stride = (bytes + LINE - 1) / LINE * LINE};
    enum status status = open_all(t, sp, buffers);
    if (status != STATUS_OK)
        traffic_close(t);
    else
        *out = t;
    return status;
}

/* A copy in slices, which threads share. */
struct slices {
    char *dst;
    const char *src;
    int64_t bytes;
    int n;
    enum traffic_store store;
};

static void slice_copy(void *arg, int64_t slice, int thread)
{
    const struct slices *s = arg;
    int64_t first = s->bytes / LINE * slice / s->n * LINE;
    int64_t end = slice == s->n - 1 ? s->bytes : s->bytes / LINE * (slice + 1) / s->n * LINE;
    (void)thread;
    if (s->store == TRAFFIC_STREAMING)
        copy_stream_bytes(s->dst + first, s->src + first, (size_t)(end - first));
    else
        memcpy(s->dst + first, s->src + first, (size_t)(end - first));
}

/* By a GPU's copy engines, `own` beside the others. */
static enum status copy_behind(struct traffic *t, char *dst, const char *src, int64_t bytes, bool own)
{
    return dev_copy(own && t->beside != NULL ? t->beside : t->queue, dst, src, (size_t)bytes);
}

static enum status copy(struct traffic *t, char *dst, const char *src, int64_t bytes, enum traffic_store store)
{
    struct slices slices = {.dst = dst, .src = src, .bytes = bytes, .n = 1, .store = store};
    if (t->kind != TRAFFIC_ONE && bytes >= 2 * SLICE)
        slices.n = (int)(bytes / SLICE < dev_queue_threads(t->queue) ? bytes / SLICE : dev_queue_threads(t->queue));
    if (slices.n > 1)
        dev_parallel(t->queue, slices.n, slice_copy, &slices);
    else
        slice_copy(&slices, 0, 0);
    return STATUS_OK;
}

/* What part i goes from and to; false: it is empty. */
static bool part_of(const struct traffic *t, int index, int i, struct copy_job *out)
{
    int64_t first = part_at(t, i), end = part_at(t, i + 1);
    *out = (struct copy_job){.src = t->from + index * t->stride + first,
                             .dst = inbox_of(t, target_of(t, t->group.rank, i), index) + first,
                             .n = {1, 1, 1},
                             .row_bytes = (size_t)(end - first)};
    return end > first;
}

static enum status put_parts(struct traffic *t, int index, enum traffic_store store)
{
    struct copy_job part;
    for (int i = 0; i < t->parts && !is_idle(t); i++) {
        if (!part_of(t, index, i, &part))
            continue;
        if (traffic_behind(t))
            TRY(copy_behind(t, part.dst, part.src, (int64_t)part.row_bytes, distance(t, i) == 0));
        else
            TRY(copy(t, part.dst, part.src, (int64_t)part.row_bytes, store));
    }
    return STATUS_OK;
}

/* All parts at once, by a GPU's kernel. */
static enum status put_by_kernel(struct traffic *t, int index)
{
    int n = 0;
    for (int i = 0; i < t->parts && !is_idle(t); i++)
        n += part_of(t, index, i, &t->jobs[n]);
    return copy_run(dev_kind_of(t->env->dev), t->jobs, n, t->queue);
}

enum status traffic_put(struct traffic *t, int iteration, enum traffic_store store)
{
    int index = rotation_pick(&t->rotation, iteration);
    if (traffic_behind(t) && store == TRAFFIC_STREAMING)
        return put_by_kernel(t, index);
    if (t->beside == NULL)
        return put_parts(t, index, store);
    TRY(dev_event_record(t->forks, t->queue));
    TRY(dev_event_wait(t->beside, t->forks));
    TRY(put_parts(t, index, store));
    TRY(dev_event_record(t->joins, t->beside));
    return dev_event_wait(t->queue, t->joins);
}

enum status traffic_run(struct traffic *t, int iteration, enum traffic_store store)
{
    TRY(traffic_put(t, iteration, store));
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

void traffic_use(struct traffic *t)
{
    if (is_idle(t))
        return;
    use_read(t->queue, inbox_of(t, t->group.rank, t->rotation.last), t->bytes);
    use_write(t->queue, t->from + t->rotation.last * t->stride, t->bytes);
}

bool traffic_behind(const struct traffic *t)
{
    return dev_kind_of(t->env->dev) != DEV_CPU;
}

struct dev_queue *traffic_queue(const struct traffic *t)
{
    return t->queue;
}

int traffic_stores(const struct traffic *t)
{
    enum dev_kind kind = dev_kind_of(t->env->dev);
    return kind == DEV_CPU || kind == DEV_CUDA ? TRAFFIC_STORES : TRAFFIC_PLAIN + 1;
}

const struct rotation *traffic_rotation(const struct traffic *t)
{
    return &t->rotation;
}

const char *traffic_carrier(const struct traffic *t)
{
    return has_peers(t) ? comm_transport(t->group.comm) : "";
}

/* Ranks of the job, so that groups differ. */
static int job_rank(const struct traffic *t, int rank)
{
    return comm_job_rank(t->group.comm, rank);
}

enum status traffic_data(struct traffic *t, uint64_t seed)
{
    int me = job_rank(t, t->group.rank);
    for (int c = 0; c < t->rotation.n; c++)
        for (int i = 0; i < t->parts; i++) {
            int64_t first = part_at(t, i);
            TRY(mirror_bytes_fill(t->env->dev, seed, me, job_rank(t, target_of(t, t->group.rank, i)),
                                  part_at(t, i + 1) - first, t->from + c * t->stride + first));
        }
    return STATUS_OK;
}

/* The copy used next is touched first, so that it is the coldest. */
enum status traffic_poison(struct traffic *t)
{
    for (int k = 1; k <= t->rotation.n; k++) {
        int c = (t->rotation.last + k) % t->rotation.n;
        TRY(dev_fill(t->queue, inbox_of(t, t->group.rank, c), 0xa5, (size_t)t->bytes));
    }
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

enum status traffic_verify(const struct traffic *t, uint64_t seed, bool *ok, char why[256])
{
    int me = job_rank(t, t->group.rank);
    const char *inbox = inbox_of(t, t->group.rank, t->rotation.last);
    *ok = true;
    for (int i = 0; i < t->parts && *ok && !is_idle(t); i++) {
        int64_t first = part_at(t, i);
        TRY(mirror_bytes_verify(t->env->dev, seed, job_rank(t, source_of(t, t->group.rank, i)), me,
                                part_at(t, i + 1) - first, inbox + first, "", ok, why));
    }
    return STATUS_OK;
}
