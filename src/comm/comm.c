/* comm/comm.c -- the job and its groups: who is in, which tags are theirs.
 *
 * Messages of two groups never mix, because the tag carries the group's context: the lowest number that is free on
 * every member, found when the group is made. Groups without a common rank may share a number.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/comm_group.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_AFTER_US = 30 * 1000 * 1000 };

/* ---- making and closing ---- */

static void set_used(struct comm_job *job, int context, bool used)
{
    unsigned char bit = (unsigned char)(1u << (context % 8));
    job->used[context / 8] = (unsigned char)(used ? job->used[context / 8] | bit : job->used[context / 8] & ~bit);
}

static void job_release(struct comm_job *job)
{
    if (--job->groups > 0)
        return;
    job->transport->close(job->state);
    free(job);
}

/* The ranks beside part by messages of this group, among which others may still be at work when this one gives up. So all say first, by
 * messages of their own, that they are here; where that fails their transport is broken, and closes without a word. */
static void part(struct comm *comm)
{
    const struct status_message kept = *status_last();
    if (comm->beside != NULL) {
        comm->beside->after_us = comm->after_us;
        comm_barrier(comm->beside, NULL);
        status_restore(&kept);
    }
    comm_close(comm->beside);
}

static void destroy(struct comm *comm)
{
    if (!comm)
        return;
    part(comm);
    for (int kind = 0; kind < TRANSPORT_ROUTES; kind++)
        if (comm->route[kind] != NULL)
            comm->job->transport->routes->close(comm->route[kind]);
    if (comm->sums != NULL)
        comm->job->transport->sums->close(comm->job->state, comm->sums);
    dev_free(comm->job->dev, comm->slots);
    dev_queue_destroy(comm->queue);
    free(comm->ranks);
    free(comm->shared);
    free(comm->sends);
    free(comm->recvs);
    free(comm->sources);
    free(comm);
}

/* Everything a group of up to `size` ranks needs; context and members follow. */
static enum status create(struct comm_job *job, int size, struct comm **out)
{
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return FAIL(STATUS_NOMEM, "out of memory for a group of %d ranks", size);
    const size_t n = (size_t)size, slots = (n + 1) * GROUP_SLOT_BYTES;
    enum status status;
    comm->job = job;
    comm->after_us = DEFAULT_AFTER_US;
    TRY_OUT(mem_alloc(n * sizeof *comm->ranks, "group", (void **)&comm->ranks));
    TRY_OUT(mem_alloc(n * sizeof *comm->sends, "group", (void **)&comm->sends));
    TRY_OUT(mem_alloc(n * sizeof *comm->recvs, "group", (void **)&comm->recvs));
    TRY_OUT(mem_alloc(n * sizeof *comm->sources, "group", (void **)&comm->sources));
    TRY_OUT(mem_alloc(slots, "group", (void **)&comm->shared));
    TRY_OUT(dev_alloc(job->dev, slots, "group", (void **)&comm->slots));
    TRY_OUT(dev_queue_create(job->dev, &comm->queue));
    *out = comm;
out:
    if (status != STATUS_OK)
        destroy(comm);
    return status;
}

static void join(struct comm *comm, int context)
{
    comm->context = context;
    set_used(comm->job, context, true);
    comm->job->groups++;
}

static enum status find_transport(const char *name, enum dev_kind dev, const struct transport **out)
{
    struct text known = {0};
    *out = name != NULL ? transport_find(name) : transport_usual(dev);
    if (*out == NULL && name == NULL)
        return FAIL(STATUS_ABSENT, "no transport of this build carries data between ranks on the %s",
                    dev_kind_name(dev));
    for (int i = 0; !*out && transports[i]; i++)
        text_add(&known, "%s%s", i ? ", " : "", transports[i]->name);
    enum status status = STATUS_OK;
    if (!*out)
        status = HINT(FAIL(STATUS_ABSENT, "there is no transport '%s'", name), "known: %s", text_get(&known));
    text_free(&known);
    return status;
}

static enum status agree(struct boot *boot, enum status status)
{
    return boot_agree(boot, status, clock_deadline(BOOT_DEADLINE_US));
}

enum status comm_open(struct boot *boot, struct dev *dev, const char *transport, const char *prefer, struct comm **out)
{
    struct comm_job *job = calloc(1, sizeof *job);
    struct comm *comm = NULL;
    enum status status = job ? STATUS_OK : FAIL(STATUS_NOMEM, "out of memory for a job");
    if (job) {
        *job = (struct comm_job){.boot = boot, .dev = dev};
        text_print(job->prefer, sizeof job->prefer, "%s", prefer != NULL ? prefer : "");
        status = find_transport(transport, dev_kind_of(dev), &job->transport);
    }
    if (status == STATUS_OK)
        status = create(job, boot_size(boot), &comm);
    TRY_OUT(agree(boot, status));
    TRY_OUT(job->transport->open(boot, dev, prefer, &job->state));
    comm->rank = boot_rank(boot);
    comm->size = boot_size(boot);
    for (int r = 0; r < comm->size; r++)
        comm->ranks[r] = r;
    join(comm, 0);
    *out = comm;
    return STATUS_OK;
out:
    destroy(comm);
    free(job);
    return status;
}

enum status comm_open_beside(const struct comm *comm, struct comm **out)
{
    const struct comm_job *job = comm->job;
    return comm_open(job->boot, job->dev, job->transport->name, job->prefer[0] != '\0' ? job->prefer : NULL, out);
}

