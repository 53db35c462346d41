/* cli/ranks_device.c -- GPUs are counted in a process of its own: a process that has asked the CUDA driver anything cannot give its GPUs
 * to processes that it forks later, and the ranks are forked later.
 */
#include "cli/ranks_device.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_MS = 60 * 1000 };

struct answer {
    enum status status;
    int count;
    struct status_message message;
};

static void answer_write(int fd)
{
    struct answer answer;
    memset(&answer, 0, sizeof answer);
    answer.status = dev_count(DEV_CUDA, &answer.count);
    if (answer.status != STATUS_OK)
        answer.message = *status_last();
    ssize_t wrote = write(fd, &answer, sizeof answer); /* fits a pipe: whole or not at all */
    _exit(wrote == (ssize_t)sizeof answer ? 0 : 1);
}

static bool answer_read(int fd, struct answer *out)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&wait, 1, ANSWER_MS);
    while (ready < 0 && errno == EINTR);
    return ready > 0 && read(fd, out, sizeof *out) == (ssize_t)sizeof *out;
}

static enum status ask(int ends[2], struct answer *out)
{
    pid_t child = fork();
    if (child < 0)
        return FAIL(STATUS_MACHINE, "cannot start a process that looks for GPUs: %s", strerror(errno));
    if (child == 0)
        answer_write(ends[1]);
    close(ends[1]);
    ends[1] = -1;
    bool answered = answer_read(ends[0], out);
    if (!answered)
        kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
    return answered ? STATUS_OK : FAIL(STATUS_UNSUPPORTED, "the CUDA driver does not answer how many GPUs there are");
}

static enum status count_gpus(int *out)
{
    struct answer answer;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_MACHINE, "no pipe: %s", strerror(errno));
    enum status status = ask(ends, &answer);
    close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    TRY(status);
    *out = answer.count;
    if (answer.status != STATUS_OK)
        status_restore(&answer.message);
    return answer.status;
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
