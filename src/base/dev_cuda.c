/* base/dev_cuda.c -- a CUDA GPU as a device: queues are streams. The runtime is linked statically, so the program starts where
 * there is no driver and says that there is none. */
#include "base/dev_cuda.h"

#include "base/clock.h"
#include "base/dev_ops.h"
#include "base/mem.h"
#include "base/text.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct cuda_dev {
    struct dev base;
    int index, sms, arch;
    size_t l2_bytes;
    char place[32];
};

/* Has this process opened a GPU? Before, nothing here may ask the driver but to count: processes are forked. */
static atomic_bool opened;
/* Has work on it been waited for in vain? Then everything that waits for the GPU to be idle would wait for good: freeing, and what the
 * runtime does at exit. What is left goes back with the process. */
static atomic_bool stuck;
static struct status_message stuck_why; /* what the wait said, and every later one says at once */

struct cuda_queue {
    struct dev_queue base;
    cudaStream_t stream;
};

struct cuda_event {
    struct dev_event base;
    cudaEvent_t event;
    bool recorded;
};

static struct dev_cuda_late *lates;

void dev_cuda_late_watch(struct dev_cuda_late *late)
{
    late->next = lates;
    lates = late;
}

void dev_cuda_late_forget(struct dev_cuda_late *late)
{
    struct dev_cuda_late **at = &lates;
    while (*at != NULL && *at != late)
        at = &(*at)->next;
    if (*at != NULL)
        *at = late->next;
}

enum status dev_cuda_late_status(void)
{
    for (const struct dev_cuda_late *late = lates; late != NULL; late = late->next)
        if (*late->rank >= 0)
            return FAIL(STATUS_TIMEOUT, "rank %d of the group did not come to an exchange in time", *late->rank);
    return STATUS_OK;
}

enum status dev_cuda_status(cudaError_t error, const char *what)
{
    int device = -1;
    if (error == cudaSuccess)
        return STATUS_OK;
    TRY(dev_cuda_late_status());
    if (cudaGetDevice(&device) != cudaSuccess)
        device = -1;
    (void)cudaGetLastError(); /* an error that is not sticky is told once */
    if (error == cudaErrorMemoryAllocation)
        return FAIL(STATUS_NOMEM, "no GPU memory for %s (GPU %d)", what, device);
    return FAIL(STATUS_MACHINE, "%s failed on GPU %d: %s", what, device, cudaGetErrorString(error));
}

enum status dev_cuda_launched(const char *kernel)
{
    return dev_cuda_status(cudaGetLastError(), kernel);
}

cudaStream_t dev_cuda_stream(const struct dev_queue *queue)
{
    return ((const struct cuda_queue *)queue)->stream;
}

int dev_cuda_sms(const struct dev *dev)
{
    return ((const struct cuda_dev *)dev)->sms;
}

size_t dev_cuda_l2_bytes(const struct dev *dev)
{
    return ((const struct cuda_dev *)dev)->l2_bytes;
}

int dev_cuda_index(const struct dev *dev)
{
    return ((const struct cuda_dev *)dev)->index;
}

bool dev_cuda_stuck(void)
{
    return atomic_load(&stuck);
}

static void leave(int code, void *arg)
{
    (void)arg;
    fflush(NULL);
    _exit(code);
}

static enum status give_up(enum status why)
{
    if (!dev_cuda_stuck()) {
        stuck_why = *status_last();
        atomic_store(&stuck, true);
        on_exit(leave, NULL); /* registered last, so it runs first */
    }
    return why;
}

static void cuda_give_up(struct dev *dev)
{
    (void)dev;
    (void)give_up(status_last()->code);
}

static enum status given_up(void)
{
    if (!dev_cuda_stuck())
        return STATUS_OK;
    status_restore(&stuck_why);
    return stuck_why.code;
}

bool dev_cuda_opened(void)
{
    return atomic_load(&opened);
}

