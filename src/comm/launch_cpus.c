/* comm/launch_cpus.c -- CPU lists, and binding by them. */
#include "comm/launch_cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CPUS_MAX = 16384, SET_BYTES = CPUS_MAX / 8 };

struct launch_cpus {
    cpu_set_t set[SET_BYTES / sizeof(cpu_set_t)]; /* one set of CPUS_MAX */
};

/* A number, moving *text behind it; -1 when there is none or it is beyond any CPU. */
static int number(const char **text)
{
    if (**text < '0' || **text > '9')
        return -1;
    char *end;
    errno = 0;
    unsigned long value = strtoul(*text, &end, 10);
    *text = end;
    return errno || value >= CPUS_MAX ? -1 : (int)value;
}

static bool parse(const char *list, struct launch_cpus *out)
{
    memset(out, 0, sizeof *out);
    for (const char *p = list;; p++) {
        int from = number(&p), to = from;
        if (*p == '-') {
            p++;
            to = number(&p);
        }
        if (from < 0 || to < from)
            return false;
        for (int cpu = from; cpu <= to; cpu++)
            CPU_SET_S((size_t)cpu, SET_BYTES, out->set);
        if (*p == '\0')
            return true;
        if (*p != ',')
            return false;
    }
}

enum status launch_cpus_save(struct launch_cpus **out)
{
    struct launch_cpus *saved = calloc(1, sizeof *saved);
    if (!saved)
        return FAIL(STATUS_NOMEM, "out of memory for a set of CPUs");
    if (sched_getaffinity(0, SET_BYTES, saved->set) != 0) {
        free(saved);
        return FAIL(STATUS_MACHINE, "the CPUs of this process cannot be read: %s", strerror(errno));
    }
    *out = saved;
    return STATUS_OK;
}

void launch_cpus_restore(struct launch_cpus *saved)
{
    if (saved)
        sched_setaffinity(0, SET_BYTES, saved->set);
    free(saved);
}

enum status launch_cpus_bind(const char *list, const struct launch_cpus *saved)
{
    if (!list || !list[0]) {
        sched_setaffinity(0, SET_BYTES, saved->set);
        return STATUS_OK;
    }
    struct launch_cpus wanted, real;
    if (!parse(list, &wanted))
        return HINT(FAIL(STATUS_USAGE, "'%s' is not a list of CPUs", list), "numbers and rising ranges, as in 0-3,8");
    /* The kernel quietly drops CPUs outside the cpuset, so look at what became of it. */
    memset(&real, 0, sizeof real);
    if (sched_setaffinity(0, SET_BYTES, wanted.set) != 0 || sched_getaffinity(0, SET_BYTES, real.set) < 0 ||
        !CPU_EQUAL_S(SET_BYTES, wanted.set, real.set)) {
        sched_setaffinity(0, SET_BYTES, saved->set);
        return HINT(FAIL(STATUS_USAGE, "a rank cannot be bound to CPUs %s here", list),
                    "use CPUs that are online and in this process's cpuset");
    }
    return STATUS_OK;
}
