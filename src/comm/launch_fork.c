/* comm/launch_fork.c -- start n ranks on this host, supervise them, and leave nothing behind.
 *
 * The ranks form a process group of their own, so signals typed at a terminal or sent to the caller's group reach this
 * supervisor alone, which forwards each of them once. The group also holds whatever a rank starts; it is killed as a
 * whole at the end. No rank is reaped before all have ended: the group's id cannot be reused while its leader is a
 * zombie.
 *
 * Two things tell a rank that fails from a rank that ends: a page shared with the ranks, where each notes the order in
 * which it returned from rank_main (a rank that leaves through exit() or a crash does not), and its exit status. On the
 * same page the supervisor notes what became of each rank, for the one that speaks.
 */
#include "base/clock.h"
#include "base/log.h"
#include "comm/launch.h"
#include "comm/launch_cpus.h"
#include "comm/launch_keeper.h"
#include "comm/launch_signals.h"
#include "comm/launch_sweep.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_MS = 100,           /* how late the grace period may be noticed */
    SAME_SIGNAL_US = 100000, /* `timeout` and shells signal a process and its group: that is one wish, not two */
    EXIT_DIED = 4,
    EXIT_SIGNAL = 128,
};

struct rank {
    pid_t pid;
    bool ended;
    bool killed; /* by this supervisor */
    int code;    /* exit code, when signal is 0 */
    int signal;
    int64_t stopped_ns; /* since when it is stopped; 0: it runs */
    bool stop_said;
};

enum { FATE_RUNS, FATE_ENDED = -1 /* else the signal */ };

struct launch_notes { /* shared with the ranks */
    atomic_int count;
    atomic_int returned[LAUNCH_RANKS_MAX]; /* 1 for the first rank that returned from rank_main; 0: has not */
    atomic_int fate[LAUNCH_RANKS_MAX];
};

struct job {
    int size, alive;
    struct rank *ranks;
    struct launch_notes *notes;
    pid_t supervisor, group;
    time_t started;
    int64_t kill_ns; /* end of the grace period */
    bool killed;     /* it has passed, or the user insisted */
    int first_dead;  /* rank that died of a signal nobody here sent */
    int first_early; /* rank that left without returning */
    int first_stuck; /* rank that was stopped for too long */
    int forwarded;   /* last signal sent on to rank 0 */
    int stopped_by;  /* signal that came twice */
    int64_t signal_ns;
};

struct saved { /* what the caller gets back */
    struct launch_signals signals;
    struct launch_cpus *cpus;
    int subreaper;
};

static enum status listen_loopback(struct launch *launch)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return FAIL(STATUS_MACHINE, "no port on the loopback interface: %s", strerror(error));
    }
    launch->listen_fd = fd;
    launch->root_listening = true;
    snprintf(launch->root, sizeof launch->root, "127.0.0.1:%d", ntohs(address.sin_port));
    return STATUS_OK;
}

/* A port can be had where none can be reached: in a new network namespace the interface is down. No packet is sent. */
static enum status reach_loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (error != 0)
        return HINT(FAIL(STATUS_MACHINE, "ranks cannot reach each other at 127.0.0.1: %s", strerror(error)),
                    "bring the loopback interface up: ip link set lo up");
    return STATUS_OK;
}

static enum status make_token(char token[33])
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return FAIL(STATUS_MACHINE, "no random bytes for the job's token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return STATUS_OK;
}

/* ---- in a rank ---- */

static _Noreturn void run_rank(const struct job *job, const struct launch *launch, const struct launch_signals *signals,
                               launch_rank_main rank_main, void *arg)
{
    setpgid(0, job->group);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != job->supervisor) /* it died before the line above */
        _exit(EXIT_DIED);
    launch_signals_leave(signals);
    signal(SIGTTIN, SIG_IGN); /* outside the terminal's group: reading from it fails instead of stopping the rank */
    signal(SIGTTOU, SIG_IGN);
    if (launch->rank != 0)
        close(launch->listen_fd);
    struct launch mine = *launch;
    if (launch->rank != 0)
        mine.listen_fd = -1;
    int code = rank_main(&mine, arg);
    fflush(NULL);
    atomic_store(&job->notes->returned[launch->rank], atomic_fetch_add(&job->notes->count, 1) + 1);
    exit(code);
}

