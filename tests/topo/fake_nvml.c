/* tests/topo/fake_nvml.c -- a library that answers as the NVIDIA driver's does on the machine that SPTUNE_TEST_NVML names.
 *
 * For tests of topo/nvml_*.c on machines without a GPU. GPU i has bus id 0000:<10+i>:00.0 and UUID GPU-<i>aaaa...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    DONE = 0,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    LOST = 15,
    MISMATCH = 18,
    GPUS = 8,
    NO_LINK = -9,
    SWITCH = -1,
    HIDDEN = -2
};

/* A machine: GPUs and, for each, where its links go: a GPU's index, SWITCH, HIDDEN (an end that is not told). */
struct machine {
    const char *name;
    int gpus, links_to_switch, links_hidden, links_to_partner; /* the partner of GPU i is i ^ 1 */
    int lost;                                                  /* index of a GPU that fell off, -1 */
    int split;  /* GPUs 0 .. split-1 are in MIG mode, two instances each */
    int shared; /* processes on GPU 0 that are not ours */
    int p2p;    /* status of every pair: 0 good, 1 chipset refuses */
    int nvlink_p2p;
    int init; /* what nvmlInit says */
    const char *model;
    int major, minor;
    unsigned long long mib;
};
static const struct machine machines[] = {
    {"hgx", 8, 18, 0, 0, -1, 0, 0, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"pair", 2, 0, 0, 18, -1, 0, 0, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"bridges", 4, 0, 0, 12, -1, 0, 0, 0, 0, 0, "NVIDIA H100 NVL", 9, 0, 95830},
    {"guest", 2, 0, 18, 0, -1, 0, 0, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"guest4", 4, 0, 18, 0, -1, 0, 0, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"apart", 8, 18, 0, 0, -1, 0, 0, 0, 5, 0, "NVIDIA H200", 9, 0, 143771}, /* fabric down: links up, no NVLink P2P */
    {"pcie", 4, 0, 0, 0, -1, 0, 0, 1, 1, 0, "NVIDIA L40S", 8, 9, 46068},
    {"mig", 2, 18, 0, 0, -1, 2, 0, 0, 0, 0, "NVIDIA A100-SXM4-80GB", 8, 0, 81920},
    {"halfmig", 2, 12, 0, 0, -1, 1, 0, 0, 0, 0, "NVIDIA A100-SXM4-80GB", 8, 0, 81920},
    {"lost", 8, 18, 0, 0, 3, 0, 0, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"shared", 2, 18, 0, 0, -1, 0, 3, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"crowd", 2, 18, 0, 0, -1, 0, 100, 0, 0, 0, "NVIDIA H200", 9, 0, 143771},
    {"kinds", 3, 0, 0, 0, -1, 0, 0, 0, 5, 0, "", 8, 6, 24576}, /* every GPU is another */
    {"none", 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, "", 0, 0, 0},
    {"mismatch", 0, 0, 0, 0, -1, 0, 0, 0, 0, MISMATCH, "", 0, 0, 0},
    {"slow", 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, "NVIDIA T4", 7, 5, 15360},
};

static const struct machine *machine = &machines[0];
static int parts[GPUS][2]; /* an address in here is the handle of a GPU (parts[i]) or of an instance */
static int whole[GPUS];

typedef void *device;
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

struct violation {
    unsigned long long at_us, held_ns;
};

/* What the GPUs do now: "sm MHz, memory MHz, celsius, milliwatts, reason bits, ns held by power, by heat, processes that came", from
 * SPTUNE_TEST_GPU; without it no such question is answered. */
enum { SM_MHZ, MEMORY_MHZ, CELSIUS, MILLIWATTS, REASONS, POWER_NS, HEAT_NS, CAME, DOINGS };
static int doing(int which, unsigned long long *out)
{
    const char *at = getenv("SPTUNE_TEST_GPU");
    char *end = NULL;
    for (int i = 0; at && i <= which; i++, at = end + 1)
        *out = strtoull(at, &end, 10);
    return at ? DONE : NOT_SUPPORTED;
}

