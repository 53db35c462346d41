/* topo/nvml_read.c -- asks the NVIDIA driver's management library, loaded at run time.
 *
 * The types are those of its ABI, which only ever grows by new names (_v2, _v3). Its functions are told by a return code:
 * 0 done, 3 this GPU has no such thing, 15 the GPU fell off the bus.
 */
#include "topo/nvml.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NVML_LIBRARY "libnvidia-ml.so.1"

typedef struct nvmlDevice_st *device;
enum {
    DONE = 0,
    NOT_SUPPORTED = 3,
    TOO_SMALL = 7,
    NO_DRIVER = 9,
    LOST = 15,
    RESET_REQUIRED = 16,
    MISMATCH = 18,
};
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
enum { P2P_READ = 0, P2P_WRITE = 1, P2P_NVLINK = 2 };

struct pci_info {
    char legacy[16];
    unsigned domain, bus, slot, ids, subsystem;
    char busid[32];
};
struct memory_info {
    unsigned long long total, free, used;
};
struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

/* name, parameters; the second list may be missing from an old library */
#define NVML_NEEDED(X)                                                                                                 \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlShutdown, (void))                                                                                            \
    X(nvmlDeviceGetCount_v2, (unsigned *))                                                                             \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, device *))                                                             \
    X(nvmlDeviceGetPciInfo_v3, (device, struct pci_info *))                                                            \
    X(nvmlDeviceGetName, (device, char *, unsigned))                                                                   \
    X(nvmlDeviceGetUUID, (device, char *, unsigned))                                                                   \
    X(nvmlDeviceGetMemoryInfo, (device, struct memory_info *))
#define NVML_WANTED(X)                                                                                                 \
    X(nvmlSystemGetDriverVersion, (char *, unsigned))                                                                  \
    X(nvmlDeviceGetCudaComputeCapability, (device, int *, int *))                                                      \
    X(nvmlDeviceGetNvLinkState, (device, unsigned, unsigned *))                                                        \
    X(nvmlDeviceGetNvLinkRemoteDeviceType, (device, unsigned, unsigned *))                                             \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (device, unsigned, struct pci_info *))                                      \
    X(nvmlDeviceGetP2PStatus, (device, device, unsigned, unsigned *))                                                  \
    X(nvmlDeviceGetMigMode, (device, unsigned *, unsigned *))                                                          \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (device, unsigned, device *))                                               \
    X(nvmlDeviceGetComputeRunningProcesses_v3, (device, unsigned *, struct process_info *))

struct api {
#define NVML_FIELD(name, parameters) int(*name) parameters;
    NVML_NEEDED(NVML_FIELD) NVML_WANTED(NVML_FIELD)
#undef NVML_FIELD
};

void nvml_find(void *library, const char *name, void *at)
{
    void *symbol = dlsym(library, name);
    memcpy(at, &symbol, sizeof symbol);
}

void *nvml_open(char *why, size_t size)
{
    const char *named = getenv("SPTUNE_NVML");
    bool other = named && *named;
    void *library = dlopen(other ? named : NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library && other)
        text_print(why, size, "SPTUNE_NVML names a library that cannot be loaded: %.150s", dlerror());
    else if (!library)
        text_print(why, size, "no NVIDIA driver is installed (" NVML_LIBRARY ")");
    return library;
}

static bool load(struct api *api, struct nvml_machine *out)
{
    void *library = nvml_open(out->why, sizeof out->why);
    const char *missing = NULL;
    if (!library)
        return false;
    out->installed = true;
#define NVML_RESOLVE(name, parameters) nvml_find(library, #name, &api->name);
    NVML_NEEDED(NVML_RESOLVE)
    NVML_WANTED(NVML_RESOLVE)
#undef NVML_RESOLVE
#define NVML_MISSING(name, parameters) missing = api->name || missing ? missing : #name;
    NVML_NEEDED(NVML_MISSING)
#undef NVML_MISSING
    if (missing)
        text_print(out->why, sizeof out->why, "the NVIDIA driver's library has no function %s", missing);
    return !missing;
}