bool launch_fate(const struct launch *launch, int rank, int wait_ms, int *out_signal)
{
    if (launch->notes == NULL || rank < 0 || rank >= launch->size)
        return false;
    int64_t deadline = clock_deadline(wait_ms * INT64_C(1000));
    int fate;
    while ((fate = atomic_load(&launch->notes->fate[rank])) == FATE_RUNS && !clock_passed(deadline))
        usleep(1000);
    *out_signal = fate > 0 ? fate : 0;
    return fate != FATE_RUNS;
}

/* ---- in the supervisor ---- */

static void kill_all(struct job *job)
{
    job->killed = true;
    job->kill_ns = INT64_MAX;
    for (int r = 0; r < job->size; r++)
        job->ranks[r].killed = !job->ranks[r].ended;
    if (job->group > 0)
        kill(-job->group, SIGKILL);
    /* A rank that has not joined the group yet. */
    for (int r = 0; r < job->size; r++)
        if (job->ranks[r].pid > 0 && !job->ranks[r].ended)
            kill(job->ranks[r].pid, SIGKILL);
}

static void start_grace(struct job *job)
{
    if (!job->killed && job->kill_ns == INT64_MAX)
        job->kill_ns = clock_deadline(LAUNCH_GRACE_US);
}

static void rank_ended(struct job *job, int r, const siginfo_t *info)
{
    struct rank *rank = &job->ranks[r];
    rank->ended = true;
    job->alive--;
    if (info->si_code == CLD_EXITED)
        rank->code = info->si_status;
    else
        rank->signal = info->si_status;
    bool told = rank->killed || (r == 0 && rank->signal && rank->signal == job->forwarded);
    atomic_store(&job->notes->fate[r], rank->signal && !told ? rank->signal : FATE_ENDED);
    bool returned = atomic_load(&job->notes->returned[r]) != 0;
    if (rank->signal && !told && job->first_dead < 0)
        job->first_dead = r;
    if (!rank->signal && !returned && r != 0 && job->first_early < 0)
        job->first_early = r;
    if (r == 0 || rank->signal || rank->code || !returned)
        start_grace(job);
}

static void rank_stopped(struct job *job, int r)
{
    struct rank *rank = &job->ranks[r];
    int64_t now = clock_ns();
    rank->stopped_ns = rank->stopped_ns != 0 ? rank->stopped_ns : now;
    int64_t stopped_us = (now - rank->stopped_ns) / 1000;
    if (stopped_us > LAUNCH_STOPPED_SAID_US && !rank->stop_said) {
        rank->stop_said = true;
        log_warn("rank %d is stopped (SIGSTOP) and the others wait for it, for %d s more at most: kill -CONT %d lets it "
                 "go on",
                 r, (int)((LAUNCH_STOPPED_US - stopped_us) / 1000000), (int)rank->pid);
    }
    if (stopped_us > LAUNCH_STOPPED_US && !job->killed) {
        job->first_stuck = r;
        kill_all(job);
    } else if (job->forwarded && !job->killed) { /* rank 0 waits for it, or is it: no answer can come */
        job->stopped_by = job->forwarded;
        kill_all(job);
    }
}

static void look_at_ranks(struct job *job)
{
    for (int r = 0; r < job->size; r++) {
        siginfo_t info = {0};
        struct rank *rank = &job->ranks[r];
        if (rank->ended || rank->pid <= 0)
            continue;
        if (waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) != 0)
            continue;
        bool stopped = info.si_pid != 0 && info.si_code == CLD_STOPPED;
        if (stopped)
            rank_stopped(job, r);
        else
            rank->stopped_ns = 0;
        if (info.si_pid != 0 && !stopped)
            rank_ended(job, r, &info);
    }
}

static void forward(struct job *job, int sig)
{
    int64_t now = clock_ns();
    if (job->forwarded && now - job->signal_ns < SAME_SIGNAL_US * INT64_C(1000))
        return;
    job->signal_ns = now;
    if (job->forwarded || job->ranks[0].ended) {
        job->stopped_by = sig;
        kill_all(job);
        return;
    }
    job->forwarded = sig;
    kill(job->ranks[0].pid, sig);
}

