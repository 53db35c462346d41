/* topo/build.c -- room for a topology, its links and warnings, and the last look before it is handed out. */
#include "topo/build.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status reserve(int n, size_t elem, const char *what, void **out)
{
    return mem_alloc((size_t)n * elem, what, out);
}

enum status topo_reserve(struct topo *topo, struct topo_sizes sizes)
{
    TRY(reserve(sizes.hosts, sizeof *topo->hosts, "hosts", (void **)&topo->hosts));
    TRY(reserve(sizes.numas, sizeof *topo->numas, "NUMA nodes", (void **)&topo->numas));
    TRY(reserve(sizes.cores, sizeof *topo->cores, "cores", (void **)&topo->cores));
    TRY(reserve(sizes.gpus, sizeof *topo->gpus, "GPUs", (void **)&topo->gpus));
    TRY(reserve(sizes.nics, sizeof *topo->nics, "NICs", (void **)&topo->nics));
    TRY(mem_alloc((size_t)sizes.gpus * (size_t)sizes.gpus * sizeof *topo->links, "links", (void **)&topo->links));
    topo->nhosts = sizes.hosts;
    topo->nnumas = sizes.numas;
    topo->ncores = sizes.cores;
    topo->ngpus = sizes.gpus;
    topo->nnics = sizes.nics;
    for (int a = 0; a < topo->ngpus; a++)
        for (int b = 0; b < topo->ngpus; b++)
            *topo_link_at(topo, a, b) = (struct topo_link){
                .link = a == b ? TOPO_LINK_SELF : TOPO_LINK_SYS, .count = 1, .GBps = -1.0, .from = "assumed"};
    return STATUS_OK;
}

enum status topo_warn(struct topo *topo, const char *fmt, ...)
{
    size_t need = ((size_t)topo->nwarnings + 1) * sizeof *topo->warnings;
    void *grown = realloc(topo->warnings, need);
    if (!grown)
        return FAIL(STATUS_NOMEM, "no memory for %d warnings", topo->nwarnings + 1);
    topo->warnings = grown;
    char *line = topo->warnings[topo->nwarnings++];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof *topo->warnings, fmt, args);
    va_end(args);
    text_clean(line);
    return STATUS_OK;
}

void topo_join(struct topo *topo, int a, int b, struct topo_link link)
{
    *topo_link_at(topo, a, b) = link;
    *topo_link_at(topo, b, a) = link;
}

/* The count that more than half of a host's GPUs agree on, -1 when there is none. */
static int usual_nvlinks(const struct topo *topo, int host)
{
    for (int a = 0; a < topo->ngpus; a++) {
        int same = 0, all = 0;
        for (int b = 0; b < topo->ngpus; b++) {
            all += topo->gpus[b].host == host;
            same += topo->gpus[b].host == host && topo->gpus[b].nvlinks == topo->gpus[a].nvlinks;
        }
        if (topo->gpus[a].host == host && 2 * same > all)
            return topo->gpus[a].nvlinks;
    }
    return -1;
}

/* A GPU with fewer NVLinks than its peers slows every group it is in: it is named, and nothing is averaged over it. */
static enum status name_lost_links(struct topo *topo)
{
    for (int host = 0; host < topo->nhosts; host++) {
        int usual = usual_nvlinks(topo, host);
        for (int a = 0; a < topo->ngpus; a++) {
            const struct topo_gpu *gpu = &topo->gpus[a];
            if (gpu->host != host || gpu->nvlinks < 0 || gpu->nvlinks >= usual)
                continue;
            if (gpu->nvlinks == 0)
                TRY(topo_warn(topo,
                              "GPU %d (%s, %s) has no NVLink where its peers have %d: groups with it are not NVLink "
                              "groups",
                              a, gpu->busid, topo->hosts[host].name, usual));
            else
                TRY(topo_warn(topo, "GPU %d (%s, %s) has %d NVLinks where its peers have %d: groups with it are slower",
                              a, gpu->busid, topo->hosts[host].name, gpu->nvlinks, usual));
        }
    }
    return STATUS_OK;
}

enum status topo_finish(struct topo *topo)
{
    TRY(name_lost_links(topo));
    return topo_fingerprint(topo, topo->fingerprint);
}
