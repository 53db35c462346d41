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

enum { BUS_ID = 32, BOOT_ID = 40, WHY = 160 };
/* Smaller allocations share a block with others, which would then be mapped with them. */
static const size_t block_bytes = 2 << 20;

struct card { /* of each rank */
    char bus[BUS_ID], host[BOOT_ID];
    int32_t ok; /* reaches all others */
    char why[WHY];
};

_Static_assert(sizeof(cudaIpcMemHandle_t) <= TRANSPORT_KEY_BYTES, "a handle fits its key");

static void host_name(char out[BOOT_ID])
{
    char *text = NULL;
    size_t bytes = 0;
    out[0] = '\0';
    if (file_read("/proc/sys/kernel/random/boot_id", 4096, &text, &bytes) == STATUS_OK)
        text_print(out, BOOT_ID, "%.36s", text);
    else
        status_clear();
    free(text);
}

/* Can this rank's GPU load and store the memory of `other`? */
static bool reaches(const struct nccl *nccl, const struct card *mine, const struct card *other, int rank, char why[WHY])
{
    int device = -1, can = 0;
    why[0] = '\0';
    if (strcmp(mine->host, other->host) != 0)
        text_print(why, WHY, "rank %d and rank %d are on different hosts", nccl->rank, rank);
    else if (strcmp(mine->bus, other->bus) == 0)
        return true;
    else if (cudaDeviceGetByPCIBusId(&device, other->bus) != cudaSuccess)
        text_print(why, WHY, "rank %d does not see the GPU %s of rank %d (CUDA_VISIBLE_DEVICES)", nccl->rank, other->bus, rank);
    else if (cudaDeviceCanAccessPeer(&can, dev_cuda_index(nccl->dev), device) != cudaSuccess || !can)
        text_print(why, WHY, "GPU %s of rank %d has no peer access to %s of rank %d", mine->bus, nccl->rank, other->bus, rank);
    (void)cudaGetLastError();
    return why[0] == '\0';
}

static enum status share(struct nccl *nccl, const struct card *mine, struct card *all)
{
    return boot_allgather(nccl->boot, mine, sizeof *mine, all, clock_deadline(BOOT_DEADLINE_US));
}

static enum status probe(struct nccl *nccl, struct card *all)
{
    struct card mine = {.ok = 1};
    enum status status = dev_cuda_status(cudaDeviceGetPCIBusId(mine.bus, BUS_ID, dev_cuda_index(nccl->dev)), "asking for its bus id");
    TRY(boot_agree(nccl->boot, status, clock_deadline(BOOT_DEADLINE_US)));
    host_name(mine.host);
    TRY(share(nccl, &mine, all));
    for (int r = 0; r < nccl->size && mine.ok; r++)
        mine.ok = r == nccl->rank || reaches(nccl, &mine, &all[r], r, mine.why);
    TRY(share(nccl, &mine, all));
    nccl->peers = VERDICT_YES;
    for (int r = nccl->size - 1; r >= 0; r--)
        if (!all[r].ok)
            nccl->peers = verdict_no(RULE_EXCHANGE_CANNOT, "%s", all[r].why);
    return STATUS_OK;
}

enum status cuda_memory_probe(struct nccl *nccl)
{
    struct card *all = NULL;
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
