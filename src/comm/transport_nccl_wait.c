/* comm/transport_nccl_wait.c -- calls of NCCL that block until all ranks have made them, each on a thread of its own. */
#include "comm/transport_nccl.h"

#include "base/clock.h"
#include "base/dev_cuda.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdlib.h>
#include <time.h>

enum { CALL_S = 120, LOOK_NS_MIN = 10 * 1000, LOOK_NS = 200 * 1000 };

enum status nccl_status(const struct nccl_api *api, ncclComm_t comm, ncclResult_t code, const char *what)
{
    if (code == ncclSuccess)
        return STATUS_OK;
    TRY(dev_cuda_late_status());
    const char *last = comm != NULL ? api->ncclGetLastError(comm) : "";
    return FAIL(STATUS_MACHINE, "NCCL: %s: %s%s%.200s", what, api->ncclGetErrorString(code), last[0] ? ": " : "", last);
}

struct nccl_call *nccl_call_make(const struct nccl *nccl, ncclResult_t (*run)(struct nccl_call *call))
{
    struct nccl_call *call = calloc(1, sizeof *call);
    if (call != NULL) {
        call->run = run;
        call->api = nccl->api;
        call->device = dev_cuda_index(nccl->dev);
    }
    return call;
}

enum status nccl_call_create(const struct nccl *nccl, ncclResult_t (*run)(struct nccl_call *call),
                             struct nccl_call **out)
{
    *out = nccl_call_make(nccl, run);
    if (*out != NULL)
        return STATUS_OK;
    enum status status = FAIL(STATUS_NOMEM, "no memory for a call of NCCL");
    boot_abort(nccl->boot, status_last());
    return status;
}

static void *thread_run(void *arg)
{
    struct nccl_call *call = arg;
    cudaSetDevice(call->device);
    call->code = call->run(call);
    atomic_store(&call->done, 1);
    return NULL;
}

static enum status wait_for(const struct nccl *nccl, struct nccl_call *call, int64_t deadline_ns, const char *what)
{
    const int64_t begin_ns = clock_ns();
    struct timespec look = {.tv_nsec = LOOK_NS_MIN};
    while (!atomic_load(&call->done)) {
        TRY(boot_poll(nccl->boot));
        if (clock_passed(deadline_ns))
            return FAIL(STATUS_TIMEOUT, "NCCL: %s did not end in %.0f s; another rank may not have taken part", what,
                        (double)(clock_ns() - begin_ns) * 1e-9);
        nanosleep(&look, NULL);
        look.tv_nsec = look.tv_nsec < LOOK_NS / 2 ? look.tv_nsec * 2 : LOOK_NS;
    }
    return STATUS_OK;
}

static int64_t later_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

enum status nccl_call_try(const struct nccl *nccl, struct nccl_call **call, int64_t deadline_ns, const char *what,
                          bool *began)
{
    const int64_t least_ns = clock_deadline(INT64_C(1000000) * CALL_S);
    pthread_t thread;
    *began = thread_start(&thread, thread_run, *call) == 0;
    if (!*began)
        return STATUS_OK;
    enum status status = wait_for(nccl, *call, later_of(deadline_ns, least_ns), what);
    if (status != STATUS_OK) {
        pthread_detach(thread);
        *call = NULL;
        dev_give_up(nccl->dev); /* that thread may hold it */
        boot_abort(nccl->boot, status_last());
        return status;
    }
    pthread_join(thread, NULL);
    return nccl_status(nccl->api, (*call)->comm, (*call)->code, what);
}

enum status nccl_call_run(const struct nccl *nccl, struct nccl_call **call, const char *what)
{
    bool began;
    enum status status = nccl_call_try(nccl, call, 0, what, &began);
    if (!began)
        status = FAIL(STATUS_MACHINE, "no thread for %s", what);
    if (status != STATUS_OK && *call != NULL)
        boot_abort(nccl->boot, status_last());
    return status;
}

void nccl_call_last(const struct nccl *nccl, const struct nccl_call *like, const char *what)
{
    const struct status_message kept = *status_last();
    struct nccl_call *call = nccl_call_make(nccl, like->run), here;
    bool began = false;
    if (call != NULL) {
        call->comm = like->comm;
        call->told = like->told;
        if (nccl_call_try(nccl, &call, 0, what, &began) == STATUS_TIMEOUT) /* a job's end is told by who ended it */
            log_warn("%s", status_last()->what);
    }
    if (!began) { /* no memory, or no thread */
        here = *like;
        here.api = nccl->api;
        (void)here.run(&here);
    }
    free(call);
    status_restore(&kept);
}

ncclResult_t nccl_call_connect(struct nccl_call *call)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= 22800
    if (call->engine)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
    return call->api->ncclCommInitRankConfig(&call->comm, call->size, call->id, call->rank, &config);
}
