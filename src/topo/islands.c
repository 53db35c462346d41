/* topo/islands.c -- sets of well-joined devices, and an order of ranks that keeps groups inside them. */
#include "topo/topo.h"

#include "base/mem.h"
#include "topo/build.h"
#include "topo/nearness.h"

#include <stdlib.h>

static bool is_nvlink(enum topo_link_class link)
{
    return link == TOPO_LINK_NVSWITCH || link == TOPO_LINK_NVLINK;
}

static bool host_has_nvlink(const struct topo *topo, int host)
{
    for (int a = 0; a < topo->ngpus; a++)
        for (int b = 0; topo->gpus[a].host == host && b < topo->ngpus; b++)
            if (is_nvlink(topo_link_at(topo, a, b)->link))
                return true;
    return false;
}

/* cluster[i]: lowest device of the set that device i is joined with by NVLink, itself when with none. */
static enum status join_by_nvlink(const struct topo *topo, int *cluster)
{
    struct nearness near;
    TRY(nearness_open(topo, &near));
    for (int i = 0; i < topo->ngpus; i++)
        cluster[i] = i;
    while (is_nvlink(nearness_next_class(&near)) && nearness_step(&near))
        for (int i = 0; i < topo->ngpus; i++)
            cluster[i] = near.parent[cluster[i]];
    nearness_close(&near);
    return STATUS_OK;
}

/* A host without any NVLink has its NUMA nodes for islands; devices of unknown node are one more. */
static void join_by_numa(const struct topo *topo, int host, int *cluster)
{
    for (int i = 0; i < topo->ngpus; i++) {
        if (topo->gpus[i].host != host)
            continue;
        int first = 0;
        while (topo->gpus[first].host != host || topo->gpus[first].numa != topo->gpus[i].numa)
            first++;
        cluster[i] = first;
    }
}

enum status topo_islands(const struct topo *topo, int *island_of, int *out_count)
{
    int count = 0;
    TRY(join_by_nvlink(topo, island_of));
    for (int host = 0; host < topo->nhosts; host++)
        if (!host_has_nvlink(topo, host))
            join_by_numa(topo, host, island_of);
    /* Lowest devices come first, so a cluster's number is known before its other devices ask for it. */
    for (int i = 0; i < topo->ngpus; i++)
        island_of[i] = island_of[i] == i ? count++ : island_of[island_of[i]];
    *out_count = count;
    return STATUS_OK;
}

/* sp devices that run one sequence. */
struct group {
    int first;   /* its devices are devices[first .. first + sp) */
    int lowest;  /* device */
    int host;    /* of the lowest device */
    int64_t key; /* of its worst pair */
    bool chosen;
};

struct grouping {
    int sp, ngroups, ndevices;
    struct group *groups;
    int *devices;
    /* What is left of each cluster when whole groups were taken: a list by `link`, and its length. */
    int *head, *link, *left;
    int *pieces; /* scratch: the clusters that became one */
};

static void close_grouping(struct grouping *work)
{
    free(work->groups);
    free(work->devices);
    free(work->head);
    free(work->link);
    free(work->left);
    free(work->pieces);
}

static enum status open_grouping(int n, int sp, struct grouping *work)
{
    size_t bytes = (size_t)n * sizeof(int);
    *work = (struct grouping){.sp = sp};
    TRY(mem_alloc(((size_t)n / (size_t)sp + 1) * sizeof *work->groups, "groups", (void **)&work->groups));
    TRY(mem_alloc(bytes, "groups", (void **)&work->devices));
    TRY(mem_alloc(bytes, "groups", (void **)&work->head));
    TRY(mem_alloc(bytes, "groups", (void **)&work->link));
    TRY(mem_alloc(bytes, "groups", (void **)&work->left));
    TRY(mem_alloc(bytes, "groups", (void **)&work->pieces));
    for (int i = 0; i < n; i++) {
        work->head[i] = i;
        work->link[i] = -1;
        work->left[i] = 1;
    }
    return STATUS_OK;
}

/* Largest remainders first, so that what was joined nearer stays together and the odd device is the one left over; but
 * what makes exactly one group stays in the order of the devices. */
static int gather_pieces(struct grouping *work, const struct nearness *near, int cluster)
{
    int n = 0, total = 0;
    for (int c = cluster; c < near->n; c++)
        total += near->parent[c] == cluster ? work->left[c] : 0;
    for (int c = cluster; c < near->n; c++) {
        if (near->parent[c] != cluster || work->left[c] == 0)
            continue;
        int at = n++;
        for (; at > 0 && total != work->sp && work->left[work->pieces[at - 1]] < work->left[c]; at--)
            work->pieces[at] = work->pieces[at - 1];
        work->pieces[at] = c;
    }
    return n;
}

/* Join the remainders of the clusters that became `cluster`. */
static void join_pieces(struct grouping *work, const struct nearness *near, int cluster)
{
    int npieces = gather_pieces(work, near, cluster), total = 0, head = -1, tail = -1;
    for (int i = 0; i < npieces; i++) {
        int piece = work->pieces[i];
        total += work->left[piece];
        if (tail < 0)
            head = work->head[piece];
        else
            work->link[tail] = work->head[piece];
        for (tail = work->head[piece]; work->link[tail] >= 0;)
            tail = work->link[tail];
        work->left[piece] = 0;
    }
    work->head[cluster] = head;
    work->left[cluster] = total;
}

