/* cli/ranks_device.c -- GPUs are counted in a process of its own: a process that has asked the CUDA driver anything cannot give its GPUs
 * to processes that it forks later, and the ranks are forked later.
 */
#include "cli/ranks_device.h"

#include "base/mem.h"
#include "base/text.h"
#include "cli/apart.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWER_MS = 60 * 1000 };

struct gpus {
    int count;
    int64_t memory_bytes; /* of the smallest */
};

static enum status ask(void *arg, void *answer)
{
    struct gpus gpus = {0};
    (void)arg;
    TRY(dev_count(DEV_CUDA, &gpus.count));
    for (int i = 0; i < gpus.count; i++) {
        int64_t bytes = 0;
        TRY(dev_total(DEV_CUDA, i, &bytes));
        gpus.memory_bytes = i == 0 || bytes < gpus.memory_bytes ? bytes : gpus.memory_bytes;
    }
    memcpy(answer, &gpus, sizeof gpus); /* bytes of a message, placed as they come */
    return STATUS_OK;
}

static enum status count_gpus(struct ranks_devices *out)
{
    struct gpus gpus = {0};
    enum status status = apart_ask(ask, NULL, &gpus, sizeof gpus, ANSWER_MS);
    if (status == STATUS_TIMEOUT)
        return FAIL(STATUS_UNSUPPORTED, "the CUDA driver does not answer how many GPUs there are");
    TRY(status);
    out->n = gpus.count;
    out->memory_bytes = gpus.memory_bytes;
    return STATUS_OK;
}

enum status ranks_device(struct cli *cli, struct ranks_devices *out)
{
    enum { AUTO, CPU, CUDA, WORDS };
    static const char *const words[] = {"auto", "cpu", "cuda"};
    int word = AUTO;
    TRY(opt_word(&cli->opts, "device", words, WORDS, AUTO, &word));
    *out = (struct ranks_devices){.word = words[word], .kind = DEV_CPU, .n = 1};
    enum status status = word == CPU                ? STATUS_OK
                         : dev_has_driver(DEV_CUDA) ? count_gpus(out)
                                                    : dev_count(DEV_CUDA, &out->n); /* which says what is missing */
    if (word == AUTO && status == STATUS_ABSENT) {
        status_clear();
        out->n = 1;
        return STATUS_OK;
    }
    TRY(status);
    out->kind = cli->device = word == CPU ? DEV_CPU : DEV_CUDA;
    return STATUS_OK;
}

static const struct topo_gpu *gpu_of(const struct topo *topo, int cuda)
{
    for (int i = 0; i < topo->ngpus; i++)
        if (topo->gpus[i].cuda == cuda)
            return &topo->gpus[i];
    return NULL;
}

/* Ranks that wait for each other need GPUs that are whole and theirs alone, however many of them share one. */
static struct verdict together_on(const struct topo *topo, int gpu, int ranks)
{
    const int order[2] = {gpu, gpu};
    return topo_ranks_together(topo, order, ranks > 1 ? 2 : 1);
}

static enum status refuse_apart(const struct verdict *verdict)
{
    if (verdict_ok(verdict))
        return STATUS_OK;
    if (verdict->rule == RULE_TAINTED)
        return HINT(FAIL(STATUS_BUSY, "%s", verdict->why),
                    "end it, leave that GPU out with CUDA_VISIBLE_DEVICES, or use one rank");
    return HINT(FAIL(STATUS_UNSUPPORTED, "%s", verdict->why), "--device cpu needs none");
}

/* Index into topo->gpus of what CUDA calls `cuda`; of an order that only CUDA knows there is none. */
static int index_of(const struct topo *topo, int cuda)
{
    const struct topo_gpu *gpu = gpu_of(topo, cuda);
    return gpu != NULL ? (int)(gpu - topo->gpus) : -1;
}

static enum status check_each(const struct topo *topo, const struct ranks_options *options)
{
    for (int rank = 0; rank < options->n && rank < options->devices; rank++) {
        int at = index_of(topo, rank);
        struct verdict verdict = at >= 0 ? together_on(topo, at, options->n) : VERDICT_YES;
        TRY(refuse_apart(&verdict));
    }
    return STATUS_OK;
}

