/* kernels/attention_cpu.h -- the CPU attention's variants: one source, compiled once per instruction set, chosen at run
 * time.
 *
 *   attention_cpu.c            what the kernel supports, the table of instruction sets, the choice, the vtable
 *   attention_cpu_forward.c    compiled per instruction set  \ blocks, masks, softmax
 *   attention_cpu_backward.c   compiled per instruction set  /
 *   attention_cpu_wave.h       how a call is cut into what threads share
 *   attention_cpu_block.h      block sizes and packing
 *   attention_cpu_micro.h      the micro-kernel: where the FLOPs are
 *   simd.h                     one vector type, exp2
 *
 * For the files of this room and its tests, and for reports that name the instruction set in use.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_CPU_H
#define SPTUNE_KERNELS_ATTENTION_CPU_H

#include "kernels/attention.h"

enum { ATTENTION_CPU_DIM_MAX = 256 };

struct attention_cpu_isa {
    const char *name; /* "avx2" */
    size_t (*forward_bytes)(const struct attention_shape *shape, int threads);
    size_t (*backward_bytes)(const struct attention_shape *shape, int threads);
    /* Arguments are checked; the threads are those of the queue. */
    void (*forward)(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue);
    void (*backward)(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue);
};

/* Best first; NULL ends. Only what this machine executes. */
const struct attention_cpu_isa *attention_cpu_isa(int index);
/* Use the variant of this index from now on (tests compare them); -1 the best. Not while another thread computes. */
void attention_cpu_use(int index);
const char *attention_cpu_isa_name(void); /* in use: "avx2" */

#define ATTENTION_CPU_JOIN(noun, isa) attention_cpu_##noun##_##isa
#define ATTENTION_CPU_DECLARE(isa)                                                                                     \
    size_t ATTENTION_CPU_JOIN(forward_bytes, isa)(const struct attention_shape *shape, int threads);                   \
    size_t ATTENTION_CPU_JOIN(backward_bytes, isa)(const struct attention_shape *shape, int threads);                  \
    void ATTENTION_CPU_JOIN(forward, isa)(const struct attention_shape *shape, const struct attention_args *args,      \
                                          struct dev_queue *queue);                                                    \
    void ATTENTION_CPU_JOIN(backward, isa)(const struct attention_shape *shape, const struct attention_args *args,     \
                                           struct dev_queue *queue);

ATTENTION_CPU_DECLARE(avx512)
ATTENTION_CPU_DECLARE(avx2)
ATTENTION_CPU_DECLARE(baseline)

#endif
