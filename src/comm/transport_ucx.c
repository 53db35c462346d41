/* comm/transport_ucx.c -- UCX tagged messages: choose what carries them, connect, name it, take it down.
 *
 * Candidates are tried in order until one works on every rank: POSIX shared memory, System V shared memory, tcp. What
 * is in use is read from an endpoint after messages have really passed over it. Endpoints have no error handling: asking
 * for it makes UCX leave shared memory without a word, and over tcp UCX 1.13 now and then asserts in it. A dead peer is
 * noticed by the bootstrap. Reading from other processes (cma) is for those who ask for it: it is no faster than shared
 * memory where we measured, and when a peer dies in the middle of it, UCX ends this process too.
 */
#include "comm/transport_ucx.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/nap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_TLS ",cuda_copy,cuda_ipc"

enum { PROBE_BYTES = 256 * 1024, PROBE_TAG = 0xffffff, CLOSE_US = 2 * 1000 * 1000 };

struct candidate {
    const char *name;
    const char *tls;     /* UCX_TLS; NULL: whatever the environment and UCX say */
    const char *devices; /* UCX_NET_DEVICES, unless the user set it */
};

/* ---- which ways to try ---- */

static const struct candidate posix = {"POSIX shared memory", "posix,self", NULL};
static const struct candidate sysv = {"System V shared memory", "sysv,self", NULL};
static const struct candidate cma = {"reading from other processes", "posix,cma,self", NULL};
static const struct candidate tcp_local = {"tcp", "tcp,self", "lo"};
static const struct candidate tcp_any = {"tcp", "tcp,self", NULL};
static const struct candidate by_user = {"what UCX_TLS says", NULL, NULL};
static const struct candidate by_ucx = {"UCX's own choice", "^cma", NULL};

enum { CANDIDATES = 4 };

static bool wants(const char *prefer, const char *name)
{
    return !prefer || strcmp(prefer, name) == 0;
}

static int choose(const struct ucx_paths *paths, const char *prefer, const struct candidate *out[CANDIDATES])
{
    const bool shm = wants(prefer, "shm");
    int n = 0;
    if (!prefer && getenv("UCX_TLS")) {
        out[n++] = &by_user;
        return n;
    }
    if (paths->posix && (shm || wants(prefer, "posix")))
        out[n++] = &posix;
    if (paths->sysv && (shm || wants(prefer, "sysv")))
        out[n++] = &sysv;
    if (paths->posix && paths->cma && prefer && wants(prefer, "cma"))
        out[n++] = &cma;
    if (!prefer && !paths->one_host)
        out[n++] = &by_ucx;
    if (wants(prefer, "tcp"))
        out[n++] = paths->one_host ? &tcp_local : &tcp_any;
    return n;
}

static enum status check_prefer(const char *prefer)
{
    static const char *const known[] = {"shm", "posix", "sysv", "cma", "tcp"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (wants(prefer, known[i]))
            return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "UCX cannot be narrowed to '%s'", prefer), "shm, posix, sysv, cma or tcp");
}

/* ---- context, worker, addresses ---- */

static enum status explain(const struct ucx *ucx, ucs_status_t code, const char *what)
{
    if (code == UCS_OK)
        return STATUS_OK;
    return FAIL(code == UCS_ERR_NO_MEMORY ? STATUS_NOMEM : STATUS_MACHINE, "UCX: %s: %s", what,
                ucx->api->ucs_status_string(code));
}

static bool on_gpus(const struct ucx *ucx)
{
    return dev_kind_of(ucx->dev) == DEV_CUDA;
}

static enum status configure(struct ucx *ucx, const struct candidate *candidate, ucp_config_t *config)
{
    char tls[64];
    bool listed = candidate->tls && candidate->tls[0] != '^';
    text_print(tls, sizeof tls, "%s%s", candidate->tls ? candidate->tls : "", listed && on_gpus(ucx) ? CUDA_TLS : "");
    if (candidate->tls)
        TRY(explain(ucx, ucx->api->ucp_config_modify(config, "TLS", tls), "setting UCX_TLS"));
    if (candidate->devices && !getenv("UCX_NET_DEVICES"))
        TRY(explain(ucx, ucx->api->ucp_config_modify(config, "NET_DEVICES", candidate->devices),
                    "setting UCX_NET_DEVICES"));
    return STATUS_OK;
}

