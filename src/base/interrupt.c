/* base/interrupt.c -- the first signal is remembered, the second one acts. */
#include "base/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t pending;

static void on_signal(int number)
{
    if (pending) {
        signal(number, SIG_DFL);
        raise(number); /* blocked while we are here: ends the process on return */
        return;
    }
    pending = number;
}

/* poll() and sleeps end with EINTR whatever the flags; SA_RESTART spares every plain read and write. */
static void handle_both(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void interrupt_setup(void)
{
    pending = 0;
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
