/* comm/transport_ucx.h -- the UCX transport, and what its files share.
 *
 * UCX is loaded when the first job opens it, not linked: its constructors read the environment, install signal handlers
 * and a log on stdout the moment the library is there. So defaults can be set first, and neither the supervisor nor the
 * verbs that move no data ever hold it.
 */
#ifndef SPTUNE_COMM_TRANSPORT_UCX_H
#define SPTUNE_COMM_TRANSPORT_UCX_H

#include "comm/transport.h"

#include <stdbool.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>

extern const struct transport transport_ucx;

#define UCX_FUNCTIONS(X)                                                                                               \
    X(ucp_get_version)                                                                                                 \
    X(ucp_get_version_string)                                                                                          \
    X(ucp_config_read)                                                                                                 \
    X(ucp_config_modify)                                                                                               \
    X(ucp_config_release)                                                                                              \
    X(ucp_init_version)                                                                                                \
    X(ucp_cleanup)                                                                                                     \
    X(ucp_context_query)                                                                                               \
    X(ucp_worker_create)                                                                                               \
    X(ucp_worker_destroy)                                                                                              \
    X(ucp_worker_get_address)                                                                                          \
    X(ucp_worker_release_address)                                                                                      \
    X(ucp_worker_progress)                                                                                             \
    X(ucp_worker_flush_nbx)                                                                                            \
    X(ucp_ep_create)                                                                                                   \
    X(ucp_ep_close_nbx)                                                                                                \
    X(ucp_ep_print_info)                                                                                               \
    X(ucp_tag_send_nbx)                                                                                                \
    X(ucp_tag_recv_nbx)                                                                                                \
    X(ucp_mem_map)                                                                                                     \
    X(ucp_mem_unmap)                                                                                                   \
    X(ucp_mem_query)                                                                                                   \
    X(ucp_rkey_pack)                                                                                                   \
    X(ucp_rkey_buffer_release)                                                                                         \
    X(ucp_ep_rkey_unpack)                                                                                              \
    X(ucp_rkey_ptr)                                                                                                    \
    X(ucp_rkey_destroy)                                                                                                \
    X(ucp_request_check_status)                                                                                        \
    X(ucp_request_cancel)                                                                                              \
    X(ucp_request_free)                                                                                                \
    X(ucs_status_string)                                                                                               \
    X(ucs_global_opts_set_value)

struct ucx_api {
#define UCX_FIELD(name) __typeof__(name) *name;
    UCX_FUNCTIONS(UCX_FIELD)
#undef UCX_FIELD
};

/* The loaded library, the same for the whole process; STATUS_ABSENT when it is not installed or too old. Only a
 * speaking rank lets UCX print warnings. */
enum status ucx_load(bool speaking, const struct ucx_api **out);

/* What works between all ranks of the job, found out by doing it. */
struct ucx_paths {
    bool one_host;
    bool posix, sysv; /* shared memory of that kind */
    bool cma;         /* process_vm_readv between ranks */
    char why[160];    /* the first thing that does not, "" when all do */
};
struct ucx;
enum status ucx_probe(const struct ucx *ucx, struct ucx_paths *out); /* collective */

/* What carries data, as far as names and windows go by it. */
struct ucx_way {
    bool one_host;
    bool shm;    /* every lane of every rank that looked is shared memory */
    bool direct; /* of GPUs: every member's memory is copied to every other's by cuda_ipc */
};

/* One message of a batch under way. */
struct ucx_slot {
    struct ucx *ucx;
    void *request; /* NULL once done */
    int peer;
    bool done, is_recv;
    size_t bytes, got;
    ucs_status_t status;
};

struct ucx { /* the state of an open transport */
    const struct ucx_api *api;
    struct boot *boot;
    struct dev *dev;
    struct dev_queue *queue; /* for copies when the caller has none */
    int rank, size;          /* of the job, by whose ranks messages and everything below but `members` go */
    struct comm *group;      /* opened by these ranks of a job of another transport; NULL: by all of the job */
    int *members, nmembers;  /* who opened it: ranks of the job */
    int place;               /* of this rank among them */
    ucp_context_h context;
    ucp_worker_h worker;
    char **address; /* of each member's worker, into `addresses` */
    char *addresses;
    ucp_ep_h *ep; /* created at first use */
    struct ucx_slot *slots;
    size_t slots_cap;
    int pending;
    int memories; /* windows' memory and mappings not given back */
    bool broken;  /* messages are left over from a failure: nothing can match any more */
    struct status_message why;
    char in_use[64];
    char lanes[64];     /* of the endpoint that was looked at */
    struct ucx_way way; /* the same on all ranks */
};

/* The members together: transport_ucx_members.c. All collective. */
enum status ucx_agree(const struct ucx *ucx, enum status mine);
/* `bytes` of each, the same number, in the order of members; at most GROUP_SLOT_BYTES in a group. */
enum status ucx_share(const struct ucx *ucx, const void *mine, size_t bytes, void *all);
/* Of any size each; *all is malloc'ed, rows[m] that of member m in it. */
enum status ucx_gather(const struct ucx *ucx, const void *mine, size_t bytes, char **all, char **rows);
enum status ucx_meet(const struct ucx *ucx);

enum status ucx_ep(struct ucx *ucx, int peer, ucp_ep_h *out);
enum status ucx_batch(void *state, const struct transport_xfer *sends, int nsends, const struct transport_xfer *recvs,
                      int nrecvs, struct dev_queue *queue, int64_t deadline_ns);
struct verdict ucx_memory_verdict(void *state, size_t bytes, int ranks);
enum status ucx_memory_create(void *state, size_t bytes, const char *what, void **memory, void **local,
                              struct transport_key *key);
void ucx_memory_destroy(void *state, void *memory);
enum status ucx_memory_map(void *state, int peer, const struct transport_key *key, void **mapping, void **address);
void ucx_memory_unmap(void *state, void *mapping);
/* STATUS_UNSUPPORTED with what to do where this UCX moves no memory of GPUs here. */
enum status ucx_check_cuda(const struct ucx_api *api);
/* Collective, in a group: can all members map memory of all others' GPUs? */
enum status ucx_cuda_reaches(const struct ucx *ucx, bool *out);
/* What rows say: "ucx posix+cma shm", "ucx tcp"; of GPUs "ucx (cuda_ipc)", or "ucx (staged: cuda_copy+posix)" where data of some pass
 * through the host; on several hosts all that there is, "ucx (tcp)". lanes: as ucx_lanes gives them. */
void ucx_name(enum dev_kind kind, const struct ucx_way *way, const char *lanes, char *name, size_t size);
bool ucx_lanes_have(const char *lanes, const char *name);
/* The transports in a ucp_ep_print_info text, in order, joined by '+'. True when all of them are shared memory. */
bool ucx_lanes(const char *info, char *names, size_t size);

#endif
