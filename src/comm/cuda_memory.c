/* comm/cuda_memory.c -- GPU memory that other ranks of the host map (CUDA IPC), where their GPUs reach each other (P2P).
 *
 * The memory ends with its owner's process; a peer that still has it mapped keeps the pages until it unmaps them or ends.
 */
#include "comm/transport_nccl.h"

#include "base/clock.h"
#include "base/dev_cuda.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Smaller allocations share a block with others, which would then be mapped with them. */
static const size_t block_bytes = 2 << 20;

_Static_assert(sizeof(cudaIpcMemHandle_t) <= TRANSPORT_KEY_BYTES, "a handle fits its key");

static void host_name(char out[CUDA_CARD_HOST])
{
    char *text = NULL;
    size_t bytes = 0;
    out[0] = '\0';
    if (file_read("/proc/sys/kernel/random/boot_id", 4096, &text, &bytes) == STATUS_OK)
        text_print(out, CUDA_CARD_HOST, "%.36s", text);
    else
        status_clear();
    free(text);
}

struct verdict cuda_memory_reach(const struct cuda_card *mine, const struct cuda_card *other, bool seen, bool access)
{
    if (strcmp(mine->host, other->host) != 0)
        return verdict_no(RULE_EXCHANGE_CANNOT, "rank %d and rank %d are on different hosts", mine->rank, other->rank);
    if (strcmp(mine->bus, other->bus) == 0)
        return VERDICT_YES;
    if (!seen)
        return verdict_no(RULE_EXCHANGE_CANNOT, "rank %d does not see the GPU %s of rank %d (CUDA_VISIBLE_DEVICES)", mine->rank,
                          other->bus, other->rank);
    if (!access)
        return verdict_no(RULE_EXCHANGE_CANNOT, "GPU %s of rank %d has no peer access to %s of rank %d", mine->bus, mine->rank,
                          other->bus, other->rank);
    return VERDICT_YES;
}

static struct verdict reach(const struct nccl *nccl, const struct cuda_card *mine, const struct cuda_card *other)
{
    int device = -1, can = 0;
    bool seen = cudaDeviceGetByPCIBusId(&device, other->bus) == cudaSuccess;
    bool access = seen && cudaDeviceCanAccessPeer(&can, dev_cuda_index(nccl->dev), device) == cudaSuccess && can;
    (void)cudaGetLastError();
    return cuda_memory_reach(mine, other, seen, access);
}

bool cuda_memory_shared(const struct cuda_card *cards, int n)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            if (strcmp(cards[a].bus, cards[b].bus) == 0 && strcmp(cards[a].host, cards[b].host) == 0)
                return true;
    return false;
}

static enum status share(struct nccl *nccl, const struct cuda_card *mine, struct cuda_card *all)
{
    return boot_allgather(nccl->boot, mine, sizeof *mine, all, clock_deadline(BOOT_DEADLINE_US));
}

static enum status probe(struct nccl *nccl, struct cuda_card *all)
{
    struct cuda_card mine = {.rank = nccl->rank};
    enum status status =
        dev_cuda_status(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, dev_cuda_index(nccl->dev)), "asking for its bus id");
    TRY(boot_agree(nccl->boot, status, clock_deadline(BOOT_DEADLINE_US)));
    host_name(mine.host);
    TRY(share(nccl, &mine, all));
    for (int r = 0; r < nccl->size && verdict_ok(&mine.reach); r++)
        mine.reach = r == nccl->rank ? VERDICT_YES : reach(nccl, &mine, &all[r]);
    TRY(share(nccl, &mine, all));
    nccl->shared = cuda_memory_shared(all, nccl->size);
    nccl->peers = VERDICT_YES;
    for (int r = nccl->size - 1; r >= 0; r--)
        if (!verdict_ok(&all[r].reach))
            nccl->peers = all[r].reach;
    return STATUS_OK;
}

enum status cuda_memory_probe(struct nccl *nccl)
{
    struct cuda_card *all = NULL;
    enum status status = mem_alloc((size_t)nccl->size * sizeof *all, "cards of all ranks", (void **)&all);
    status = boot_agree(nccl->boot, status, clock_deadline(BOOT_DEADLINE_US));
    if (status == STATUS_OK)
        status = probe(nccl, all);
    free(all);
    return status;
}

struct verdict cuda_memory_verdict(void *state, size_t bytes, int ranks)
{
    (void)bytes;
    (void)ranks;
    return ((const struct nccl *)state)->peers;
}

enum status cuda_memory_create(void *state, size_t bytes, const char *what, void **memory, void **local,
                               struct transport_key *key)
{
    const struct nccl *nccl = state;
    cudaIpcMemHandle_t handle;
    void *made = NULL;
    TRY(dev_alloc(nccl->dev, (bytes + block_bytes - 1) / block_bytes * block_bytes, what, &made));
    cudaError_t error = cudaIpcGetMemHandle(&handle, made);
    if (error != cudaSuccess) {
        dev_free(nccl->dev, made);
        (void)cudaGetLastError();
        return FAIL(STATUS_UNSUPPORTED, "CUDA IPC: %s", cudaGetErrorString(error));
    }
    *key = (struct transport_key){.address = (uint64_t)(uintptr_t)made, .bytes = sizeof handle};
    memcpy(key->data, &handle, sizeof handle);
    *memory = *local = made;
    return STATUS_OK;
}

void cuda_memory_destroy(void *state, void *memory)
{
    dev_free(((const struct nccl *)state)->dev, memory);
}

enum status cuda_memory_map(void *state, int peer, const struct transport_key *key, void **mapping, void **address)
{
    cudaIpcMemHandle_t handle;
    void *mapped = NULL;
    (void)state;
    memcpy(&handle, key->data, sizeof handle);
    cudaError_t error = cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return FAIL(STATUS_UNSUPPORTED, "CUDA IPC: mapping memory of rank %d: %s", peer, cudaGetErrorString(error));
    }
    *mapping = *address = mapped;
    return STATUS_OK;
}

void cuda_memory_unmap(void *state, void *mapping)
{
    (void)state;
    if (mapping != NULL && !dev_cuda_stuck())
        cudaIpcCloseMemHandle(mapping);
}
