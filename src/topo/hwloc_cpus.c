/* topo/hwloc_cpus.c -- packages, NUMA nodes, cores, caches and what of them this process may use. */
#include "topo/reading.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *reading_info(hwloc_obj_t object, const char *name)
{
    const char *value = object ? hwloc_obj_get_info_by_name(object, name) : NULL;
    return value ? value : "";
}

static int count_type(hwloc_topology_t machine, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(machine, type);
    return n > 0 ? n : 0;
}

/* Bytes of the first cache of that kind; of unlike cores the first stands for all. */
static int64_t cache_bytes(hwloc_topology_t machine, hwloc_obj_type_t type)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(machine, type, 0);
    return cache && cache->attr->cache.size ? (int64_t)cache->attr->cache.size : -1;
}

static void name_cpu(hwloc_topology_t machine, struct topo_host *host)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(machine, HWLOC_OBJ_PACKAGE, 0);
    const char *model = reading_info(package, "CPUModel");
    if (!*model)
        model = reading_info(hwloc_get_root_obj(machine), "CPUModel");
    if (!*model)
        model = reading_info(hwloc_get_root_obj(machine), "Architecture");
    text_print(host->cpu_model, sizeof host->cpu_model, "%s", model);
    text_clean(host->cpu_model);
}

static void name_host(hwloc_topology_t machine, const char *root, struct topo_host *host)
{
    char path[1024];
    FILE *file = NULL;
    const char *name = reading_info(hwloc_get_root_obj(machine), "HostName");
    text_print(host->name, sizeof host->name, "%s", name);
    if (root && !*name && gethostname(host->name, sizeof host->name - 1) != 0)
        host->name[0] = '\0';
    if (root && text_print(path, sizeof path, "%s/proc/sys/kernel/random/boot_id", root))
        file = fopen(path, "re");
    if (file && fgets(host->boot_id, sizeof host->boot_id, file))
        host->boot_id[strcspn(host->boot_id, "\n")] = '\0';
    if (file)
        fclose(file);
    text_clean(host->name);
    text_clean(host->boot_id);
}

void reading_host(hwloc_topology_t machine, const char *root, const struct reading *read, struct topo_host *host)
{
    int packages = count_type(machine, HWLOC_OBJ_PACKAGE);
    *host = (struct topo_host){
        .memory_limit_bytes = root ? topo_read_memory_limit(root) : -1,
        .packages = packages ? packages : 1,
        .cores = read->ncores,
        .pus = count_type(machine, HWLOC_OBJ_PU),
        .pus_allowed = hwloc_bitmap_weight(read->allowed),
        .cpu_quota = -1.0,
        .l1d_bytes = cache_bytes(machine, HWLOC_OBJ_L1CACHE),
        .l2_bytes = cache_bytes(machine, HWLOC_OBJ_L2CACHE),
        .l3_bytes = cache_bytes(machine, HWLOC_OBJ_L3CACHE),
        .l3_count = count_type(machine, HWLOC_OBJ_L3CACHE),
    };
    for (int i = 0; i < read->nnumas; i++)
        host->memory_bytes += (int64_t)read->numas[i]->attr->numanode.local_memory;
    if (host->memory_bytes == 0)
        host->memory_bytes = (int64_t)hwloc_get_root_obj(machine)->total_memory;
    if (host->memory_bytes == 0)
        host->memory_bytes = -1;
    if (root)
        topo_read_quota(root, &host->cpu_quota, &host->quota_version);
    name_cpu(machine, host);
    name_host(machine, root, host);
}

/* "0-15,32"; a set too long for buf ends at a comma, and false is returned. */
static bool print_set(hwloc_const_bitmap_t set, char *buf, size_t size)
{
    int len = hwloc_bitmap_list_snprintf(buf, size, set);
    if (len >= 0 && (size_t)len < size)
        return true;
    char *comma = strrchr(buf, ',');
    if (comma)
        *comma = '\0';
    return false;
}

/* The set of `object` that this process may use, into read->scratch. */
static hwloc_const_bitmap_t usable(const struct reading *read, hwloc_obj_t object)
{
    hwloc_bitmap_and(read->scratch, object->cpuset, read->allowed);
    return read->scratch;
}

static int ancestor_index(hwloc_topology_t machine, hwloc_obj_type_t type, hwloc_obj_t object, int otherwise)
{
    hwloc_obj_t above = hwloc_get_ancestor_obj_by_type(machine, type, object);
    return above ? (int)above->logical_index : otherwise;
}

