/* topo/fingerprint.c -- one short name for machines on which measurements are interchangeable.
 *
 * In it: GPU names and their links, CPU model, packages, NUMA nodes, cores, threads, caches. Not in it, because they
 * differ between runs or between equal machines: names, UUIDs, boot ids, bus ids, clocks, memory sizes (kernels and
 * drivers keep a little for themselves), link rates, cpuset and quota. NICs count from the second host on: inside one
 * host no byte of ours uses them, and interfaces come and go.
 */
#include "topo/build.h"

#include "base/file.h"
#include "base/text.h"

#include <string.h>

static void add_host(struct text *text, const struct topo *topo, int index)
{
    const struct topo_host *host = &topo->hosts[index];
    int numas = 0;
    for (int i = 0; i < topo->nnumas; i++)
        numas += topo->numas[i].host == index;
    text_add(text, "host %s %d packages %d numas %d cores %d pus %lld %lld %lld x%d\n", host->cpu_model, host->packages,
             numas, host->cores, host->pus, (long long)host->l1d_bytes, (long long)host->l2_bytes,
             (long long)host->l3_bytes, host->l3_count);
}

/* Runs of equal links are one line: a thousand GPUs have half a million pairs. */
static void add_links(struct text *text, const struct topo *topo)
{
    const struct topo_link *last = NULL;
    int run = 0;
    for (int a = 0; a < topo->ngpus; a++) {
        for (int b = 0; b < a; b++, run++) {
            const struct topo_link *link = topo_link_at(topo, a, b);
            if (last && (link->link != last->link || link->count != last->count)) {
                text_add(text, "%d %s %d\n", run, topo_link_name(last->link), last->count);
                run = 0;
            }
            last = link;
        }
    }
    if (last)
        text_add(text, "%d %s %d\n", run, topo_link_name(last->link), last->count);
}

enum status topo_fingerprint(const struct topo *topo, char out[33])
{
    struct text text = {0};
    char hex[65];
    for (int i = 0; i < topo->nhosts; i++)
        add_host(&text, topo, i);
    for (int i = 0; i < topo->ngpus; i++)
        text_add(&text, "gpu %d %s\n", topo->gpus[i].host, topo->gpus[i].name);
    add_links(&text, topo);
    for (int i = 0; topo->nhosts > 1 && i < topo->nnics; i++)
        text_add(&text, "nic %d\n", topo->nics[i].host);
    enum status status = text_status(&text);
    if (status == STATUS_OK) {
        file_sha256(text_get(&text), text.len, hex);
        memcpy(out, hex, 32);
        out[32] = '\0';
    }
    text_free(&text);
    return status;
}