static bool start(const struct api *api, struct nvml_machine *out)
{
    int code = api->nvmlInit_v2();
    if (code == DONE)
        return true;
    if (code == NO_DRIVER)
        text_print(out->why, sizeof out->why, "the NVIDIA driver is installed but not loaded into the kernel");
    else if (code == MISMATCH)
        text_print(out->why, sizeof out->why,
                   "the NVIDIA driver in the kernel and its libraries are of different versions: reload it or reboot");
    else
        text_print(out->why, sizeof out->why, "the NVIDIA driver does not start (NVML error %d)", code);
    return false;
}

static void print_busid(const struct pci_info *pci, char busid[16])
{
    text_print(busid, 16, "%04x:%02x:%02x.0", pci->domain, pci->bus & 0xffu, pci->slot & 0x1fu);
}

static int64_t read_memory(const struct api *api, device gpu)
{
    struct memory_info memory = {0};
    return api->nvmlDeviceGetMemoryInfo(gpu, &memory) == DONE && memory.total <= INT64_MAX ? (int64_t)memory.total : -1;
}

static void read_text(int (*get)(device, char *, unsigned), device gpu, char *buf, size_t size)
{
    char whole[96] = "";
    buf[0] = '\0';
    if (get(gpu, whole, sizeof whole) != DONE)
        return;
    whole[sizeof whole - 1] = '\0';
    text_print(buf, size, "%s", whole);
    text_clean(buf);
}

/* Instances are numbered with gaps. */
static void read_instances(const struct api *api, device gpu, struct nvml_gpu *out)
{
    unsigned now = 0, later = 0;
    enum { PLACES = 64 };
    if (!api->nvmlDeviceGetMigMode || api->nvmlDeviceGetMigMode(gpu, &now, &later) != DONE || now != 1)
        return;
    out->mig = true;
    for (unsigned i = 0; i < PLACES && out->ninstances < NVML_INSTANCES_MAX && api->nvmlDeviceGetMigDeviceHandleByIndex;
         i++) {
        struct nvml_instance *instance = &out->instances[out->ninstances];
        device part;
        if (api->nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &part) != DONE)
            continue;
        read_text(api->nvmlDeviceGetUUID, part, instance->uuid, sizeof instance->uuid);
        read_text(api->nvmlDeviceGetName, part, instance->name, sizeof instance->name);
        instance->memory_bytes = read_memory(api, part);
        out->ninstances++;
    }
}

/* Numbers of processes are those of the driver's own namespace: in a container ours is not among them. */
static void read_processes(const struct api *api, device gpu, struct nvml_gpu *out)
{
    struct process_info found[64];
    unsigned n = sizeof found / sizeof *found;
    out->others = -1;
    if (!api->nvmlDeviceGetComputeRunningProcesses_v3)
        return;
    int code = api->nvmlDeviceGetComputeRunningProcesses_v3(gpu, &n, found);
    if (code != DONE && code != TOO_SMALL)
        return;
    if (code == TOO_SMALL || n > sizeof found / sizeof *found) {
        out->others = (int)(n < 10000 ? n : 10000);
        return;
    }
    out->others = 0;
    for (unsigned i = 0; i < n; i++)
        if ((pid_t)found[i].pid != getpid()) {
            out->others++;
            out->other_pid = (int)found[i].pid;
        }
}

static void read_gpu(const struct api *api, unsigned index, device *out_handle, struct nvml_gpu *out)
{
    struct pci_info pci = {0};
    int major = 0, minor = 0, code = api->nvmlDeviceGetHandleByIndex_v2(index, out_handle);
    *out = (struct nvml_gpu){.memory_bytes = -1, .arch = -1, .nvlinks = -1, .others = -1};
    if (code == DONE)
        code = api->nvmlDeviceGetPciInfo_v3(*out_handle, &pci);
    if (code == DONE)
        print_busid(&pci, out->busid);
    else
        *out_handle = NULL;
    if (code == DONE) {
        struct memory_info memory;
        code = api->nvmlDeviceGetMemoryInfo(*out_handle, &memory);
        code = code == LOST || code == RESET_REQUIRED ? code : DONE;
    }
    out->lost = code != DONE;
    if (out->lost)
        return;
    read_text(api->nvmlDeviceGetName, *out_handle, out->name, sizeof out->name);
    read_text(api->nvmlDeviceGetUUID, *out_handle, out->uuid, sizeof out->uuid);
    out->memory_bytes = read_memory(api, *out_handle);
    if (api->nvmlDeviceGetCudaComputeCapability &&
        api->nvmlDeviceGetCudaComputeCapability(*out_handle, &major, &minor) == DONE)
        out->arch = 10 * major + minor;
    read_instances(api, *out_handle, out);
    read_processes(api, *out_handle, out);
}

