/* topo/render_json.c -- sptune.topo/1: everything in a struct topo, so that it can be read back.
 *
 * {..., source, fingerprint,
 *  hosts: [{name, boot_id, memory_bytes, memory_limit_bytes, packages, cores, pus, pus_allowed, cpu_quota,
 *           quota_version, cpu_model, l1d_bytes, l2_bytes, l3_bytes, l3_count}],
 *  numa:  [{host, os_index, memory_bytes, cpus}],
 *  cores: [{host, numa, package, l3, pus, cpus}],
 *  gpus:  [{index, host, busid, name, numa, memory_bytes, uuid, nvlinks, driver, mig, cuda, others}],
 *  links: [{a, b, class, count, GBps, from, p2p}],     every pair once, a < b
 *  nics:  [{host, name, busid, numa, GBps}],
 *  islands: [[index]], rank_order: [index],            in groups of rank_order_sp, the size of the largest island
 *  rank_orders: [{sp, order, link}]}                   every sp that divides the GPUs; link: the worst inside a group
 *
 * Unknown is null. host and numa are indices into hosts and numa.
 */
#include "topo/topo.h"

#include "base/mem.h"
#include "base/text.h"
#include "topo/build.h"

#include <stdlib.h>
#include <string.h>

/* Take `value` (new reference, may be NULL) into object[key]; false keeps *fine false. */
static void set(json_t *object, const char *key, json_t *value, bool *fine)
{
    *fine = json_object_set_new(object, key, value) == 0 && *fine;
}

static void add(json_t *array, json_t *value, bool *fine)
{
    *fine = json_array_append_new(array, value) == 0 && *fine;
}

/* Names come from machines: whatever is not UTF-8 must not cost the document. */
static json_t *string(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return NULL;
    text_clean(copy);
    json_t *value = json_string(copy);
    free(copy);
    return value;
}

static json_t *known(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *known_rate(double value)
{
    return value < 0 ? json_null() : json_num(value, 6);
}

static json_t *host_json(const struct topo_host *host, bool *fine)
{
    json_t *object = json_object();
    set(object, "name", string(host->name), fine);
    set(object, "boot_id", string(host->boot_id), fine);
    set(object, "memory_bytes", known(host->memory_bytes), fine);
    set(object, "memory_limit_bytes", known(host->memory_limit_bytes), fine);
    set(object, "packages", json_integer(host->packages), fine);
    set(object, "cores", json_integer(host->cores), fine);
    set(object, "pus", json_integer(host->pus), fine);
    set(object, "pus_allowed", json_integer(host->pus_allowed), fine);
    set(object, "cpu_quota", known_rate(host->cpu_quota), fine);
    set(object, "quota_version", json_integer(host->quota_version), fine);
    set(object, "cpu_model", string(host->cpu_model), fine);
    set(object, "l1d_bytes", known(host->l1d_bytes), fine);
    set(object, "l2_bytes", known(host->l2_bytes), fine);
    set(object, "l3_bytes", known(host->l3_bytes), fine);
    set(object, "l3_count", json_integer(host->l3_count), fine);
    return object;
}

static json_t *hosts_json(const struct topo *topo, bool *fine)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->nhosts; i++)
        add(array, host_json(&topo->hosts[i], fine), fine);
    return array;
}

static json_t *numa_json(const struct topo *topo, bool *fine)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->nnumas; i++) {
        const struct topo_numa *numa = &topo->numas[i];
        json_t *object = json_object();
        set(object, "host", json_integer(numa->host), fine);
        set(object, "os_index", json_integer(numa->os_index), fine);
        set(object, "memory_bytes", known(numa->memory_bytes), fine);
        set(object, "cpus", string(numa->cpus), fine);
        add(array, object, fine);
    }
    return array;
}

static json_t *cores_json(const struct topo *topo, bool *fine)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->ncores; i++) {
        const struct topo_core *core = &topo->cores[i];
        json_t *object = json_object();
        set(object, "host", json_integer(core->host), fine);
        set(object, "numa", known(core->numa), fine);
        set(object, "package", json_integer(core->package), fine);
        set(object, "l3", known(core->l3), fine);
        set(object, "pus", json_integer(core->pus), fine);
        set(object, "cpus", string(core->cpus), fine);
        add(array, object, fine);
    }
    return array;
}

static json_t *gpus_json(const struct topo *topo, bool *fine)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->ngpus; i++) {
        const struct topo_gpu *gpu = &topo->gpus[i];
        json_t *object = json_object();
        set(object, "index", json_integer(i), fine);
        set(object, "host", json_integer(gpu->host), fine);
        set(object, "busid", string(gpu->busid), fine);
        set(object, "name", string(gpu->name), fine);
        set(object, "numa", known(gpu->numa), fine);
        set(object, "memory_bytes", known(gpu->memory_bytes), fine);
        set(object, "uuid", gpu->uuid[0] ? string(gpu->uuid) : json_null(), fine);
        set(object, "nvlinks", known(gpu->nvlinks), fine);
        set(object, "driver", json_boolean(gpu->driver), fine);
        set(object, "mig", json_boolean(gpu->mig), fine);
        set(object, "cuda", known(gpu->cuda), fine);
        set(object, "others", known(gpu->others), fine);
        add(array, object, fine);
    }
    return array;
}

