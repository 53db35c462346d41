/* kernels/merge.c -- merging parts of an attention on the CPU. */
#include "kernels/merge.h"
#if SPTUNE_CUDA
#include "kernels/merge_cuda.h"
#endif

#include <math.h>

enum { CHUNK = 512 /* elements converted at a time */, TASK_ELEMS = 1 << 16 };

static enum status device_check(enum dev_kind dev, enum dtype dtype, const struct dev_queue *queue)
{
    if ((int)dtype < 0 || dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "merge: dtype %d does not exist", (int)dtype);
#if SPTUNE_CUDA
    if (dev == DEV_CUDA && queue == NULL)
        return FAIL(STATUS_USAGE, "merge: a cuda kernel needs a queue");
    if (dev == DEV_CUDA)
        return STATUS_OK;
#endif
    (void)queue;
    if (dev != DEV_CPU)
        return FAIL(STATUS_ABSENT, "merge: no kernel for device %s in this build", dev_kind_name(dev));
    return STATUS_OK;
}

static void weighted(enum dtype dtype, const void *part, float weight, float *sum, float weight_sum, int64_t n)
{
    float next[CHUNK];
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t count = n - first < CHUNK ? n - first : CHUNK;
        dtype_load(dtype, (const char *)part + first * dtype_bytes(dtype), next, count);
        for (int64_t i = 0; i < count; i++)
            sum[first + i] = weight_sum * sum[first + i] + weight * next[i];
    }
}

/* The weights of a row's two sides, and its new statistic. */
static void row_merge(const struct merge_part *part, int64_t token, int head)
{
    int64_t row = (token * part->heads + head) * part->dim;
    const void *o = (const char *)part->o + row * dtype_bytes(part->dtype);
    float *lse_sum = part->lse_sum + head * part->lse_stride + token;
    float a = *lse_sum, b = part->lse[head * part->tokens + token];
    float most = a > b ? a : b; /* NaN when b is one; else exp(a - most) is when a is */
    if (part->first) {
        *lse_sum = b;
        dtype_load(part->dtype, o, part->o_sum + row, part->dim);
        return;
    }
    if (a == -INFINITY && b == -INFINITY)
        return;
    float weight_sum = expf(a - most), weight = expf(b - most), total = weight_sum + weight;
    *lse_sum = most + logf(total);
    weighted(part->dtype, o, weight / total, part->o_sum + row, weight_sum / total, part->dim);
}

static void token_merge(void *arg, int64_t task, int thread)
{
    const struct merge_part *part = arg;
    int64_t each = TASK_ELEMS / ((int64_t)part->heads * part->dim) + 1, end = (task + 1) * each;
    (void)thread;
    for (int64_t token = task * each; token < end && token < part->tokens; token++)
        for (int head = 0; head < part->heads; head++)
            row_merge(part, token, head);
}

enum status merge_out(enum dev_kind dev, const struct merge_part *part, struct dev_queue *queue)
{
    TRY(device_check(dev, part->dtype, queue));
    if (part->tokens < 0 || part->heads < 1 || part->dim < 1 || part->lse_stride < part->tokens)
        return FAIL(STATUS_USAGE, "merge: %lld tokens, %d heads of %d, statistics %lld apart", (long long)part->tokens,
                    part->heads, part->dim, (long long)part->lse_stride);
    if (part->tokens == 0)
        return STATUS_OK;
    if (part->o == NULL || part->lse == NULL || part->o_sum == NULL || part->lse_sum == NULL)
        return FAIL(STATUS_USAGE, "merge: a part or a sum was not given");
#if SPTUNE_CUDA
    if (dev == DEV_CUDA)
        return merge_cuda_out(part, queue);
#endif
    int64_t each = TASK_ELEMS / ((int64_t)part->heads * part->dim) + 1;
    struct merge_part copy = *part;
    dev_parallel(queue, (part->tokens + each - 1) / each, token_merge, &copy);
    return STATUS_OK;
}

struct addition {
    enum dtype dtype;
    const void *part;
    float *sum;
    int64_t n;
    bool first;
};

static void some_add(void *arg, int64_t task, int thread)
{
    const struct addition *add = arg;
    int64_t at = task * TASK_ELEMS, n = add->n - at < TASK_ELEMS ? add->n - at : TASK_ELEMS;
    const void *part = (const char *)add->part + at * dtype_bytes(add->dtype);
    (void)thread;
    if (add->first)
        dtype_load(add->dtype, part, add->sum + at, n);
    else
        weighted(add->dtype, part, 1, add->sum + at, 1, n);
}

enum status merge_add(enum dev_kind dev, enum dtype dtype, const void *part, float *sum, int64_t n, bool first,
                      struct dev_queue *queue)
{
    TRY(device_check(dev, dtype, queue));
    if (n < 0 || (n > 0 && (part == NULL || sum == NULL)))
        return FAIL(STATUS_USAGE, "merge: %lld elements, or no part or no sum", (long long)n);
    if (n == 0)
        return STATUS_OK;
#if SPTUNE_CUDA
    if (dev == DEV_CUDA)
        return merge_cuda_add(dtype, part, sum, n, first, queue);
#endif
    struct addition add = {dtype, part, sum, n, first};
    dev_parallel(queue, (n + TASK_ELEMS - 1) / TASK_ELEMS, some_add, &add);
    return STATUS_OK;
}