/* Ctrl-Z: the ranks stop with the supervisor and go on with it. */
static void suspend(const struct job *job)
{
    kill(-job->group, SIGSTOP);
    launch_signals_stop();
    kill(-job->group, SIGCONT);
}

static void supervise(struct job *job, const struct launch_signals *signals)
{
    for (look_at_ranks(job); job->alive > 0; look_at_ranks(job)) {
        int sig = launch_signals_wait(signals, TICK_MS);
        if (sig == SIGINT || sig == SIGTERM)
            forward(job, sig);
        else if (sig == SIGTSTP)
            suspend(job);
        if (clock_passed(job->kill_ns)) {
            look_at_ranks(job);
            kill_all(job);
        }
    }
}

/* False when there is no such child. */
static bool wait_for(pid_t pid)
{
    pid_t got;
    do
        got = waitpid(pid, NULL, 0);
    while (got < 0 && errno == EINTR);
    return got > 0;
}

/* Everything that is left of the group, adopted children of ranks too. */
static void reap(const struct job *job)
{
    if (job->group <= 0)
        return;
    kill(-job->group, SIGKILL);
    for (int r = 0; r < job->size; r++)
        if (job->ranks[r].pid > 0)
            wait_for(job->ranks[r].pid);
    for (bool more = true; more;)
        more = wait_for(-job->group);
}

static void sweep(const struct job *job)
{
    pid_t *killed = calloc((size_t)job->size, sizeof *killed);
    int n = 0;
    for (int r = 0; killed && r < job->size; r++)
        if (job->ranks[r].signal)
            killed[n++] = job->ranks[r].pid;
    if (n > 0)
        launch_sweep(killed, n, job->started);
    free(killed);
}

static void start_keeper(const struct job *job, struct launch_signals *signals, struct launch_keeper *keeper)
{
    pid_t *pids = calloc((size_t)job->size, sizeof *pids);
    for (int r = 0; pids && r < job->size; r++)
        pids[r] = job->ranks[r].pid;
    launch_signals_hold(signals); /* our handlers are not the keeper's */
    if (pids)
        launch_keeper_start(pids, job->size, job->started, keeper);
    launch_signals_release(signals);
    free(pids);
}

/* Rank 0 speaks for the job. Which rank, if any, broke away from what rank 0 did? */
static int first_apart(const struct job *job)
{
    int best = -1, best_order = 0, root_order = atomic_load(&job->notes->returned[0]);
    bool root_fine = job->ranks[0].code == 0;
    for (int r = 1; r < job->size; r++) {
        const struct rank *rank = &job->ranks[r];
        int order = atomic_load(&job->notes->returned[r]);
        bool apart = root_fine ? rank->code != 0 : rank->code != job->ranks[0].code && order < root_order;
        if (!rank->killed && apart && (best < 0 || order < best_order)) {
            best = r;
            best_order = order;
        }
    }
    return best;
}

static int first_killed(const struct job *job)
{
    for (int r = 0; r < job->size; r++)
        if (job->ranks[r].killed)
            return r;
    return -1;
}

static struct launch_report judge(const struct job *job)
{
    const struct rank *root = &job->ranks[0];
    struct launch_report report = {.failed_rank = -1, .root_spoke = root->signal == 0};
    if (job->stopped_by || (root->signal && root->signal == job->forwarded && !root->killed)) {
        report.signal = job->stopped_by ? job->stopped_by : root->signal;
        report.exit_code = EXIT_SIGNAL + report.signal;
    } else if (job->first_stuck >= 0 && root->killed) {
        report.failed_rank = job->first_stuck;
        report.stopped = true;
        report.exit_code = EXIT_DIED;
    } else if (job->first_dead >= 0) {
        report.failed_rank = job->first_dead;
        report.signal = job->ranks[job->first_dead].signal;
        report.exit_code = EXIT_DIED;
    } else if (job->first_early >= 0) {
        report.failed_rank = job->first_early;
        report.exit_code = EXIT_DIED;
    } else {
        int apart = first_apart(job), killed = first_killed(job);
        report.failed_rank = apart >= 0 ? apart : killed;
        report.signal = apart < 0 && killed >= 0 ? SIGKILL : 0;
        report.ours = report.signal != 0;
        report.exit_code = root->code;
        if (killed >= 0 && root->code == 0)
            report.exit_code = EXIT_DIED;
        else if (apart >= 0 && root->code == 0)
            report.exit_code = job->ranks[apart].code;
    }
    return report;
}

