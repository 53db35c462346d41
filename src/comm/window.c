/* comm/window.c -- windows from what a transport can map, and epoch flags in them.
 *
 *   a rank's memory:  [slot 0: flag of rank 0 | flag of rank 1 | ...][slot 1: ...] ... | page edge | data
 *
 * A flag has a cache line of its own, written by one rank and read by the owner. Making a window takes three rounds of
 * messages, each of which all ranks leave with the same answer: is there room, are there keys, are all mapped.
 */
#include "comm/window.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/comm_group.h"
#include "comm/nap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_BYTES = 64,
    PAGE_BYTES = 4096,
    HELP_EVERY = 64, /* looks between two looks at the clock, the bootstrap and the transport */
};

struct window {
    struct comm *group;
    size_t bytes, flags_bytes;
    void *memory;   /* the transport's, of this rank; NULL in a group of one */
    char **base;    /* [size] where each rank's memory lies here */
    void **mapping; /* [size] the transport's; own NULL */
};

static void *state_of(const struct window *window)
{
    return window->group->job->state;
}

static const struct transport *transport_of(const struct window *window)
{
    return window->group->job->transport;
}

/* ---- what all ranks are told ---- */

struct report { /* of one round, from each rank */
    struct transport_key key;
    int32_t code; /* enum status */
    char why[GROUP_SLOT_BYTES - sizeof(struct transport_key) - 2 * sizeof(int32_t)];
};

_Static_assert(sizeof(struct report) <= GROUP_SLOT_BYTES, "a report fits its slot");

static const struct report *first_failure(const struct comm *group, const struct report *all, int *failures)
{
    const struct report *first = NULL;
    *failures = 0;
    for (int r = group->size - 1; r >= 0; r--) {
        if (all[r].code == STATUS_OK)
            continue;
        first = &all[r];
        ++*failures;
    }
    return first;
}

/* A want of memory is told as such: what is there later, or in another order, may do. */
static enum status code_of(const struct report *failure)
{
    return failure->code == STATUS_NOMEM ? STATUS_NOMEM : STATUS_UNSUPPORTED;
}

/* Everybody's report; one rank's failure becomes everybody's, as the reason why there is no such memory. The reports
 * stand in memory of the group, until its next collective. */
static enum status share(struct comm *group, enum status mine, const struct transport_key *key,
                         const struct report **out)
{
    struct report report = {.code = (int32_t)mine};
    struct report *all = (struct report *)(void *)group->shared;
    int failures;
    if (key != NULL)
        report.key = *key;
    if (mine != STATUS_OK)
        text_print(report.why, sizeof report.why, "%s", status_last()->what);
    TRY(group_share(group, &report, sizeof report, all));
    const struct report *failure = first_failure(group, all, &failures);
    *out = all;
    if (failure == NULL)
        return STATUS_OK;
    if (failures == group->size) /* found alike by all: nobody's in particular */
        return FAIL(code_of(failure), "%s", failure->why);
    int rank = group->ranks[failure - all];
    return status_rank(FAIL(code_of(failure), "%s (rank %d)", failure->why, rank), rank);
}

/* ---- making one ---- */

struct verdict window_verdict(const struct comm *group)
{
    return window_room(group, 0);
}

struct verdict window_room(const struct comm *group, size_t bytes)
{
    const struct comm_job *job = group->job;
    if (group->size == 1)
        return VERDICT_YES;
    if (job->transport->memory_verdict == NULL)
        return verdict_no(RULE_EXCHANGE_CANNOT, "transport %s maps no memory of other ranks", job->transport->name);
    return job->transport->memory_verdict(job->state, bytes, group->size);
}

static enum status room(struct window *window)
{
    struct verdict verdict = window_room(window->group, window->flags_bytes + window->bytes);
    return verdict_ok(&verdict) ? STATUS_OK : FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
}

static enum status map_peers(struct window *window, const struct report *all)
{
    struct comm *group = window->group;
    for (int r = 0; r < group->size; r++) {
        void *address = NULL;
        if (r == group->rank)
            continue;
        TRY(transport_of(window)->memory_map(state_of(window), group->ranks[r], &all[r].key, &window->mapping[r],
                                             &address));
        window->base[r] = address;
    }
    return STATUS_OK;
}

static enum status create_own(struct window *window, const char *what, struct transport_key *key)
{
    void *local = NULL;
    TRY(transport_of(window)->memory_create(state_of(window), window->flags_bytes + window->bytes, what,
                                            &window->memory, &local, key));
    window->base[window->group->rank] = local;
    return STATUS_OK;
}