/* No driver at all is an absent device; a driver that is there and fails is an error of its own. */
static enum status count_devices(int *out)
{
    int driver = 0;
    cudaError_t error = cudaGetDeviceCount(out);
    if (error == cudaSuccess && *out > 0)
        return STATUS_OK;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return HINT(FAIL(STATUS_ABSENT, "there is no CUDA driver here"), "use --device cpu");
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *out == 0))
        return HINT(FAIL(STATUS_ABSENT, "the CUDA driver sees no GPU"),
                    "CUDA_VISIBLE_DEVICES may hide them; use --device cpu");
    if (error == cudaErrorInsufficientDriver)
        return HINT(FAIL(STATUS_UNSUPPORTED, "the driver supports CUDA %d.%d, this build needs %d.%d", driver / 1000,
                         driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10),
                    "install a newer driver, or use --device cpu");
    return HINT(FAIL(STATUS_UNSUPPORTED, "the CUDA driver is here but fails: %s", cudaGetErrorString(error)),
                "nvidia-smi may tell more; use --device cpu to go without it");
}

static enum status cuda_total(int index, int64_t *out_bytes)
{
    struct cudaDeviceProp about;
    TRY(dev_cuda_status(cudaGetDeviceProperties(&about, index), "asking for its memory"));
    *out_bytes = (int64_t)about.totalGlobalMem;
    return STATUS_OK;
}

static bool cuda_has_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library != NULL)
        dlclose(library);
    return library != NULL;
}

static enum status open_at(int index, struct cuda_dev *dev)
{
    int major = 0, minor = 0, l2 = 0;
    atomic_store(&opened, true);
    TRY(dev_cuda_status(cudaSetDevice(index), "taking this GPU"));
    TRY(dev_cuda_status(cudaFree(NULL), "making a context")); /* here, so that a busy GPU is told here */
    TRY(dev_cuda_status(cudaDeviceGetAttribute(&dev->sms, cudaDevAttrMultiProcessorCount, index), "asking for its size"));
    TRY(dev_cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "asking for its size"));
    TRY(dev_cuda_status(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "asking for its size"));
    TRY(dev_cuda_status(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, index), "asking for its size"));
    TRY(dev_cuda_status(cudaDeviceGetPCIBusId(dev->place, sizeof dev->place, index), "asking where it is"));
    for (char *c = dev->place; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    dev->index = index;
    dev->arch = 10 * major + minor;
    dev->l2_bytes = (size_t)l2;
    if (dev->arch < 80)
        return HINT(FAIL(STATUS_UNSUPPORTED, "GPU %d has compute capability %d.%d", index, major, minor),
                    "the kernels need 8.0 (A100) or later");
    return STATUS_OK;
}

static enum status cuda_open(int index, struct dev **out)
{
    int count = 0;
    TRY(count_devices(&count));
    if (index < 0 || index >= count)
        return HINT(FAIL(STATUS_USAGE, "there is no GPU %d, the driver shows %d", index, count),
                    "use as many ranks per host as GPUs, or --device cpu");
    struct cuda_dev *dev = calloc(1, sizeof *dev);
    if (dev == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a device handle");
    enum status status = open_at(index, dev);
    if (status != STATUS_OK) {
        free(dev);
        return status;
    }
    *out = &dev->base;
    return STATUS_OK;
}

static int64_t cuda_cache_bytes(const struct dev *dev)
{
    return (int64_t)dev_cuda_l2_bytes(dev);
}

static const char *cuda_place(const struct dev *dev)
{
    return ((const struct cuda_dev *)dev)->place;
}

static void cuda_close(struct dev *dev)
{
    free(dev);
}

static enum status cuda_memory(struct dev *dev, int64_t *out_free_bytes, int64_t *out_total_bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)dev;
    TRY(dev_cuda_status(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory"));
    *out_free_bytes = (int64_t)free_bytes;
    *out_total_bytes = (int64_t)total_bytes;
    return STATUS_OK;
}

static enum status cuda_alloc(struct dev *dev, size_t bytes, const char *what, void **out)
{
    enum { WORD = 16 }; /* NCCL reads an end within a word as a word: compute-sanitizer tells */
    void *memory = NULL;
    TRY(given_up());
    cudaError_t error = cudaMalloc(&memory, bytes / WORD * WORD + WORD);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return FAIL(STATUS_NOMEM, "no GPU memory for %s (%zu bytes, GPU %d)", what, bytes, dev_cuda_index(dev));
    }
    TRY(dev_cuda_status(error, what));
    error = cudaMemset(memory, 0, bytes > 0 ? bytes : 1);
    if (error == cudaSuccess) /* queues do not wait for the default stream, where this runs */
        error = cudaStreamSynchronize(cudaStreamLegacy);
    if (error != cudaSuccess) {
        cudaFree(memory);
        return dev_cuda_status(error, what);
    }
    *out = memory;
    return STATUS_OK;
}

static void cuda_free(struct dev *dev, void *memory)
{
    (void)dev;
    if (!dev_cuda_stuck())
        cudaFree(memory);
}

/* Visible to every GPU at the same address. */
static enum status cuda_alloc_host(struct dev *dev, size_t bytes, const char *what, void **out)
{
    void *memory = NULL;
    (void)dev;
    TRY(given_up());
    TRY(mem_enough(bytes, what));
    cudaError_t error = cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return HINT(FAIL(STATUS_NOMEM, "no page-locked host memory for %s (%zu bytes)", what, bytes),
                    "more host memory for each rank, or a higher limit on locked memory (ulimit -l)");
    }
    TRY(dev_cuda_status(error, what));
    memset(memory, 0, bytes);
    *out = memory;
    return STATUS_OK;
}

