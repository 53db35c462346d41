/* topo/hwloc_pci.c -- GPUs and NICs as PCI shows them, drivers or not, and what lies between two GPUs. */
#include "topo/reading.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const struct hwloc_pcidev_attr_s *pci_of(hwloc_obj_t object)
{
    while (object && object->type != HWLOC_OBJ_PCI_DEVICE)
        object = object->parent;
    return object ? &object->attr->pcidev : NULL;
}

static void print_busid(hwloc_obj_t object, char *buf, size_t size)
{
    const struct hwloc_pcidev_attr_s *pci = pci_of(object);
    buf[0] = '\0';
    if (pci)
        text_print(buf, size, "%04x:%02x:%02x.%x", (unsigned)pci->domain, pci->bus, pci->dev, pci->func & 7u);
}

static uint64_t bus_order(hwloc_obj_t object)
{
    const struct hwloc_pcidev_attr_s *pci = pci_of(object);
    if (!pci)
        return UINT64_MAX;
    return (uint64_t)pci->domain << 24 | (uint64_t)pci->bus << 16 | (uint64_t)pci->dev << 8 | pci->func;
}

/* Keep `found` in bus order; what does not fit is counted only. */
static int insert(hwloc_obj_t *found, int n, int max, hwloc_obj_t object)
{
    int at = n;
    if (n >= max)
        return n + 1;
    for (; at > 0 && bus_order(found[at - 1]) > bus_order(object); at--)
        found[at] = found[at - 1];
    found[at] = object;
    return n + 1;
}

int reading_find_gpus(hwloc_topology_t machine, hwloc_obj_t *found, int max)
{
    int n = 0;
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_pcidev(machine, object));) {
        const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
        if (topo_pci_is_gpu(pci->vendor_id, pci->class_id, pci->bus, pci->dev))
            n = insert(found, n, max, object);
    }
    return n;
}

static bool is_net(hwloc_obj_t object, hwloc_obj_osdev_type_t type)
{
    return object->type == HWLOC_OBJ_OS_DEVICE && object->attr->osdev.type == type;
}

/* Has the function that `object` belongs to an OS device of that type? */
static bool has_osdev(hwloc_obj_t object, hwloc_obj_osdev_type_t type)
{
    while (object && object->type != HWLOC_OBJ_PCI_DEVICE)
        object = object->parent;
    for (hwloc_obj_t child = object ? object->io_first_child : NULL; child; child = child->next_sibling)
        if (is_net(child, type))
            return true;
    return false;
}

/* A function may be a network interface and a verbs device at once: UCX and NCCL go by the verbs name. */
int reading_find_nics(hwloc_topology_t machine, hwloc_obj_t *found, int max)
{
    enum { PCI_NETWORK = 0x02 };
    int n = 0;
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_osdev(machine, object));)
        if (is_net(object, HWLOC_OBJ_OSDEV_OPENFABRICS) ||
            (is_net(object, HWLOC_OBJ_OSDEV_NETWORK) && !has_osdev(object, HWLOC_OBJ_OSDEV_OPENFABRICS)))
            n = insert(found, n, max, object);
    /* Without a driver, or with its interface in another network namespace. */
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_pcidev(machine, object));)
        if (object->attr->pcidev.class_id >> 8 == PCI_NETWORK && !has_osdev(object, HWLOC_OBJ_OSDEV_OPENFABRICS) &&
            !has_osdev(object, HWLOC_OBJ_OSDEV_NETWORK))
            n = insert(found, n, max, object);
    return n;
}

static int numa_of(const struct reading *read, hwloc_obj_t object)
{
    while (object && !object->nodeset)
        object = object->parent;
    return object ? reading_numa(read, object->nodeset) : -1;
}

/* Allowed PUs of what the function is attached to, unless that is the whole machine, which says nothing. */
static void print_near(const struct reading *read, hwloc_obj_t object, char *buf, size_t size)
{
    while (object && !object->cpuset)
        object = object->parent;
    buf[0] = '\0';
    if (!object || !object->parent)
        return;
    hwloc_bitmap_and(read->scratch, object->cpuset, read->allowed);
    if (!hwloc_bitmap_iszero(read->scratch) && hwloc_bitmap_list_snprintf(buf, size, read->scratch) >= (int)size)
        buf[0] = '\0'; /* cut short it would be wrong */
}

