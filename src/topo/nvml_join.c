/* topo/nvml_join.c -- the driver's facts enter a topology that knows its GPUs by PCI alone.
 *
 * Devices are what ranks can run on, so what CUDA does not show in this process leaves the list: GPUs of other jobs that
 * a container still sees on PCI, lost ones, and what CUDA_VISIBLE_DEVICES hides. Each is named in a warning. A GPU that
 * only the driver shows (a sandbox without PCI) enters it, at an unknown NUMA node.
 */
#include "topo/nvml.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* A GPU of the new list: where it was in the old one, and in the driver's; -1 in neither. */
struct seat {
    const char *busid;
    int old, driver, cuda, instance;
};

static bool is_nvidia(const struct topo_gpu *gpu)
{
    return strncmp(gpu->name, "10de:", 5) == 0;
}

static int find_seat(const struct seat *seats, int n, const char *busid)
{
    for (int i = 0; i < n; i++)
        if (strcmp(seats[i].busid, busid) == 0)
            return i;
    return -1;
}

static int by_bus(const void *a, const void *b)
{
    return strcmp(((const struct seat *)a)->busid, ((const struct seat *)b)->busid);
}

/* What CUDA lists, and GPUs of other makers. seats[topo->ngpus + listed]. */
static int fill_seats(const struct nvml_machine *machine, const struct topo *topo, const struct nvml_visible *list,
                      int listed, bool ordered, struct seat *seats)
{
    int n = 0;
    for (int i = 0; i < listed; i++)
        seats[n++] =
            (struct seat){machine->gpus[list[i].gpu].busid, -1, list[i].gpu, ordered ? i : -1, list[i].instance};
    for (int i = 0; i < topo->ngpus; i++) {
        int at = find_seat(seats, listed, topo->gpus[i].busid);
        if (at >= 0)
            seats[at].old = i;
        else if (!is_nvidia(&topo->gpus[i]))
            seats[n++] = (struct seat){topo->gpus[i].busid, i, -1, -1, -1};
    }
    qsort(seats, (size_t)n, sizeof *seats, by_bus);
    return n;
}

static void fill_gpu(const struct nvml_machine *machine, const struct seat *seat, struct topo_gpu *gpu)
{
    const struct nvml_gpu *facts = &machine->gpus[seat->driver];
    const struct nvml_instance *part = seat->instance >= 0 ? &facts->instances[seat->instance] : NULL;
    if (seat->old < 0)
        gpu->numa = -1;
    text_print(gpu->busid, sizeof gpu->busid, "%s", facts->busid);
    text_print(gpu->name, sizeof gpu->name, "%s", part ? part->name : facts->name);
    text_print(gpu->uuid, sizeof gpu->uuid, "%s", part ? part->uuid : facts->uuid);
    gpu->memory_bytes = part ? part->memory_bytes : facts->memory_bytes;
    gpu->nvlinks = part ? 0 : facts->nvlinks; /* an instance reaches none */
    gpu->driver = true;
    gpu->mig = facts->mig;
    gpu->cuda = seat->cuda;
    gpu->others = facts->others;
    gpu->other_pid = facts->other_pid;
}

