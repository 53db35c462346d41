/* base/interrupt.c -- the first signal is remembered, the second one acts. */
#include "base/interrupt.h"

#include "base/text.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t pending;
static char line[128]; /* made before it is needed: a handler formats nothing */
static size_t line_bytes;

static void on_signal(int number)
{
    if (pending) {
        signal(number, SIG_DFL);
        raise(number); /* blocked while we are here: ends the process on return */
        return;
    }
    pending = number;
    int kept = errno;
    ssize_t written = write(STDERR_FILENO, line, line_bytes);
    (void)written;
    errno = kept;
}

/* poll() and sleeps end with EINTR whatever the flags; SA_RESTART spares every plain read and write. */
static void handle_both(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* On a terminal "^C", and perhaps a line that is redrawn in place, stand before it. */
static void line_make(const char *ends)
{
    line[0] = '\0';
    if (ends != NULL)
        text_print(line, sizeof line, "%ssptune: interrupted: ends after %s; again stops at once\n",
                   isatty(STDERR_FILENO) ? "\n" : "", ends);
    line_bytes = strlen(line);
}

void interrupt_setup(const char *ends)
{
    pending = 0;
    line_make(ends);
    handle_both(on_signal);
}

void interrupt_ignore(void)
{
    pending = 0;
    handle_both(SIG_IGN);
}

int interrupt_pending(void)
{
    return pending;
}

enum status interrupt_status(void)
{
    switch (pending) {
    case 0:
        return STATUS_OK;
    case SIGTERM:
        return FAIL(STATUS_TERMINATED, "terminated by SIGTERM");
    default:
        return FAIL(STATUS_INTERRUPTED, "interrupted");
    }
}
