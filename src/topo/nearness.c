/* topo/nearness.c -- complete-linkage clustering by link class; quadratic in the devices. */
#include "topo/nearness.h"

#include "base/mem.h"
#include "topo/build.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 0xffff, CLASS_SHIFT = 32 };

int64_t nearness_key(const struct topo *topo, int a, int b)
{
    const struct topo_link *link = topo_link_at(topo, a, b);
    int count = link->count < 0 ? 0 : link->count > COUNT_MAX ? COUNT_MAX : link->count;
    bool one_node = topo->gpus[a].numa >= 0 && topo->gpus[a].numa == topo->gpus[b].numa;
    bool far = !one_node && link->link != TOPO_LINK_NET;
    return ((int64_t)link->link << CLASS_SHIFT) | (int64_t)(COUNT_MAX - count) << 1 | (int64_t)far;
}

/* Where `key` is, or belongs, among the sorted keys. */
static int find_key(const struct nearness *near, int64_t key)
{
    int low = 0, high = near->nlevels;
    while (low < high) {
        int middle = (low + high) / 2;
        if (near->keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static enum status collect_keys(const struct topo *topo, struct nearness *near)
{
    size_t cap = 0;
    for (int a = 0; a < near->n; a++) {
        for (int b = 0; b < a; b++) {
            int64_t key = nearness_key(topo, a, b);
            int at = find_key(near, key);
            if (at < near->nlevels && near->keys[at] == key)
                continue;
            if (near->nlevels == UINT16_MAX)
                return FAIL(STATUS_UNSUPPORTED, "more than %d kinds of links in one topology", UINT16_MAX);
            TRY(mem_grow((void **)&near->keys, &cap, (size_t)near->nlevels + 1, sizeof *near->keys));
            memmove(near->keys + at + 1, near->keys + at, (size_t)(near->nlevels - at) * sizeof *near->keys);
            near->keys[at] = key;
            near->nlevels++;
        }
    }
    return STATUS_OK;
}

static uint16_t *level_at(const struct nearness *near, int a, int b)
{
    return &near->level[(size_t)a * (size_t)near->n + (size_t)b];
}

static enum status fill(const struct topo *topo, struct nearness *near)
{
    size_t n = (size_t)near->n;
    TRY(collect_keys(topo, near));
    TRY(mem_alloc(n * n * sizeof *near->level, "link levels", (void **)&near->level));
    TRY(mem_alloc(n * sizeof *near->parent, "clusters", (void **)&near->parent));
    TRY(mem_alloc(n * sizeof *near->degree, "clusters", (void **)&near->degree));
    for (int a = 0; a < near->n; a++)
        for (int b = 0; b < near->n; b++)
            if (a != b)
                *level_at(near, a, b) = (uint16_t)find_key(near, nearness_key(topo, a, b));
    return STATUS_OK;
}

enum status nearness_open(const struct topo *topo, struct nearness *out)
{
    *out = (struct nearness){.n = topo->ngpus};
    enum status status = fill(topo, out);
    if (status != STATUS_OK)
        nearness_close(out);
    return status;
}

void nearness_close(struct nearness *near)
{
    free(near->keys);
    free(near->level);
    free(near->parent);
    free(near->degree);
    *near = (struct nearness){0};
}

enum topo_link_class nearness_next_class(const struct nearness *near)
{
    return near->next < near->nlevels ? (enum topo_link_class)(near->keys[near->next] >> CLASS_SHIFT) : TOPO_LINK_COUNT;
}

static bool can_merge(const struct nearness *near, int a, int b)
{
    return a != b && near->degree[b] >= 0 && *level_at(near, a, b) <= near->next;
}

static void count_partners(struct nearness *near)
{
    for (int a = 0; a < near->n; a++) {
        if (near->degree[a] < 0)
            continue;
        near->degree[a] = 0;
        for (int b = 0; b < near->n; b++)
            near->degree[a] += can_merge(near, a, b);
    }
}

static void merge(struct nearness *near, int low, int high)
{
    near->degree[high] = -1;
    near->degree[low] = 0;
    near->parent[high] = low;
    for (int x = 0; x < near->n; x++) {
        if (x == low || near->degree[x] < 0)
            continue;
        uint16_t to_low = *level_at(near, x, low), to_high = *level_at(near, x, high);
        uint16_t worst = to_low > to_high ? to_low : to_high;
        near->degree[x] += (worst <= near->next) - (to_low <= near->next) - (to_high <= near->next);
        near->degree[low] += worst <= near->next;
        *level_at(near, x, low) = *level_at(near, low, x) = worst;
    }
}

/* The cluster with the fewest partners chooses first, and chooses the partner with the fewest: otherwise a device whose
 * only peer was taken by a busier one stays alone. Ties go to the lowest device. */
static int fewest(const struct nearness *near, int partner_of)
{
    int best = -1;
    for (int c = 0; c < near->n; c++) {
        bool candidate = partner_of < 0 ? near->degree[c] > 0 : can_merge(near, partner_of, c);
        if (candidate && (best < 0 || near->degree[c] < near->degree[best]))
            best = c;
    }
    return best;
}

bool nearness_step(struct nearness *near)
{
    int a;
    if (near->next >= near->nlevels)
        return false;
    for (int c = 0; c < near->n; c++)
        near->parent[c] = c;
    count_partners(near);
    while ((a = fewest(near, -1)) >= 0) {
        int b = fewest(near, a);
        merge(near, a < b ? a : b, a < b ? b : a);
    }
    /* A cluster merged twice in one level points at a cluster that itself merged. */
    for (int c = 0; c < near->n; c++)
        while (near->parent[c] != near->parent[near->parent[c]])
            near->parent[c] = near->parent[near->parent[c]];
    near->next++;
    return true;
}