void comm_close(struct comm *comm)
{
    if (!comm)
        return;
    struct comm_job *job = comm->job;
    const int context = comm->context;
    destroy(comm);
    set_used(job, context, false); /* what its ranks part by carries it */
    job_release(job);
}

/* ---- the same ranks, another transport ---- */

static enum status open_beside(struct comm *group, struct comm **out)
{
    struct comm_job *job = calloc(1, sizeof *job);
    struct comm *comm = NULL;
    enum status status = job ? STATUS_OK : FAIL(STATUS_NOMEM, "out of memory for a transport");
    if (job) {
        *job = (struct comm_job){.boot = group->job->boot, .dev = group->job->dev, .transport = transport_find("ucx")};
        status = create(job, group->size, &comm);
    }
    TRY_OUT(comm_agree(group, status, "open UCX"));
    TRY_OUT(job->transport->open_group(group, &job->state));
    comm->rank = group->rank;
    comm->size = group->size;
    memcpy(comm->ranks, group->ranks, (size_t)group->size * sizeof *comm->ranks);
    join(comm, 0);
    *out = comm;
    return STATUS_OK;
out:
    destroy(comm);
    free(job);
    return status;
}

/* A refusal is not kept: ranks of other groups would not know of it, and wait for these. */
enum status comm_beside(struct comm *group, struct comm **out)
{
    enum status status = group->beside != NULL ? STATUS_OK : open_beside(group, &group->beside);
    if (status == STATUS_ABSENT) {
        struct status_message message = *status_last();
        message.code = status = STATUS_UNSUPPORTED;
        status_restore(&message);
    }
    TRY(status);
    group->beside->after_us = group->after_us;
    *out = group->beside;
    return STATUS_OK;
}

/* ---- splitting ---- */

struct member { /* what each rank of the parent tells the others */
    int color, key;
    int fine; /* it has the memory for a group */
    unsigned char used[GROUP_CONTEXTS / 8];
};

_Static_assert(sizeof(struct member) <= GROUP_SLOT_BYTES, "a member fits its slot");

struct order {
    int key, parent_rank;
};

static int by_key(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->parent_rank < y->parent_rank ? -1 : 1;
}

static int lowest_free(const unsigned char *used)
{
    for (int context = 0; context < GROUP_CONTEXTS; context++)
        if (!(used[context / 8] & 1u << (context % 8)))
            return context;
    return -1;
}

/* Members of my color, in order; and the lowest context that is free on all of them. */
static enum status gather_members(const struct comm *parent, const struct member *all, struct order *order,
                                  struct comm *comm)
{
    unsigned char used[GROUP_CONTEXTS / 8] = {0};
    comm->size = 0;
    for (int r = 0; r < parent->size; r++) {
        if (!all[r].fine)
            return group_known(parent,
                               status_rank(FAIL(STATUS_NOMEM, "rank %d has no memory for a group", parent->ranks[r]),
                                           parent->ranks[r]));
        if (all[r].color != all[parent->rank].color)
            continue;
        order[comm->size++] = (struct order){.key = all[r].key, .parent_rank = r};
        for (size_t i = 0; i < sizeof used; i++)
            used[i] |= all[r].used[i];
    }
    qsort(order, (size_t)comm->size, sizeof *order, by_key);
    for (int i = 0; i < comm->size; i++) {
        comm->ranks[i] = parent->ranks[order[i].parent_rank];
        if (order[i].parent_rank == parent->rank)
            comm->rank = i;
    }
    comm->context = lowest_free(used);
    return comm->context >= 0 ? STATUS_OK : FAIL(STATUS_UNSUPPORTED, "more than %d groups at a time", GROUP_CONTEXTS);
}

enum status comm_split(struct comm *parent, int color, int key, struct comm **out)
{
    struct comm *comm = NULL;
    struct order *order = NULL;
    struct member *all = NULL, mine = {.color = color, .key = key};
    const size_t n = (size_t)parent->size;
    enum status status = create(parent->job, parent->size, &comm);
    if (status == STATUS_OK)
        status = mem_alloc(n * sizeof *order, "group", (void **)&order);
    if (status == STATUS_OK)
        status = mem_alloc(n * sizeof *all, "group", (void **)&all);
    if (!all)
        goto out;
    mine.fine = status == STATUS_OK;
    memcpy(mine.used, parent->job->used, sizeof mine.used);
    TRY_OUT(group_share(parent, &mine, sizeof mine, all));
    TRY_OUT(gather_members(parent, all, order, comm));
    comm->after_us = parent->after_us;
    join(comm, comm->context);
    *out = comm;
    comm = NULL;
out:
    destroy(comm);
    free(order);
    free(all);
    return status;
}

/* ---- questions ---- */

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->size;
}

int comm_job_rank(const struct comm *comm, int rank)
{
    return comm->ranks[rank];
}

struct boot *comm_boot(const struct comm *comm)
{
    return comm->job->boot;
}

struct dev *comm_dev(const struct comm *comm)
{
    return comm->job->dev;
}

const char *comm_transport_name(const struct comm *comm)
{
    return comm->job->transport->name;
}

const char *comm_transport(const struct comm *comm)
{
    return comm->job->transport->in_use(comm->job->state);
}

int64_t comm_deadline_us(const struct comm *comm)
{
    return comm->after_us;
}

void comm_set_deadline(struct comm *comm, int64_t after_us)
{
    comm->after_us = after_us;
}
