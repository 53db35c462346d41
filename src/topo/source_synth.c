/* topo/source_synth.c -- builds the machine that synth: text describes (topo/synth.h). */
#include "topo/build.h"

#include "base/text.h"
#include "topo/synth.h"

#include <string.h>

static bool accepts(const char *from)
{
    return strncmp(from, "synth:", 6) == 0;
}

/* The part of `n` things that falls to the i-th of `parts`, in order and as even as can be. */
static int part_of(int i, int n, int parts)
{
    return (int)((int64_t)i * parts / n);
}

static void fill_host(const struct synth *synth, int index, struct topo_host *host)
{
    *host = (struct topo_host){.memory_bytes = synth->host_memory_bytes,
                               .memory_limit_bytes = -1,
                               .packages = synth->numas,
                               .cores = synth->cores,
                               .pus = synth->cores,
                               .pus_allowed = synth->cores,
                               .cpu_quota = -1.0,
                               .l1d_bytes = -1,
                               .l2_bytes = -1,
                               .l3_bytes = -1};
    text_print(host->name, sizeof host->name, "host%d", index);
    text_print(host->boot_id, sizeof host->boot_id, "synth-%d", index);
}

static void fill_cpus(const struct synth *synth, int host, struct topo *out)
{
    int first_numa = host * synth->numas;
    for (int i = 0; i < synth->numas; i++) {
        struct topo_numa *numa = &out->numas[first_numa + i];
        int64_t memory = synth->host_memory_bytes;
        *numa =
            (struct topo_numa){.host = host, .os_index = i, .memory_bytes = memory < 0 ? -1 : memory / synth->numas};
    }
    for (int i = 0; i < synth->cores; i++) {
        struct topo_core *core = &out->cores[(size_t)host * (size_t)synth->cores + (size_t)i];
        int node = part_of(i, synth->cores, synth->numas);
        *core = (struct topo_core){.host = host, .numa = first_numa + node, .package = node, .l3 = -1, .pus = 1};
        text_print(core->cpus, sizeof core->cpus, "%d", i);
    }
    /* A node's cores are consecutive: "16-31". */
    for (int i = 0, first = 0; i < synth->cores; i++) {
        int node = part_of(i, synth->cores, synth->numas);
        if (i + 1 < synth->cores && part_of(i + 1, synth->cores, synth->numas) == node)
            continue;
        struct topo_numa *numa = &out->numas[first_numa + node];
        text_print(numa->cpus, sizeof numa->cpus, i > first ? "%d-%d" : "%d", first, i);
        first = i + 1;
    }
}

static void fill_devices(const struct synth *synth, int host, struct topo *out)
{
    for (int i = 0; i < synth->gpus; i++) {
        struct topo_gpu *gpu = &out->gpus[host * synth->gpus + i];
        *gpu = (struct topo_gpu){.host = host,
                                 .numa = host * synth->numas + part_of(i, synth->gpus, synth->numas),
                                 .memory_bytes = synth->gpu_memory_bytes,
                                 .driver = true,
                                 .cuda = -1,
                                 .others = -1};
        text_print(gpu->busid, sizeof gpu->busid, "0000:%02x:00.0", 0x10 + i);
        text_print(gpu->name, sizeof gpu->name, "%s", synth->name);
    }
    for (int i = 0; i < synth->nics; i++) {
        struct topo_nic *nic = &out->nics[host * synth->nics + i];
        *nic = (struct topo_nic){
            .host = host, .numa = host * synth->numas + part_of(i, synth->nics, synth->numas), .GBps = synth->nic_GBps};
        text_print(nic->name, sizeof nic->name, "nic%d", i);
        text_print(nic->busid, sizeof nic->busid, "0000:%02x:00.0", 0x60 + i);
    }
}

/* Between hosts a GPU has its share of the NICs, and at least one of them when the others are silent. */
static double net_GBps(const struct synth *synth)
{
    int rails = synth->nics / synth->gpus;
    return synth->nics ? synth->nic_GBps * (rails > 1 ? rails : 1) : -1.0;
}