static void cuda_free_host(struct dev *dev, void *memory)
{
    (void)dev;
    if (!dev_cuda_stuck())
        cudaFreeHost(memory);
}

static enum status queue_with(int priority, struct dev_queue **out)
{
    struct cuda_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a queue handle");
    enum status status = dev_cuda_status(cudaStreamCreateWithPriority(&queue->stream, cudaStreamNonBlocking, priority),
                                         "making a stream");
    if (status != STATUS_OK) {
        free(queue);
        return status;
    }
    *out = &queue->base;
    return STATUS_OK;
}

static enum status cuda_queue_create(struct dev *dev, struct dev_queue **out)
{
    (void)dev;
    return queue_with(0, out);
}

/* Exchanges first: their blocks are few, and computing waits for them. */
static enum status cuda_queue_create_beside(struct dev *dev, struct dev_queue **out)
{
    int least = 0, greatest = 0;
    (void)dev;
    TRY(dev_cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
    return queue_with(greatest, out);
}

static bool cuda_can_overlap(const struct dev *dev)
{
    (void)dev;
    return true;
}

static void cuda_queue_destroy(struct dev_queue *queue)
{
    if (!dev_cuda_stuck())
        cudaStreamDestroy(((struct cuda_queue *)queue)->stream);
    free(queue);
}

static enum status cuda_call(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg)
{
    (void)queue;
    return fn(arg); /* it only enqueues */
}

static enum status cuda_fill(struct dev_queue *queue, void *dst, int byte, size_t bytes)
{
    return dev_cuda_status(cudaMemsetAsync(dst, byte, bytes, dev_cuda_stream(queue)), "a fill");
}

/* Spins for a while, since most waits are short, then looks every 50 us. */
static enum status cuda_sync(struct dev_queue *queue, int64_t deadline_ns)
{
    const struct timespec nap = {.tv_nsec = 50 * 1000};
    int64_t spin_ns = clock_deadline(2000);
    TRY(given_up());
    for (;;) {
        cudaError_t error = cudaStreamQuery(dev_cuda_stream(queue));
        if (error != cudaErrorNotReady)
            return dev_cuda_status(error, "the work on this GPU");
        (void)cudaGetLastError();
        if (clock_passed(deadline_ns))
            return give_up(FAIL(STATUS_TIMEOUT, "GPU %d did not finish its work in time", dev_cuda_index(queue->dev)));
        if (!clock_passed(spin_ns))
            continue;
        enum status status = queue->dev->look != NULL ? queue->dev->look(queue->dev->look_arg) : STATUS_OK;
        if (status != STATUS_OK)
            return give_up(status);
        nanosleep(&nap, NULL);
    }
}

/* Memory that the driver does not know: plain malloc. */
static bool pageable(const void *memory)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
    (void)cudaGetLastError();
    return error != cudaSuccess || attributes.type == cudaMemoryTypeUnregistered;
}

/* The runtime keeps its caller until a copy to pageable memory is done, and in one from there until its last 64 KiB are on their way. What
 * is on the queue before it would then be waited for without end, whoever of the job has died: so that wait is ours. No such copy can be
 * captured. */
static enum status cuda_copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes)
{
    enum { STAGED_BYTES = 64 << 10 };
    if (pageable(dst) || (bytes > STAGED_BYTES && pageable(src)))
        TRY(cuda_sync(queue, INT64_MAX));
    return dev_cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, dev_cuda_stream(queue)), "a copy");
}