/* The first object above both; *out_bridges: the most PCI bridges below it on either way. */
static hwloc_obj_t meeting_point(hwloc_obj_t a, hwloc_obj_t b, int *out_bridges)
{
    int up_a = 0;
    for (hwloc_obj_t x = a->parent; x; x = x->parent) {
        int up_b = 0;
        for (hwloc_obj_t y = b->parent; y; y = y->parent) {
            if (x == y) {
                *out_bridges = up_a > up_b ? up_a : up_b;
                return x;
            }
            up_b += y->type == HWLOC_OBJ_BRIDGE;
        }
        up_a += x->type == HWLOC_OBJ_BRIDGE;
    }
    return NULL;
}

/* A switch is one bridge upwards and one for each port downwards, so through one switch a GPU passes one bridge before
 * the ways meet. */
static enum topo_link_class pci_link(const struct topo *topo, int a, int b, const hwloc_obj_t *found)
{
    int bridges = 0;
    hwloc_obj_t meet = meeting_point(found[a], found[b], &bridges);
    if (meet && meet->type == HWLOC_OBJ_BRIDGE) {
        if (meet->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
            return TOPO_LINK_PHB;
        return bridges > 1 ? TOPO_LINK_PXB : TOPO_LINK_PIX;
    }
    bool one_node = topo->gpus[a].numa >= 0 && topo->gpus[a].numa == topo->gpus[b].numa;
    return one_node ? TOPO_LINK_NODE : TOPO_LINK_SYS;
}

void reading_gpus(const struct reading *read, const hwloc_obj_t *found, struct topo *out)
{
    for (int i = 0; i < out->ngpus; i++) {
        const struct hwloc_pcidev_attr_s *pci = &found[i]->attr->pcidev;
        struct topo_gpu *gpu = &out->gpus[i];
        *gpu = (struct topo_gpu){.numa = numa_of(read, found[i]), .memory_bytes = -1, .nvlinks = -1, .cuda = -1, .others = -1};
        print_busid(found[i], gpu->busid, sizeof gpu->busid);
        print_near(read, found[i], gpu->cpus, sizeof gpu->cpus);
        text_print(gpu->name, sizeof gpu->name, "%04x:%04x", pci->vendor_id, pci->device_id);
    }
    for (int a = 0; a < out->ngpus; a++)
        for (int b = 0; b < a; b++)
            topo_join(out, a, b, (struct topo_link){pci_link(out, a, b, found), 1, -1.0, "hwloc"});
}

/* First number of a file below `root`; false when absent. */
static bool read_number(const char *root, const char *fmt, const char *name, double *out)
{
    char below[256], path[1024];
    text_print(below, sizeof below, fmt, name);
    FILE *file = root && text_print(path, sizeof path, "%s%s", root, below) ? fopen(path, "re") : NULL;
    int got = file ? fscanf(file, "%lf", out) : 0;
    if (file)
        fclose(file);
    return got == 1;
}

/* Nominal, and known only while the link is up. */
static double nic_GBps(const char *root, hwloc_obj_t object)
{
    double value;
    if (object->type != HWLOC_OBJ_OS_DEVICE || !object->name)
        return -1.0;
    if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
        enum { ACTIVE = 4 }; /* "4: ACTIVE" */
        double state;
        if (read_number(root, "/sys/class/infiniband/%s/ports/1/state", object->name, &state) && (int)state == ACTIVE &&
            read_number(root, "/sys/class/infiniband/%s/ports/1/rate", object->name, &value) && value > 0)
            return value / 8.0; /* "400 Gb/sec (4X NDR)" */
        return -1.0;
    }
    if (read_number(root, "/sys/class/net/%s/speed", object->name, &value) && value > 0)
        return value / 8e3; /* Mbit/s */
    return -1.0;
}

void reading_nics(const char *root, const struct reading *read, const hwloc_obj_t *found, struct topo *out)
{
    for (int i = 0; i < out->nnics; i++) {
        const struct hwloc_pcidev_attr_s *pci = pci_of(found[i]);
        struct topo_nic *nic = &out->nics[i];
        *nic = (struct topo_nic){.numa = numa_of(read, found[i]), .GBps = nic_GBps(root, found[i])};
        print_busid(found[i], nic->busid, sizeof nic->busid);
        if (found[i]->type == HWLOC_OBJ_OS_DEVICE && found[i]->name)
            text_print(nic->name, sizeof nic->name, "%s", found[i]->name);
        else if (pci)
            text_print(nic->name, sizeof nic->name, "%04x:%04x", pci->vendor_id, pci->device_id);
        text_clean(nic->name);
    }
}
