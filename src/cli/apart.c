/* cli/apart.c -- a fork, a pipe for one message, a deadline. */
#include "cli/apart.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct answer {
    enum status status;
    struct status_message message;
    unsigned char out[APART_BYTES];
};
_Static_assert(sizeof(struct answer) <= PIPE_BUF, "an answer is written whole or not at all");

static _Noreturn void answer_write(int fd, apart_fn *fn, void *arg)
{
    struct answer answer;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_setup(LOG_QUIET, false); /* whoever does it in earnest will say it */
    memset(&answer, 0, sizeof answer);
    answer.status = fn(arg, answer.out);
    if (answer.status != STATUS_OK)
        answer.message = *status_last();
    ssize_t wrote = write(fd, &answer, sizeof answer);
    _exit(wrote == (ssize_t)sizeof answer ? 0 : 1);
}

static bool answer_read(int fd, int limit_ms, struct answer *out)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&wait, 1, limit_ms);
    while (ready < 0 && errno == EINTR);
    return ready > 0 && read(fd, out, sizeof *out) == (ssize_t)sizeof *out;
}

enum status apart_ask(apart_fn *fn, void *arg, void *out, size_t bytes, int limit_ms)
{
    struct answer answer;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_MACHINE, "no pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0)
        answer_write(ends[1], fn, arg);
    int error = errno;
    close(ends[1]); /* so that reading ends when the child does */
    bool answered = child > 0 && answer_read(ends[0], limit_ms, &answer);
    close(ends[0]);
    if (child < 0)
        return FAIL(STATUS_MACHINE, "cannot start a process: %s", strerror(error));
    if (!answered)
        kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (!answered)
        return FAIL(STATUS_TIMEOUT, "a process that was asked something ended, or did not answer within %d ms",
                    limit_ms);
    if (answer.status != STATUS_OK)
        status_restore(&answer.message);
    else
        memcpy(out, answer.out, bytes);
    return answer.status;
}
