/* comm/transport_ucx_memory.c -- memory that UCX allocates in a shared segment and other ranks map (ucp_rkey_ptr).
 *
 * Works where every lane is shared memory. The segment has no name once it is there, so it ends with its last user,
 * however that one ends. Room is asked for first: a segment that /dev/shm cannot hold is SIGBUS at the first store.
 */
#include "base/mem.h"
#include "comm/transport_ucx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

enum {
    SPARE_BYTES = 1 << 20, /* of /dev/shm, left to UCX, which takes more when messages pile up */
    PAGE_BYTES = 4096,
};

struct ucx_memory {
    ucp_context_h context; /* of the time it was made */
    ucp_mem_h handle;
};

static enum status explain(const struct ucx *ucx, ucs_status_t code, const char *what)
{
    return code == UCS_OK ? STATUS_OK
                          : FAIL(code == UCS_ERR_NO_MEMORY ? STATUS_NOMEM : STATUS_UNSUPPORTED, "UCX: %s: %s", what,
                                 ucx->api->ucs_status_string(code));
}

static struct verdict room_verdict(const struct ucx *ucx, size_t bytes, int ranks)
{
    struct statvfs fs;
    int64_t need, memory;
    if (mem_mul((int64_t)bytes, ranks, "shared memory", &need) != STATUS_OK || need > INT64_MAX / 2)
        return verdict_no(RULE_EXCHANGE_CANNOT, "no machine has %zu bytes of shared memory for each of %d ranks", bytes,
                          ranks);
    if (mem_available(&memory) == STATUS_OK && need > memory)
        return verdict_no(RULE_EXCHANGE_CANNOT, "%d ranks need %lld MiB of shared memory together, %lld MiB are free",
                          ranks, (long long)(need >> 20), (long long)(memory >> 20));
    if (strstr(ucx->in_use, "posix") == NULL || statvfs("/dev/shm", &fs) != 0)
        return VERDICT_YES;
    int64_t room = (int64_t)(fs.f_bavail * fs.f_frsize);
    if (need + SPARE_BYTES > room)
        return verdict_no(RULE_EXCHANGE_CANNOT, "%d ranks need %lld KiB of /dev/shm together, %lld KiB are free", ranks,
                          (long long)((need + SPARE_BYTES) >> 10), (long long)(room >> 10));
    return VERDICT_YES;
}

struct verdict ucx_memory_verdict(void *state, size_t bytes, int ranks)
{
    const struct ucx *ucx = state;
    if (dev_kind_of(ucx->dev) != DEV_CPU)
        return verdict_no(RULE_EXCHANGE_CANNOT, "memory of %s is not mapped through UCX",
                          dev_kind_name(dev_kind_of(ucx->dev)));
    if (ucx->nmembers == 1)
        return VERDICT_YES;
    if (!ucx->way.shm)
        return verdict_no(RULE_EXCHANGE_CANNOT, "ranks reach each other by %s, not by shared memory", ucx->in_use);
    return bytes > 0 ? room_verdict(ucx, bytes, ranks) : VERDICT_YES;
}

static enum status pack_key(struct ucx *ucx, ucp_mem_h handle, const void *address, struct transport_key *key)
{
    void *packed = NULL;
    size_t bytes = 0;
    TRY(explain(ucx, ucx->api->ucp_rkey_pack(ucx->context, handle, &packed, &bytes), "describing shared memory"));
    key->address = (uint64_t)(uintptr_t)address;
    key->bytes = (uint32_t)bytes;
    if (bytes <= sizeof key->data)
        memcpy(key->data, packed, bytes);
    ucx->api->ucp_rkey_buffer_release(packed);
    return bytes <= sizeof key->data ? STATUS_OK
                                     : FAIL(STATUS_UNSUPPORTED, "UCX describes memory in %zu bytes; %d are the most",
                                            bytes, TRANSPORT_KEY_BYTES);
}

enum status ucx_memory_create(void *state, size_t bytes, const char *what, void **memory, void **local,
                              struct transport_key *key)
{
    struct ucx *ucx = state;
    struct ucx_memory *made = NULL;
    enum status status;
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = bytes,
        .flags = UCP_MEM_MAP_ALLOCATE,
    };
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    if (ucx->worker == NULL)
        return FAIL(STATUS_UNSUPPORTED, "UCX is not open, no memory for %s", what);
    TRY(mem_alloc(sizeof *made, "shared memory", (void **)&made));
    made->context = ucx->context;
    ucx->memories++;
    TRY_OUT(explain(ucx, ucx->api->ucp_mem_map(ucx->context, &params, &made->handle), what));
    TRY_OUT(explain(ucx, ucx->api->ucp_mem_query(made->handle, &attr), what));
    TRY_OUT(pack_key(ucx, made->handle, attr.address, key));
    key->length = bytes;
    memset(attr.address, 0, bytes); /* also puts the pages where this rank runs */
    *memory = made;
    *local = attr.address;
    return STATUS_OK;
out:
    ucx_memory_destroy(ucx, made);
    return status;
}

void ucx_memory_destroy(void *state, void *memory)
{
    struct ucx *ucx = state;
    struct ucx_memory *made = memory;
    if (made == NULL)
        return;
    if (made->handle != NULL)
        ucx->api->ucp_mem_unmap(made->context, made->handle);
    ucx->memories--;
    free(made);
}

/* Pages of a mapping come with their first use, half a microsecond for each 4 KiB: here, not in somebody's first exchange. */
static void pages_take(char *at, uint64_t length)
{
    if (length == 0)
        return;
#ifdef MADV_POPULATE_WRITE
    const uint64_t page = PAGE_BYTES, before = (uintptr_t)at % page;
    if (madvise(at - before, length + before, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (uint64_t i = 0; i < length; i += PAGE_BYTES)
        (void)*(volatile char *)(at + i);
}

enum status ucx_memory_map(void *state, int peer, const struct transport_key *key, void **mapping, void **address)
{
    struct ucx *ucx = state;
    ucp_ep_h ep;
    ucp_rkey_h rkey = NULL;
    if (key->bytes > sizeof key->data)
        return FAIL(STATUS_MACHINE, "rank %d sent a key of %u bytes", peer, key->bytes);
    TRY(ucx_ep(ucx, peer, &ep));
    TRY(explain(ucx, ucx->api->ucp_ep_rkey_unpack(ep, key->data, &rkey), "attaching another rank's memory"));
    ucs_status_t code = ucx->api->ucp_rkey_ptr(rkey, key->address, address);
    if (code != UCS_OK) {
        ucx->api->ucp_rkey_destroy(rkey);
        return explain(ucx, code, "mapping another rank's memory");
    }
    pages_take(*address, key->length);
    *mapping = rkey;
    ucx->memories++;
    return STATUS_OK;
}

void ucx_memory_unmap(void *state, void *mapping)
{
    struct ucx *ucx = state;
    if (mapping == NULL)
        return;
    ucx->api->ucp_rkey_destroy(mapping);
    ucx->memories--;
}
