/* bench/rotation.c -- cold, or not. */
#include "bench/rotation.h"

#include "base/mem.h"
#include "bench/group.h"

enum { COPIES_MAX = 4096 };

/* What this rank can have of it: GPUs are not shared. */
static enum status memory_of(struct bench_env *env, int64_t *out)
{
    int64_t total;
    if (dev_kind_of(env->dev) != DEV_CPU)
        return dev_memory(env->dev, out, &total);
    TRY(mem_available(out));
    *out /= comm_size(env->world);
    return STATUS_OK;
}

enum status rotation_open(struct bench_env *env, enum bench_buffers buffers, int64_t bytes, struct rotation *out)
{
    struct rotation rotation = {.n = 1, .bytes = bytes, .cache_bytes = dev_cache_bytes(env->dev)};
    int64_t wanted = 1, allowed = 1, available = 0, each = bytes > 0 ? bytes : 1, n = 1;
    if (buffers == BENCH_COLD) {
        TRY(group_agree(env, memory_of(env, &available)));
        wanted = (3 * rotation.cache_bytes + each - 1) / each;
        allowed = available / 2 / each; /* a case takes half of what is there, at most */
        n = wanted < allowed ? wanted : allowed;
        n = n < 1 ? 1 : n > COPIES_MAX ? COPIES_MAX : n;
    }
    TRY(group_min(env, n, &n));
    rotation.n = (int)n;
    rotation.capped = n < wanted;
    *out = rotation;
    return STATUS_OK;
}

int rotation_pick(struct rotation *rotation, int iteration)
{
    rotation->last = iteration % rotation->n;
    return rotation->last;
}

void rotation_note(const struct rotation *rotation, json_t *conditions)
{
    json_object_set_new(conditions, "copies", json_integer(rotation->n));
    json_object_set_new(conditions, "copy_bytes", json_integer(rotation->bytes));
    if (rotation->n > 1 || rotation->capped)
        json_object_set_new(conditions, "cache_bytes", json_integer(rotation->cache_bytes));
    if (rotation->capped)
        json_object_set_new(conditions, "copies_capped", json_true());
}
