/* cli/ranks_device.c -- GPUs are counted in a process of its own: a process that has asked the CUDA driver anything cannot give its GPUs
 * to processes that it forks later, and the ranks are forked later.
 */
#include "cli/ranks_device.h"

#include "cli/apart.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWER_MS = 60 * 1000 };

static enum status ask(void *arg, void *out)
{
    (void)arg;
    return dev_count(DEV_CUDA, out);
}

static enum status count_gpus(int *out)
{
    enum status status = apart_ask(ask, NULL, out, sizeof *out, ANSWER_MS);
    return status != STATUS_TIMEOUT ? status
                                    : FAIL(STATUS_UNSUPPORTED, "the CUDA driver does not answer how many GPUs there are");
}

enum status ranks_device(struct cli *cli, const char **out_word, enum dev_kind *out, int *out_devices)
{
    enum { AUTO, CPU, CUDA, WORDS };
    static const char *const words[] = {"auto", "cpu", "cuda"};
    int word = AUTO;
    TRY(opt_word(&cli->opts, "device", words, WORDS, AUTO, &word));
    *out_word = words[word];
    *out = DEV_CPU;
    *out_devices = 1;
    enum status status = word == CPU                ? STATUS_OK
                         : dev_has_driver(DEV_CUDA) ? count_gpus(out_devices)
                                                    : dev_count(DEV_CUDA, out_devices); /* which says what is missing */
    if (word == AUTO && status == STATUS_ABSENT) {
        status_clear();
        *out_devices = 1;
        return STATUS_OK;
    }
    TRY(status);
    *out = cli->device = word == CPU ? DEV_CPU : DEV_CUDA;
    return STATUS_OK;
}

enum status ranks_check_devices(const struct ranks_options *options)
{
    if (options->kind == DEV_CPU || options->n <= options->devices)
        return STATUS_OK;
    return HINT(
        WHERE(FAIL(STATUS_USAGE, "%d ranks need as many GPUs, the driver shows %d", options->n, options->devices),
              "--ranks"),
        "use --ranks %d, or --device cpu", options->devices);
}

static const struct topo_gpu *gpu_of(const struct topo *topo, int cuda)
{
    for (int i = 0; i < topo->ngpus; i++)
        if (topo->gpus[i].cuda == cuda)
            return &topo->gpus[i];
    return NULL;
}

static enum status cpus_near(const struct topo *topo, int rank, char **slot)
{
    const struct topo_gpu *gpu = gpu_of(topo, rank);
    if (gpu == NULL || gpu->numa < 0 || topo->numas[gpu->numa].cpus[0] == '\0')
        return STATUS_OK;
    char *cpus = strdup(topo->numas[gpu->numa].cpus);
    if (cpus == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a list of CPUs");
    free(*slot);
    *slot = cpus;
    return STATUS_OK;
}

enum status ranks_cpus(const struct topo *topo, enum dev_kind kind, int n, char ***out)
{
    char **slots = NULL;
    enum status status = topo_cpu_slots(topo, n, &slots);
    TRY(status);
    for (int rank = 0; rank < n && kind == DEV_CUDA && status == STATUS_OK; rank++)
        status = cpus_near(topo, rank, &slots[rank]);
    if (status != STATUS_OK)
        topo_free_slots(slots, n);
    else
        *out = slots;
    return status;
}