static enum status open_context(struct ucx *ucx, const struct candidate *candidate)
{
    ucp_config_t *config;
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA,
        .estimated_num_eps = (size_t)ucx->nmembers,
        .name = "sptune",
    };
    TRY(explain(ucx, ucx->api->ucp_config_read(NULL, NULL, &config), "reading the configuration"));
    enum status status = configure(ucx, candidate, config);
    if (status == STATUS_OK)
        status = explain(ucx, ucx->api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context),
                         "opening a context");
    ucx->api->ucp_config_release(config);
    return status;
}

static enum status open_worker(struct ucx *ucx, const struct candidate *candidate)
{
    TRY(open_context(ucx, candidate));
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode =
            UCS_THREAD_MODE_SERIALIZED, /* a queue beside exchanges on its own thread, never at the same time */
    };
    return explain(ucx, ucx->api->ucp_worker_create(ucx->context, &params, &ucx->worker), "creating a worker");
}

/* Everybody's address. Collective, so a rank that has none takes part with zero bytes, and fails with all others after
 * it. */
static enum status exchange_addresses(struct ucx *ucx)
{
    ucp_address_t *mine = NULL;
    size_t bytes = 0;
    enum status status =
        explain(ucx, ucx->api->ucp_worker_get_address(ucx->worker, &mine, &bytes), "reading an address");
    enum status sent = ucx_gather(ucx, mine, mine ? bytes : 0, &ucx->addresses, ucx->address);
    if (mine)
        ucx->api->ucp_worker_release_address(ucx->worker, mine);
    TRY(sent);
    return ucx_agree(ucx, status);
}

/* ---- endpoints ---- */

static int member_of(const struct ucx *ucx, int rank)
{
    int m = 0;
    while (ucx->members[m] != rank)
        m++;
    return m;
}

enum status ucx_ep(struct ucx *ucx, int peer, ucp_ep_h *out)
{
    if (!ucx->ep[peer]) {
        const ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
            .address = (const ucp_address_t *)ucx->address[member_of(ucx, peer)],
            .err_mode = UCP_ERR_HANDLING_MODE_NONE,
        };
        TRY(status_rank(explain(ucx, ucx->api->ucp_ep_create(ucx->worker, &params, &ucx->ep[peer]), "connecting"),
                        peer));
    }
    *out = ucx->ep[peer];
    return STATUS_OK;
}

/* What really carries data, from the endpoint's own description. */
static enum status look_at_lanes(struct ucx *ucx, int peer)
{
    ucp_ep_h ep;
    char *info = NULL;
    size_t bytes = 0;
    TRY(ucx_ep(ucx, peer, &ep));
    FILE *file = open_memstream(&info, &bytes);
    if (!file)
        return FAIL(STATUS_NOMEM, "out of memory for the name of a transport");
    ucx->api->ucp_ep_print_info(ep, file);
    fclose(file);
    ucx->way.shm = ucx_lanes(info, ucx->lanes, sizeof ucx->lanes);
    free(info);
    return STATUS_OK;
}

/* ---- a first exchange: proof that it works, and the connection is there before anything is timed ---- */

static unsigned char probe_byte(int from, size_t i)
{
    return (unsigned char)(((size_t)from * 31 + i * 7 + (i >> 8)) & 0xff);
}

static enum status exchange_probe(struct ucx *ucx, unsigned char *host, void *out, void *in)
{
    int to = ucx->members[(ucx->place + 1) % ucx->nmembers];
    int from = ucx->members[(ucx->place + ucx->nmembers - 1) % ucx->nmembers];
    for (size_t i = 0; i < PROBE_BYTES; i++)
        host[i] = probe_byte(ucx->rank, i);
    TRY(dev_copy(ucx->queue, out, host, PROBE_BYTES));
    int64_t deadline_ns = clock_deadline(BOOT_DEADLINE_US);
    const size_t sizes[] = {1, PROBE_BYTES}; /* eager, rendezvous */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const struct transport_xfer send = {.peer = to, .tag = PROBE_TAG, .data = out, .bytes = sizes[i]};
        const struct transport_xfer recv = {.peer = from, .tag = PROBE_TAG, .data = in, .bytes = sizes[i]};
        TRY(ucx_batch(ucx, &send, 1, &recv, 1, ucx->queue, deadline_ns));
    }
    TRY(dev_copy_now(ucx->queue, host, in, PROBE_BYTES, deadline_ns));
    for (size_t i = 0; i < PROBE_BYTES; i++)
        if (host[i] != probe_byte(from, i))
            return status_rank(FAIL(STATUS_MACHINE, "UCX delivered wrong data from rank %d at byte %zu", from, i),
                               from);
    return look_at_lanes(ucx, to);
}