static int gpu_at(const struct nvml_machine *machine, const char *busid)
{
    for (int i = 0; i < machine->n; i++)
        if (strcmp(machine->gpus[i].busid, busid) == 0)
            return i;
    return -1;
}

/* One link that is up: to a switch, to a GPU of this machine, or to an end that is not told. */
static void read_end(const struct api *api, device gpu, unsigned link, struct nvml_machine *out, int index)
{
    unsigned type = 255;
    struct pci_info pci = {0};
    char busid[16] = "";
    if (api->nvmlDeviceGetNvLinkRemoteDeviceType &&
        api->nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link, &type) == DONE && type == REMOTE_SWITCH) {
        out->gpus[index].switch_links++;
        return;
    }
    if (api->nvmlDeviceGetNvLinkRemotePciInfo_v2 && api->nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, link, &pci) == DONE)
        print_busid(&pci, busid);
    int peer = gpu_at(out, busid);
    if (peer >= 0 && peer != index)
        out->direct[index * out->n + peer]++;
    else
        out->gpus[index].dark_links++;
}

static void read_links(const struct api *api, device gpu, struct nvml_machine *out, int index)
{
    struct nvml_gpu *facts = &out->gpus[index];
    for (unsigned link = 0; link < NVML_LINKS_MAX && api->nvmlDeviceGetNvLinkState; link++) {
        unsigned up = 0;
        int code = api->nvmlDeviceGetNvLinkState(gpu, link, &up);
        if (link == 0)
            facts->nvlinks = code == DONE || code == NOT_SUPPORTED ? 0 : -1;
        if (code == DONE && up == 1) {
            facts->nvlinks = facts->nvlinks < 0 ? 1 : facts->nvlinks + 1;
            read_end(api, gpu, link, out, index);
        }
    }
}

static signed char read_p2p(const struct api *api, device a, device b, unsigned what)
{
    unsigned status = 0;
    if (!api->nvmlDeviceGetP2PStatus || api->nvmlDeviceGetP2PStatus(a, b, what, &status) != DONE)
        return NVML_P2P_UNKNOWN;
    return status == 0 ? NVML_P2P_YES : NVML_P2P_NO;
}

static void read_pair(const struct api *api, device a, device b, size_t cell, struct nvml_machine *out)
{
    signed char read = read_p2p(api, a, b, P2P_READ), write = read_p2p(api, a, b, P2P_WRITE);
    out->p2p[cell] = read < write ? read : write;
    out->p2p_nvlink[cell] = read_p2p(api, a, b, P2P_NVLINK);
}

static enum status room(struct nvml_machine *out)
{
    size_t n = (size_t)out->n;
    out->gpus = calloc(n + 1, sizeof *out->gpus);
    out->direct = calloc(n * n + 1, sizeof *out->direct);
    out->p2p = calloc(n * n + 1, 1);
    out->p2p_nvlink = calloc(n * n + 1, 1);
    return out->gpus && out->direct && out->p2p && out->p2p_nvlink ? STATUS_OK : STATUS_NOMEM;
}

