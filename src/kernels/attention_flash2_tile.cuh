/* kernels/attention_flash2_tile.cuh -- the pieces of flash2: 16-byte copies into swizzled tiles, fragments, matrix products.
 *
 * A tile is [rows][D] of 2-byte elements, a row's 16-byte chunks swizzled (attention_flash2_index.h). Lane l of a warp holds of
 * a 16 x 8 product the elements (l/4, 2(l%4) + {0,1}) and the same 8 rows below; as pairs these are also what the left
 * operand of the next product wants, so P and dS go from one product to the next without moving.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_FLASH2_TILE_CUH
#define SPTUNE_KERNELS_ATTENTION_FLASH2_TILE_CUH

#include "kernels/attention_flash2.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FLASH2_DEVICE __device__ __forceinline__

FLASH2_DEVICE uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Zeros instead of 16 bytes where the source is not valid; it is not read then. */
FLASH2_DEVICE void copy16_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

FLASH2_DEVICE void copy4_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

FLASH2_DEVICE void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> FLASH2_DEVICE void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

FLASH2_DEVICE void fragments_load(uint32_t (&out)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

FLASH2_DEVICE void fragments_load_turned(uint32_t (&out)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

/* sum[16 x 8] += a[16 x 16] b[16 x 8] */
FLASH2_DEVICE void product_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

FLASH2_DEVICE void product_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

FLASH2_DEVICE uint32_t pair(float low, float high, __nv_bfloat16)
{
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

FLASH2_DEVICE uint32_t pair(float low, float high, __half)
{
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

FLASH2_DEVICE float exp2_fast(float x)
{
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

/* A lane's address in a tile of D columns for x4 loads whose rows step by multiples of 8: row bytes and the swizzle of its chunk
 * are fixed, so a step along the row is one xor. */
template <int D> struct lane_address {
    uint32_t row, chunk; /* bytes */
    FLASH2_DEVICE lane_address(uint32_t tile, int lane_row, int lane_chunk)
    {
        row = tile + (uint32_t)(lane_row * D * 2);
        chunk = (uint32_t)flash2_swizzle(D / 8, lane_row, lane_chunk) * 16;
    }
    /* rows: further rows, a multiple of 8; chunks: further chunks, even */
    FLASH2_DEVICE uint32_t at(int rows, int chunks) const
    {
        return row + (uint32_t)(rows * D * 2) + (chunk ^ (uint32_t)(chunks * 16));
    }
};

/* Rows [first, first + ROWS) of a tensor to a tile; rows from `valid` on become zeros. */
template <int D, int ROWS, int THREADS, typename T>
FLASH2_DEVICE void tile_load(uint32_t tile, const T *base, int64_t stride, int first, int valid)
{
    constexpr int CHUNKS = D / 8;
    if constexpr (THREADS % (CHUNKS * 8) == 0) { /* a thread's chunk and swizzle stay, its rows step */
        constexpr int STEP = THREADS / CHUNKS;
        int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
        uint32_t to = tile + (uint32_t)(row * D * 2 + flash2_swizzle(CHUNKS, row, chunk) * 16);
        const T *from = base + (int64_t)(first + row) * stride + chunk * 8;
        int left = valid - first - row;
#pragma unroll
        for (int at = 0; at < ROWS; at += STEP) {
            copy16_async(to + (uint32_t)(at * D * 2), at < left ? from : base, at < left);
            from += STEP * stride;
        }
    } else {
#pragma unroll
        for (int at = 0; at < ROWS * CHUNKS; at += THREADS) {
            int index = at + (int)threadIdx.x, row = index / CHUNKS, chunk = index % CHUNKS;
            if (ROWS * CHUNKS % THREADS != 0 && index >= ROWS * CHUNKS)
                break;
            bool good = first + row < valid;
            const T *from = base + (int64_t)(good ? first + row : 0) * stride + chunk * 8;
            copy16_async(tile + (uint32_t)(row * D * 2 + flash2_swizzle(CHUNKS, row, chunk) * 16), from, good);
        }
    }
}

/* Which segment a tile of a unit belongs to. tile_q, tile_k: rows per tile. */
FLASH2_DEVICE struct flash2_segment segment_find(const struct flash2_call &call, int64_t batch, int64_t tile, bool by_q)
{
    struct flash2_segment segment = {};
    int32_t seq_q = (int32_t)call.seq_q, seq_k = (int32_t)call.seq_k;
    bool hidden = false;
    segment.batch = batch;
    segment.tile = (int32_t)tile;
    if (call.entries > 0) {
        int at = flash2_entry_find(call.entry, call.entries - 1, by_q, (int32_t)tile);
        struct flash2_entry from = call.entry[at], to = call.entry[at + 1];
        segment.q_token = from.q_first;
        segment.k_token = from.k_first;
        segment.q_tile_first = from.q_tile_first;
        segment.tile = (int32_t)tile - (by_q ? from.q_tile_first : from.k_tile_first);
        seq_q = to.q_first - from.q_first;
        seq_k = to.k_first - from.k_first;
        hidden = at == 0 || at == call.entries - 2;
    }
    segment.mask = flash2_mask_make((enum attention_causal)call.causal, call.window, seq_q, seq_k, hidden);
    return segment;
}

#endif