static enum status start(struct job *job, struct launch *launch, char *const *cpus, struct saved *saved,
                         launch_rank_main rank_main, void *arg)
{
    for (int r = 0; r < job->size; r++) {
        /* The rank inherits the binding: one that cannot be had is known before anything runs. */
        TRY(WHERE(launch_cpus_bind(cpus ? cpus[r] : NULL, saved->cpus), "rank %d", r));
        launch->rank = launch->local_rank = r;
        fflush(NULL);
        launch_signals_hold(&saved->signals);
        pid_t pid = fork();
        if (pid == 0)
            run_rank(job, launch, &saved->signals, rank_main, arg);
        int error = errno;
        launch_signals_release(&saved->signals);
        if (pid < 0)
            return HINT(FAIL(STATUS_MACHINE, "rank %d of %d cannot be started: %s", r, job->size, strerror(error)),
                        "%s", error == EAGAIN ? "the limit of processes is reached: ulimit -u, or pids.max of the control group"
                                        : "");
        if (r == 0)
            job->group = pid;
        setpgid(pid, job->group); /* here and in the rank: whoever comes first */
        job->ranks[r].pid = pid;
        job->alive++;
    }
    return STATUS_OK;
}

static enum status take_over(struct saved *saved)
{
    TRY(launch_cpus_save(&saved->cpus));
    prctl(PR_GET_CHILD_SUBREAPER, &saved->subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return launch_signals_take(&saved->signals);
}

static void give_back(struct saved *saved)
{
    launch_signals_give_back(&saved->signals);
    if (saved->cpus)
        prctl(PR_SET_CHILD_SUBREAPER, saved->subreaper);
    launch_cpus_restore(saved->cpus);
}

static enum status job_create(int n, struct job *job)
{
    *job = (struct job){.size = n,
                        .supervisor = getpid(),
                        .started = time(NULL),
                        .kill_ns = INT64_MAX,
                        .first_dead = -1,
                        .first_early = -1,
                        .first_stuck = -1};
    job->ranks = calloc((size_t)n, sizeof *job->ranks);
    void *shared = mmap(NULL, sizeof *job->notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job->notes = shared == MAP_FAILED ? NULL : shared;
    return job->ranks && job->notes ? STATUS_OK : FAIL(STATUS_NOMEM, "out of memory for %d ranks", n);
}

static void job_destroy(struct job *job)
{
    free(job->ranks);
    if (job->notes)
        munmap(job->notes, sizeof *job->notes);
}

enum status launch_fork(int n, char *const *cpus, launch_rank_main rank_main, void *arg, struct launch_report *out)
{
    if (n < 1 || n > LAUNCH_RANKS_MAX)
        return HINT(FAIL(STATUS_USAGE, "%d ranks cannot be started here", n), "1 to %d", LAUNCH_RANKS_MAX);
    struct launch launch = {.size = n, .local_size = n, .listen_fd = -1};
    snprintf(launch.rule, sizeof launch.rule, "fork of %d rank%s", n, n == 1 ? "" : "s");
    struct job job;
    struct launch_keeper keeper = {.write_fd = -1};
    struct saved saved = {.signals = {.read_fd = -1, .write_fd = -1}};
    enum status status;
    TRY_OUT(job_create(n, &job));
    launch.notes = job.notes;
    TRY_OUT(make_token(launch.token));
    TRY_OUT(listen_loopback(&launch));
    if (n > 1)
        TRY_OUT(reach_loopback());
    TRY_OUT(take_over(&saved));
    status = start(&job, &launch, cpus, &saved, rank_main, arg);
    close(launch.listen_fd); /* rank 0's alone from here on: refused means that it ended */
    launch.listen_fd = -1;
    launch_cpus_bind(NULL, saved.cpus);
    if (status != STATUS_OK)
        kill_all(&job);
    else
        start_keeper(&job, &saved.signals, &keeper);
    supervise(&job, &saved.signals);
    reap(&job);
    sweep(&job);
    launch_keeper_end(&keeper);
    if (status == STATUS_OK)
        *out = judge(&job);
out:
    if (launch.listen_fd >= 0)
        close(launch.listen_fd);
    give_back(&saved);
    job_destroy(&job);
    return status;
}
