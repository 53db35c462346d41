/* topo/build.h -- what a source uses to fill a struct topo. Inside this room only.
 *
 *     TRY(topo_reserve(out, (struct topo_sizes){.hosts = 1, .numas = 2, .cores = 32, .gpus = 8, .nics = 1}));
 *     ... fill the arrays; topo_join for every pair of GPUs ...
 *     return topo_finish(out);       // warnings about links, fingerprint; the caller frees on failure
 */
#ifndef SPTUNE_TOPO_BUILD_H
#define SPTUNE_TOPO_BUILD_H

#include "topo/topo.h"

#include <hwloc.h>

struct topo_sizes {
    int hosts, numas, cores, gpus, nics;
};

/* Zeroed arrays; every link is SYS (unknown bandwidth) but the diagonal, which is SELF. */
enum status topo_reserve(struct topo *topo, struct topo_sizes sizes);
enum status topo_warn(struct topo *topo, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void topo_join(struct topo *topo, int a, int b, struct topo_link link); /* both directions */
enum status topo_finish(struct topo *topo);

static inline struct topo_link *topo_link_at(const struct topo *topo, int a, int b)
{
    return &topo->links[(size_t)a * (size_t)topo->ngpus + (size_t)b];
}

enum status topo_fingerprint(const struct topo *topo, char out[33]);

/* A loaded hwloc topology as host 0. `root` is "" for this machine, a directory holding proc/ and sys/ in tests, NULL
 * when the topology describes another machine: then nothing is read from /proc and /sys. */
enum status topo_from_hwloc(hwloc_topology_t machine, const char *root, struct topo *out);
/* CPUs per wall second that the control groups under `root` leave to this process, the tightest along the path; -1 and
 * version 0 when none is set. */
void topo_read_quota(const char *root, double *out_quota, int *out_version);
int64_t topo_read_memory_limit(const char *root); /* bytes, -1 when none is set */

/* What is printed on a GPU's box: memory and links of GPUs that people name in synth: text. */
struct topo_gpu_kind {
    const char *name;
    int64_t memory_bytes; /* as the driver reports it, which is a little less than the box says */
    int nvlinks;          /* 0: this kind has none */
    double nvlink_GBps;   /* usable, per link and direction */
};
const struct topo_gpu_kind *topo_gpu_kind(const char *name); /* NULL when unknown; case, '-', '_', ' ' do not matter */

/* Does a PCI function compute? Display adapters of servers and hypervisors do not. */
bool topo_pci_is_gpu(unsigned vendor, unsigned class_id, unsigned bus, unsigned slot);

extern const struct topo_source topo_source_hwloc;
extern const struct topo_source topo_source_synth;

#endif
