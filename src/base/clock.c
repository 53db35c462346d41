/* base/clock.c -- monotonic time, deadlines, stamps. */
#include "base/clock.h"

#include <pthread.h>
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_deadline(int64_t after_us)
{
    int64_t now = clock_ns();
    if (after_us < 0 || after_us > (INT64_MAX - now) / 1000)
        return INT64_MAX;
    return now + after_us * 1000;
}

bool clock_passed(int64_t deadline_ns)
{
    return deadline_ns != INT64_MAX && clock_ns() >= deadline_ns;
}

void clock_iso(char buf[32])
{
    time_t now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || !strftime(buf, 32, "%Y-%m-%dT%H:%M:%SZ", &utc))
        buf[0] = '\0';
}

static pthread_once_t resolution_once = PTHREAD_ONCE_INIT;
static int64_t resolution_ns;

static void measure_resolution(void)
{
    int64_t least = INT64_MAX;
    for (int steps = 0; steps < 100; steps++) {
        int64_t from = clock_ns(), to = from;
        while (to == from)
            to = clock_ns();
        if (to - from < least)
            least = to - from;
    }
    resolution_ns = least;
}

int64_t clock_resolution_ns(void)
{
    pthread_once(&resolution_once, measure_resolution);
    return resolution_ns;
}
