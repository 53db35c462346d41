/* topo/reading.h -- a loaded hwloc topology on its way into a struct topo. Inside this room only. */
#ifndef SPTUNE_TOPO_READING_H
#define SPTUNE_TOPO_READING_H

#include "topo/build.h"

#include <hwloc.h>

struct reading {
    hwloc_bitmap_t allowed; /* PUs that this process may use */
    hwloc_bitmap_t scratch;
    hwloc_obj_t *numas; /* nodes with CPUs, in os_index order */
    int nnumas, ncores;
    hwloc_obj_type_t core_type; /* PU where no cores are told */
};

enum status reading_begin(hwloc_topology_t machine, bool here, struct reading *read); /* read zeroed; end it always */
void reading_end(struct reading *read);
void reading_host(hwloc_topology_t machine, const char *root, const struct reading *read, struct topo_host *host);
enum status reading_cpus(hwloc_topology_t machine, const struct reading *read, struct topo *out);
/* Index into numas of the one node in `nodeset`; -1 for none or several. */
int reading_numa(const struct reading *read, hwloc_const_bitmap_t nodeset);
const char *reading_info(hwloc_obj_t object, const char *name); /* "" when absent; object may be NULL */

/* PCI functions; find fills at most `max` of them and returns how many there are. */
int reading_find_gpus(hwloc_topology_t machine, hwloc_obj_t *found, int max);
int reading_find_nics(hwloc_topology_t machine, hwloc_obj_t *found, int max);
void reading_gpus(const struct reading *read, const hwloc_obj_t *found, struct topo *out);
void reading_nics(const char *root, const struct reading *read, const hwloc_obj_t *found, struct topo *out);

#endif