enum status ranks_check_devices(const struct topo *topo, const struct ranks_options *options)
{
    if (options->kind == DEV_CPU)
        return STATUS_OK;
    TRY(check_each(topo, options)); /* first: a GPU in MIG mode is one device, whatever the machine has */
    if (options->n <= options->devices || options->oversubscribe)
        return STATUS_OK;
    return HINT(
        WHERE(FAIL(STATUS_USAGE, "%d ranks need as many GPUs, the driver shows %d", options->n, options->devices),
              "--ranks"),
        "use --ranks %d, or --device cpu; with --oversubscribe those of check and train share one", options->devices);
}

int ranks_device_index(const struct ranks_options *options, const struct launch *launch)
{
    const bool round = options->devices == 1 || options->oversubscribe;
    return round && options->devices > 0 ? launch->local_rank % options->devices : launch->local_rank;
}

/* Which GPU a rank has: the machine as booted, and the place there. */
struct place {
    char boot[40], busid[40];
};

static enum status check_distinct(const struct place *all, int n, bool *shared)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) {
            if (all[a].busid[0] == '\0' || strcmp(all[a].busid, all[b].busid) != 0 ||
                strcmp(all[a].boot, all[b].boot) != 0)
                continue;
            if (shared == NULL)
                return HINT(
                    FAIL(STATUS_USAGE, "ranks %d and %d are both on GPU %s", b, a, all[a].busid),
                    "start one rank for each GPU, give each its own with CUDA_VISIBLE_DEVICES, or --oversubscribe "
                    "(check, train)");
            *shared = true;
        }
    return STATUS_OK;
}

/* shares: other processes on this rank's GPU may be ranks of this job. */
static enum status check_own(const struct topo *topo, const struct dev *dev, int n, bool shares)
{
    for (int i = 0; i < topo->ngpus; i++) {
        struct verdict verdict = together_on(topo, i, n);
        if (strcmp(topo->gpus[i].busid, dev_place(dev)) == 0)
            return shares && verdict.rule == RULE_TAINTED ? STATUS_OK : refuse_apart(&verdict);
    }
    return STATUS_OK;
}

enum status ranks_check_places(struct boot *boot, const struct topo *topo, const struct dev *dev, bool *shared,
                               int64_t deadline_ns)
{
    int n = boot_size(boot);
    struct place mine = {.boot = ""}, *all = NULL;
    text_print(mine.boot, sizeof mine.boot, "%s", topo->nhosts > 0 ? topo->hosts[0].boot_id : "");
    text_print(mine.busid, sizeof mine.busid, "%s", dev_place(dev));
    enum status status = check_own(topo, dev, n, shared != NULL);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)n * sizeof *all, "places of ranks", (void **)&all);
    status = boot_agree(boot, status, deadline_ns);
    if (status == STATUS_OK)
        status = boot_allgather(boot, &mine, sizeof mine, all, deadline_ns);
    if (status == STATUS_OK)
        status = check_distinct(all, n, shared);
    free(all);
    return status;
}

static enum status cpus_near(const struct topo *topo, int cuda, char **slot)
{
    const struct topo_gpu *gpu = gpu_of(topo, cuda);
    const char *near = gpu == NULL || gpu->numa < 0 ? "" : topo->numas[gpu->numa].cpus;
    if (gpu != NULL && gpu->cpus[0] != '\0')
        near = gpu->cpus;
    char *cpus = strdup(near);
    if (cpus == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a list of CPUs");
    free(*slot);
    *slot = cpus;
    return STATUS_OK;
}

enum status ranks_cpus(const struct topo *topo, const struct ranks_options *options, char ***out)
{
    char **slots = NULL;
    int n = options->n;
    enum status status = topo_cpu_slots(topo, n, &slots);
    TRY(status);
    for (int rank = 0; rank < n && options->kind == DEV_CUDA && status == STATUS_OK; rank++) {
        const struct launch launch = {.rank = rank, .size = n, .local_rank = rank};
        status = cpus_near(topo, ranks_device_index(options, &launch), &slots[rank]);
    }
    if (status != STATUS_OK)
        topo_free_slots(slots, n);
    else
        *out = slots;
    return status;
}
