/* comm/transport_ucx_members.c -- what the ranks that open UCX do together: all of a job through its bootstrap, a group through its own
 * messages, which another transport carries.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm_group.h"
#include "comm/transport_ucx.h"

#include <stdlib.h>
#include <string.h>

enum status ucx_agree(const struct ucx *ucx, enum status mine)
{
    return ucx->group != NULL ? comm_agree(ucx->group, mine, "open UCX")
                              : boot_agree(ucx->boot, mine, clock_deadline(BOOT_DEADLINE_US));
}

enum status ucx_share(const struct ucx *ucx, const void *mine, size_t bytes, void *all)
{
    return ucx->group != NULL ? group_share(ucx->group, mine, bytes, all)
                              : boot_allgather(ucx->boot, mine, bytes, all, clock_deadline(BOOT_DEADLINE_US));
}

enum status ucx_meet(const struct ucx *ucx)
{
    return ucx->group != NULL ? comm_agree(ucx->group, STATUS_OK, "close UCX")
                              : boot_barrier(ucx->boot, clock_deadline(BOOT_DEADLINE_US));
}

static enum status gather_job(const struct ucx *ucx, const void *mine, size_t bytes, char **all, char **rows)
{
    size_t *sizes = NULL;
    enum status status = ucx_agree(ucx, mem_alloc((size_t)ucx->nmembers * sizeof *sizes, "sizes", (void **)&sizes));
    if (status == STATUS_OK)
        status = boot_allgatherv(ucx->boot, mine, bytes, all, sizes, clock_deadline(BOOT_DEADLINE_US));
    size_t at = 0;
    for (int m = 0; status == STATUS_OK && m < ucx->nmembers; m++) {
        rows[m] = *all + at;
        at += sizes[m];
    }
    free(sizes);
    return status;
}

/* Slot by slot, as many as the longest takes. Room: a row for each, one for this rank's and one slot for each. */
static enum status gather_slots(struct comm *group, const void *mine, size_t bytes, size_t row_bytes, char *room)
{
    char *own = room + (size_t)group->size * row_bytes, *slots = own + row_bytes;
    if (bytes > 0)
        memcpy(own, mine, bytes);
    for (size_t from = 0; from < row_bytes; from += GROUP_SLOT_BYTES) {
        TRY(group_share(group, own + from, GROUP_SLOT_BYTES, slots));
        for (int m = 0; m < group->size; m++)
            memcpy(room + (size_t)m * row_bytes + from, slots + (size_t)m * GROUP_SLOT_BYTES, GROUP_SLOT_BYTES);
    }
    return STATUS_OK;
}

static enum status gather_group(struct comm *group, const void *mine, size_t bytes, char **all, char **rows)
{
    const size_t n = (size_t)group->size;
    double most = (double)bytes;
    char *room = NULL;
    TRY(comm_max(group, &most, 1));
    size_t row_bytes = ((size_t)most + GROUP_SLOT_BYTES - 1) / GROUP_SLOT_BYTES * GROUP_SLOT_BYTES;
    enum status status = mem_alloc((n + 1) * row_bytes + n * GROUP_SLOT_BYTES, "addresses", (void **)&room);
    status = comm_agree(group, status, "open UCX");
    if (status == STATUS_OK)
        status = gather_slots(group, mine, bytes, row_bytes, room);
    if (status != STATUS_OK) {
        free(room);
        return status;
    }
    for (size_t m = 0; m < n; m++)
        rows[m] = room + m * row_bytes;
    *all = room;
    return STATUS_OK;
}

enum status ucx_gather(const struct ucx *ucx, const void *mine, size_t bytes, char **all, char **rows)
{
    return ucx->group != NULL ? gather_group(ucx->group, mine, bytes, all, rows)
                              : gather_job(ucx, mine, bytes, all, rows);
}
