/* comm/nap.c -- how long to wait between two looks that found nothing. */
#include "comm/nap.h"

#include "base/clock.h"
#include "base/thread.h"

#include <sched.h>
#include <time.h>

enum {
    YIELD_NS = 2000000, /* after the spin with sched_yield: another rank may need this CPU */
    NAP_PART = 32, /* then asleep for this part of the time waited, so that a timed wait is not much longer for it */
    NAP_MAX_NS = 1000000,
};

void nap_take(struct nap *nap)
{
    if (++nap->looks <= NAP_SPINS) {
        thread_pause();
        return;
    }
    int64_t now = clock_ns();
    if (nap->looks == NAP_SPINS + 1)
        nap->since_ns = now;
    int64_t waited_ns = now - nap->since_ns;
    if (waited_ns < YIELD_NS) {
        sched_yield();
        return;
    }
    int64_t nap_ns = waited_ns / NAP_PART < NAP_MAX_NS ? waited_ns / NAP_PART : NAP_MAX_NS;
    const struct timespec nap_time = {.tv_nsec = (long)nap_ns};
    nanosleep(&nap_time, NULL);
}
