/* topo/slots.c -- CPU sets for ranks that have no GPU.
 *
 * A unit is what one rank gets at least: a core while there are enough of them, else one hardware thread. Under a quota
 * only as many threads are handed out as the quota pays for, one per core first. All ranks get equally many units; what
 * does not divide stays idle, because with ranks of unequal speed only the slowest would be measured.
 */
#include "topo/topo.h"

#include "base/mem.h"
#include "base/text.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

struct unit {
    int numa, order;
    hwloc_bitmap_t cpus;
};

struct pool {
    struct unit *units; /* those of one NUMA node are neighbours */
    int n;
    size_t cap;
};

/* Units [first, first + n) are those of one NUMA node; `ranks` of the ranks run there. */
struct node {
    int first, n, ranks;
};

static void close_pool(struct pool *pool)
{
    for (int i = 0; i < pool->n; i++)
        hwloc_bitmap_free(pool->units[i].cpus);
    free(pool->units);
    *pool = (struct pool){0};
}

/* Takes `cpus` over, also when it fails. */
static enum status add_unit(struct pool *pool, int numa, hwloc_bitmap_t cpus)
{
    enum status status = cpus ? mem_grow((void **)&pool->units, &pool->cap, (size_t)pool->n + 1, sizeof *pool->units)
                              : FAIL(STATUS_NOMEM, "no memory for sets of CPUs");
    if (status != STATUS_OK) {
        hwloc_bitmap_free(cpus);
        return status;
    }
    pool->units[pool->n] = (struct unit){.numa = numa, .order = pool->n, .cpus = cpus};
    pool->n++;
    return STATUS_OK;
}

static int compare_units(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    return x->numa != y->numa ? (x->numa > y->numa) - (x->numa < y->numa)
                              : (x->order > y->order) - (x->order < y->order);
}

static void sort_pool(struct pool *pool)
{
    if (pool->n > 0)
        qsort(pool->units, (size_t)pool->n, sizeof *pool->units, compare_units);
}

/* One unit for each core of host 0 that this process may use. */
static enum status read_cores(const struct topo *topo, struct pool *pool)
{
    for (int i = 0; i < topo->ncores; i++) {
        const struct topo_core *core = &topo->cores[i];
        hwloc_bitmap_t cpus = core->host == 0 && core->cpus[0] ? hwloc_bitmap_alloc() : NULL;
        if (core->host != 0 || !core->cpus[0])
            continue;
        if (cpus)
            hwloc_bitmap_list_sscanf(cpus, core->cpus);
        TRY(add_unit(pool, core->numa, cpus));
    }
    sort_pool(pool);
    return STATUS_OK;
}

static int count_pus(const struct pool *pool)
{
    int n = 0;
    for (int i = 0; i < pool->n; i++)
        n += hwloc_bitmap_weight(pool->units[i].cpus);
    return n;
}

static int find_nodes(const struct pool *pool, struct node *nodes)
{
    int n = 0;
    for (int i = 0; i < pool->n; i++) {
        if (i == 0 || pool->units[i].numa != pool->units[i - 1].numa)
            nodes[n++] = (struct node){.first = i};
        nodes[n - 1].n++;
    }
    return n;
}

/* Keep `wanted` cores, as many from each node as can be, and `threads` hardware threads of each. */
static enum status trim(struct pool *pool, int wanted, int threads)
{
    struct node *nodes;
    struct pool kept = {0};
    TRY(mem_alloc((size_t)pool->n * sizeof *nodes, "NUMA nodes", (void **)&nodes));
    int nnodes = find_nodes(pool, nodes);
    enum status status = STATUS_OK;
    for (int round = 0; kept.n < wanted && status == STATUS_OK; round++) {
        for (int k = 0; k < nnodes && kept.n < wanted && status == STATUS_OK; k++) {
            if (round >= nodes[k].n)
                continue;
            struct unit *unit = &pool->units[nodes[k].first + round];
            while (hwloc_bitmap_weight(unit->cpus) > threads)
                hwloc_bitmap_clr(unit->cpus, (unsigned)hwloc_bitmap_last(unit->cpus));
            status = add_unit(&kept, unit->numa, unit->cpus);
            unit->cpus = NULL;
        }
    }
    free(nodes);
    close_pool(pool);
    *pool = kept;
    if (status == STATUS_OK)
        sort_pool(pool);
    return status;
}

/* One unit per hardware thread, for more ranks than cores: in each node the first threads of all cores, then the
 * second. */
static enum status split(struct pool *pool)
{
    struct pool parts = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < pool->n; i++) {
        int thread = 0;
        for (int cpu = -1; status == STATUS_OK && (cpu = hwloc_bitmap_next(pool->units[i].cpus, cpu)) >= 0; thread++) {
            hwloc_bitmap_t one = hwloc_bitmap_alloc();
            if (one)
                hwloc_bitmap_only(one, (unsigned)cpu);
            status = add_unit(&parts, pool->units[i].numa, one);
            if (status == STATUS_OK)
                parts.units[parts.n - 1].order = thread * pool->n + i;
        }
    }
    close_pool(pool);
    *pool = parts;
    if (status == STATUS_OK)
        sort_pool(pool);
    return status;
}

