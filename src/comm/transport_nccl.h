/* comm/transport_nccl.h -- inside comm: NCCL loaded at run time, communicators of the job and of groups. */
#ifndef SPTUNE_COMM_TRANSPORT_NCCL_H
#define SPTUNE_COMM_TRANSPORT_NCCL_H

#include "base/verdict.h"
#include "comm/transport.h"

#include <nccl.h>
#include <stdatomic.h>
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

/* Those of newer NCCLs, which only routes need: NULL where the loaded one has none. */
#if NCCL_VERSION_CODE >= 22800
#define NCCL_ROUTE_FUNCTIONS(X)                                                                                        \
    X(ncclMemAlloc)                                                                                                    \
    X(ncclMemFree)                                                                                                     \
    X(ncclCommRegister)                                                                                                \
    X(ncclCommDeregister)                                                                                              \
    X(ncclCommWindowRegister)                                                                                          \
    X(ncclCommWindowDeregister)                                                                                        \
    X(ncclAlltoAll)
#else
#define NCCL_ROUTE_FUNCTIONS(X)
#endif

struct nccl_api {
#define NCCL_MEMBER(name) __typeof__(&name) name;
    NCCL_FUNCTIONS(NCCL_MEMBER)
    NCCL_ROUTE_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
    int version; /* 22809 for 2.28.9 */
};

/* STATUS_ABSENT when there is no NCCL; an old one: STATUS_UNSUPPORTED. Multicast (NVLS) is off unless the user set it. */
enum status nccl_load(const struct nccl_api **out);
enum { NCCL_VERSION_TEXT = 36 };
char *nccl_version_text(int version, char buf[NCCL_VERSION_TEXT]); /* "2.28.9" of 22809 */

/* Hashes of what NCCL has been asked for before. */
enum { NCCL_KNOWN = 4096 };
struct nccl_known {
    uint64_t hash[NCCL_KNOWN];
};

struct nccl {
    const struct nccl_api *api;
    struct boot *boot;
    struct dev *dev;
    int rank, size;
    ncclComm_t comm;      /* of the job */
    bool shared;          /* ranks share a GPU; the same on all */
    struct verdict peers; /* may ranks map each other's memory? the same on all */
    struct verdict routes[TRANSPORT_ROUTES]; /* the same on all */
    struct nccl_known *known;                /* NULL: nothing ever is */
    char in_use[64];
};

/* STATUS_MACHINE with NCCL's words, or what dev_cuda_late_status says. comm: NULL while there is none. */
enum status nccl_status(const struct nccl_api *api, ncclComm_t comm, ncclResult_t code, const char *what);

/* A call of NCCL that waits for other ranks, on a thread of its own: a dead peer or the deadline ends the wait. It holds all that the
 * thread reads and writes, on the heap, for a wait in vain leaves it to the thread, which NCCL may keep for ever. */
struct nccl_call {
    ncclResult_t (*run)(struct nccl_call *call);
    const struct nccl_api *api;
    int device;
    ncclComm_t comm;
    int rank, size; /* of the communicator */
    bool engine;    /* its all-to-alls are to be those of copy engines */
    ncclUniqueId id;
    void *memory;
    size_t bytes;
    void *told;     /* what NCCL knows the memory by, NULL: nothing */
    const struct nccl_move *move; /* enqueued */
    ncclResult_t code;
    atomic_int done;
};
/* NULL: no memory. */
struct nccl_call *nccl_call_make(const struct nccl *nccl, ncclResult_t (*run)(struct nccl_call *call));
/* Runs and waits. *began: there was a thread for it; without one all is as before, and STATUS_OK. *call is NULL when it was left to its
 * thread, at the deadline or with the job: the job is then told (boot_abort) and the GPU given up. Otherwise free(*call). */
enum status nccl_call_try(const struct nccl *nccl, struct nccl_call **call, int64_t deadline_ns, const char *what,
                          bool *began);
/* What the other ranks wait for in NCCL: whenever it fails, for want of memory or of a thread too, the job is told. */
enum status nccl_call_create(const struct nccl *nccl, ncclResult_t (*run)(struct nccl_call *call), struct nccl_call **out);
enum status nccl_call_run(const struct nccl *nccl, struct nccl_call **call, const char *what); /* at most 120 s */
/* Letting something go, for which NCCL may ask another rank: what went wrong before stays said, and a wait in vain is a warning. Of `call`
 * are given run, comm and told. */
