/* topo/nvml_watch.c -- asks NVML about one GPU again and again. Functions that an older library lacks leave facts untold. */
#include "topo/gpu_watch.h"
#include "topo/nvml.h"

#include "base/text.h"

#include <stdlib.h>

typedef struct nvmlDevice_st *device;
enum { DONE = 0, TOO_SMALL = 7 };
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0, POLICY_POWER = 0, POLICY_THERMAL = 1 };
/* nvmlClocksThrottleReasons, since driver 535 called event reasons: bits */
enum { SW_POWER_CAP = 0x4, HW_SLOWDOWN = 0x8, SW_THERMAL = 0x20, HW_THERMAL = 0x40, HW_POWER_BRAKE = 0x80 };

struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};
struct violation {
    unsigned long long at_us, held_ns; /* the reference time is in microseconds, the time held in nanoseconds */
};

#define WATCH_NEEDED(X)                                                                                                \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlShutdown, (void))                                                                                            \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *, device *))
#define WATCH_WANTED(X)                                                                                                \
    X(nvmlSystemGetDriverVersion, (char *, unsigned))                                                                  \
    X(nvmlDeviceGetClockInfo, (device, unsigned type, unsigned *mhz))                                                  \
    X(nvmlDeviceGetTemperature, (device, unsigned sensor, unsigned *celsius))                                          \
    X(nvmlDeviceGetPowerUsage, (device, unsigned *milliwatts))                                                         \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, (device, unsigned long long *bits))                                   \
    X(nvmlDeviceGetViolationStatus, (device, unsigned policy, struct violation *))                                     \
    X(nvmlDeviceGetComputeRunningProcesses_v3, (device, unsigned *n, struct process_info *))

struct gpu_watch {
#define WATCH_FIELD(name, parameters) int(*name) parameters;
    WATCH_NEEDED(WATCH_FIELD)
    WATCH_WANTED(WATCH_FIELD)
#undef WATCH_FIELD
    device gpu;
    int processes; /* when it was settled; -1 not told */
};

static bool load(struct gpu_watch *watch)
{
    char why[256];
    void *library = nvml_open(why, sizeof why);
    if (library == NULL)
        return false;
#define WATCH_FIND(name, parameters) nvml_find(library, #name, &watch->name);
    WATCH_NEEDED(WATCH_FIND)
    WATCH_WANTED(WATCH_FIND)
#undef WATCH_FIND
    return watch->nvmlInit_v2 && watch->nvmlShutdown && watch->nvmlDeviceGetHandleByPciBusId_v2;
}

/* How many compute on it: numbers of processes are those of the driver's namespace, so ours cannot be told by its number everywhere. */
static int processes(const struct gpu_watch *watch)
{
    struct process_info found[64];
    unsigned n = sizeof found / sizeof *found;
    if (!watch->nvmlDeviceGetComputeRunningProcesses_v3)
        return -1;
    int code = watch->nvmlDeviceGetComputeRunningProcesses_v3(watch->gpu, &n, found);
    return code == DONE || code == TOO_SMALL ? (int)(n < 10000 ? n : 10000) : -1;
}

struct gpu_watch *gpu_watch_open(const char *busid)
{
    struct gpu_watch *watch = busid[0] != '\0' ? calloc(1, sizeof *watch) : NULL;
    if (watch == NULL)
        return NULL;
    if (!load(watch) || watch->nvmlInit_v2() != DONE) {
        free(watch);
        return NULL;
    }
    if (watch->nvmlDeviceGetHandleByPciBusId_v2(busid, &watch->gpu) != DONE) {
        gpu_watch_close(watch);
        return NULL;
    }
    gpu_watch_settle(watch);
    return watch;
}

void gpu_watch_settle(struct gpu_watch *watch)
{
    if (watch != NULL)
        watch->processes = processes(watch);
}

void gpu_watch_close(struct gpu_watch *watch)
{
    if (watch != NULL)
        (void)watch->nvmlShutdown();
    free(watch);
}

void gpu_watch_driver(const struct gpu_watch *watch, char *buf, size_t size)
{
    char whole[80] = "";
    if (watch == NULL || !watch->nvmlSystemGetDriverVersion ||
        watch->nvmlSystemGetDriverVersion(whole, sizeof whole) != DONE)
        whole[0] = '\0';
    whole[sizeof whole - 1] = '\0';
    text_print(buf, size, "%s", whole);
    text_clean(buf);
}

static int clock_of(const struct gpu_watch *watch, unsigned type)
{
    unsigned mhz = 0;
    return watch->nvmlDeviceGetClockInfo && watch->nvmlDeviceGetClockInfo(watch->gpu, type, &mhz) == DONE ? (int)mhz
                                                                                                          : -1;
}

static int64_t held_ns(const struct gpu_watch *watch, unsigned policy)
{
    struct violation violation = {0};
    bool told = watch->nvmlDeviceGetViolationStatus &&
                watch->nvmlDeviceGetViolationStatus(watch->gpu, policy, &violation) == DONE;
    return told && violation.held_ns <= INT64_MAX ? (int64_t)violation.held_ns : -1;
}

static int held_now(const struct gpu_watch *watch)
{
    unsigned long long bits = 0;
    if (!watch->nvmlDeviceGetCurrentClocksThrottleReasons ||
        watch->nvmlDeviceGetCurrentClocksThrottleReasons(watch->gpu, &bits) != DONE)
        return -1;
    return (bits & SW_POWER_CAP ? GPU_HELD_POWER : 0) | (bits & (SW_THERMAL | HW_THERMAL) ? GPU_HELD_HEAT : 0) |
           (bits & (HW_SLOWDOWN | HW_POWER_BRAKE) ? GPU_HELD_HARDWARE : 0);
}

void gpu_watch_read(const struct gpu_watch *watch, struct gpu_facts *out)
{
    unsigned value = 0;
    *out = (struct gpu_facts){-1, -1, -1, -1, -1, -1, -1, -1};
    if (watch == NULL)
        return;
    out->sm_mhz = clock_of(watch, CLOCK_SM);
    out->memory_mhz = clock_of(watch, CLOCK_MEMORY);
    if (watch->nvmlDeviceGetTemperature && watch->nvmlDeviceGetTemperature(watch->gpu, SENSOR_GPU, &value) == DONE)
        out->celsius = (int)value;
    if (watch->nvmlDeviceGetPowerUsage && watch->nvmlDeviceGetPowerUsage(watch->gpu, &value) == DONE)
        out->watts = (double)value * 1e-3;
    out->held = held_now(watch);
    out->power_held_ns = held_ns(watch, POLICY_POWER);
    out->heat_held_ns = held_ns(watch, POLICY_THERMAL);
    int now = processes(watch);
    if (now >= 0 && watch->processes >= 0)
        out->others = now > watch->processes ? now - watch->processes : 0;
}
