/* topo/hwloc_read.c -- a loaded hwloc topology as host 0. */
#include "topo/nvml.h"
#include "topo/reading.h"

#include "base/text.h"

#include <stdlib.h>

enum { FOUND_MAX = 512 };

/* The driver speaks of this machine only. */
static enum status reading_driver(const char *root, struct topo *out)
{
    if (root && !*root)
        return nvml_apply(out);
    if (out->ngpus == 0)
        return STATUS_OK;
    return topo_warn(out, "%d GPU%s seen on PCI (first %s at %s), no driver was asked: memory and NVLinks are unknown",
                     out->ngpus, out->ngpus > 1 ? "s" : "", out->gpus[0].name, out->gpus[0].busid);
}

static enum status fill(hwloc_topology_t machine, const char *root, struct reading *read, hwloc_obj_t *found,
                        struct topo *out)
{
    hwloc_obj_t *gpus = found, *nics = found + FOUND_MAX;
    int ngpus = reading_find_gpus(machine, gpus, FOUND_MAX), nnics = reading_find_nics(machine, nics, FOUND_MAX);
    TRY(reading_begin(machine, root != NULL, read));
    TRY(topo_reserve(out, (struct topo_sizes){.hosts = 1,
                                              .numas = read->nnumas,
                                              .cores = read->ncores,
                                              .gpus = ngpus < FOUND_MAX ? ngpus : FOUND_MAX,
                                              .nics = nnics < FOUND_MAX ? nnics : FOUND_MAX}));
    text_print(out->source, sizeof out->source, "hwloc %s", HWLOC_VERSION);
    if (ngpus > FOUND_MAX || nnics > FOUND_MAX)
        TRY(topo_warn(out, "%d GPUs and %d NICs: only %d of each are looked at", ngpus, nnics, FOUND_MAX));
    reading_host(machine, root, read, &out->hosts[0]);
    TRY(reading_cpus(machine, read, out));
    reading_gpus(read, gpus, out);
    reading_nics(root, read, nics, out);
    TRY(reading_driver(root, out));
    return topo_finish(out);
}

enum status topo_from_hwloc(hwloc_topology_t machine, const char *root, struct topo *out)
{
    struct reading read = {0};
    hwloc_obj_t *found = calloc((size_t)2 * FOUND_MAX, sizeof(hwloc_obj_t));
    if (!found)
        return FAIL(STATUS_NOMEM, "no memory for a list of devices");
    enum status status = fill(machine, root, &read, found, out);
    reading_end(&read);
    free(found);
    return status;
}