static enum status cuda_event_create(struct dev *dev, struct dev_event **out)
{
    struct cuda_event *event = calloc(1, sizeof *event);
    (void)dev;
    if (event == NULL)
        return FAIL(STATUS_NOMEM, "no memory for an event handle");
    enum status status = dev_cuda_status(cudaEventCreate(&event->event), "making an event");
    if (status != STATUS_OK) {
        free(event);
        return status;
    }
    *out = &event->base;
    return STATUS_OK;
}

static void cuda_event_destroy(struct dev_event *event)
{
    if (!dev_cuda_stuck())
        cudaEventDestroy(((struct cuda_event *)event)->event);
    free(event);
}

static enum status cuda_event_record(struct dev_event *handle, struct dev_queue *queue)
{
    struct cuda_event *event = (struct cuda_event *)handle;
    event->recorded = true;
    return dev_cuda_status(cudaEventRecord(event->event, dev_cuda_stream(queue)), "recording an event");
}

static enum status cuda_event_wait(struct dev_queue *queue, struct dev_event *event)
{
    return dev_cuda_status(cudaStreamWaitEvent(dev_cuda_stream(queue), ((struct cuda_event *)event)->event, 0),
                           "waiting for an event");
}

static enum status cuda_event_us(struct dev_event *from, struct dev_event *to, double *out_us)
{
    const struct cuda_event *a = (const struct cuda_event *)from, *b = (const struct cuda_event *)to;
    float ms = 0;
    if (!a->recorded || !b->recorded)
        return FAIL(STATUS_USAGE, "an event was read before it was recorded");
    TRY(dev_cuda_status(cudaEventElapsedTime(&ms, a->event, b->event), "reading events"));
    *out_us = (double)ms * 1e3;
    return STATUS_OK;
}

struct cuda_graph {
    struct dev_graph base;
    cudaGraphExec_t exec;
};

static enum status capture(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg, cudaGraph_t *out)
{
    cudaStream_t stream = dev_cuda_stream(queue);
    cudaGraph_t graph = NULL;
    TRY(dev_cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph"));
    enum status status = fn(arg);
    const struct status_message kept = *status_last();
    if (dev_cuda_stuck()) /* another thread may be in the driver for ever, with this stream */
        return status != STATUS_OK ? status : given_up();
    cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (status == STATUS_OK)
        status = dev_cuda_status(error, "ending a graph");
    else
        status_restore(&kept);
    if (status == STATUS_OK)
        *out = graph;
    else if (graph != NULL)
        cudaGraphDestroy(graph);
    return status;
}

static enum status cuda_graph_create(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg, struct dev_graph **out)
{
    struct cuda_graph *kept = calloc(1, sizeof *kept);
    cudaGraph_t graph = NULL;
    if (kept == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a graph handle");
    enum status status = capture(queue, fn, arg, &graph);
    if (status == STATUS_OK) {
        status = dev_cuda_status(cudaGraphInstantiate(&kept->exec, graph, 0), "making a graph");
        cudaGraphDestroy(graph);
    }
    if (status != STATUS_OK) {
        free(kept);
        return status;
    }
    *out = &kept->base;
    return STATUS_OK;
}

static enum status cuda_graph_run(struct dev_graph *graph, struct dev_queue *queue)
{
    return dev_cuda_status(cudaGraphLaunch(((struct cuda_graph *)graph)->exec, dev_cuda_stream(queue)), "starting a graph");
}

static void cuda_graph_destroy(struct dev_graph *graph)
{
    if (!dev_cuda_stuck())
        cudaGraphExecDestroy(((struct cuda_graph *)graph)->exec);
    free(graph);
}

const struct dev_ops dev_cuda = {
    .kind = DEV_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .count = count_devices,
    .total = cuda_total,
    .place = cuda_place,
    .has_driver = cuda_has_driver,
    .cache_bytes = cuda_cache_bytes,
    .memory = cuda_memory,
    .give_up = cuda_give_up,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .queue_create = cuda_queue_create,
    .queue_create_beside = cuda_queue_create_beside,
    .can_overlap = cuda_can_overlap,
    .queue_destroy = cuda_queue_destroy,
    .call = cuda_call,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .sync = cuda_sync,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_us = cuda_event_us,
    .graph_create = cuda_graph_create,
    .graph_run = cuda_graph_run,
    .graph_destroy = cuda_graph_destroy,
};