/* What the program looks up. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *busid, device *out);
int nvmlDeviceGetClockInfo(device gpu, unsigned type, unsigned *out);
int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *out);
int nvmlDeviceGetPowerUsage(device gpu, unsigned *out);
int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *out);
int nvmlDeviceGetViolationStatus(device gpu, unsigned policy, struct violation *out);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out);
int nvmlDeviceGetPciInfo_v3(device gpu, struct pci_info *out);
int nvmlDeviceGetName(device gpu, char *out, unsigned size);
int nvmlDeviceGetUUID(device gpu, char *out, unsigned size);
int nvmlDeviceGetMemoryInfo(device gpu, struct memory_info *out);
int nvmlSystemGetDriverVersion(char *out, unsigned size);
int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor);
int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *out);
int nvmlDeviceGetNvLinkRemoteDeviceType(device gpu, unsigned link, unsigned *out);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, unsigned link, struct pci_info *out);
int nvmlDeviceGetP2PStatus(device a, device b, unsigned what, unsigned *out);
int nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *later);
int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *out);
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *n, struct process_info *out);

int nvmlInit_v2(void)
{
    const char *name = getenv("SPTUNE_TEST_NVML");
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (name && strcmp(machines[i].name, name) == 0)
            machine = &machines[i];
    if (strcmp(machine->name, "slow") == 0)
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    return machine->init;
}

int nvmlShutdown(void)
{
    return DONE;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = (unsigned)machine->gpus;
    return DONE;
}

static int index_of(device gpu)
{
    for (int i = 0; i < GPUS; i++)
        if (gpu == &whole[i] || gpu == &parts[i][0] || gpu == &parts[i][1])
            return i;
    abort();
}

static int instance_of(device gpu)
{
    int i = index_of(gpu);
    return gpu == &whole[i] ? -1 : gpu == &parts[i][1];
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out)
{
    if (machine->lost == (int)index)
        return LOST;
    *out = &whole[index];
    return DONE;
}

static void print_pci(int index, struct pci_info *out)
{
    memset(out, 0, sizeof *out);
    out->bus = 0x10u + (unsigned)index;
    out->ids = 0x233510deu;
    snprintf(out->busid, sizeof out->busid, "00000000:%02X:00.0", out->bus);
}

int nvmlDeviceGetPciInfo_v3(device gpu, struct pci_info *out)
{
    print_pci(index_of(gpu), out);
    return DONE;
}

int nvmlDeviceGetName(device gpu, char *out, unsigned size)
{
    if (strcmp(machine->name, "kinds") == 0)
        snprintf(out, size, "NVIDIA GPU %c", 'A' + index_of(gpu));
    else
        snprintf(out, size, "%s%s", machine->model, instance_of(gpu) < 0 ? "" : " MIG 3g.40gb");
    return DONE;
}

int nvmlDeviceGetUUID(device gpu, char *out, unsigned size)
{
    int i = index_of(gpu), part = instance_of(gpu);
    if (part < 0)
        snprintf(out, size, "GPU-%daaaaaaa-0000-0000-0000-000000000000", i);
    else
        snprintf(out, size, "MIG-%d%dbbbbbb-0000-0000-0000-000000000000", i, part);
    return DONE;
}

int nvmlDeviceGetMemoryInfo(device gpu, struct memory_info *out)
{
    out->total = machine->mib << 20;
    if (instance_of(gpu) >= 0)
        out->total /= 2;
    out->used = out->free = 0;
    return DONE;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    snprintf(out, size, "580.0");
    return DONE;
}

int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor)
{
    (void)gpu;
    *major = machine->major;
    *minor = machine->minor;
    return DONE;
}

static int end_of(device gpu, unsigned link)
{
    int i = index_of(gpu), at = (int)link;
    if (at < machine->links_to_switch)
        return SWITCH;
    if (at < machine->links_hidden)
        return HIDDEN;
    return at < machine->links_to_partner ? i ^ 1 : NO_LINK;
}

int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *out)
{
    if (machine->links_to_switch + machine->links_hidden + machine->links_to_partner == 0)
        return NOT_SUPPORTED;
    *out = end_of(gpu, link) != NO_LINK;
    return DONE;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device gpu, unsigned link, unsigned *out)
{
    int end = end_of(gpu, link);
    if (end == HIDDEN)
        return NOT_SUPPORTED;
    *out = end == SWITCH ? 2 : 0;
    return DONE;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, unsigned link, struct pci_info *out)
{
    int end = end_of(gpu, link);
    if (end < 0)
        return NOT_SUPPORTED;
    print_pci(end, out);
    return DONE;
}

int nvmlDeviceGetP2PStatus(device a, device b, unsigned what, unsigned *out)
{
    enum { OVER_NVLINK = 2 };
    (void)a;
    (void)b;
    *out = (unsigned)(what == OVER_NVLINK ? machine->nvlink_p2p : machine->p2p);
    return DONE;
}

int nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *later)
{
    *now = *later = index_of(gpu) < machine->split;
    return machine->major >= 8 ? DONE : NOT_SUPPORTED;
}

/* Instances are numbered with a gap. */
int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *out)
{
    if (index != 0 && index != 2)
        return NOT_FOUND;
    *out = &parts[index_of(gpu)][index == 2];
    return DONE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *n, struct process_info *out)
{
    unsigned count = index_of(gpu) == 0 ? (unsigned)machine->shared : 0, room = *n;
    unsigned long long came = 0;
    if (doing(CAME, &came) == DONE)
        count += (unsigned)came;
    *n = count + 1;
    if (room < *n)
        return TOO_SMALL;
    for (unsigned i = 0; i < count; i++)
        out[i] = (struct process_info){.pid = 4000000u + i};
    out[count] = (struct process_info){.pid = (unsigned)getpid()};
    return DONE;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *busid, device *out)
{
    unsigned domain, bus, slot;
    if (sscanf(busid, "%x:%x:%x", &domain, &bus, &slot) != 3 || bus < 0x10 || bus >= 0x10u + (unsigned)machine->gpus)
        return NOT_FOUND;
    *out = &whole[bus - 0x10];
    return DONE;
}

static int doing_small(int which, unsigned *out)
{
    unsigned long long value = 0;
    int code = doing(which, &value);
    *out = (unsigned)value;
    return code;
}

int nvmlDeviceGetClockInfo(device gpu, unsigned type, unsigned *out)
{
    enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };
    (void)gpu;
    return type == CLOCK_SM ? doing_small(SM_MHZ, out) : type == CLOCK_MEMORY ? doing_small(MEMORY_MHZ, out) : NOT_SUPPORTED;
}

int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *out)
{
    (void)gpu;
    return sensor == 0 ? doing_small(CELSIUS, out) : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(device gpu, unsigned *out)
{
    (void)gpu;
    return doing_small(MILLIWATTS, out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *out)
{
    (void)gpu;
    return doing(REASONS, out);
}

int nvmlDeviceGetViolationStatus(device gpu, unsigned policy, struct violation *out)
{
    (void)gpu;
    return policy < 2 ? doing(policy == 0 ? POWER_NS : HEAT_NS, &out->held_ns) : NOT_SUPPORTED;
}
