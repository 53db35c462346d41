/* comm/launch_keeper.c -- waits for the end of a pipe that the supervisor alone holds open.
 *
 * The supervisor sweeps up what killed ranks leave in shared memory. When it is killed itself the kernel kills the ranks
 * (PR_SET_PDEATHSIG), perhaps between making a segment and marking it to vanish, and nobody is left. The keeper then
 * waits until the ranks have gone, sweeps, and goes too. It is in a session of its own, so that what is sent to the
 * job's group or typed at a terminal does not reach it, and holds no descriptor but the pipe's: neither the measuring
 * lock nor somebody's stdout stays open for its sake.
 */
#include "comm/launch_keeper.h"
#include "base/clock.h"
#include "comm/launch_sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GONE_US = 5 * 1000 * 1000, LOOK_MS = 5 };

/* Ended, whoever reaps it. Its id may belong to another process by now, which ends no sooner: then the deadline does. */
static bool is_gone(pid_t pid)
{
    char path[32], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(file);
    return state == 'Z' || state == 'X';
}

static void wait_for_ranks(const pid_t *ranks, int n)
{
    const int64_t deadline_ns = clock_deadline(GONE_US);
    for (int r = 0; r < n; r++)
        while (!is_gone(ranks[r]) && !clock_passed(deadline_ns))
            poll(NULL, 0, LOOK_MS);
}

/* A byte: the supervisor needs no keeper any more. Nothing: it has died. */
static bool is_dismissed(int fd)
{
    char byte;
    ssize_t n;
    do
        n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n != 0;
}

static _Noreturn void keep(int fd, const pid_t *ranks, int n, time_t since)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGPIPE};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    setsid();
    if (fd != 0 && dup2(fd, 0) < 0)
        _exit(0);
    for (int other = 1, most = (int)sysconf(_SC_OPEN_MAX); other < (most > 0 && most < 65536 ? most : 65536); other++)
        close(other);
    if (!is_dismissed(0)) {
        wait_for_ranks(ranks, n);
        launch_sweep(ranks, n, since);
    }
    _exit(0);
}

void launch_keeper_start(const pid_t *ranks, int n, time_t since, struct launch_keeper *out)
{
    int fds[2];
    *out = (struct launch_keeper){.write_fd = -1};
    if (pipe2(fds, O_CLOEXEC) != 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[1]);
        keep(fds[0], ranks, n, since);
    }
    close(fds[0]);
    if (pid < 0)
        close(fds[1]);
    else
        *out = (struct launch_keeper){.pid = pid, .write_fd = fds[1]};
}

void launch_keeper_end(struct launch_keeper *keeper)
{
    if (keeper->pid <= 0)
        return;
    ssize_t written = write(keeper->write_fd, "", 1); /* SIGPIPE is ignored in this program, should it have gone */
    (void)written;
    close(keeper->write_fd);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *keeper = (struct launch_keeper){.write_fd = -1};
}
