/* bench/spin.c -- chains of multiply-adds in registers, as wide as the machine has them.
 *
 * Twelve independent chains cover a latency of 4 cycles at two per cycle (8) with room; each is one vector register. Built with
 * contraction, so that a * x + y is one instruction where there is one.
 */
#include "bench/spin.h"

#include "base/clock.h"

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

enum { CHAINS = 12, ROUNDS = 8192, SPINS = 5 };

/* Not instrumented by sanitizers: the rate would be theirs. */
#define SPIN(isa, lanes, attributes)                                                                                   \
    typedef float vector_##isa __attribute__((vector_size((lanes)*4)));                                                \
    attributes                                                                                                         \
        __attribute__((no_sanitize("undefined,address,thread"))) static float spin_##isa(int rounds, float x, float y) \
    {                                                                                                                  \
        vector_##isa a[CHAINS];                                                                                        \
        float sum = 0;                                                                                                 \
        for (int i = 0; i < CHAINS; i++)                                                                               \
            a[i] = (vector_##isa){0} + (float)i;                                                                       \
        for (int r = 0; r < rounds; r++) {                                                                             \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) a[i] = a[i] * x + y;                             \
        }                                                                                                              \
        for (int i = 0; i < CHAINS; i++)                                                                               \
            sum += a[i][0];                                                                                            \
        return sum;                                                                                                    \
    }

SPIN(baseline, 4, )
#if defined(__x86_64__)
SPIN(avx2, 8, __attribute__((target("avx2,fma"))))
SPIN(avx512, 16, __attribute__((target("avx512f,fma"))))
#endif

struct kind {
    const char *name;
    int lanes;
    float (*run)(int rounds, float x, float y);
};

static struct kind pick(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return (struct kind){"avx512", 16, spin_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct kind){"avx2", 8, spin_avx2};
#endif
    return (struct kind){"baseline", 4, spin_baseline};
}

static double median(double *x, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && x[j] < x[j - 1]; j--) {
            double held = x[j];
            x[j] = x[j - 1];
            x[j - 1] = held;
        }
    return x[n / 2];
}

double spin_rate(void)
{
    static volatile float factor = 0.999f, term = 0.001f; /* unknown to the compiler, and no chain overflows */
    float sum = 0;
    struct kind kind = pick();
    double us[SPINS];
    for (int i = 0; i < SPINS; i++) {
        int64_t from = clock_ns();
        sum += kind.run(ROUNDS, factor, term);
        us[i] = (double)(clock_ns() - from) * 1e-3;
    }
    double flops = 2.0 * CHAINS * (double)kind.lanes * ROUNDS, middle = median(us, SPINS);
    return middle > 0 && sum > 0 ? flops / middle : 0; /* the sum is used: it has to be computed */
}

struct spins {
    atomic_int here;
    int threads;
    int64_t deadline_ns;
    double rates[DEV_THREADS_MAX];
};

/* Begins when every thread is here; one that does not come in time is not waited for, and will find its CPU busy. */
static void spin_task(void *arg, int64_t task, int thread)
{
    struct spins *spins = arg;
    (void)task;
    atomic_fetch_add(&spins->here, 1);
    while (atomic_load(&spins->here) < spins->threads && !clock_passed(spins->deadline_ns))
        sched_yield();
    spins->rates[thread] = spin_rate(); /* a thread that takes two tasks counts once, and a missing one for nothing */
}

double spin_rate_all(struct dev_queue *queue)
{
    enum { PATIENCE_US = 2000 };
    struct spins spins = {.threads = dev_queue_threads(queue), .deadline_ns = clock_deadline(PATIENCE_US)};
    double sum = 0;
    if (spins.threads == 1)
        return spin_rate();
    dev_parallel(queue, spins.threads, spin_task, &spins);
    for (int i = 0; i < spins.threads; i++)
        sum += spins.rates[i];
    return sum;
}

enum status spin_rate_ranks(struct comm *world, struct dev *dev, double *out)
{
    enum { TIMES = 5 };
    struct dev_queue *queue = NULL;
    double best = 0;
    if (dev_kind_of(dev) == DEV_CPU) {
        enum status status = comm_agree(world, dev_queue_create(dev, &queue), "measure its rate");
        for (int i = 0; i < TIMES && status == STATUS_OK; i++) {
            double rate = spin_rate_all(queue) * 1e6;
            best = rate > best ? rate : best;
        }
        dev_queue_destroy(queue);
        TRY(status);
    }
    TRY(comm_max(world, &best, 1));
    *out = best;
    return STATUS_OK;
}

const char *spin_isa(void)
{
    return pick().name;
}
