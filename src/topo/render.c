/* topo/render.c -- spans of hosts, equal hosts, words for links. */
#include "topo/render.h"

#include "base/mem.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

static void find_spans(const struct topo *topo, struct render_host *hosts)
{
    for (int i = topo->nnumas - 1; i >= 0; i--, hosts[topo->numas[i + 1].host].nnumas++)
        hosts[topo->numas[i].host].first_numa = i;
    for (int i = topo->ncores - 1; i >= 0; i--, hosts[topo->cores[i + 1].host].ncores++)
        hosts[topo->cores[i].host].first_core = i;
    for (int i = topo->ngpus - 1; i >= 0; i--, hosts[topo->gpus[i + 1].host].ngpus++)
        hosts[topo->gpus[i].host].first_gpu = i;
    for (int i = topo->nnics - 1; i >= 0; i--, hosts[topo->nics[i + 1].host].nnics++)
        hosts[topo->nics[i].host].first_nic = i;
}

/* An index into numas as one into the host's own. */
static int own_numa(const struct render_host *host, int numa)
{
    return numa < 0 ? -1 : numa - host->first_numa;
}

static bool same_facts(const struct topo_host *a, const struct topo_host *b)
{
    return a->memory_bytes == b->memory_bytes && a->memory_limit_bytes == b->memory_limit_bytes &&
           a->packages == b->packages && a->cores == b->cores && a->pus == b->pus && a->pus_allowed == b->pus_allowed &&
           a->cpu_quota >= b->cpu_quota && a->cpu_quota <= b->cpu_quota && a->l1d_bytes == b->l1d_bytes &&
           a->l2_bytes == b->l2_bytes && a->l3_bytes == b->l3_bytes && a->l3_count == b->l3_count &&
           strcmp(a->cpu_model, b->cpu_model) == 0;
}

static bool same_cpus(const struct topo *topo, const struct render_host *a, const struct render_host *b)
{
    for (int i = 0; i < a->nnumas; i++) {
        const struct topo_numa *x = &topo->numas[a->first_numa + i], *y = &topo->numas[b->first_numa + i];
        if (x->os_index != y->os_index || x->memory_bytes != y->memory_bytes || strcmp(x->cpus, y->cpus) != 0)
            return false;
    }
    for (int i = 0; i < a->ncores; i++) {
        const struct topo_core *x = &topo->cores[a->first_core + i], *y = &topo->cores[b->first_core + i];
        if (own_numa(a, x->numa) != own_numa(b, y->numa) || x->package != y->package || x->l3 != y->l3)
            return false;
    }
    return true;
}

static bool same_devices(const struct topo *topo, const struct render_host *a, const struct render_host *b)
{
    for (int i = 0; i < a->ngpus; i++) {
        const struct topo_gpu *x = &topo->gpus[a->first_gpu + i], *y = &topo->gpus[b->first_gpu + i];
        if (own_numa(a, x->numa) != own_numa(b, y->numa) || x->memory_bytes != y->memory_bytes ||
            x->nvlinks != y->nvlinks || strcmp(x->name, y->name) != 0 || strcmp(x->busid, y->busid) != 0)
            return false;
        for (int k = 0; k < i; k++) {
            const struct topo_link *to_x = topo_link_at(topo, a->first_gpu + i, a->first_gpu + k);
            const struct topo_link *to_y = topo_link_at(topo, b->first_gpu + i, b->first_gpu + k);
            if (to_x->link != to_y->link || to_x->count != to_y->count)
                return false;
        }
    }
    for (int i = 0; i < a->nnics; i++) {
        const struct topo_nic *x = &topo->nics[a->first_nic + i], *y = &topo->nics[b->first_nic + i];
        if (own_numa(a, x->numa) != own_numa(b, y->numa) || x->GBps > y->GBps || x->GBps < y->GBps)
            return false;
    }
    return true;
}

static bool same_host(const struct topo *topo, const struct render_host *hosts, int i, int k)
{
    const struct render_host *a = &hosts[i], *b = &hosts[k];
    return a->nnumas == b->nnumas && a->ncores == b->ncores && a->ngpus == b->ngpus && a->nnics == b->nnics &&
           same_facts(&topo->hosts[i], &topo->hosts[k]) && same_cpus(topo, a, b) && same_devices(topo, a, b);
}