/* Usable GB/s of one link and direction by generation, as in gpu_kinds.c. */
static double link_GBps(const struct nvml_gpu *gpu)
{
    static const struct {
        int arch;
        double GBps;
    } rows[] = {{100, 40.1}, {90, 20.6}, {87, -1.0}, {86, 12.0}, {80, 20.0}, {70, 20.0}, {60, 18.0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (gpu->arch >= rows[i].arch)
            return rows[i].GBps;
    return -1.0;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Links straight to the peer are told one by one. Links to switches reach every GPU that has some, unless the driver says
 * that this pair does not talk over NVLink. In a virtual machine the far ends are hidden: then only what the driver says
 * of the pair counts, and links of two GPUs alone may be direct while those of more cannot all be. */
static bool nvlink_of(const struct nvml_machine *machine, int a, int b, struct topo_link *out)
{
    const struct nvml_gpu *x = &machine->gpus[a], *y = &machine->gpus[b];
    size_t cell = (size_t)a * (size_t)machine->n + (size_t)b;
    int direct = least(machine->direct[cell], machine->direct[(size_t)b * (size_t)machine->n + (size_t)a]);
    int through = least(x->switch_links, y->switch_links), dark = least(x->dark_links, y->dark_links);
    enum topo_link_class link = TOPO_LINK_NVLINK;
    int count = direct;
    if (x->mig || y->mig)
        return false;
    if (direct == 0 && through > 0 && machine->p2p_nvlink[cell] != NVML_P2P_NO) {
        link = TOPO_LINK_NVSWITCH;
        count = through;
    } else if (direct == 0 && dark > 0 && machine->p2p_nvlink[cell] == NVML_P2P_YES) {
        link = machine->n > 2 ? TOPO_LINK_NVSWITCH : TOPO_LINK_NVLINK;
        count = dark;
    }
    double per_link = link_GBps(x) < link_GBps(y) ? link_GBps(x) : link_GBps(y);
    *out = (struct topo_link){link, count, per_link < 0 ? -1.0 : per_link * count, "nvml"};
    return count > 0;
}

static void fill_pair(const struct nvml_machine *machine, const struct topo *old, const struct seat *seats, int a,
                      int b, struct topo *out)
{
    const struct seat *x = &seats[a], *y = &seats[b];
    struct topo_link link = {TOPO_LINK_SYS, 1, -1.0, "assumed"};
    signed char p2p = NVML_P2P_UNKNOWN;
    if (x->old >= 0 && y->old >= 0)
        link = *topo_link_at(old, x->old, y->old);
    if (x->driver >= 0 && y->driver >= 0) {
        struct topo_link nvlink;
        p2p = machine->p2p[(size_t)x->driver * (size_t)machine->n + (size_t)y->driver];
        if (nvlink_of(machine, x->driver, y->driver, &nvlink))
            link = nvlink;
    }
    topo_join(out, a, b, link);
    out->p2p[(size_t)a * (size_t)out->ngpus + (size_t)b] = p2p;
    out->p2p[(size_t)b * (size_t)out->ngpus + (size_t)a] = p2p;
}

/* Room for n GPUs; what was known of the old ones stays in `old`. */
static enum status exchange_gpus(struct topo *topo, int n, struct topo *old)
{
    size_t count = (size_t)n;
    struct topo fresh = {.ngpus = n};
    enum status status = mem_alloc(count * sizeof *fresh.gpus, "GPUs", (void **)&fresh.gpus);
    if (status == STATUS_OK)
        status = mem_alloc(count * count * sizeof *fresh.links, "links", (void **)&fresh.links);
    if (status == STATUS_OK)
        status = mem_alloc(count * count, "links", (void **)&fresh.p2p);
    if (status != STATUS_OK) {
        topo_free(&fresh);
        return status;
    }
    *old = (struct topo){.ngpus = topo->ngpus, .gpus = topo->gpus, .links = topo->links, .p2p = topo->p2p};
    topo->gpus = fresh.gpus;
    topo->links = fresh.links;
    topo->p2p = fresh.p2p;
    topo->ngpus = n;
    return STATUS_OK;
}

static enum status rebuild(const struct nvml_machine *machine, const struct seat *seats, int n, struct topo *topo)
{
    struct topo old;
    TRY(exchange_gpus(topo, n, &old));
    for (int a = 0; a < n; a++) {
        if (seats[a].old >= 0)
            topo->gpus[a] = old.gpus[seats[a].old];
        if (seats[a].driver >= 0)
            fill_gpu(machine, &seats[a], &topo->gpus[a]);
        *topo_link_at(topo, a, a) = (struct topo_link){TOPO_LINK_SELF, 1, -1.0, "nvml"};
        topo->p2p[(size_t)a * (size_t)n + (size_t)a] = NVML_P2P_YES;
        for (int b = 0; b < a; b++)
            fill_pair(machine, &old, seats, a, b, topo);
    }
    topo_free(&old);
    return STATUS_OK;
}

static enum status name_lost(const struct nvml_machine *machine, struct topo *topo)
{
    for (int i = 0; i < machine->n; i++) {
        const struct nvml_gpu *gpu = &machine->gpus[i];
        if (gpu->lost)
            TRY(topo_warn(topo,
                          "the driver's GPU %d (%s) does not answer: it is left out; dmesg and nvidia-smi say more", i,
                          gpu->busid[0] ? gpu->busid : "bus id unknown"));
    }
    return STATUS_OK;
}

/* On PCI, of NVIDIA, and not the driver's: another job's, as a rule. */
static enum status name_foreign(const struct nvml_machine *machine, struct topo *topo)
{
    int foreign = 0;
    const char *first = "";
    for (int i = 0; i < topo->ngpus; i++) {
        bool known = !is_nvidia(&topo->gpus[i]);
        for (int k = 0; k < machine->n; k++)
            known |= strcmp(machine->gpus[k].busid, topo->gpus[i].busid) == 0;
        if (!known && foreign++ == 0)
            first = topo->gpus[i].busid;
    }
    if (foreign == 0)
        return STATUS_OK;
    return topo_warn(topo, "%d NVIDIA GPU%s on PCI (first %s) not given to this process by the driver: left out",
                     foreign, foreign > 1 ? "s are" : " is", first);
}

static enum status name_hidden(const struct nvml_machine *machine, const char *visible, int listed, struct topo *topo)
{
    int all = 0, split = 0;
    for (int i = 0; i < machine->n; i++) {
        all += !machine->gpus[i].lost;
        split += machine->gpus[i].mig;
    }
    if (split)
        TRY(topo_warn(topo, "%d of %d GPUs %s in MIG mode: a process computes on one instance and reaches no other GPU",
                      split, all, split > 1 ? "are" : "is"));
    if (visible && listed < all)
        return topo_warn(topo, "CUDA_VISIBLE_DEVICES=%.80s shows %d of %d GPUs", visible, listed, all);
    return STATUS_OK;
}

static enum status name_doubts(const struct topo *topo, bool ordered, int listed, struct topo *out)
{
    int refused = 0, a0 = 0, b0 = 0;
    for (int i = 0; i < topo->ngpus; i++)
        if (topo->gpus[i].others > 0)
            TRY(topo_warn(out, "GPU %d (%s) is shared: %d other process%s on it (pid %d)", i, topo->gpus[i].busid,
                          topo->gpus[i].others, topo->gpus[i].others > 1 ? "es compute" : " computes",
                          topo->gpus[i].other_pid));
    for (int a = 0; a < topo->ngpus; a++)
        for (int b = 0; b < a; b++)
            if (topo->p2p[(size_t)a * (size_t)topo->ngpus + (size_t)b] == NVML_P2P_NO && refused++ == 0) {
                a0 = b;
                b0 = a;
            }
    if (refused)
        TRY(topo_warn(out,
                      "%d pair%s of GPUs (first %d and %d) cannot reach each other's memory: exchanges there go "
                      "through the host",
                      refused, refused > 1 ? "s" : "", a0, b0));
    if (!ordered && listed > 1)
        return topo_warn(out, "GPUs of several kinds: CUDA lists the fastest first; CUDA_DEVICE_ORDER=PCI_BUS_ID makes "
                              "its order known");
    return STATUS_OK;
}

enum status nvml_join(const struct nvml_machine *machine, struct topo *topo)
{
    struct nvml_visible list[NVML_GPUS_MAX];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    bool ordered = true;
    struct seat *seats = NULL;
    int listed = nvml_list(machine, visible, getenv("CUDA_DEVICE_ORDER"), list, &ordered);
    TRY(name_lost(machine, topo));
    TRY(name_foreign(machine, topo));
    TRY(name_hidden(machine, visible, listed, topo));
    TRY(mem_alloc((size_t)(topo->ngpus + listed) * sizeof *seats, "GPUs", (void **)&seats));
    int n = fill_seats(machine, topo, list, listed, ordered, seats);
    enum status status = rebuild(machine, seats, n, topo);
    free(seats);
    TRY(status);
    return name_doubts(topo, ordered, listed, topo);
}

static enum status name_silence(const struct nvml_machine *machine, struct topo *topo)
{
    bool nvidia = false;
    for (int i = 0; i < topo->ngpus; i++)
        nvidia |= is_nvidia(&topo->gpus[i]);
    if (topo->ngpus == 0) /* an installed driver that fails is worth a line, none is usual */
        return machine->installed ? topo_warn(topo, "%s", machine->why) : STATUS_OK;
    return topo_warn(topo, "%d GPU%s seen on PCI (first %s at %s), %s: memory and NVLinks are unknown", topo->ngpus,
                     topo->ngpus > 1 ? "s" : "", topo->gpus[0].name, topo->gpus[0].busid,
                     nvidia ? machine->why : "no driver was asked");
}

enum status nvml_apply(struct topo *topo)
{
    struct nvml_machine machine = {0};
    TRY(nvml_read(NVML_DEADLINE_MS, &machine));
    if (!machine.why[0] && machine.n > 0) {
        enum status status = nvml_join(&machine, topo);
        nvml_free(&machine);
        return status;
    }
    if (!machine.why[0])
        text_print(machine.why, sizeof machine.why, "the NVIDIA driver shows no GPU");
    enum status status = name_silence(&machine, topo);
    nvml_free(&machine);
    return status;
}
