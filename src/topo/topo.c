/* topo/topo.c -- the table of sources; opening, names, release. */
#include "topo/topo.h"

#include "base/text.h"
#include "topo/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct topo_source *const topo_sources[] = {
    &topo_source_hwloc,
    &topo_source_synth,
    NULL,
};

static const char *const link_names[TOPO_LINK_COUNT] = {
#define TOPO_LINK_NAME(name, code) code,
    TOPO_LINK_LIST(TOPO_LINK_NAME)
#undef TOPO_LINK_NAME
};

const char *topo_link_name(enum topo_link_class link)
{
    return (unsigned)link < TOPO_LINK_COUNT ? link_names[link] : "unknown";
}

static enum status no_source(const char *from)
{
    static const char *const words[] = {"local", "synth:"};
    char head[16];
    text_print(head, sizeof head, "%.*s", (int)strcspn(from, ":") + 1, from);
    const char *nearest = text_nearest(head, words, sizeof words / sizeof *words);
    enum status status =
        FAIL(STATUS_USAGE, "'%.60s%s' is no source of a topology", from, strlen(from) > 60 ? "..." : "");
    if (nearest)
        return HINT(status, "did you mean %s?", nearest);
    return HINT(status, "use local for this machine, or describe one: synth:2x8xH200,nvlink=18");
}

enum status topo_open(const char *from, struct topo *out)
{
    struct topo topo = {0};
    const struct topo_source *const *source = topo_sources;
    if (!from || !*from)
        from = "local";
    while (*source && !(*source)->accepts(from))
        source++;
    if (!*source)
        return no_source(from);
    enum status status = (*source)->read(from, &topo);
    if (status != STATUS_OK) {
        topo_free(&topo);
        return status;
    }
    *out = topo;
    return STATUS_OK;
}

void topo_free(struct topo *topo)
{
    if (!topo)
        return;
    free(topo->hosts);
    free(topo->numas);
    free(topo->cores);
    free(topo->gpus);
    free(topo->nics);
    free(topo->links);
    free(topo->p2p);
    free(topo->warnings);
    *topo = (struct topo){0};
}

int topo_usable_cpus(const struct topo *topo)
{
    if (topo->nhosts < 1)
        return 1;
    const struct topo_host *host = &topo->hosts[0];
    int usable = host->pus_allowed;
    if (host->cpu_quota >= 0 && host->cpu_quota < usable)
        usable = (int)floor(host->cpu_quota);
    return usable < 1 ? 1 : usable;
}
