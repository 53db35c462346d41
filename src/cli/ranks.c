/* cli/ranks.c -- fork or join the ranks, the serve loop, and the end of both. */
#include "cli/ranks.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "bench/check.h"
#include "cli/explain_exchange.h"
#include "cli/ranks_device.h"
#include "cli/report.h"
#include "cli/session.h"
#include "cli/threads.h"
#include "cli/train_options.h"
#include "comm/launch.h"
#include "comm/transport.h"
#include "kernels/gemm.h"

#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

const struct ranks_mode ranks_modes[] = {
    {"bench", bench_serve},
    {"check", check_serve},
    {"explain", explain_exchange_serve},
    {"train", train_serve},
    {NULL, NULL},
};

static const char mode_end[] = "end";

enum { DEVICE_DEADLINE_US = 120 * 1000 * 1000 }; /* a driver makes the contexts of a host's ranks one after another */

struct job {
    struct cli *cli;
    const struct topo *topo;
    const struct ranks_options *options;
    ranks_root root;
    void *arg;
    bool launched; /* by a launcher, not by us */
};

/* One message: mode name, NUL, data. */
enum status ranks_tell(void *arg, const char *mode, const void *data, size_t bytes)
{
    struct ranks *ranks = arg;
    size_t name = strlen(mode) + 1, total = name + bytes;
    char *message = malloc(total);
    if (message == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a message of %zu bytes to the ranks", total);
    memcpy(message, mode, name);
    if (bytes > 0)
        memcpy(message + name, data, bytes);
    void *borrowed = message;
    enum status status = boot_bcast(ranks->boot, 0, &borrowed, &total, clock_deadline(BOOT_DEADLINE_US));
    free(message);
    return status;
}

static enum status serve_one(struct ranks *ranks, bool *done)
{
    void *message = NULL;
    size_t bytes = 0;
    TRY(boot_bcast(ranks->boot, 0, &message, &bytes, INT64_MAX));
    const char *mode = message;
    size_t name = strnlen(mode, bytes) + 1;
    enum status status = STATUS_OK;
    const struct ranks_mode *m = ranks_modes;
    if (name > bytes)
        status = FAIL(STATUS_PEER, "rank 0 sent a message without a mode");
    else if (strcmp(mode, mode_end) == 0)
        *done = true;
    else {
        while (m->name != NULL && strcmp(m->name, mode) != 0)
            m++;
        status = m->name != NULL ? m->run(&ranks->env, mode + name, bytes - name)
                                 : FAIL(STATUS_PEER, "rank 0 asked for the unknown mode '%.32s'", mode);
    }
    free(message);
    return status;
}

static enum status serve(struct ranks *ranks)
{
    bool done = false;
    while (!done)
        TRY(serve_one(ranks, &done));
    return STATUS_OK;
}

static enum status open_device(const struct job *job, const struct launch *launch, struct dev **out)
{
    const struct topo *topo = job->topo;
    if (job->options->kind == DEV_CUDA)
        return dev_open(DEV_CUDA, ranks_device_index(job->options, launch), out);
    if (strcmp(job->options->device, "auto") == 0 && topo->ngpus > 0 && launch->rank == 0)
        log_warn("%s at %s is here, but no CUDA device answers in this build: measuring on the CPU", topo->gpus[0].name,
                 topo->gpus[0].busid);
    return dev_open(DEV_CPU, 0, out);
}

/* The transport library starts a thread in each rank, and aborts with a backtrace when it cannot. So all ranks start one
 * first, and let it go only when all have theirs. */
struct spare {
    pthread_t thread;
    sem_t go;
};

static void *wait_to_go(void *arg)
{
    struct spare *spare = arg;
    while (sem_wait(&spare->go) != 0)
        continue;
    return NULL;
}

static enum status try_thread(struct boot *boot, int64_t deadline)
{
    struct spare spare;
    sem_init(&spare.go, 0, 0);
    int error = thread_start(&spare.thread, wait_to_go, &spare);
    enum status status =
        error == 0 ? STATUS_OK
                   : HINT(FAIL(STATUS_MACHINE, "a rank cannot start a thread: %s", strerror(error)),
                          "the limit of processes is reached: ulimit -u, or pids.max of the control group");
    status = boot_agree(boot, status, deadline);
    if (error == 0) {
        sem_post(&spare.go);
        pthread_join(spare.thread, NULL);
    }
    sem_destroy(&spare.go);
    return status;
}

static enum status look(void *boot)
{
    return boot_poll(boot);
}

/* The supervisor has looked before it forked; under a launcher, and where ranks may share, the open devices are looked at. */
static enum status look_at_places(const struct job *job, struct ranks *ranks)
{
    const struct ranks_options *options = job->options;
    if (options->kind != DEV_CUDA || !(job->launched || options->oversubscribe))
        return STATUS_OK;
    TRY(ranks_check_places(ranks->boot, job->topo, ranks->env.dev, options->oversubscribe ? &ranks->shared : NULL,
                           clock_deadline(BOOT_DEADLINE_US)));
    if (ranks->shared)
        log_warn("ranks share a GPU: what they compute holds, how long it takes means nothing");
    return STATUS_OK;
}

static enum status open_all(const struct job *job, const struct launch *launch, struct ranks *ranks)
{
    TRY(boot_open(launch, clock_deadline(BOOT_DEADLINE_US), &ranks->boot));
    enum status status = open_device(job, launch, &ranks->env.dev);
    TRY(boot_agree(ranks->boot, status, clock_deadline(DEVICE_DEADLINE_US)));
    dev_watch(ranks->env.dev, look, ranks->boot);
    TRY(look_at_places(job, ranks));
    TRY(try_thread(ranks->boot, clock_deadline(BOOT_DEADLINE_US)));
    TRY(threads_share(ranks, job->options->threads));
    TRY(comm_open(ranks->boot, ranks->env.dev, job->options->transport, job->options->carrier, &ranks->env.world));
    memcpy(ranks->env.machine, job->topo->fingerprint, sizeof ranks->env.machine);
    text_print(ranks->env.transport, sizeof ranks->env.transport, "%s", comm_transport(ranks->env.world));
    ranks->env.usable_cpus = topo_usable_cpus(job->topo);
    return STATUS_OK;
}

/* Under a launcher nobody supervises, so rank 0 holds the lock, while the others wait in the serve loop. */
static enum status run_root_locked(const struct job *job, struct ranks *ranks)
{
    int lock = -1;
    if (job->launched && job->options->stores)
        TRY(session_check(job->cli));
    if (job->launched && job->options->lock_us >= 0)
        TRY(session_lock(job->options->lock_us, &lock));
    enum status status = job->root(ranks, job->arg);
    session_unlock(lock);
    return status;
}

static enum status run_root(const struct job *job, struct ranks *ranks)
{
    enum status status = run_root_locked(job, ranks);
    struct status_message message = *status_last();
    if (status != STATUS_PEER && ranks_tell(ranks, mode_end, NULL, 0) != STATUS_OK && status == STATUS_OK)
        return status_last()->code;
    if (status != STATUS_OK)
        status_restore(&message);
    return status;
}

/* A SIGKILL that neither the supervisor nor the user sent is most often the kernel's, for want of memory. */
static enum status hint_death(const struct job *job, enum status status, bool killed)
{
    if (killed)
        status = HINT(status, "the kernel log tells an out-of-memory kill");
    return HINT(status, "%s", job->options->kept);
}

static enum status killed_by(int rank, int signal)
{
    return status_rank(FAIL(STATUS_PEER, "rank %d was killed by signal %d (%s)", rank, signal, strsignal(signal)), rank);
}

/* Rank 0 saw the end of a connection; the supervisor knows what ended that rank. */
static enum status explain_death(const struct job *job, const struct launch *launch, enum status status)
{
    enum { WAIT_MS = 500 };
    int rank = status_last()->rank, signal = 0;
    if (launch_fate(launch, rank, WAIT_MS, &signal) && signal != 0)
        status = killed_by(rank, signal);
    return hint_death(job, status, signal == SIGKILL);
}

/* A rank other than 0 that fails tells the others why, and rank 0 prints; one that cannot tell them prints itself.
 * Statuses that all ranks agreed on need no telling. */
static void give_up(struct job *job, int rank, struct boot *boot, enum status status)
{
    if (boot != NULL)
        boot_abort(boot, status_last());
    else if (status != STATUS_PEER && status != STATUS_TIMEOUT)
        report_end(job->cli, WHERE(status, "rank %d", rank));
}

static int rank_main(const struct launch *launch, void *arg)
{
    struct job *job = arg;
    bool root = launch->rank == 0;
    job->cli->silent = !root;
    log_setup(report_log_level(job->cli), root);
    if (!root)
        interrupt_ignore();
    else if (job->options->answers != NULL)
        interrupt_setup(opt_given(&job->cli->opts, "quiet") ? NULL : job->options->answers);
    log_verbose("%s", launch->rule);
    struct ranks ranks = {.cli = job->cli, .topo = job->topo};
    enum status status = open_all(job, launch, &ranks);
    if (status == STATUS_OK)
        status = root ? run_root(job, &ranks) : serve(&ranks);
    if (root)
        report_end(job->cli, status == STATUS_PEER && status_last()->hint[0] == '\0'
                                 ? explain_death(job, launch, status)
                                 : status);
    else if (status != STATUS_OK)
        give_up(job, launch->rank, ranks.boot, status);
    comm_close(ranks.env.world); /* bounded, whatever happened to the others */
    if (ranks.env.dev != NULL)
        dev_watch(ranks.env.dev, NULL, NULL);
    boot_close(ranks.boot);
    dev_close(ranks.env.dev);
    return status_exit_code(status);
}

/* Rank 0 did not end by itself, or a rank did not although rank 0 was content. */
static enum status died(const struct job *job, const struct launch_report *report)
{
    int rank = report->failed_rank < 0 ? 0 : report->failed_rank;
    if (report->failed_rank < 0 && (report->signal == SIGINT || report->signal == SIGTERM))
        return FAIL(report->signal == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED, "stopped at once by %s",
                    report->signal == SIGINT ? "SIGINT" : "SIGTERM");
    enum status status =
        report->stopped ? FAIL(STATUS_TIMEOUT, "rank %d was stopped (SIGSTOP) for more than %d s", rank,
                               LAUNCH_STOPPED_US / 1000000)
        : report->ours  ? FAIL(STATUS_PEER, "rank %d did not end with the others and was killed", rank)
        : report->signal != 0 ? killed_by(rank, report->signal)
                              : FAIL(STATUS_PEER, "rank %d ended before the job was done", rank);
    return hint_death(job, status_rank(status, rank), report->signal == SIGKILL && !report->ours);
}

static enum status fork_locked(struct job *job, char *const *slots, struct launch_report *report)
{
    int lock = -1, n = job->options->n;
    if (job->options->stores)
        TRY(session_check_apart(job->cli)); /* what is wrong with the command is said at once, whoever measures now */
    interrupt_setup(NULL); /* Ctrl-C while waiting for the lock is answered as any other */
    if (job->options->lock_us >= 0)
        TRY(session_lock(job->options->lock_us, &lock));
    enum status status = launch_fork(n, n <= topo_usable_cpus(job->topo) ? slots : NULL, rank_main, job, report);
    session_unlock(lock);
    return status;
}

static enum status fork_job(struct job *job)
{
    struct cli *cli = job->cli;
    struct launch_report report = {.failed_rank = -1};
    char **slots = NULL;
    TRY(ranks_cpus(job->topo, job->options, &slots));
    /* A rank computes with threads of ours (--threads): the library's own would come on top of them. Said before the fork it costs no rank a
     * thread; the library would start its whole pool in each rank that says it there. */
    gemm_set_threads(1);
    enum status status = fork_locked(job, slots, &report);
    topo_free_slots(slots, job->options->n);
    TRY(status);
    if (!report.root_spoke || (report.exit_code != 0 && !atomic_load(&cli->said->failure)))
        return died(job, &report);
    cli->spoke = true;
    cli->exit_code = report.exit_code;
    return STATUS_OK;
}

enum status ranks_run(struct cli *cli, const struct topo *topo, const struct ranks_options *options, ranks_root root,
                      void *arg)
{
    struct launch launch;
    struct job job = {.cli = cli, .topo = topo, .options = options, .root = root, .arg = arg};
    TRY(launch_detect(&launch, &job.launched));
    memcpy(cli->machine, topo->fingerprint, sizeof cli->machine);
    if (!job.launched) {
        TRY(ranks_check_devices(topo, options));
        return fork_job(&job);
    }
    if (launch.rank == 0)
        log_info("rank 0 of %d by %s", launch.size, launch.rule);
    gemm_set_threads(1);
    cli->exit_code = rank_main(&launch, &job);
    cli->spoke = true;
    return STATUS_OK;
}

/* --transport: one of this device, or what one may be narrowed to. */
static enum status transport_read(struct cli *cli, struct ranks_options *out)
{
    enum { WORDS = 64 };
    const char *words[WORDS], *of[WORDS];
    int n = 0, at = -1;
    for (int i = 0; transports[i] != NULL; i++) {
        const struct transport *t = transports[i];
        if (t->dev != out->kind)
            continue;
        of[n] = words[n] = t->name;
        n++;
        for (int c = 0; t->carriers != NULL && t->carriers[c] != NULL; c++, n++) {
            of[n] = t->name;
            words[n] = t->carriers[c];
        }
    }
    TRY(opt_word(&cli->opts, "transport", words, n, -1, &at));
    out->transport = at < 0 ? NULL : of[at];
    out->carrier = at < 0 || words[at] == of[at] ? NULL : words[at];
    return STATUS_OK;
}

enum status ranks_options_read(struct cli *cli, struct ranks_options *out)
{
    struct ranks_devices devices;
    TRY(ranks_device(cli, &devices));
    out->device = devices.word;
    out->kind = devices.kind;
    out->devices = devices.n;
    out->oversubscribe = opt_given(&cli->opts, "oversubscribe");
    TRY(opt_count(&cli->opts, "threads", 1, DEV_THREADS_MAX, 0, &out->threads));
    TRY(transport_read(cli, out));
    out->stores = false;
    out->lock_us = -1;
    out->answers = NULL;
    out->kept = "";
    return STATUS_OK;
}

/* How many ranks there are when nobody says; *launch and *launched as detected. */
static enum status find_ranks(const struct topo *topo, struct launch *launch, bool *launched, int64_t *out)
{
    TRY(launch_detect(launch, launched));
    *out = *launched ? launch->size : topo->ngpus > 0 ? topo->ngpus : 2;
    return STATUS_OK;
}

/* That the CPUs of this host take. */
static int64_t most_here(const struct topo *topo)
{
    int64_t most = (int64_t)topo_usable_cpus(topo) * RANKS_PER_CPU;
    return most < LAUNCH_RANKS_MAX ? most : LAUNCH_RANKS_MAX;
}

int64_t ranks_most(const struct topo *topo, const struct ranks_options *options)
{
    struct launch launch;
    bool launched = false;
    int64_t most = most_here(topo);
    if (launch_detect(&launch, &launched) != STATUS_OK || launched)
        return 0;
    return options->kind != DEV_CPU && !options->oversubscribe && options->devices < most ? options->devices : most;
}

static enum status check_load(const struct topo *topo, int64_t ranks)
{
    int64_t most = most_here(topo);
    if (ranks <= most)
        return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "%lld ranks are more than %d for each of the %d usable CPUs, or %d in all",
                           (long long)ranks, RANKS_PER_CPU, topo_usable_cpus(topo), LAUNCH_RANKS_MAX),
                      "--ranks"),
                "use %lld or fewer here; --world is how many the job will have", (long long)most);
}

