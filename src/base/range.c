/* base/range.c -- ranges by way of NVTX 3, whose headers look for a profiler at the first call and need no library.
 *
 * The first range of a process creates the domain. Without a profiler that gives no domain, and every later range ends at one test.
 * The launcher's supervisor names no phase, so that a profiler is loaded in the ranks, after the fork.
 */
#include "base/range.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { NAMES_MAX = 64 };

bool range_off;

static nvtxDomainHandle_t domain;
static pthread_once_t domain_once = PTHREAD_ONCE_INIT;

/* Entries below nnames never change. */
static struct {
    const char *name;
    nvtxStringHandle_t handle;
} names[NAMES_MAX];
static atomic_int nnames;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;

static void domain_create(void)
{
    domain = nvtxDomainCreateA("sptune");
    if (domain == NULL)
        __atomic_store_n(&range_off, true, __ATOMIC_RELAXED);
}

static nvtxStringHandle_t find(const char *name)
{
    int n = atomic_load_explicit(&nnames, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (names[i].name == name)
            return names[i].handle;
    return NULL;
}

/* NULL when there are more names than places: such a range carries its text. */
static nvtxStringHandle_t registered(const char *name)
{
    nvtxStringHandle_t handle = find(name);
    if (handle != NULL)
        return handle;
    pthread_mutex_lock(&names_lock);
    int n = atomic_load_explicit(&nnames, memory_order_relaxed);
    handle = find(name);
    if (handle == NULL && n < NAMES_MAX) {
        handle = nvtxDomainRegisterStringA(domain, name);
        names[n].name = name;
        names[n].handle = handle;
        atomic_store_explicit(&nnames, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&names_lock);
    return handle;
}

void range_push_attached(const char *name, int64_t index)
{
    pthread_once(&domain_once, domain_create);
    if (domain == NULL)
        return;
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    event.message.registered = registered(name);
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    if (event.message.registered == NULL) {
        event.message.ascii = name;
        event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    }
    if (index >= 0) {
        event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
        event.payload.llValue = index;
    }
    nvtxDomainRangePushEx(domain, &event);
}

void range_pop_attached(void)
{
    if (domain != NULL)
        nvtxDomainRangePop(domain);
}
