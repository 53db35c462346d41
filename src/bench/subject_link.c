/* bench/subject_link.c -- what the links of this machine carry: bare copies, the ceilings of everything that moves data.
 *
 *   memcpy      every rank copies `bytes` within its own memory, all at once
 *   memcpy_one  rank 0 alone copies, on one thread
 *   peer        every rank stores `bytes` to its peers through mapped memory, an equal part to each, so that every direction is busy
 *
 * bytes is what one rank copies. Buffers used: each rank reads what came to it and writes what it copies, both its own where it copies within
 * itself. On a CPU there are two kinds of store (bench/traffic.h); a row takes the one that was faster when it was
 * opened, and names it as its kernel.
 */
#include "bench/subject.h"

#include "base/clock.h"
#include "base/text.h"
#include "bench/traffic.h"
#include "comm/window.h"

#include <stdlib.h>
#include <string.h>

enum { TRIALS = 8, SHORT_BYTES = 128 << 10, SHORT_LOOPS = 16 /* for the clock's sake */ };

static const struct {
    const char *name;
    enum bench_traffic traffic;
} ops[] = {{"memcpy", TRAFFIC_LOCAL}, {"memcpy_one", TRAFFIC_ONE}, {"peer", TRAFFIC_PEERS}};

struct subject {
    struct bench_env *env;
    struct traffic *traffic;
    enum traffic_store store;
    uint64_t seed;
    bool used;
};

/* TRAFFIC_NONE: no such op. */
static enum bench_traffic traffic_of(const struct bench_case *c)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strcmp(ops[i].name, c->op) == 0)
            return ops[i].traffic;
    return TRAFFIC_NONE;
}

static struct verdict link_check(const struct bench_case *c, const struct bench_env *env)
{
    struct verdict verdict = subject_check_world(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (traffic_of(c) == TRAFFIC_NONE)
        return verdict_no(RULE_ABSENT, "link has no op '%.24s'; memcpy, memcpy_one and peer there are", c->op);
    if (traffic_of(c) == TRAFFIC_PEERS && c->plan.sp == 1)
        return verdict_no(RULE_WORLD, "a group of one rank has no peers");
    if (traffic_of(c) != TRAFFIC_PEERS && c->plan.sp != c->problem.world)
        return verdict_no(RULE_WORLD, "%s knows no groups: it is one row, that of sp %d", c->op, c->problem.world);
    if (traffic_of(c) == TRAFFIC_PEERS && env != NULL && env->world != NULL) { /* the same on every rank */
        verdict = window_verdict(env->world);
        if (!verdict_ok(&verdict))
            return verdict;
    }
    if (c->bytes < 1 || c->bytes > (int64_t)1 << 50)
        return verdict_no(RULE_INDEX, "%lld bytes: 1 to 2^50 make sense", (long long)c->bytes);
    return VERDICT_YES;
}

static void link_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    (void)env;
    subject_key_common(c, out);
    out->key.dtype[0] = '\0';
    if (traffic_of(c) == TRAFFIC_PEERS || c->plan.sp != c->problem.world) { /* the others know no groups */
        out->key.sp = c->plan.sp;
        out->group = c->plan.sp;
    }
    out->key.bytes = c->bytes;
    text_print(out->key.op, sizeof out->key.op, "%s", c->op);
    out->bytes = c->bytes;
}

static void link_destroy(void *state)
{
    struct subject *s = state;
    if (s != NULL)
        traffic_close(s->traffic);
    free(s);
}

/* All ranks are here. A barrier may be only put on its queue: the device reaches it later. */
static enum status together(const struct subject *s)
{
    struct dev_queue *queue = traffic_queue(s->traffic);
    TRY(comm_barrier(s->env->world, queue));
    return dev_sync(queue, clock_deadline(SUBJECT_SYNC_US));
}

/* Microseconds of the fastest of a few copies in a row, of the slowest rank. The first one finds in the caches what another kind of store
 * left there, and does not count. */
static enum status store_best(struct subject *s, enum traffic_store store, int loops, double *out_us)
{
    double us[TRIALS];
    for (int i = 0; i < TRIALS; i++) {
        if (s->used) {
            TRY(together(s));
            traffic_use(s->traffic);
        }
        TRY(together(s));
        int64_t from = clock_ns();
        for (int l = 0; l < loops; l++)
            TRY(traffic_run(s->traffic, i * loops + l, store));
        us[i] = (double)(clock_ns() - from) * 1e-3;
    }
    TRY(comm_max(s->env->world, us, TRIALS));
    *out_us = us[1];
    for (int i = 2; i < TRIALS; i++)
        *out_us = us[i] < *out_us ? us[i] : *out_us;
    return STATUS_OK;
}

static enum status store_choose(struct subject *s, int64_t bytes)
{
    double best_us[TRAFFIC_STORES];
    int loops = bytes < SHORT_BYTES && !s->used ? SHORT_LOOPS : 1;
    for (int store = 0; store < traffic_stores(s->traffic); store++) {
        TRY(store_best(s, (enum traffic_store)store, loops, &best_us[store]));
        if (store == 0 || best_us[store] < best_us[s->store])
            s->store = (enum traffic_store)store;
    }
    return STATUS_OK;
}

static enum status link_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct subject *s = NULL;
    enum bench_traffic traffic = traffic_of(c);
    TRY(group_alloc(env, sizeof *s, "a link", (void **)&s));
    *s = (struct subject){.env = env, .seed = c->seed, .used = c->buffers == BENCH_USED};
    enum status status = traffic_open(env, traffic, c->plan.sp, c->bytes, c->buffers, &s->traffic);
    if (status == STATUS_OK)
        status = group_agree(env, traffic_data(s->traffic, s->seed));
    if (status == STATUS_OK && traffic_stores(s->traffic) > 1)
        status = store_choose(s, c->bytes);
    if (status != STATUS_OK) {
        link_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static enum status link_iterate(void *state, int iteration)
{
    struct subject *s = state;
    return traffic_run(s->traffic, iteration, s->store);
}

static enum status link_enqueue(void *state, int iteration)
{
    struct subject *s = state;
    return traffic_put(s->traffic, iteration, s->store);
}

static struct dev_queue *link_queue(void *state)
{
    return traffic_queue(((struct subject *)state)->traffic);
}

static enum status link_poison(void *state)
{
    return traffic_poison(((struct subject *)state)->traffic);
}

static enum status link_verify(void *state, bool *ok, char why[256])
{
    struct subject *s = state;
    return traffic_verify(s->traffic, s->seed, ok, why);
}

static const char *link_kernel(void *state)
{
    const struct subject *s = state;
    return traffic_store_name(s->traffic, s->store);
}

static const char *link_transport(void *state)
{
    return traffic_carrier(((struct subject *)state)->traffic);
}

static void link_use(void *state)
{
    traffic_use(((struct subject *)state)->traffic);
}

static void link_note(void *state, json_t *conditions)
{
    rotation_note(traffic_rotation(((struct subject *)state)->traffic), conditions);
}

const struct bench_subject subject_link = {
    .name = "link",
    .about = "bare copies, within ranks and to peers with every direction busy: the ceilings",
    .check = link_check,
    .key = link_key,
    .create = link_create,
    .iterate = link_iterate,
    .enqueue = link_enqueue,
    .queue = link_queue,
    .poison = link_poison,
    .verify = link_verify,
    .use = link_use,
    .destroy = link_destroy,
    .kernel = link_kernel,
    .transport = link_transport,
    .note = link_note,
};
