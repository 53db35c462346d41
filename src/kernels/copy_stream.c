/* kernels/copy_stream.c -- rows copied by non-temporal stores, whole cache lines at a time.
 *
 * A bypassing store of part of a line costs as much as one of the whole line, so what lies before the first whole line
 * of a row and behind the last one is stored normally, and rows shorter than SHORT_BYTES are left to copy_rows. One
 * Zen 3 core, rows of 4 KiB into memory that another core has just read: 6 GB/s by ordinary stores, 15 by these.
 * A core's own prefetcher stops where a row ends, so where rows have gaps the next one is asked for while one is copied: 5 to 20 % faster there
 * from 320 KiB to 80 MiB, cold, alternately with the same without; rows that follow each other gain nothing.
 */
#include "kernels/copy_stream.h"

#include "kernels/copy_rows.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__x86_64__)
enum { LINE_BYTES = 64, SHORT_BYTES = 256 };

typedef void stream_lines(char *dst, const char *src, const char *next, size_t lines);

static void lines_sse2(char *dst, const char *src, const char *next, size_t lines)
{
    for (size_t i = 0; i < lines; i++, dst += LINE_BYTES, src += LINE_BYTES, next += LINE_BYTES) {
        _mm_prefetch(next, _MM_HINT_T0);
        for (int part = 0; part < LINE_BYTES; part += 16)
            _mm_stream_si128((__m128i *)(void *)(dst + part),
                             _mm_loadu_si128((const __m128i *)(const void *)(src + part)));
    }
}

__attribute__((target("avx2"))) static void lines_avx2(char *dst, const char *src, const char *next, size_t lines)
{
    for (size_t i = 0; i < lines; i++, dst += LINE_BYTES, src += LINE_BYTES, next += LINE_BYTES) {
        _mm_prefetch(next, _MM_HINT_T0);
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)src);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32));
        _mm256_stream_si256((__m256i *)(void *)dst, low);
        _mm256_stream_si256((__m256i *)(void *)(dst + 32), high);
    }
}

static void row_copy(char *dst, const char *src, const char *next, size_t bytes, stream_lines *lines)
{
    size_t before = (size_t)(-(uintptr_t)dst % LINE_BYTES), whole;
    before = before < bytes ? before : bytes;
    whole = (bytes - before) / LINE_BYTES * LINE_BYTES;
    memcpy(dst, src, before);
    lines(dst + before, src + before, next + before, whole / LINE_BYTES);
    memcpy(dst + before + whole, src + before + whole, bytes - before - whole);
}

static stream_lines *lines_of_machine(void)
{
    return __builtin_cpu_supports("avx2") ? lines_avx2 : lines_sse2;
}

void copy_stream_bytes(void *dst, const void *src, size_t bytes)
{
    row_copy(dst, src, src, bytes, lines_of_machine());
    copy_rows_fence();
}

static void job_run(const struct copy_job *job, stream_lines *lines)
{
    for (int64_t a = 0; a < job->n[0]; a++)
        for (int64_t b = 0; b < job->n[1]; b++) {
            const char *src = (const char *)job->src + a * job->src_stride[0] + b * job->src_stride[1];
            char *dst = (char *)job->dst + a * job->dst_stride[0] + b * job->dst_stride[1];
            int64_t ahead = job->src_stride[2] == (int64_t)job->row_bytes ? 0 : job->src_stride[2];
            for (int64_t c = 0; c < job->n[2]; c++)
                row_copy(dst + c * job->dst_stride[2], src + c * job->src_stride[2],
                         src + c * job->src_stride[2] + ahead, job->row_bytes, lines);
        }
}

void copy_rows_stream(const struct copy_job *job)
{
    struct copy_job merged = copy_rows_merge(*job);
    if (merged.row_bytes < SHORT_BYTES || merged.n[2] == 0)
        copy_rows(job);
    else
        job_run(&merged, lines_of_machine());
}

void copy_rows_fence(void)
{
    _mm_sfence(); /* these stores are not ordered with others by themselves */
}
#else
void copy_stream_bytes(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

void copy_rows_stream(const struct copy_job *job)
{
    copy_rows(job);
}

void copy_rows_fence(void)
{
}
#endif

static void rows_stream(const struct copy_job *job)
{
    copy_rows_stream(job);
    copy_rows_fence();
}

enum status copy_stream_run(enum dev_kind dev, const struct copy_job *jobs, int njobs, struct dev_queue *queue)
{
    int64_t bytes = 0;
    if (dev != DEV_CPU)
        return copy_run(dev, jobs, njobs, queue); /* which knows other devices, or says that it does not */
    TRY(copy_rows_check("copy", jobs, njobs, &bytes));
    copy_rows_share(jobs, njobs, bytes, queue, rows_stream);
    return STATUS_OK;
}