static enum status fill_pool(const struct topo *topo, int n, struct pool *pool)
{
    TRY(read_cores(topo, pool));
    int usable = topo_usable_cpus(topo), cores = pool->n;
    if (n > cores)
        TRY(split(pool));
    if (usable < count_pus(pool))
        TRY(trim(pool, usable < pool->n ? usable : pool->n, n > cores || usable < cores ? 1 : usable / cores));
    return pool->n > 0 ? STATUS_OK : FAIL(STATUS_UNSUPPORTED, "this topology does not say which CPUs can be used");
}

/* As many ranks on each node as on the others, where there is room. */
static void spread_ranks(struct node *nodes, int nnodes, int n, int each)
{
    while (n-- > 0) {
        int best = -1;
        for (int k = 0; k < nnodes; k++)
            if ((nodes[k].ranks + 1) * each <= nodes[k].n && (best < 0 || nodes[k].ranks < nodes[best].ranks))
                best = k;
        nodes[best].ranks++;
    }
}

/* Room for ranks of `each` units that do not straddle nodes. */
static int ranks_that_fit(const struct node *nodes, int nnodes, int each)
{
    int fit = 0;
    for (int k = 0; k < nnodes; k++)
        fit += nodes[k].n / each;
    return fit;
}

/* begin[r]: first unit of rank r; every rank has *out_each. */
static void place_in_nodes(struct node *nodes, int nnodes, int units, int n, int *begin, int *out_each)
{
    int each = units / n, rank = 0;
    while (each > 1 && ranks_that_fit(nodes, nnodes, each) < n)
        each--;
    spread_ranks(nodes, nnodes, n, each);
    for (int k = 0; k < nnodes; k++)
        for (int i = 0; i < nodes[k].ranks; i++)
            begin[rank++] = nodes[k].first + i * each;
    *out_each = each;
}

/* Fewer ranks than nodes: whole nodes for each. */
static void place_on_nodes(const struct node *nodes, int nnodes, int units, int n, int *begin, int *out_each)
{
    int each = units;
    for (int r = 0; r < n; r++) {
        int first = r * nnodes / n, end = (r + 1) * nnodes / n;
        int have = (end < nnodes ? nodes[end].first : units) - nodes[first].first;
        begin[r] = nodes[first].first;
        each = have < each ? have : each;
    }
    *out_each = each;
}

static enum status place(const struct pool *pool, int n, int *begin, int *out_each)
{
    struct node *nodes;
    TRY(mem_alloc((size_t)pool->n * sizeof *nodes, "NUMA nodes", (void **)&nodes));
    int nnodes = find_nodes(pool, nodes);
    if (n > pool->n) {
        for (int r = 0; r < n; r++)
            begin[r] = (int)((int64_t)r * pool->n / n);
        *out_each = 1;
    } else if (n < nnodes) {
        place_on_nodes(nodes, nnodes, pool->n, n, begin, out_each);
    } else {
        place_in_nodes(nodes, nnodes, pool->n, n, begin, out_each);
    }
    free(nodes);
    return STATUS_OK;
}

static enum status print_units(const struct pool *pool, int begin, int each, char **out)
{
    hwloc_bitmap_t all = hwloc_bitmap_alloc();
    char *list = NULL;
    for (int i = 0; all && i < each; i++)
        hwloc_bitmap_or(all, all, pool->units[begin + i].cpus);
    if (all)
        hwloc_bitmap_list_asprintf(&list, all);
    hwloc_bitmap_free(all);
    *out = list;
    return list ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for sets of CPUs");
}

static enum status print_slots(const struct pool *pool, int n, char **slots)
{
    int *begin, each = 0;
    TRY(mem_alloc((size_t)n * sizeof *begin, "sets of CPUs", (void **)&begin));
    enum status status = place(pool, n, begin, &each);
    for (int r = 0; r < n && status == STATUS_OK; r++)
        status = print_units(pool, begin[r], each, &slots[r]);
    free(begin);
    return status;
}

enum status topo_cpu_slots(const struct topo *topo, int n, char ***out)
{
    enum { RANKS_MAX = 1 << 20 };
    struct pool pool = {0};
    char **slots = NULL;
    if (n < 1 || n > RANKS_MAX)
        return HINT(FAIL(STATUS_USAGE, "CPUs for %d ranks", n), "use 1 to %d ranks", RANKS_MAX);
    TRY(mem_alloc((size_t)n * sizeof *slots, "sets of CPUs", (void **)&slots));
    enum status status = fill_pool(topo, n, &pool);
    if (status == STATUS_OK)
        status = print_slots(&pool, n, slots);
    close_pool(&pool);
    if (status == STATUS_OK)
        *out = slots;
    else
        topo_free_slots(slots, n);
    return status;
}

void topo_free_slots(char **slots, int n)
{
    for (int i = 0; slots && i < n; i++)
        free(slots[i]);
    free(slots);
}