/* This rank's part, without the others. *out is set, half-built too. */
static enum status prepare(struct comm *group, size_t bytes, struct window **out)
{
    const size_t size = (size_t)group->size, flags = size * WINDOW_SLOTS * LINE_BYTES;
    struct window *window = NULL;
    if (bytes > SIZE_MAX / 4)
        return FAIL(STATUS_UNSUPPORTED, "no machine has %zu bytes of memory for a window", bytes);
    TRY(mem_alloc(sizeof *window, "a window", (void **)&window));
    window->group = group;
    window->bytes = bytes;
    window->flags_bytes = (flags + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    *out = window;
    TRY(mem_alloc(size * sizeof *window->base, "a window", (void **)&window->base));
    return mem_alloc(size * sizeof *window->mapping, "a window", (void **)&window->mapping);
}

static enum status build_alone(struct comm *group, size_t bytes, const char *what, struct window **out)
{
    void *local = NULL;
    TRY(prepare(group, bytes, out));
    TRY(dev_alloc(group->job->dev, (*out)->flags_bytes + bytes, what, &local));
    (*out)->base[0] = local;
    return STATUS_OK;
}

static enum status build(struct comm *group, size_t bytes, const char *what, struct window **out)
{
    struct transport_key key = {.bytes = 0};
    const struct report *all;
    enum status status = prepare(group, bytes, out);
    if (status == STATUS_OK)
        status = room(*out);
    TRY(share(group, status, NULL, &all));
    status = create_own(*out, what, &key);
    TRY(share(group, status, &key, &all));
    status = map_peers(*out, all);
    return share(group, status, NULL, &all);
}

enum status window_create(struct comm *group, size_t bytes, const char *what, struct window **out)
{
    struct window *window = NULL;
    struct verdict verdict = window_verdict(group);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    enum status status =
        group->size == 1 ? build_alone(group, bytes, what, &window) : build(group, bytes, what, &window);
    if (status != STATUS_OK) {
        const struct status_message kept = *status_last();
        window_destroy(window);
        status_restore(&kept);
        return status;
    }
    *out = window;
    return STATUS_OK;
}

void window_destroy(struct window *window)
{
    if (window == NULL)
        return;
    struct comm *group = window->group;
    for (int r = 0; window->mapping != NULL && r < group->size; r++)
        if (window->mapping[r] != NULL)
            transport_of(window)->memory_unmap(state_of(window), window->mapping[r]);
    if (window->memory != NULL)
        transport_of(window)->memory_destroy(state_of(window), window->memory);
    else if (group->size == 1 && window->base != NULL)
        dev_free(group->job->dev, window->base[0]);
    free(window->mapping);
    free(window->base);
    free(window);
}

void *window_local(const struct window *window)
{
    return window_peer(window, window->group->rank);
}

void *window_peer(const struct window *window, int rank)
{
    return window->base[rank] + window->flags_bytes;
}

size_t window_bytes(const struct window *window)
{
    return window->bytes;
}

/* ---- signals ---- */

static _Atomic uint64_t *flag(const struct window *window, int owner, int slot, int sender)
{
    size_t line = (size_t)slot * (size_t)window->group->size + (size_t)sender;
    return (_Atomic uint64_t *)(void *)(window->base[owner] + line * LINE_BYTES);
}

void window_signal(struct window *window, int peer, int slot, uint64_t epoch)
{
    atomic_store_explicit(flag(window, peer, slot, window->group->rank), epoch, memory_order_release);
}

static enum status name_late(const struct window *window, int from)
{
    const struct comm *group = window->group;
    return status_rank(FAIL(STATUS_TIMEOUT, "rank %d did not signal rank %d in time (%s)", group->ranks[from],
                            group->ranks[group->rank], comm_transport(group)),
                       group->ranks[from]);
}

enum status window_wait(struct window *window, int slot, int from, uint64_t epoch)
{
    const struct comm *group = window->group;
    const _Atomic uint64_t *here = flag(window, group->rank, slot, from);
    if (atomic_load_explicit(here, memory_order_acquire) >= epoch)
        return STATUS_OK;
    const int64_t deadline_ns = clock_deadline(group->after_us);
    struct nap nap = {0};
    for (unsigned looks = 1; atomic_load_explicit(here, memory_order_acquire) < epoch; looks++) {
        nap_take(&nap);
        if (looks % HELP_EVERY && nap.looks <= NAP_SPINS)
            continue;
        group->job->transport->progress(group->job->state);
        TRY(boot_poll(group->job->boot));
        if (clock_passed(deadline_ns))
            return name_late(window, from);
    }
    return STATUS_OK;
}
