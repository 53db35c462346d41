/* bench/group.c -- groups of ranks, and what all of them agree on. */
#include "bench/group.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"

#include <stdlib.h>

enum { AGREE_US = 120 * 1000 * 1000 }; /* filling buffers takes the others a while */

enum status group_open(struct bench_env *env, int sp, struct group *out)
{
    int size = comm_size(env->world), rank = comm_rank(env->world);
    struct group group = {.comm = env->world, .index = rank / sp, .count = size / sp, .rank = rank % sp, .size = sp};
    if (sp < size) {
        TRY(comm_split(env->world, group.index, rank, &group.comm));
        group.owned = true;
    }
    *out = group;
    return STATUS_OK;
}

void group_close(struct group *group)
{
    if (group->owned)
        comm_close(group->comm);
    *group = (struct group){0};
}

static enum status agree(struct bench_env *env, enum status mine)
{
    return boot_agree(comm_boot(env->world), mine, clock_deadline(AGREE_US));
}

enum status group_agree(struct bench_env *env, enum status mine)
{
    return group_is_over(mine) ? mine : agree(env, mine);
}

enum status group_hear(struct bench_env *env, enum status mine)
{
    if (group_is_over(mine))
        return mine;
    return agree(env, mine == STATUS_OK ? interrupt_status() : mine);
}

bool group_is_interrupt(enum status status)
{
    return status == STATUS_INTERRUPTED || status == STATUS_TERMINATED;
}

enum status group_alloc(struct bench_env *env, size_t bytes, const char *what, void **out)
{
    void *memory = NULL;
    enum status status = group_agree(env, mem_alloc(bytes, what, &memory));
    if (status == STATUS_OK)
        *out = memory;
    else
        free(memory);
    return status;
}

bool group_is_over(enum status status)
{
    return status == STATUS_PEER || status == STATUS_TIMEOUT || status == STATUS_MACHINE || group_is_interrupt(status);
}

enum status group_min(struct bench_env *env, int64_t mine, int64_t *out)
{
    double value = -(double)mine;
    TRY(comm_max(env->world, &value, 1));
    *out = (int64_t)-value;
    return STATUS_OK;
}
