/* comm/transport_nccl.h -- inside comm: NCCL loaded at run time, and the job's communicator. */
#ifndef SPTUNE_COMM_TRANSPORT_NCCL_H
#define SPTUNE_COMM_TRANSPORT_NCCL_H

#include "base/verdict.h"
#include "comm/transport.h"

#include <nccl.h>
#include <stdbool.h>

#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGetLastError)                                                                                                \
    X(ncclGroupStart)                                                                                                  \
    X(ncclGroupEnd)                                                                                                    \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)                                                                                                        \
    X(ncclAllReduce)                                                                                                   \
    X(ncclReduceScatter)

struct nccl_api {
#define NCCL_MEMBER(name) __typeof__(&name) name;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
    int version; /* 22809 for 2.28.9 */
};

/* STATUS_ABSENT when there is no NCCL; an old one: STATUS_UNSUPPORTED. Multicast (NVLS) is off unless the user set it. */
enum status nccl_load(const struct nccl_api **out);

struct nccl {
    const struct nccl_api *api;
    struct boot *boot;
    struct dev *dev;
    int rank, size;
    ncclComm_t comm;
    struct verdict peers; /* may ranks map each other's memory? the same on all */
    char in_use[64];
};

struct verdict cuda_memory_verdict(void *state, size_t bytes, int ranks);
enum status cuda_memory_create(void *state, size_t bytes, const char *what, void **memory, void **local,
                               struct transport_key *key);
void cuda_memory_destroy(void *state, void *memory);
enum status cuda_memory_map(void *state, int peer, const struct transport_key *key, void **mapping, void **address);
void cuda_memory_unmap(void *state, void *mapping);
/* Collective: fills nccl->peers. */
enum status cuda_memory_probe(struct nccl *nccl);

extern const struct transport transport_nccl;

#endif
