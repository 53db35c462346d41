/* bench/traffic_copy.c -- a copy whose stores bypass the caches.
 *
 * A plain store reads the line that it overwrites: a copy of n bytes then moves 3n, one that bypasses moves 2n. The price is that the
 * destination is in no cache afterwards, so that this wins beyond the caches and loses within them. The C library switches over by
 * itself too, but at a size it guessed.
 */
#include "bench/traffic.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64 };

void traffic_copy_streaming(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) { /* whole lines, so that none is written in two halves */
        __m128i part[4];
        for (int i = 0; i < 4; i++)
            part[i] = _mm_loadu_si128((const __m128i *)(const void *)from + i);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)(void *)to + i, part[i]);
    }
    memcpy(to, from, bytes);
    _mm_sfence();
}

#else

void traffic_copy_streaming(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#endif