static enum status probe(struct ucx *ucx)
{
    void *out = NULL, *in = NULL, *host = NULL;
    enum status status = mem_alloc(PROBE_BYTES, "transport probe", &host);
    if (status == STATUS_OK)
        status = dev_alloc(ucx->dev, PROBE_BYTES, "transport probe", &out);
    if (status == STATUS_OK)
        status = dev_alloc(ucx->dev, PROBE_BYTES, "transport probe", &in);
    if (status == STATUS_OK)
        status = exchange_probe(ucx, host, out, in);
    dev_free(ucx->dev, out);
    dev_free(ucx->dev, in);
    free(host);
    return status;
}

/* ---- open and close ---- */

static bool job_is_over(const struct ucx *ucx)
{
    return boot_poll(ucx->boot) != STATUS_OK;
}

/* Progress until a close or flush is done, or the time is up. False when it is not done well. */
static bool finish(struct ucx *ucx, ucs_status_ptr_t request)
{
    if (!UCS_PTR_IS_PTR(request))
        return request == NULL;
    const int64_t deadline_ns = clock_deadline(CLOSE_US);
    struct nap nap = {0};
    while (ucx->api->ucp_request_check_status(request) == UCS_INPROGRESS && !clock_passed(deadline_ns))
        if (!ucx->api->ucp_worker_progress(ucx->worker))
            nap_take(&nap);
    bool done = ucx->api->ucp_request_check_status(request) == UCS_OK;
    ucx->api->ucp_request_free(request);
    return done;
}

/* Close what others may still talk to only when all are done with it. True when they were, and nothing is left. */
static bool disconnect(struct ucx *ucx)
{
    const ucp_request_param_t plain = {0};
    if (!finish(ucx, ucx->api->ucp_worker_flush_nbx(ucx->worker, &plain)) || ucx_meet(ucx) != STATUS_OK)
        return false;
    bool closed = true;
    for (int r = 0; r < ucx->size; r++) {
        if (ucx->ep[r])
            closed = finish(ucx, ucx->api->ucp_ep_close_nbx(ucx->ep[r], &plain)) && closed;
        ucx->ep[r] = NULL;
    }
    return ucx_meet(ucx) == STATUS_OK && closed;
}

/* What a failure leaves behind is not for UCX to clean up: it asserts that nothing is under way. It stays until the
 * process ends, which is soon, with everything that UCX may still point to. */
struct leftover {
    struct leftover *next;
    ucp_worker_h worker;
    ucp_context_h context;
    struct ucx_slot *slots;
};
static struct leftover *leftovers;

static void abandon(struct ucx *ucx)
{
    ucx->api->ucs_global_opts_set_value("LOG_LEVEL", "fatal"); /* at exit it would name every message */
    struct leftover *leftover = malloc(sizeof *leftover);
    if (leftover) {
        *leftover = (struct leftover){leftovers, ucx->worker, ucx->context, ucx->slots};
        leftovers = leftover;
    }
    ucx->worker = NULL;
    ucx->context = NULL;
    ucx->slots = NULL;
    ucx->slots_cap = 0;
}

#if defined(__SANITIZE_ADDRESS__)
/* The leak checker cannot stop the thread that such a leftover keeps running, and crashes. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return leftovers != NULL;
}
#endif

/* Worker, context and endpoints, so that another candidate can be tried. */
static void take_down(struct ucx *ucx, bool clean)
{
    if (ucx->worker && (!clean || ucx->memories > 0))
        abandon(ucx);
    if (ucx->worker)
        ucx->api->ucp_worker_destroy(ucx->worker);
    if (ucx->context)
        ucx->api->ucp_cleanup(ucx->context);
    ucx->worker = NULL;
    ucx->context = NULL;
    for (int r = 0; r < ucx->size; r++)
        ucx->ep[r] = NULL;
    free(ucx->addresses);
    ucx->addresses = NULL;
    ucx->broken = false;
    ucx->pending = 0;
}

