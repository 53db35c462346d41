/* topo/nvml_list.c -- CUDA_VISIBLE_DEVICES: which GPUs CUDA lists in this process, and in which order. */
#include "topo/nvml.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    const char *text;
    int len;
};

/* The next entry of a comma list without the blanks around it; false at the end. */
static bool next_entry(const char **at, struct entry *out)
{
    const char *from = *at, *end;
    if (!from)
        return false;
    end = strchr(from, ',');
    *at = end ? end + 1 : NULL;
    end = end ? end : from + strlen(from);
    while (from < end && isspace((unsigned char)*from))
        from++;
    while (end > from && isspace((unsigned char)end[-1]))
        end--;
    *out = (struct entry){from, (int)(end - from)};
    return true;
}

static bool begins(const char *whole, struct entry entry)
{
    return entry.len > 0 && strncasecmp(whole, entry.text, (size_t)entry.len) == 0;
}

/* CUDA shows a split GPU as its first instance. */
static int first_instance(const struct nvml_gpu *gpu)
{
    return gpu->mig && gpu->ninstances > 0 ? 0 : -1;
}

/* A split GPU without instances is nothing that can be opened. */
static bool usable(const struct nvml_gpu *gpu)
{
    return !gpu->lost && (!gpu->mig || gpu->ninstances > 0);
}

/* The one GPU whose UUID begins so; -1 for none or several. */
static int find_gpu(const struct nvml_machine *machine, struct entry entry)
{
    int found = -1;
    for (int i = 0; i < machine->n; i++) {
        if (!usable(&machine->gpus[i]) || !begins(machine->gpus[i].uuid, entry))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static bool find_instance(const struct nvml_machine *machine, struct entry entry, struct nvml_visible *out)
{
    int found = 0;
    for (int i = 0; i < machine->n; i++)
        for (int k = 0; k < machine->gpus[i].ninstances; k++)
            if (begins(machine->gpus[i].instances[k].uuid, entry)) {
                *out = (struct nvml_visible){i, k};
                found++;
            }
    return found == 1;
}

/* The index-th GPU that is not lost: CUDA does not count those. */
static int find_index(const struct nvml_machine *machine, struct entry entry)
{
    char *end;
    long index = strtol(entry.text, &end, 10); /* "1x" is 1 to CUDA */
    if (end == entry.text || index < 0)
        return -1;
    for (int i = 0; i < machine->n; i++)
        if (usable(&machine->gpus[i]) && index-- == 0)
            return i;
    return -1;
}

static bool find(const struct nvml_machine *machine, struct entry entry, struct nvml_visible *out)
{
    static const struct entry mig = {"MIG-", 4}, gpu = {"GPU-", 4};
    int index;
    if (entry.len >= 4 && strncmp(entry.text, mig.text, 4) == 0)
        return find_instance(machine, entry, out);
    index =
        entry.len >= 4 && strncmp(entry.text, gpu.text, 4) == 0 ? find_gpu(machine, entry) : find_index(machine, entry);
    if (index >= 0)
        *out = (struct nvml_visible){index, first_instance(&machine->gpus[index])};
    return index >= 0;
}

/* Without the variable: the whole GPUs; when all are split, the first instance. */
static int list_all(const struct nvml_machine *machine, struct nvml_visible *out)
{
    int n = 0;
    for (int i = 0; i < machine->n; i++)
        if (usable(&machine->gpus[i]) && !machine->gpus[i].mig)
            out[n++] = (struct nvml_visible){i, -1};
    for (int i = 0; i < machine->n && n == 0; i++)
        if (usable(&machine->gpus[i]))
            out[n++] = (struct nvml_visible){i, 0};
    return n;
}

static bool one_kind(const struct nvml_machine *machine)
{
    const struct nvml_gpu *first = NULL;
    for (int i = 0; i < machine->n; i++) {
        const struct nvml_gpu *gpu = &machine->gpus[i];
        if (gpu->lost)
            continue;
        if (first && (strcmp(gpu->name, first->name) != 0 || gpu->mig != first->mig))
            return false;
        first = gpu;
    }
    return true;
}

/* Is that GPU, or that instance, in the list? */
static bool listed(const struct nvml_visible *list, int n, struct nvml_visible one)
{
    for (int i = 0; i < n; i++)
        if (list[i].gpu == one.gpu && list[i].instance == one.instance)
            return true;
    return false;
}

int nvml_list(const struct nvml_machine *machine, const char *visible, const char *order, struct nvml_visible *out,
              bool *out_ordered)
{
    struct entry entry;
    int n = 0;
    bool by_bus = order && strcmp(order, "PCI_BUS_ID") == 0;
    *out_ordered = by_bus || one_kind(machine);
    if (!visible)
        return list_all(machine, out);
    if (strncmp(visible, "GPU-", 4) == 0 || strncmp(visible, "MIG-", 4) == 0)
        *out_ordered = true; /* named one by one */
    for (const char *at = visible; next_entry(&at, &entry);) {
        struct nvml_visible one;
        if (!find(machine, entry, &one))
            break;
        if (listed(out, n, one))
            return 0;
        if (n > 0 && (one.instance >= 0 || out[0].instance >= 0))
            continue; /* a process computes on one instance, and then on nothing else */
        if (n < NVML_GPUS_MAX)
            out[n++] = one;
    }
    return n;
}