enum status reading_cpus(hwloc_topology_t machine, const struct reading *read, struct topo *out)
{
    bool whole = true;
    for (int i = 0; i < read->nnumas; i++) {
        hwloc_obj_t object = read->numas[i];
        uint64_t memory = object->attr->numanode.local_memory;
        out->numas[i] =
            (struct topo_numa){.os_index = (int)object->os_index, .memory_bytes = memory ? (int64_t)memory : -1};
        whole &= print_set(usable(read, object), out->numas[i].cpus, sizeof out->numas[i].cpus);
    }
    for (int i = 0; i < read->ncores; i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(machine, read->core_type, (unsigned)i);
        struct topo_core *core = &out->cores[i];
        *core = (struct topo_core){
            .numa = reading_numa(read, object->nodeset),
            .package = ancestor_index(machine, HWLOC_OBJ_PACKAGE, object, 0),
            .l3 = ancestor_index(machine, HWLOC_OBJ_L3CACHE, object, -1),
            .pus = hwloc_bitmap_weight(object->cpuset),
        };
        print_set(usable(read, object), core->cpus, sizeof core->cpus);
    }
    return whole ? STATUS_OK : topo_warn(out, "the list of CPUs of a NUMA node is too long to show and was cut");
}

int reading_numa(const struct reading *read, hwloc_const_bitmap_t nodeset)
{
    int found = -1;
    for (int i = 0; nodeset && i < read->nnumas; i++) {
        if (!hwloc_bitmap_isset(nodeset, read->numas[i]->os_index))
            continue;
        if (found >= 0)
            return -1; /* near several nodes: near none in particular */
        found = i;
    }
    return found;
}

/* Nodes whose CPUs no earlier node has. GPU memory, high-bandwidth and far memory show up as nodes too, without CPUs of
 * their own: hwloc then gives them the CPUs they are near, so the nodes with the fewest CPUs choose first. */
static enum status keep_cpu_nodes(hwloc_topology_t machine, struct reading *read)
{
    int n = count_type(machine, HWLOC_OBJ_NUMANODE);
    read->numas = calloc((size_t)n + 1, sizeof(hwloc_obj_t));
    hwloc_bitmap_t taken = hwloc_bitmap_alloc();
    if (!read->numas || !taken) {
        hwloc_bitmap_free(taken);
        return FAIL(STATUS_NOMEM, "no memory for %d NUMA nodes", n);
    }
    hwloc_obj_t *all = read->numas;
    for (int i = 0; i < n; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(machine, HWLOC_OBJ_NUMANODE, (unsigned)i);
        int at = i, weight = hwloc_bitmap_weight(node->cpuset);
        for (; at > 0; at--) {
            int other = hwloc_bitmap_weight(all[at - 1]->cpuset);
            if (other < weight || (other == weight && all[at - 1]->os_index < node->os_index))
                break;
            all[at] = all[at - 1];
        }
        all[at] = node;
    }
    for (int i = 0; i < n; i++) {
        const char *subtype = all[i]->subtype ? all[i]->subtype : "";
        if (hwloc_bitmap_iszero(all[i]->cpuset) || hwloc_bitmap_isincluded(all[i]->cpuset, taken) ||
            strcmp(subtype, "GPUMemory") == 0)
            continue;
        hwloc_bitmap_or(taken, taken, all[i]->cpuset);
        all[read->nnumas++] = all[i];
    }
    hwloc_bitmap_free(taken);
    return STATUS_OK;
}

static int compare_nodes(const void *a, const void *b)
{
    const hwloc_obj_t *x = a, *y = b;
    return ((*x)->os_index > (*y)->os_index) - ((*x)->os_index < (*y)->os_index);
}

enum status reading_begin(hwloc_topology_t machine, bool here, struct reading *read)
{
    read->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(machine));
    read->scratch = hwloc_bitmap_alloc();
    if (!read->allowed || !read->scratch)
        return FAIL(STATUS_NOMEM, "no memory for a set of CPUs");
    /* The launcher or taskset may have bound this process to fewer CPUs than its cpuset has. */
    if (here && hwloc_get_cpubind(machine, read->scratch, HWLOC_CPUBIND_THREAD) == 0 &&
        hwloc_bitmap_intersects(read->scratch, read->allowed))
        hwloc_bitmap_and(read->allowed, read->allowed, read->scratch);
    TRY(keep_cpu_nodes(machine, read));
    qsort(read->numas, (size_t)read->nnumas, sizeof(hwloc_obj_t), compare_nodes);
    read->core_type = count_type(machine, HWLOC_OBJ_CORE) ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    read->ncores = count_type(machine, read->core_type);
    return STATUS_OK;
}

void reading_end(struct reading *read)
{
    hwloc_bitmap_free(read->allowed);
    hwloc_bitmap_free(read->scratch);
    free(read->numas);
}