static enum status try_candidate(struct ucx *ucx, const struct candidate *candidate)
{
    TRY(ucx_agree(ucx, open_worker(ucx, candidate)));
    TRY(exchange_addresses(ucx));
    return ucx_agree(ucx, probe(ucx));
}

/* Only a `prefer` can leave nothing to try. */
static enum status nothing_fits(const struct ucx_paths *paths, const char *prefer)
{
    const char *why = paths->why;
    if (paths->one_host && strcmp(prefer, "sysv") == 0)
        why = "a rank cannot attach another one's segment";
    if (paths->one_host && strcmp(prefer, "cma") == 0 && !paths->cma)
        why = "process_vm_readv is not allowed between them";
    return HINT(FAIL(STATUS_ABSENT, "%s does not work between these ranks: %s", prefer, why),
                "leave the choice open, or use tcp");
}

static enum status connect_any(struct ucx *ucx, const struct ucx_paths *paths, const char *prefer)
{
    const struct candidate *candidates[CANDIDATES];
    int n = choose(paths, prefer, candidates);
    if (paths->why[0] && n > 0)
        log_info("ucx: %s; trying %s", paths->why, candidates[0]->name);
    enum status status = n > 0 ? STATUS_OK : nothing_fits(paths, prefer);
    for (int i = 0; i < n; i++) {
        status = try_candidate(ucx, candidates[i]);
        if (status == STATUS_OK || job_is_over(ucx))
            return status;
        log_info("ucx: %s does not work here: %s", candidates[i]->name, status_last()->what);
        take_down(ucx, false);
    }
    return status;
}

/* Ranks of several hosts have neighbours of both kinds. */
static enum status agree_on_way(struct ucx *ucx)
{
    const struct ucx_way mine = ucx->way;
    struct ucx_way *all = NULL;
    enum status status = mem_alloc((size_t)ucx->nmembers * sizeof *all, "kinds of connections", (void **)&all);
    status = ucx_agree(ucx, status);
    if (status == STATUS_OK)
        status = ucx_share(ucx, &mine, sizeof mine, all);
    for (int m = 0; status == STATUS_OK && m < ucx->nmembers; m++) {
        ucx->way.shm = ucx->way.shm && all[m].shm;
        ucx->way.direct = ucx->way.direct && all[m].direct;
    }
    free(all);
    return status;
}

static enum status find_way(struct ucx *ucx)
{
    if (on_gpus(ucx) && ucx->way.one_host) {
        TRY(ucx_cuda_reaches(ucx, &ucx->way.direct));
        ucx->way.direct = ucx->way.direct && ucx_lanes_have(ucx->lanes, "cuda_ipc");
    }
    TRY(agree_on_way(ucx));
    ucx_name(dev_kind_of(ucx->dev), &ucx->way, ucx->lanes, ucx->in_use, sizeof ucx->in_use);
    return STATUS_OK;
}

/* GPUs have a transport of their own, and groups of their ranks this one beside it. */
static enum status check_device(const struct ucx *ucx)
{
    if (!on_gpus(ucx))
        return STATUS_OK;
    return ucx->group != NULL
               ? ucx_check_cuda(ucx->api)
               : FAIL(STATUS_USAGE, "UCX carries no job between GPUs, but what groups of its ranks exchange");
}

static enum status open_members(struct ucx *ucx, const char *prefer)
{
    struct ucx_paths paths;
    TRY(ucx_agree(ucx, check_prefer(prefer)));
    if (ucx->nmembers == 1) {
        text_print(ucx->in_use, sizeof ucx->in_use, "local copy");
        return STATUS_OK;
    }
    TRY(ucx_agree(ucx, ucx_load(ucx->rank == 0, &ucx->api)));
    TRY(ucx_agree(ucx, check_device(ucx)));
    TRY(ucx_probe(ucx, &paths));
    ucx->way.one_host = paths.one_host;
    TRY(connect_any(ucx, &paths, prefer));
    return find_way(ucx);
}

static void ucx_progress(void *state)
{
    struct ucx *ucx = state;
    if (ucx->worker && !ucx->broken)
        ucx->api->ucp_worker_progress(ucx->worker);
}