static void join_all(const struct synth *synth, struct topo *out)
{
    int links = synth->nvlinks > 0 && synth->npairs == 0 ? synth->nvlinks : 0;
    double per_link = synth->nvlink_GBps;
    for (int a = 0; a < out->ngpus; a++) {
        for (int b = 0; b < a; b++) {
            bool one_host = out->gpus[a].host == out->gpus[b].host, one_node = out->gpus[a].numa == out->gpus[b].numa;
            struct topo_link link = {
                .link = one_node ? TOPO_LINK_NODE : TOPO_LINK_SYS, .count = 1, .GBps = -1.0, .from = "synth"};
            if (!one_host)
                link = (struct topo_link){TOPO_LINK_NET, 1, net_GBps(synth), "synth"};
            else if (links)
                link = (struct topo_link){TOPO_LINK_NVSWITCH, links, per_link < 0 ? -1.0 : per_link * links, "synth"};
            topo_join(out, a, b, link);
        }
        out->gpus[a].nvlinks = links;
    }
}

static void join_pairs(const struct synth *synth, int host, struct topo *out)
{
    double per_link = synth->nvlink_GBps;
    for (int i = 0; i < synth->npairs; i++) {
        int a = host * synth->gpus + synth->pairs[i].a, b = host * synth->gpus + synth->pairs[i].b;
        topo_join(out, a, b,
                  (struct topo_link){TOPO_LINK_NVLINK, synth->nvlinks, per_link < 0 ? -1.0 : per_link * synth->nvlinks,
                                     "synth"});
        out->gpus[a].nvlinks += synth->nvlinks;
        out->gpus[b].nvlinks += synth->nvlinks;
    }
}

static enum status name_doubts(const struct synth *synth, struct topo *out)
{
    const struct topo_gpu_kind *kind = topo_gpu_kind(synth->name);
    int given = synth->nvlinks > 0 ? synth->nvlinks : 0;
    for (int i = 0; i < out->ngpus; i++)
        given = out->gpus[i].nvlinks > given ? out->gpus[i].nvlinks : given;
    if (!kind || synth->gpus < 2)
        return STATUS_OK;
    if (given > kind->nvlinks)
        return topo_warn(out, "a GPU here has %d NVLinks; a real %s has %d", given, kind->name, kind->nvlinks);
    if (synth->nvlinks < 0 && kind->nvlinks)
        return topo_warn(out,
                         "no nvlink= was given, so the GPUs are joined by PCIe alone; %s is sold with nvlink=%d too",
                         kind->name, kind->nvlinks);
    return STATUS_OK;
}

static enum status build(const char *from, const struct synth *synth, struct topo *out)
{
    int hosts = synth->hosts;
    TRY(topo_reserve(out, (struct topo_sizes){.hosts = hosts,
                                              .numas = hosts * synth->numas,
                                              .cores = hosts * synth->cores,
                                              .gpus = hosts * synth->gpus,
                                              .nics = hosts * synth->nics}));
    if (!text_print(out->source, sizeof out->source, "%s", from))
        memcpy(out->source + sizeof out->source - 4, "...", 4);
    for (int host = 0; host < hosts; host++) {
        fill_host(synth, host, &out->hosts[host]);
        fill_cpus(synth, host, out);
        fill_devices(synth, host, out);
    }
    if (synth->gpus)
        join_all(synth, out);
    for (int host = 0; host < hosts; host++)
        join_pairs(synth, host, out);
    TRY(name_doubts(synth, out));
    return topo_finish(out);
}

static enum status read_synth(const char *from, struct topo *out)
{
    struct synth synth;
    enum status status = synth_parse(from, &synth);
    if (status == STATUS_OK)
        status = build(from, &synth, out);
    synth_free(&synth);
    return status;
}

const struct topo_source topo_source_synth = {.name = "synth", .accepts = accepts, .read = read_synth};