static enum status read_all(const struct api *api, struct nvml_machine *out)
{
    device handles[NVML_GPUS_MAX] = {0};
    unsigned count = 0;
    if (api->nvmlSystemGetDriverVersion)
        (void)api->nvmlSystemGetDriverVersion(out->driver, sizeof out->driver);
    out->driver[sizeof out->driver - 1] = '\0';
    text_clean(out->driver);
    if (api->nvmlDeviceGetCount_v2(&count) != DONE) {
        text_print(out->why, sizeof out->why, "the NVIDIA driver does not count its GPUs");
        return STATUS_OK;
    }
    out->n = (int)(count < NVML_GPUS_MAX ? count : NVML_GPUS_MAX);
    if (room(out) != STATUS_OK)
        return STATUS_NOMEM;
    for (int i = 0; i < out->n; i++)
        read_gpu(api, (unsigned)i, &handles[i], &out->gpus[i]);
    for (int a = 0; a < out->n; a++) {
        if (out->gpus[a].lost)
            continue;
        read_links(api, handles[a], out, a);
        for (int b = 0; b < out->n; b++)
            if (a != b && !out->gpus[b].lost)
                read_pair(api, handles[a], handles[b], (size_t)a * (size_t)out->n + (size_t)b, out);
    }
    return STATUS_OK;
}

/* Shared by asker and thread; the one that leaves last releases it. */
struct job {
    pthread_t thread; /* joined once it has told; left to itself when it does not */
    pthread_mutex_t lock;
    pthread_cond_t told;
    bool done, left;
    enum status status;
    struct nvml_machine machine;
};

static void job_free(struct job *job)
{
    nvml_free(&job->machine);
    pthread_cond_destroy(&job->told);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

static void *ask(void *arg)
{
    struct job *job = arg;
    struct api api = {0};
    enum status status = STATUS_OK;
    if (load(&api, &job->machine) && start(&api, &job->machine)) {
        status = read_all(&api, &job->machine);
        (void)api.nvmlShutdown();
    }
    pthread_mutex_lock(&job->lock);
    job->status = status;
    job->done = true;
    bool left = job->left;
    pthread_cond_signal(&job->told);
    pthread_mutex_unlock(&job->lock);
    if (left)
        job_free(job);
    return NULL;
}

static struct timespec in_ms(int ms)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    now.tv_sec += ms / 1000;
    now.tv_nsec += (long)(ms % 1000) * 1000000;
    if (now.tv_nsec >= 1000000000) {
        now.tv_sec++;
        now.tv_nsec -= 1000000000;
    }
    return now;
}

static bool wait_for(struct job *job, int deadline_ms)
{
    struct timespec until = in_ms(deadline_ms);
    int error = 0;
    pthread_mutex_lock(&job->lock);
    while (!job->done && error == 0)
        error = pthread_cond_timedwait(&job->told, &job->lock, &until);
    bool done = job->done;
    job->left = !done;
    if (!done) /* before it may release the job */
        pthread_detach(job->thread);
    pthread_mutex_unlock(&job->lock);
    if (done) /* so that nobody forks beside it, and what the loader keeps for it is released */
        pthread_join(job->thread, NULL);
    return done;
}

static struct job *job_create(void)
{
    struct job *job = calloc(1, sizeof *job);
    pthread_condattr_t attributes;
    if (!job)
        return NULL;
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&job->told, &attributes);
    pthread_condattr_destroy(&attributes);
    return job;
}

enum status nvml_read(int deadline_ms, struct nvml_machine *out)
{
    struct job *job = job_create();
    if (!job)
        return FAIL(STATUS_NOMEM, "no memory to ask the NVIDIA driver");
    int error = thread_start(&job->thread, ask, job);
    if (error != 0) {
        job_free(job);
        return FAIL(STATUS_NOMEM, "no thread to ask the NVIDIA driver: %s", strerror(error));
    }
    if (!wait_for(job, deadline_ms)) {
        *out = (struct nvml_machine){.installed = true};
        text_print(out->why, sizeof out->why, "the NVIDIA driver did not answer in %d ms", deadline_ms);
        return STATUS_OK;
    }
    enum status status = job->status;
    if (status == STATUS_OK) {
        *out = job->machine;
        job->machine = (struct nvml_machine){0};
    }
    job_free(job);
    return status == STATUS_OK ? STATUS_OK : FAIL(status, "no memory for what the NVIDIA driver tells");
}

void nvml_free(struct nvml_machine *machine)
{
    if (!machine)
        return;
    free(machine->gpus);
    free(machine->direct);
    free(machine->p2p);
    free(machine->p2p_nvlink);
    *machine = (struct nvml_machine){0};
}