static enum status contradicts(const struct launch *launch, int64_t ranks)
{
    return HINT(FAIL(STATUS_USAGE, "--ranks %lld contradicts the launcher: %s", (long long)ranks, launch->rule),
                "leave --ranks out under a launcher");
}

enum status ranks_list(struct cli *cli, const struct topo *topo, int64_t **out, int *n)
{
    const char *text = opt_value(&cli->opts, "ranks");
    struct launch launch;
    bool launched = false;
    int64_t fallback = 0;
    char word[24];
    TRY(find_ranks(topo, &launch, &launched, &fallback));
    text_print(word, sizeof word, "%lld", (long long)fallback);
    TRY(units_parse_list(text != NULL ? text : word, "--ranks", 1, INT64_MAX, out, n));
    *n = opt_drop_repeats(*out, *n);
    enum status status = STATUS_OK;
    for (int i = 0; i < *n && status == STATUS_OK; i++) {
        int64_t ranks = (*out)[i];
        if (!launched)
            status = check_load(topo, ranks);
        else if (ranks != launch.size || *n != 1)
            status = contradicts(&launch, ranks);
    }
    if (status != STATUS_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

enum status ranks_count(struct cli *cli, const struct topo *topo, int64_t usual, int64_t *out)
{
    struct launch launch;
    bool launched = false;
    int64_t fallback = 0;
    TRY(find_ranks(topo, &launch, &launched, &fallback));
    fallback = !launched && usual > 0 ? usual : fallback;
    TRY(opt_count(&cli->opts, "ranks", 1, INT64_MAX, fallback, out));
    if (launched)
        return *out != launch.size ? contradicts(&launch, *out) : STATUS_OK;
    return check_load(topo, *out);
}