static void ucx_close(void *state)
{
    struct ucx *ucx = state;
    if (!ucx)
        return;
    const struct status_message kept = *status_last();
    bool clean = ucx->worker && !ucx->broken && !job_is_over(ucx) && disconnect(ucx);
    boot_idle_remove(ucx->boot, ucx);
    take_down(ucx, clean);
    dev_queue_destroy(ucx->queue);
    free(ucx->address);
    free(ucx->members);
    free(ucx->ep);
    free(ucx->slots);
    free(ucx);
    status_restore(&kept);
}

/* group NULL: all of the job */
static enum status create(struct boot *boot, struct dev *dev, struct comm *group, struct ucx **out)
{
    struct ucx *ucx = calloc(1, sizeof *ucx);
    if (!ucx)
        return FAIL(STATUS_NOMEM, "out of memory for the UCX transport");
    ucx->boot = boot;
    ucx->dev = dev;
    ucx->group = group;
    ucx->rank = boot_rank(boot);
    ucx->size = boot_size(boot);
    ucx->nmembers = group ? comm_size(group) : ucx->size;
    ucx->place = group ? comm_rank(group) : ucx->rank;
    ucx->ep = calloc((size_t)ucx->size, sizeof(ucp_ep_h));
    ucx->address = calloc((size_t)ucx->nmembers, sizeof(char *));
    ucx->members = calloc((size_t)ucx->nmembers, sizeof(int));
    enum status status = STATUS_OK;
    if (!ucx->ep || !ucx->address || !ucx->members)
        status = FAIL(STATUS_NOMEM, "out of memory for %d ranks", ucx->size);
    for (int m = 0; status == STATUS_OK && m < ucx->nmembers; m++)
        ucx->members[m] = group ? comm_job_rank(group, m) : m;
    if (status == STATUS_OK)
        status = dev_queue_create(dev, &ucx->queue);
    if (status == STATUS_OK)
        status = boot_idle_add(boot, ucx_progress, ucx);
    *out = ucx;
    return status;
}

/* `status`: what all say of their create */
static enum status open_created(struct ucx *ucx, enum status status, const char *prefer, void **state)
{
    if (status == STATUS_OK)
        status = open_members(ucx, prefer);
    if (status != STATUS_OK) {
        if (ucx)
            ucx->broken = true; /* ranks may have come unequally far: take down alone */
        ucx_close(ucx);
        return status;
    }
    *state = ucx;
    return STATUS_OK;
}

static enum status ucx_open(struct boot *boot, struct dev *dev, const char *prefer, void **state)
{
    struct ucx *ucx = NULL;
    enum status status = boot_agree(boot, create(boot, dev, NULL, &ucx), clock_deadline(BOOT_DEADLINE_US));
    return open_created(ucx, status, prefer, state);
}

static enum status ucx_open_group(struct comm *group, void **state)
{
    struct ucx *ucx = NULL;
    enum status status = comm_agree(group, create(comm_boot(group), comm_dev(group), group, &ucx), "open UCX");
    return open_created(ucx, status, NULL, state);
}

static const char *ucx_in_use(void *state)
{
    return ((const struct ucx *)state)->in_use;
}

static const char *ucx_version(void)
{
    static char version[48];
    const struct ucx_api *api;
    const struct status_message kept = *status_last();
    bool loaded = ucx_load(true, &api) == STATUS_OK;
    text_print(version, sizeof version, "ucx %s", loaded ? api->ucp_get_version_string() : "absent");
    status_restore(&kept);
    return version;
}

/* shm: the better of POSIX and System V segments. */
static const char *const carriers[] = {"shm", "sysv", "tcp", NULL};

const struct transport transport_ucx = {
    .name = "ucx",
    .dev = DEV_CPU,
    .carriers = carriers,
    .open = ucx_open,
    .open_group = ucx_open_group,
    .close = ucx_close,
    .in_use = ucx_in_use,
    .version = ucx_version,
    .batch = ucx_batch,
    .progress = ucx_progress,
    .memory_verdict = ucx_memory_verdict,
    .memory_create = ucx_memory_create,
    .memory_destroy = ucx_memory_destroy,
    .memory_map = ucx_memory_map,
    .memory_unmap = ucx_memory_unmap,
};