enum status render_hosts(const struct topo *topo, struct render_host **out)
{
    struct render_host *hosts;
    TRY(mem_alloc((size_t)topo->nhosts * sizeof *hosts, "hosts", (void **)&hosts));
    find_spans(topo, hosts);
    for (int i = 0; i < topo->nhosts; i++) {
        int like = 0;
        while (like < i && (hosts[like].equals == 0 || !same_host(topo, hosts, i, like)))
            like++;
        hosts[i].like = like;
        hosts[like].equals++;
    }
    *out = hosts;
    return STATUS_OK;
}

void render_cell(const struct topo_link *link, char buf[RENDER_CELL])
{
    if (link->link == TOPO_LINK_SELF)
        text_print(buf, RENDER_CELL, "-");
    else if (link->link == TOPO_LINK_NVSWITCH || link->link == TOPO_LINK_NVLINK)
        text_print(buf, RENDER_CELL, "nv%d", link->count);
    else
        text_print(buf, RENDER_CELL, "%s", topo_link_name(link->link));
}

void render_cell_meaning(const struct topo_link *link, char *buf, size_t size)
{
    static const char *const meanings[TOPO_LINK_COUNT] = {
        [TOPO_LINK_SELF] = "itself",
        [TOPO_LINK_NVSWITCH] = "through NVLink switches",
        [TOPO_LINK_NVLINK] = "direct NVLinks",
        [TOPO_LINK_PIX] = "one PCIe switch",
        [TOPO_LINK_PXB] = "several PCIe switches",
        [TOPO_LINK_PHB] = "one PCIe host bridge",
        [TOPO_LINK_NODE] = "one NUMA node",
        [TOPO_LINK_SYS] = "between NUMA nodes",
        [TOPO_LINK_NET] = "between hosts",
    };
    char rate[UNITS_BUF];
    text_print(buf, size, "%s%s%s", meanings[link->link], link->GBps < 0 ? "" : ", ",
               link->GBps < 0 ? "" : units_format_rate(link->GBps, rate));
}

static bool same_kind(const struct topo_link *a, const struct topo_link *b)
{
    return a->link == b->link && a->count == b->count && a->GBps <= b->GBps && a->GBps >= b->GBps;
}

/* Where `link` is among the n kinds, or where it belongs when it is new. */
static int find_kind(const struct render_kind *kinds, int n, const struct topo_link *link, bool *out_new)
{
    for (int i = 0; i < n; i++)
        if (same_kind(&kinds[i].link, link)) {
            *out_new = false;
            return i;
        }
    int at = 0;
    while (at < n && (kinds[at].link.link < link->link ||
                      (kinds[at].link.link == link->link && kinds[at].link.count >= link->count)))
        at++;
    *out_new = true;
    return at;
}

int render_link_kinds(const struct topo *topo, int first, int n, struct render_kind kinds[RENDER_KINDS])
{
    int found = 0;
    for (int a = first; a < first + n; a++) {
        for (int b = first; b < a; b++) {
            const struct topo_link *link = topo_link_at(topo, a, b);
            bool is_new;
            int at = find_kind(kinds, found, link, &is_new);
            if (is_new && found == RENDER_KINDS)
                continue; /* more kinds than anyone would read */
            if (is_new) {
                memmove(kinds + at + 1, kinds + at, (size_t)(found++ - at) * sizeof *kinds);
                kinds[at] = (struct render_kind){.link = *link};
            }
            kinds[at].pairs++;
        }
    }
    return found;
}

char *render_memory(int64_t bytes, char *buf)
{
    if (bytes < 0)
        text_print(buf, UNITS_BUF, "?");
    else
        units_format_bytes((double)bytes, buf);
    return buf;
}

void render_ranges(struct text *text, const int *values, int n)
{
    for (int i = 0; i < n;) {
        int first = i++;
        while (i < n && values[i] == values[i - 1] + 1)
            i++;
        text_add(text, "%s%d", first ? "," : "", values[first]);
        if (i - first > 1)
            text_add(text, "%c%d", i - first > 2 ? '-' : ',', values[i - 1]);
    }
}