static json_t *p2p_json(const struct topo *topo, int a, int b)
{
    int p2p = topo->p2p ? topo->p2p[(size_t)a * (size_t)topo->ngpus + (size_t)b] : -1;
    return p2p < 0 ? json_null() : json_boolean(p2p);
}

static json_t *links_json(const struct topo *topo, bool *fine)
{
    json_t *array = json_array();
    for (int a = 0; a < topo->ngpus; a++) {
        for (int b = a + 1; b < topo->ngpus; b++) {
            const struct topo_link *link = topo_link_at(topo, a, b);
            json_t *object = json_object();
            set(object, "a", json_integer(a), fine);
            set(object, "b", json_integer(b), fine);
            set(object, "class", json_string(topo_link_name(link->link)), fine);
            set(object, "count", json_integer(link->count), fine);
            set(object, "GBps", known_rate(link->GBps), fine);
            set(object, "from", string(link->from ? link->from : ""), fine);
            set(object, "p2p", p2p_json(topo, a, b), fine);
            add(array, object, fine);
        }
    }
    return array;
}

static json_t *nics_json(const struct topo *topo, bool *fine)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        json_t *object = json_object();
        set(object, "host", json_integer(nic->host), fine);
        set(object, "name", string(nic->name), fine);
        set(object, "busid", string(nic->busid), fine);
        set(object, "numa", known(nic->numa), fine);
        set(object, "GBps", known_rate(nic->GBps), fine);
        add(array, object, fine);
    }
    return array;
}

static json_t *integers(const int *values, int n, bool *fine)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        add(array, json_integer(values[i]), fine);
    return array;
}

/* Returns the size of the largest island, 1 without GPUs. */
static int add_islands(json_t *root, const struct topo *topo, const int *island_of, int count, bool *fine)
{
    json_t *islands = json_array();
    int largest = 1;
    for (int i = 0; i < count; i++) {
        json_t *island = json_array();
        for (int gpu = 0; gpu < topo->ngpus; gpu++)
            if (island_of[gpu] == i)
                add(island, json_integer(gpu), fine);
        int size = (int)json_array_size(island);
        largest = size > largest ? size : largest;
        add(islands, island, fine);
    }
    set(root, "islands", islands, fine);
    return largest;
}

static enum status add_orders(json_t *root, const struct topo *topo, int best_sp, int *order, bool *fine)
{
    int n = topo->ngpus;
    json_t *orders = json_array();
    set(root, "rank_orders", orders, fine);
    for (int sp = 1; sp <= n; sp++) {
        if (n % sp)
            continue;
        TRY(topo_rank_order(topo, n, sp, order));
        json_t *object = json_object();
        set(object, "sp", json_integer(sp), fine);
        set(object, "link", json_string(topo_link_name(topo_group_link(topo, order, n, sp))), fine);
        set(object, "order", integers(order, n, fine), fine);
        add(orders, object, fine);
    }
    while (n && n % best_sp) /* an island of 3 among 8 GPUs: the next smaller size that divides */
        best_sp--;
    TRY(n ? topo_rank_order(topo, n, best_sp, order) : STATUS_OK);
    set(root, "rank_order_sp", json_integer(best_sp), fine);
    set(root, "rank_order", integers(order, n, fine), fine);
    return STATUS_OK;
}

static enum status add_structure(json_t *root, const struct topo *topo, bool *fine)
{
    int *island_of = NULL, *order = NULL, count = 0;
    enum status status;
    TRY_OUT(mem_alloc((size_t)topo->ngpus * sizeof *island_of, "islands", (void **)&island_of));
    TRY_OUT(mem_alloc((size_t)topo->ngpus * sizeof *order, "a rank order", (void **)&order));
    TRY_OUT(topo_islands(topo, island_of, &count));
    TRY_OUT(add_orders(root, topo, add_islands(root, topo, island_of, count, fine), order, fine));
out:
    free(island_of);
    free(order);
    return status;
}

/* The document has the log's warnings; the topology's own follow unless they were logged. */
static void add_warnings(json_t *root, const struct topo *topo, bool *fine)
{
    json_t *warnings = json_object_get(root, "warnings");
    for (int i = 0; i < topo->nwarnings; i++) {
        bool there = false;
        for (size_t k = 0; k < json_array_size(warnings); k++)
            there |= strcmp(json_string_value(json_array_get(warnings, k)), topo->warnings[i]) == 0;
        if (!there)
            add(warnings, string(topo->warnings[i]), fine);
    }
}

json_t *topo_to_json(const struct topo *topo, const struct json_envelope *envelope)
{
    bool fine = true;
    json_t *root = json_document("topo", envelope);
    if (!root)
        return NULL;
    add_warnings(root, topo, &fine);
    set(root, "source", string(topo->source), &fine);
    set(root, "fingerprint", string(topo->fingerprint), &fine);
    set(root, "hosts", hosts_json(topo, &fine), &fine);
    set(root, "numa", numa_json(topo, &fine), &fine);
    set(root, "cores", cores_json(topo, &fine), &fine);
    set(root, "gpus", gpus_json(topo, &fine), &fine);
    set(root, "links", links_json(topo, &fine), &fine);
    set(root, "nics", nics_json(topo, &fine), &fine);
    if (add_structure(root, topo, &fine) != STATUS_OK || !fine) {
        json_decref(root);
        return NULL;
    }
    return root;
}
