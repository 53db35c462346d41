/* kernels/attention_cpu.c -- vectorised attention on CPU threads: flash-style blocks, fp32 accumulation, O(seq)
 * workspace.
 *
 * Measured on one Zen 4 core (FMA peak 117 GFLOP/s), fp32, S = 3072, not causal, forward and backward: head_dim 64 97
 * and 103, 128 104 and 101, 256 106 and 88 GFLOP/s with AVX2; AVX-512 the same within 3 %; baseline (SSE2) 30 and 35.
 *
 * The first instruction set of the table that this machine executes is used. All variants
 * obey the same tolerance but round differently: a run is bitwise repeatable on one machine, not across machines.
 */
#include "kernels/attention_cpu.h"

#include "kernels/attention_check.h"

static const struct attention_cpu_isa isas[] = {
#define ROW(isa)                                                                                                       \
    {                                                                                                                  \
#isa, ATTENTION_CPU_JOIN(forward_bytes, isa), ATTENTION_CPU_JOIN(backward_bytes, isa),                         \
            ATTENTION_CPU_JOIN(forward, isa), ATTENTION_CPU_JOIN(backward, isa)                                        \
    }
#if defined(__x86_64__)
    ROW(avx512),
    ROW(avx2),
#endif
    ROW(baseline),
#undef ROW
};

enum { ISAS = sizeof isas / sizeof isas[0] };

static int chosen = -1;

static bool isa_runs(int index)
{
#if defined(__x86_64__)
    if (index == 0)
        return __builtin_cpu_supports("avx512f");
    if (index == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return index < ISAS;
}

const struct attention_cpu_isa *attention_cpu_isa(int index)
{
    for (int i = 0; i < ISAS; i++)
        if (isa_runs(i) && index-- == 0)
            return &isas[i];
    return NULL;
}

void attention_cpu_use(int index)
{
    chosen = index;
}

static const struct attention_cpu_isa *isa_in_use(void)
{
    const struct attention_cpu_isa *isa = attention_cpu_isa(chosen < 0 ? 0 : chosen);
    return isa != NULL ? isa : attention_cpu_isa(0);
}

const char *attention_cpu_isa_name(void)
{
    return isa_in_use()->name;
}

static struct verdict cpu_supports(const struct attention_shape *shape)
{
    struct verdict verdict = attention_shape_verdict(shape);
    if (!verdict_ok(&verdict))
        return verdict;
    if (shape->head_dim > ATTENTION_CPU_DIM_MAX || shape->head_dim_v > ATTENTION_CPU_DIM_MAX) {
        verdict = verdict_no(RULE_KERNEL_CANNOT, "the cpu kernel takes head_dim up to %d, not %d and %d",
                             ATTENTION_CPU_DIM_MAX, shape->head_dim, shape->head_dim_v);
        verdict.nearest[0] = ATTENTION_CPU_DIM_MAX;
    }
    return verdict;
}

static size_t cpu_workspace_bytes(const struct attention_shape *shape, bool backward, int threads)
{
    const struct attention_cpu_isa *isa = isa_in_use();
    if (!attention_shape_good(shape))
        return 0;
    return backward ? isa->backward_bytes(shape, threads) : isa->forward_bytes(shape, threads);
}

static enum status cpu_check(const struct attention_shape *shape, const struct attention_args *args, bool backward)
{
    TRY(attention_args_check(shape, args, backward, 1));
    struct verdict verdict = cpu_supports(shape);
    return verdict_ok(&verdict) ? STATUS_OK : FAIL(STATUS_UNSUPPORTED, "attention: %s", verdict.why);
}

/* A call that takes less than waking other threads does (some 50 us): its caller computes alone. */
static struct dev_queue *worth_sharing(const struct attention_shape *shape, bool backward, struct dev_queue *queue)
{
    static const double least_flops = 4e6;
    return dev_queue_threads(queue) > 1 && attention_flops(shape, backward) >= least_flops ? queue : NULL;
}

static enum status cpu_forward(const struct attention_shape *shape, const struct attention_args *args,
                               struct dev_queue *queue)
{
    TRY(cpu_check(shape, args, false));
    isa_in_use()->forward(shape, args, worth_sharing(shape, false, queue));
    return STATUS_OK;
}

static enum status cpu_backward(const struct attention_shape *shape, const struct attention_args *args,
                                struct dev_queue *queue)
{
    TRY(cpu_check(shape, args, true));
    isa_in_use()->backward(shape, args, worth_sharing(shape, true, queue));
    return STATUS_OK;
}

extern const struct attention attention_cpu;
const struct attention attention_cpu = {
    .name = "cpu",
    .stands_for = "sdpa",
    .dev = DEV_CPU,
    .supports = cpu_supports,
    .workspace_bytes = cpu_workspace_bytes,
    .forward = cpu_forward,
    .backward = cpu_backward,
};
