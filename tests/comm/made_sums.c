/* comm/made_sums.c -- see made_sums.h. */
#include "comm/made_sums.h"

#include "comm/comm_group.h"

#include <stdlib.h>
#include <string.h>

struct made_seen made_seen;

static enum status made_id(void *state, char id[TRANSPORT_ID_BYTES])
{
    (void)state;
    if (made_seen.failing == MADE_WITHOUT_ID)
        return FAIL(STATUS_NOMEM, "no memory for an id");
    made_seen.ids++;
    memset(id, MADE_BY_RANK + boot_rank(made_seen.boot), TRANSPORT_ID_BYTES);
    return STATUS_OK;
}

/* As a library in which the others wait for the one that fails. */
static enum status refuse(int rank, int size)
{
    enum status status = STATUS_OK;
    if (rank == 1) {
        status = FAIL(STATUS_MACHINE, "nothing for a group of %d", size);
        boot_abort(made_seen.boot, status_last());
    }
    while (status == STATUS_OK)
        status = boot_poll(made_seen.boot);
    return status;
}

static enum status made_open(void *state, int size, int rank, const char id[TRANSPORT_ID_BYTES], void **sums)
{
    (void)state;
    if (made_seen.failing == MADE_NOT)
        return refuse(rank, size);
    struct made *made = malloc(sizeof *made);
    if (made == NULL)
        abort();
    *made = (struct made){size, rank, id[TRANSPORT_ID_BYTES - 1]};
    made_seen.made++;
    *sums = made;
    return STATUS_OK;
}

static void made_close(void *state, void *sums)
{
    (void)state;
    made_seen.closed++;
    free(sums);
}

static enum status made_scatter(void *state, void *sums, const void *send, void *recv, int64_t elems, enum dtype dtype,
                                struct dev_queue *queue)
{
    (void)state;
    (void)send;
    (void)queue;
    for (int64_t i = 0; i < elems; i++)
        dtype_set(dtype, recv, i, (float)(sums != NULL ? ((struct made *)sums)->number : MADE_BY_JOB));
    return STATUS_OK;
}

static enum status made_all(void *state, void *sums, void *data, int64_t elems, enum dtype dtype,
                            struct dev_queue *queue)
{
    return made_scatter(state, sums, data, data, elems, dtype, queue);
}

static const struct transport_sums made_sums = {made_id, made_open, made_close, made_scatter, made_all};
static struct transport with_sums;

enum status made_sums_open(struct side *side, const struct launch *launch, enum made_failing failing)
{
    TRY(side_open(side, launch, NULL));
    with_sums = *side->comm->job->transport;
    with_sums.sums = &made_sums;
    side->comm->job->transport = &with_sums;
    made_seen = (struct made_seen){.boot = side->boot, .failing = failing};
    return STATUS_OK;
}
