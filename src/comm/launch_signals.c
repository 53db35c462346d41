/* comm/launch_signals.c -- handlers that write to a pipe.
 *
 * Blocking the signals and waiting for them would be shorter, but holds for one thread only: a library's worker thread
 * (a BLAS starts some when it is loaded) would take a SIGINT and end the process.
 */
#include "comm/launch_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static const int watched[LAUNCH_SIGNALS] = {SIGCHLD, SIGINT, SIGTERM, SIGTSTP};
static volatile int wake_fd = -1;

static void on_signal(int number)
{
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    ssize_t written = write(wake_fd, &byte, 1); /* a full pipe wakes as well */
    (void)written;
    errno = kept;
}

enum status launch_signals_take(struct launch_signals *signals)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return FAIL(STATUS_MACHINE, "no pipe for signals: %s", strerror(errno));
    signals->read_fd = fds[0];
    signals->write_fd = wake_fd = fds[1];
    sigemptyset(&signals->watched);
    for (int i = 0; i < LAUNCH_SIGNALS; i++) {
        const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigaddset(&signals->watched, watched[i]);
        sigaction(watched[i], NULL, &signals->old[i]);
        /* An ignored SIGCHLD would reap ranks behind our back; the others are ignored because somebody wants that. */
        if (watched[i] == SIGCHLD || signals->old[i].sa_handler != SIG_IGN)
            sigaction(watched[i], &action, NULL);
    }
    return STATUS_OK;
}

static void restore(const struct launch_signals *signals)
{
    for (int i = 0; i < LAUNCH_SIGNALS; i++)
        sigaction(watched[i], &signals->old[i], NULL);
}

void launch_signals_give_back(struct launch_signals *signals)
{
    if (signals->read_fd < 0)
        return;
    restore(signals);
    wake_fd = -1;
    close(signals->read_fd);
    close(signals->write_fd);
    signals->read_fd = signals->write_fd = -1;
}

int launch_signals_wait(const struct launch_signals *signals, int ms)
{
    struct pollfd ready = {.fd = signals->read_fd, .events = POLLIN};
    unsigned char number;
    poll(&ready, 1, ms);
    return read(signals->read_fd, &number, 1) == 1 ? number : 0;
}

void launch_signals_hold(struct launch_signals *signals)
{
    sigprocmask(SIG_BLOCK, &signals->watched, &signals->mask);
}

void launch_signals_release(const struct launch_signals *signals)
{
    sigprocmask(SIG_SETMASK, &signals->mask, NULL);
}

void launch_signals_leave(const struct launch_signals *signals)
{
    for (int i = 0; i < LAUNCH_SIGNALS; i++)
        if (watched[i] == SIGCHLD || signals->old[i].sa_handler != SIG_IGN)
            signal(watched[i], SIG_DFL);
    close(signals->read_fd);
    close(signals->write_fd);
    launch_signals_release(signals);
}

void launch_signals_stop(void)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction ours;
    sigaction(SIGTSTP, &plain, &ours);
    kill(getpid(), SIGTSTP);
    sigaction(SIGTSTP, &ours, NULL);
}
