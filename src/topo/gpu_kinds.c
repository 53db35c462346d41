/* topo/gpu_kinds.c -- GPUs that people name, and PCI functions that compute.
 *
 * Memory is what the driver reports (nvidia-smi, rocm-smi): 143,771 MiB for an H200, whose box says 141 GB. GB/s per
 * link is what NCCL counts on for that generation (notes: sm70 and sm80 20.0, sm86 12.0, sm90 20.6, sm100 40.1), below
 * the raw rate.
 */
#include "topo/build.h"

#include <ctype.h>

#define MIB(n) ((int64_t)(n) << 20)

static const struct topo_gpu_kind kinds[] = {
    {"B200", MIB(183359), 18, 40.1},     {"GB200", MIB(189471), 18, 40.1},    {"H200", MIB(143771), 18, 20.6},
    {"H100", MIB(81559), 18, 20.6},      {"H100-80GB", MIB(81559), 18, 20.6}, {"H800", MIB(81559), 8, 20.6},
    {"H20", MIB(97871), 18, 20.6},       {"GH200", MIB(97871), 18, 20.6},     {"A100", MIB(81920), 12, 20.0},
    {"A100-80GB", MIB(81920), 12, 20.0}, {"A100-40GB", MIB(40960), 12, 20.0}, {"A800", MIB(81920), 8, 20.0},
    {"A30", MIB(24576), 4, 20.0},        {"V100", MIB(16384), 6, 20.0},       {"V100-16GB", MIB(16384), 6, 20.0},
    {"V100-32GB", MIB(32768), 6, 20.0},  {"A6000", MIB(49140), 4, 12.0},      {"A40", MIB(46068), 4, 12.0},
    {"RTX3090", MIB(24576), 4, 12.0},    {"A10", MIB(23028), 0, -1.0},        {"A10G", MIB(23028), 0, -1.0},
    {"L40S", MIB(46068), 0, -1.0},       {"L40", MIB(46068), 0, -1.0},        {"L4", MIB(23034), 0, -1.0},
    {"T4", MIB(15360), 0, -1.0},         {"RTX4090", MIB(24564), 0, -1.0},
};

/* The next character that counts, upper case; *text moves behind it. */
static int significant(const char **text)
{
    while (**text == '-' || **text == '_' || **text == ' ')
        ++*text;
    return **text ? toupper((unsigned char)*(*text)++) : 0;
}

static bool same_name(const char *a, const char *b)
{
    int x, y;
    do {
        x = significant(&a);
        y = significant(&b);
    } while (x == y && x);
    return x == y;
}

const struct topo_gpu_kind *topo_gpu_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (same_name(name, kinds[i].name))
            return &kinds[i];
    return NULL;
}

enum {
    PCI_VGA = 0x0300,
    PCI_3D = 0x0302,
    PCI_DISPLAY_OTHER = 0x0380,
    PCI_ACCELERATOR = 0x1200,
    VENDOR_AMD = 0x1002,
    VENDOR_NVIDIA = 0x10de,
    VENDOR_HABANA = 0x1da3,
    VENDOR_INTEL = 0x8086,
};

/* Intel's integrated graphics and NPU have had these places on bus 0 from their first day on; a card that was handed to
 * a virtual machine is on bus 0 too, elsewhere. */
static bool is_integrated(unsigned bus, unsigned slot)
{
    enum { GRAPHICS = 0x02, NPU = 0x0b };
    return bus == 0 && (slot == GRAPHICS || slot == NPU);
}

/* By vendor, because the class says little: the VGA of a server's management controller (1a03, 102b) and of a
 * hypervisor (1234, 1af4, 1b36, 15ad, 1013, 1414, 80ee) has class 0300 like a GeForce. An Instinct is 0380 or 1200. */
bool topo_pci_is_gpu(unsigned vendor, unsigned class_id, unsigned bus, unsigned slot)
{
    bool display = class_id == PCI_VGA || class_id == PCI_3D || class_id == PCI_DISPLAY_OTHER;
    switch (vendor) {
    case VENDOR_NVIDIA:
        return display;
    case VENDOR_AMD:
        return display || class_id == PCI_ACCELERATOR;
    case VENDOR_INTEL:
        return (display || class_id == PCI_ACCELERATOR) && !is_integrated(bus, slot);
    case VENDOR_HABANA:
        return class_id == PCI_ACCELERATOR;
    default:
        return false;
    }
}
