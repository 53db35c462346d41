/* kernels/nn_cpu.c -- nn's calls for each instruction set, and the choice: the one attention has in use. */
#include "kernels/nn_cpu.h"
#include "kernels/attention_cpu.h"

#define ROW(isa)                                                                                                       \
    {                                                                                                                  \
#isa,                                                                                                          \
        {                                                                                                              \
            NN_CPU_NAMED_(norm_forward, isa), NN_CPU_NAMED_(norm_backward, isa), NN_CPU_NAMED_(rope, isa),             \
                NN_CPU_NAMED_(swiglu_forward, isa), NN_CPU_NAMED_(swiglu_backward, isa), NN_CPU_NAMED_(add, isa),      \
                NN_CPU_NAMED_(convert, isa), NN_CPU_NAMED_(bias, isa), NN_CPU_NAMED_(bias_backward, isa),              \
                NN_CPU_NAMED_(embed_forward, isa), NN_CPU_NAMED_(embed_backward, isa), NN_CPU_NAMED_(loss, isa),       \
                NN_CPU_NAMED_(sum, isa), NN_CPU_NAMED_(adamw, isa)                                                     \
        }                                                                                                              \
    }

static const struct {
    const char *isa;
    struct nn_ops ops;
} table[] = {
#if defined(__x86_64__)
    ROW(avx512),
    ROW(avx2),
#endif
    ROW(baseline),
};

const struct nn_ops *nn_cpu(void)
{
    enum { ROWS = sizeof table / sizeof table[0] };
    const char *isa = attention_cpu_isa_name();
    for (int i = 0; i < ROWS - 1; i++)
        if (strcmp(table[i].isa, isa) == 0)
            return &table[i].ops;
    return &table[ROWS - 1].ops;
}