void nccl_call_last(const struct nccl *nccl, const struct nccl_call *call, const char *what);
ncclResult_t nccl_call_connect(struct nccl_call *call); /* a run: sets comm, of rank, size, id and engine */

/* Something to enqueue. */
struct nccl_move {
    enum nccl_move_kind { NCCL_MESSAGES, NCCL_SCATTER, NCCL_ALL, NCCL_ALLTOALL } kind;
    ncclComm_t comm;
    cudaStream_t stream;
    int rank;                                   /* of messages: this one in comm, which they may be to; -1: none is */
    const struct transport_xfer *sends, *recvs; /* peers are ranks of comm */
    int nsends, nrecvs;
    bool told;           /* its memory NCCL knows of, and may map */
    int64_t deadline_ns; /* of what NCCL waits for first; at least 120 s. 0: half an hour */
    const void *send;    /* and the rest: of the others */
    void *recv;
    size_t count;
    ncclDataType_t type;
};
/* Only enqueued. Fails when the job ends, or at the deadline, while NCCL waits for another rank first. */
enum status nccl_move(const struct nccl *nccl, const struct nccl_move *move, const char *what);
/* Messages to oneself, the i-th to be sent with the i-th to be received; those that lie where they go are left out. NULL: no more. */
struct nccl_own {
    const struct transport_xfer *send, *recv;
    int nsends, nrecvs, s, r; /* of the lists, and where in them */
};
enum status nccl_own_next(const struct nccl_move *move, struct nccl_own *own);
/* Alike: NCCL connects and maps nothing for one that the other has not needed. Never 0. */
uint64_t nccl_move_hash(const struct nccl_move *move);
void nccl_forget(
    const struct nccl *nccl); /* where a communicator or memory that NCCL knows goes, whose address another may get */

/* On one rank, for all of a communicator. state: of the transport. */
enum status nccl_id(void *state, char id[TRANSPORT_ID_BYTES]);
/* Collective over its ranks; a failure has told the job. */
enum status nccl_comm_open(const struct nccl *nccl, int size, int rank, const char id[TRANSPORT_ID_BYTES],
                           ncclComm_t *out);
void nccl_comm_close(const struct nccl *nccl, ncclComm_t comm); /* accepts NULL */
/* Asked while something is given up: what went wrong stays said. A GPU that was waited for in vain ends the job here too. */
bool nccl_lives(const struct nccl *nccl);
extern const struct transport_sums nccl_sums;

/* Collective: fills nccl->routes. */
enum status nccl_routes_probe(struct nccl *nccl);
/* What this rank alone says: versions, functions, switches of the environment, driver (as CUDA numbers it). */
struct verdict nccl_route_can(const struct nccl_api *api, enum transport_route kind, int driver);
extern const struct transport_routes nccl_routes;

struct verdict cuda_memory_verdict(void *state, size_t bytes, int ranks);
enum status cuda_memory_create(void *state, size_t bytes, const char *what, void **memory, void **local,
                               struct transport_key *key);
void cuda_memory_destroy(void *state, void *memory);
enum status cuda_memory_map(void *state, int peer, const struct transport_key *key, void **mapping, void **address);
void cuda_memory_unmap(void *state, void *mapping);
/* Collective: fills nccl->peers and nccl->shared. */
enum status cuda_memory_probe(struct nccl *nccl);
/* A rank's GPU, as it tells the others: PCI bus id, boot id of its host, and in the end whether it reaches theirs. */
enum { CUDA_CARD_BUS = 32, CUDA_CARD_HOST = 40 };
struct cuda_card {
    int32_t rank;
    char bus[CUDA_CARD_BUS], host[CUDA_CARD_HOST];
    struct verdict reach;
};
/* Can `mine` load and store the memory of `other`? seen: this process has that device; access: CUDA gives peer access to it. Pure. */
struct verdict cuda_memory_reach(const struct cuda_card *mine, const struct cuda_card *other, bool seen, bool access);
/* Are two of n ranks on one GPU? Pure. */
bool cuda_memory_shared(const struct cuda_card *cards, int n);

extern const struct transport transport_nccl;

#endif