static void take_groups(struct grouping *work, int cluster)
{
    while (work->left[cluster] >= work->sp) {
        struct group *group = &work->groups[work->ngroups++];
        *group = (struct group){.first = work->ndevices, .lowest = work->head[cluster]};
        for (int i = 0; i < work->sp; i++) {
            int device = work->head[cluster];
            work->devices[work->ndevices++] = device;
            group->lowest = device < group->lowest ? device : group->lowest;
            work->head[cluster] = work->link[device];
        }
        work->left[cluster] -= work->sp;
    }
}

static enum status make_groups(const struct topo *topo, struct grouping *work)
{
    struct nearness near;
    TRY(nearness_open(topo, &near));
    for (int i = 0; i < near.n; i++)
        take_groups(work, i); /* sp 1 */
    while (nearness_step(&near)) {
        for (int c = 0; c < near.n; c++) {
            if (near.parent[c] == c && near.degree[c] >= 0) {
                join_pieces(work, &near, c);
                take_groups(work, c);
            }
        }
    }
    nearness_close(&near);
    for (int g = 0; g < work->ngroups; g++) {
        struct group *group = &work->groups[g];
        const int *devices = work->devices + group->first;
        group->host = topo->gpus[group->lowest].host;
        for (int i = 0; i < work->sp; i++)
            for (int j = 0; j < i; j++) {
                int64_t key = nearness_key(topo, devices[i], devices[j]);
                group->key = key > group->key ? key : group->key;
            }
    }
    return STATUS_OK;
}

static int compare_lowest(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    return (x->lowest > y->lowest) - (x->lowest < y->lowest);
}

static int compare_keys(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The worst key that must be accepted to have `need` groups. */
static enum status needed_key(const struct grouping *work, int need, int64_t *out)
{
    int64_t *keys;
    TRY(mem_alloc((size_t)work->ngroups * sizeof *keys, "groups", (void **)&keys));
    for (int g = 0; g < work->ngroups; g++)
        keys[g] = work->groups[g].key;
    qsort(keys, (size_t)work->ngroups, sizeof *keys, compare_keys);
    *out = keys[need - 1];
    free(keys);
    return STATUS_OK;
}

static int count_good(const struct grouping *work, int host, int64_t key)
{
    int good = 0;
    for (int g = 0; g < work->ngroups; g++)
        good += !work->groups[g].chosen && work->groups[g].host == host && work->groups[g].key <= key;
    return good;
}

/* Of the groups that are good enough, take them from as few hosts as possible: whole hosts first. */
static enum status choose_groups(const struct topo *topo, struct grouping *work, int need)
{
    int64_t key = 0;
    TRY(needed_key(work, need, &key));
    while (need > 0) {
        int best = 0, best_good = 0;
        for (int host = 0; host < topo->nhosts && best_good < need; host++) {
            int good = count_good(work, host, key);
            if (good > best_good) {
                best = host;
                best_good = good;
            }
        }
        for (int g = 0; g < work->ngroups && need > 0; g++) {
            struct group *group = &work->groups[g];
            if (!group->chosen && group->host == best && group->key <= key) {
                group->chosen = true;
                need--;
            }
        }
    }
    return STATUS_OK;
}

static enum status order_devices(const struct topo *topo, struct grouping *work, int n, int *order)
{
    int at = 0;
    TRY(make_groups(topo, work));
    qsort(work->groups, (size_t)work->ngroups, sizeof *work->groups, compare_lowest);
    TRY(choose_groups(topo, work, n / work->sp));
    for (int g = 0; g < work->ngroups; g++)
        for (int i = 0; work->groups[g].chosen && i < work->sp; i++)
            order[at++] = work->devices[work->groups[g].first + i];
    return STATUS_OK;
}

enum status topo_rank_order(const struct topo *topo, int n, int sp, int *order)
{
    struct grouping work;
    if (n < 1 || sp < 1)
        return FAIL(STATUS_USAGE, "%d ranks in groups of %d: both must be 1 or more", n, sp);
    if (n % sp != 0)
        return HINT(FAIL(STATUS_USAGE, "%d ranks do not make whole groups of %d", n, sp), "use a multiple of %d ranks",
                    sp);
    if (topo->ngpus == 0) {
        for (int i = 0; i < n; i++)
            order[i] = i;
        return STATUS_OK;
    }
    if (n > topo->ngpus)
        return HINT(FAIL(STATUS_USAGE, "%d ranks on %d GPUs", n, topo->ngpus), "use %d ranks or fewer", topo->ngpus);
    enum status status = open_grouping(topo->ngpus, sp, &work);
    if (status == STATUS_OK)
        status = order_devices(topo, &work, n, order);
    close_grouping(&work);
    return status;
}

enum topo_link_class topo_group_link(const struct topo *topo, const int *order, int n, int sp)
{
    enum topo_link_class worst = TOPO_LINK_SELF;
    for (int a = 0; topo->ngpus > 0 && sp > 0 && a < n; a++)
        for (int b = a - a % sp; b < a; b++)
            if (topo_link_at(topo, order[a], order[b])->link > worst)
                worst = topo_link_at(topo, order[a], order[b])->link;
    return worst;
}
