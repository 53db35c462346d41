/* kernels/nn_cpu.h -- nn on the CPU: its files are compiled once per instruction set, as attention's are, and nn_cpu.c takes those of the
 * set that attention has in use.
 *
 *   nn_cpu_norm.c      RMS norm
 *   nn_cpu_each.c      swiglu, sums of tensors, conversions, bias
 *   nn_cpu_rope.c      rotary positions
 *   nn_cpu_loss.c      embedding, cross-entropy
 *   nn_cpu_adamw.c     optimizer step, sums
 *
 * Work is cut into tasks by its sizes alone; threads only share them out. So each element is computed by the same instructions for any
 * number of threads, and what is summed over tasks is summed in their order.
 *
 * All but the loss move more bytes than they compute: fp32 is read and written where it lies, vector by vector; bf16 and fp16 pass
 * through buffers of NN_CHUNK floats in the first-level cache.
 */
#ifndef SPTUNE_KERNELS_NN_CPU_H
#define SPTUNE_KERNELS_NN_CPU_H

#include "kernels/nn_ops.h"

#include <string.h>

enum {
    NN_CHUNK = 512,
    NN_TASK = 1 << 14,   /* elements of a task, some 10 us */
    NN_SHARED = 1 << 16, /* elements from which on waking threads pays */
    NN_COLUMNS = 128,    /* of a task that walks all rows */
};

#define NN_CPU_NAMED__(noun, isa) nn_cpu_##noun##_##isa
#define NN_CPU_NAMED_(noun, isa)  NN_CPU_NAMED__(noun, isa)
#define NN_CPU_NAMED(noun)        NN_CPU_NAMED_(noun, SIMD_ISA)

#define NN_CPU_DECLARE(isa)                                                                                            \
    enum status NN_CPU_NAMED_(norm_forward, isa)(int64_t, int64_t, enum dtype, const void *, const void *, float,      \
                                                 void *, float *, struct dev_queue *);                                 \
    enum status NN_CPU_NAMED_(norm_backward, isa)(int64_t, int64_t, enum dtype, const void *, const void *,            \
                                                  const float *, const void *, bool, void *, float *, void *,          \
                                                  struct dev_queue *);                                                 \
    enum status NN_CPU_NAMED_(rope, isa)(int64_t, int, int, enum dtype, void *, const int32_t *, const float *, bool,  \
                                         struct dev_queue *);                                                          \
    enum status NN_CPU_NAMED_(swiglu_forward, isa)(int64_t, enum dtype, const void *, const void *, void *,            \
                                                   struct dev_queue *);                                                \
    enum status NN_CPU_NAMED_(swiglu_backward, isa)(int64_t, enum dtype, const void *, const void *, const void *,     \
                                                    void *, void *, struct dev_queue *);                               \
    enum status NN_CPU_NAMED_(add, isa)(int64_t, enum dtype, void *, const void *, struct dev_queue *);                \
    enum status NN_CPU_NAMED_(convert, isa)(int64_t, enum dtype, const void *, enum dtype, void *,                     \
                                            struct dev_queue *);                                                       \
    enum status NN_CPU_NAMED_(bias, isa)(int64_t, int64_t, enum dtype, void *, const void *, struct dev_queue *);      \
    enum status NN_CPU_NAMED_(bias_backward, isa)(int64_t, int64_t, enum dtype, const void *, float *,                 \
                                                  struct dev_queue *);                                                 \
    enum status NN_CPU_NAMED_(embed_forward, isa)(int64_t, int64_t, enum dtype, const int32_t *, const void *, void *, \
                                                  struct dev_queue *);                                                 \
    enum status NN_CPU_NAMED_(embed_backward, isa)(int64_t, int64_t, enum dtype, const int32_t *, const void *,        \
                                                   float *, struct dev_queue *);                                       \
    enum status NN_CPU_NAMED_(loss, isa)(int64_t, int64_t, int64_t, float *, const int32_t *, float, bool, float *,    \
                                         struct dev_queue *);                                                          \
    enum status NN_CPU_NAMED_(sum, isa)(int64_t, const float *, bool, double *, void *, struct dev_queue *);           \
    enum status NN_CPU_NAMED_(adamw, isa)(int64_t, const struct nn_adamw_step *, enum dtype, float *, float *,         \
                                          float *, const float *, void *, struct dev_queue *);

NN_CPU_DECLARE(avx512)
NN_CPU_DECLARE(avx2)
NN_CPU_DECLARE(baseline)

static inline int64_t nn_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t nn_parts(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

/* Rows of `dim` elements that make a task. */
static inline int64_t nn_task_rows(int64_t dim)
{
    return dim < NN_TASK ? NN_TASK / dim : 1;
}

static inline void nn_run(struct dev_queue *queue, int64_t elems, int64_t tasks, void (*fn)(void *, int64_t, int),
                          void *arg)
{
    dev_parallel(elems < NN_SHARED ? NULL : queue, tasks, fn, arg);
}

static inline const void *nn_at(enum dtype dtype, const void *base, int64_t at)
{
    return (const char *)base + at * dtype_bytes(dtype);
}

/* n elements from `at` on as fp32: where they lie, or in `buffer`. */
static inline const float *nn_view(enum dtype dtype, const void *base, int64_t at, int64_t n, float *buffer)
{
    if (dtype == DTYPE_FP32)
        return (const float *)base + at;
    dtype_load(dtype, nn_at(dtype, base, at), buffer, n);
    return buffer;
}

/* Where n results for `at` on are to be written: where they belong, or in `buffer`, from where nn_keep takes them. */
static inline float *nn_place(enum dtype dtype, void *base, int64_t at, float *buffer)
{
    return dtype == DTYPE_FP32 ? (float *)base + at : buffer;
}

static inline void nn_keep(enum dtype dtype, const float *buffer, void *base, int64_t at, int64_t n)
{
    if (dtype != DTYPE_FP32)
        dtype_store(dtype, buffer, (char *)base + at * dtype_bytes(dtype), n);
}

#endif
