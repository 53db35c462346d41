/* kernels/attention_flash2_backward.cu -- dQ, dK, dV in one pass over the pairs, the same bits every time, memory O(S).
 *
 * A block owns KEYS keys of one kv head, holds their dK and dV in registers and walks the query tiles that see them, for each
 * tile the query heads of the group: their sum is made in fp32 in this order. Where key tiles are few, `splits` blocks share the
 * heads, and their parts are added in order afterwards. Each of its warps owns 16 keys:
 *
 *   S' = K Q', P' = exp2(S' * scale2 - lse2), dV += P' dO, dP' = V dO', dS' = P' * (dP' - D), dK += dS' Q      (' transposed)
 *
 * so P' and dS' stay in registers as left operands. dS' also goes to shared memory, and all warps together form the tile's
 * dQ += dS K, which is added to fp32 sums in device memory. For one query tile the key blocks add in ascending order: a block adds
 * when `turn` says that it is its turn. Blocks take their work by ticket in ascending order, so a block waits only for
 * blocks that are running or done; and query tiles are walked downwards, where the block before is one step ahead, so
 * that hardly any wait is long.
 *
 * Why one pass: two passes (dK and dV, then dQ) need 7 products instead of 5; the sums cost 4 * QUERIES * D bytes of L2
 * traffic per step, 7 GB/s per multiprocessor at 300 TFLOP/s.
 *
 * Arithmetic per step, head_dim 128, 64 queries x 128 keys: 2560 products, 10.5 MFLOP. ldmatrix moves 280 bytes per
 * product (256 for right operands used once, 64 more for K and V as left operands): 5600 clocks at 128 bytes per
 * clock, 4100 for mma.sync at 0.6 products per clock, so shared memory binds: 415 TFLOP/s at 1.75 GHz.
 */
#include "base/dev_cuda.h"
#include "kernels/attention_flash2_tile.cuh"

namespace {

constexpr float LOG2E = 1.4426950408889634f;

/* Sums of dQ: a warp's 16 x 8 fragments one after another, in each a lane's 4 elements together: 512 bytes per instruction. */
FLASH2_DEVICE void sums_set(float *to, const float (&x)[4])
{
    *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
}

FLASH2_DEVICE void sums_add(float *to, const float (&x)[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
#else
    atomicAdd(to, x[0]);
    atomicAdd(to + 1, x[1]);
    atomicAdd(to + 2, x[2]);
    atomicAdd(to + 3, x[3]);
#endif
}

FLASH2_DEVICE uint32_t turn_read(const uint32_t *turn)
{
    uint32_t out;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(out) : "l"(turn) : "memory");
    return out;
}

/* D: columns of Q, K, V; H: columns of the gradients a block holds; QUERIES per step; WARPS of 16 keys each. DOWN warps share
 * the rows of dQ, the others its columns. */
template <typename T, int D, int H, int QUERIES, int WARPS, int DOWN> struct backward {
    static constexpr int KEYS = WARPS * 16, THREADS = WARPS * 32, PARTS = D / H;
    static constexpr int K_BYTES = KEYS * D * 2, Q_BYTES = QUERIES * D * 2, DS_BYTES = KEYS * QUERIES * 2;
    static constexpr int STATS_BYTES = 2 * QUERIES * 4; /* lse2 and delta */
    static constexpr int STAGE_BYTES = 2 * Q_BYTES + STATS_BYTES;
    static constexpr int SHARED_BYTES = 2 * K_BYTES + DS_BYTES + 2 * STAGE_BYTES;
    static constexpr int ACROSS = WARPS / DOWN, DQ_ROWS = QUERIES / DOWN, DQ_COLUMNS = H / ACROSS;
    static constexpr int FRAGMENTS = DQ_ROWS / 16 * (DQ_COLUMNS / 8);
    static_assert(DQ_ROWS % 16 == 0 && DQ_COLUMNS % 16 == 0, "dQ is made of 16 x 16 products");

    float dk[H / 8][4], dv[H / 8][4];
    float p[QUERIES / 8][4], ds[QUERIES / 8][4];

    FLASH2_DEVICE void clear()
    {
#pragma unroll
        for (int n = 0; n < H / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dk[n][e] = dv[n][e] = 0;
    }

    /* out[16 keys x QUERIES] = left[16 x D] right[QUERIES x D]' */
    static FLASH2_DEVICE void pairs(float (&out)[QUERIES / 8][4], const lane_address<D> &left, const lane_address<D> &right)
    {
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
            out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t a[4];
            fragments_load(a, left.at(0, 2 * step));
#pragma unroll
            for (int n = 0; n < QUERIES / 16; n++) {
                uint32_t b[4];
                fragments_load(b, right.at(16 * n, 2 * step));
                product_add(out[2 * n], a, b[0], b[1], T());
                product_add(out[2 * n + 1], a, b[2], b[3], T());
            }
        }
    }

    /* out[16 keys x H] += x[16 x QUERIES] right[QUERIES x H], columns from `chunk` on */
    static FLASH2_DEVICE void gather(float (&out)[H / 8][4], const float (&x)[QUERIES / 8][4], const lane_address<D> &right,
                                     int chunk)
    {
#pragma unroll
        for (int step = 0; step < QUERIES / 16; step++) {
            const float(&x0)[4] = x[2 * step], (&x1)[4] = x[2 * step + 1];
            uint32_t a[4] = {pair(x0[0], x0[1], T()), pair(x0[2], x0[3], T()), pair(x1[0], x1[1], T()),
                             pair(x1[2], x1[3], T())};
#pragma unroll
            for (int n = 0; n < H / 16; n++) {
                uint32_t b[4];
                fragments_load_turned(b, right.at(16 * step, 2 * n + chunk));
                product_add(out[2 * n], a, b[0], b[1], T());
                product_add(out[2 * n + 1], a, b[2], b[3], T());
            }
        }
    }

    /* j: this lane's first key, i: its first query, within the segment. Rounding may put a score above its row's LSE. */
    FLASH2_DEVICE void probabilities(const float *lse2, float scale2)
    {
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            float2 at = *(const float2 *)(lse2 + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[n][e] = exp2_fast(fminf(__fmaf_rn(p[n][e], scale2, -(e % 2 == 0 ? at.x : at.y)), 0.0f));
        }
    }

    FLASH2_DEVICE void hide(const struct flash2_mask &mask, int i, int j)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int key = j + 8 * r;
            /* i + first_shift <= key < i + end_shift */
            int first = key < mask.seq_k ? key - mask.end_shift + 1 : INT32_MAX, end = key - mask.first_shift;
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int query = i + 8 * n + e;
                    if (query < first || query > end)
                        p[n][2 * r + e] = 0;
                }
        }
    }

    FLASH2_DEVICE void score_gradients(const float *delta)
    {
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            float2 at = *(const float2 *)(delta + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                ds[n][e] = p[n][e] * (ds[n][e] - (e % 2 == 0 ? at.x : at.y));
        }
    }

    /* dS' to its tile [KEYS][QUERIES] */
    FLASH2_DEVICE void score_gradients_store(unsigned char *tile) const
    {
        int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *(uint32_t *)(tile + (row + 8 * r) * QUERIES * 2 + flash2_swizzle(QUERIES / 8, row + 8 * r, n) * 16 +
                              lane % 4 * 4) = pair(ds[n][2 * r], ds[n][2 * r + 1], T());
    }

    /* This warp's part of dQ = dS K */
    static FLASH2_DEVICE void query_gradients(float (&dq)[FRAGMENTS][4], const lane_address<QUERIES> &ds_at,
                                              const lane_address<D> &k_at, int row_chunk, int column_chunk)
    {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++)
            dq[f][0] = dq[f][1] = dq[f][2] = dq[f][3] = 0;
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            uint32_t a[DQ_ROWS / 16][4];
#pragma unroll
            for (int t = 0; t < DQ_ROWS / 16; t++)
                fragments_load_turned(a[t], ds_at.at(16 * step, row_chunk + 2 * t));
#pragma unroll
            for (int n = 0; n < DQ_COLUMNS / 16; n++) {
                uint32_t b[4];
                fragments_load_turned(b, k_at.at(16 * step, column_chunk + 2 * n));
#pragma unroll
                for (int t = 0; t < DQ_ROWS / 16; t++) {
                    product_add(dq[t * (DQ_COLUMNS / 8) + 2 * n], a[t], b[0], b[1], T());
                    product_add(dq[t * (DQ_COLUMNS / 8) + 2 * n + 1], a[t], b[2], b[3], T());
                }
            }
        }
    }

    /* One of dK, dV; j: this lane's first row, `out` at the lane's first column. */
    template <typename to>
    static FLASH2_DEVICE void store(const float (&x)[H / 8][4], float factor, to *out, int64_t stride, int j, int seq_k, bool add)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (j + 8 * r >= seq_k)
                continue;
            to *row = out + (int64_t)(j + 8 * r) * stride;
#pragma unroll
            for (int n = 0; n < H / 8; n++) {
                float low = x[n][2 * r] * factor, high = x[n][2 * r + 1] * factor;
                if constexpr (sizeof(to) == 4) {
                    float2 *at = (float2 *)(row + 8 * n);
                    float2 old = add ? *at : make_float2(0.0f, 0.0f);
                    *at = make_float2(old.x + low, old.y + high);
                } else {
                    *(uint32_t *)(row + 8 * n) = pair(low, high, T());
                }
            }
        }
    }
};

/* Where a walk over (query tile, query head) stands: tiles down, for each the heads up. (Heads outside would tie a block to the
 * one before at every new head, since that one has more tiles to walk.) */
struct walk {
    int head, tile;
};

template <typename T, int D, int H, int QUERIES, int WARPS, int DOWN>
__global__ void __launch_bounds__(WARPS * 32, 1) backward_kernel(const __grid_constant__ struct flash2_call call)
{
    using part = backward<T, D, H, QUERIES, WARPS, DOWN>;
    constexpr int THREADS = part::THREADS, KEYS = part::KEYS;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint32_t ticket;
    unsigned char *ds_tile = memory + 2 * part::K_BYTES, *stages = ds_tile + part::DS_BYTES;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

    if (threadIdx.x == 0)
        ticket = atomicAdd(call.ticket, 1u);
    __syncthreads();
    struct flash2_work work = flash2_work_at(&call.order, ticket);
    int columns = (int)(work.unit % part::PARTS) * H, split = (int)(work.unit / part::PARTS % call.splits);
    int64_t kv_unit = work.unit / part::PARTS / call.splits;
    int kv = (int)(kv_unit % call.kv_heads);
    struct flash2_segment segment = segment_find(call, kv_unit / call.kv_heads, work.tile, false);
    const struct flash2_mask &mask = segment.mask;
    int64_t q_token = segment.batch * call.seq_q + segment.q_token, k_token = segment.batch * call.seq_k + segment.k_token;
    struct flash2_heads heads = flash2_heads_of(kv, split, call.splits, call.group, call.group_first, call.heads);
    int head_first = heads.first, head_end = heads.end;
    struct flash2_blocks tiles = flash2_query_blocks(&mask, segment.tile, KEYS, QUERIES);
    int key = segment.tile * KEYS;
    float scale2 = call.scale * LOG2E;
    const T *q = (const T *)call.q + q_token * call.q_stride, *d_o = (const T *)call.d_o + q_token * call.o_stride;
    int64_t row_first = segment.batch * call.heads * call.seq_q + segment.q_token; /* of head 0 in [batch * heads][seq_q] */

    auto load = [&](int stage, const struct walk &at) {
        uint32_t to = shared_address(stages) + (uint32_t)(stage * part::STAGE_BYTES);
        int first = at.tile * QUERIES;
        tile_load<D, QUERIES, THREADS>(to, q + (int64_t)at.head * D, call.q_stride, first, mask.seq_q);
        tile_load<D, QUERIES, THREADS>(to + part::Q_BYTES, d_o + (int64_t)at.head * D, call.o_stride, first, mask.seq_q);
        for (int i = (int)threadIdx.x; i < 2 * QUERIES; i += THREADS) {
            const float *from = i < QUERIES ? call.lse2 : call.delta;
            int row = first + i % QUERIES;
            bool good = row < mask.seq_q;
            copy4_async(to + (uint32_t)(2 * part::Q_BYTES + 4 * i),
                        from + row_first + (int64_t)at.head * call.seq_q + (good ? row : 0), good);
        }
    };
    auto next = [&](const struct walk &at) {
        struct walk to = {at.head + 1, at.tile};
        if (to.head == head_end)
            to = {head_first, at.tile - 1};
        return to;
    };

    part mine;
    mine.clear();
    struct walk at = {head_first, tiles.end - 1};
    int tile_last = head_first < head_end && tiles.first < tiles.end ? tiles.first : tiles.end; /* none: nothing to walk */
    if (at.tile >= tile_last) {
        const T *k = (const T *)call.k + k_token * call.k_stride + (int64_t)kv * D;
        const T *v = (const T *)call.v + k_token * call.v_stride + (int64_t)kv * D;
        tile_load<D, KEYS, THREADS>(shared_address(memory), k, call.k_stride, key, mask.seq_k);
        tile_load<D, KEYS, THREADS>(shared_address(memory) + part::K_BYTES, v, call.v_stride, key, mask.seq_k);
        load(0, at);
    }
    copies_commit();

    lane_address<D> k_left(shared_address(memory), warp * 16 + lane % 16, lane / 16);
    lane_address<D> right(shared_address(stages), lane % 8 + lane / 16 * 8, lane / 8 % 2);  /* Q, dO by rows */
    lane_address<D> turned(shared_address(stages), lane % 16, lane / 16);                   /* Q, dO by columns */
    lane_address<D> k_right(shared_address(memory), lane % 16, lane / 16);
    lane_address<QUERIES> ds_left(shared_address(ds_tile), lane % 8 + lane / 16 * 8, lane / 8 % 2);
    int dq_row_chunk = warp / part::ACROSS * (part::DQ_ROWS / 8);
    int dq_column_chunk = columns / 8 + warp % part::ACROSS * (part::DQ_COLUMNS / 8);
    uint32_t *added = nullptr; /* the turn of the tile whose sums this block added last */
    int stage = 0, releaser = 0;
#pragma unroll 1
    while (at.tile >= tile_last) {
        struct walk after = next(at);
        copies_wait<0>();
        __syncthreads();
        /* All warps' sums of the step before were issued before the barrier; by now they have arrived, so the fence is short. */
        if (added != nullptr && warp == releaser && lane == 0) {
            __threadfence();
            atomicAdd(added, 1u);
        }
        releaser = (releaser + 1) % WARPS;
        if (after.tile >= tile_last)
            load(stage ^ 1, after);
        copies_commit();
        uint32_t here = (uint32_t)(stage * part::STAGE_BYTES);
        const float *lse2 = (const float *)(stages + here + 2 * part::Q_BYTES) + lane % 4 * 2;
        lane_address<D> q_right = right, do_right = right, q_turned = turned, do_turned = turned, v_left = k_left;
        q_right.row += here;
        q_turned.row += here;
        do_right.row += here + part::Q_BYTES;
        do_turned.row += here + part::Q_BYTES;
        v_left.row += part::K_BYTES;
        int row = at.tile * QUERIES;

        part::pairs(mine.p, k_left, q_right);
        mine.probabilities(lse2, scale2);
        if (!flash2_all_seen(&mask, row, min(row + QUERIES, mask.seq_q), key, key + KEYS))
            mine.hide(mask, row + lane % 4 * 2, key + warp * 16 + lane / 4);
        part::pairs(mine.ds, v_left, do_right);
        mine.score_gradients(lse2 + QUERIES);
        mine.score_gradients_store(ds_tile);
        part::gather(mine.dv, mine.p, do_turned, columns / 8);
        part::gather(mine.dk, mine.ds, q_turned, columns / 8);
        __syncthreads();

        int64_t tile = ((segment.batch * call.heads + at.head) * part::PARTS + columns / H) * call.q_tiles +
                       segment.q_tile_first + at.tile;
        struct flash2_blocks adders = flash2_key_blocks(&mask, row, min(row + QUERIES, mask.seq_q), KEYS);
        uint32_t rank = (uint32_t)(segment.tile - adders.first);
        uint32_t *turn = call.turn + tile;
        uint32_t reached = turn_read(turn); /* before the products, so that it costs no time */
        float dq[part::FRAGMENTS][4];
        part::query_gradients(dq, ds_left, k_right, dq_row_chunk, dq_column_chunk);
        float *sums = call.dq_sum + tile * (QUERIES * H) + (warp * part::FRAGMENTS * 32 + lane) * 4;
        if (rank == 0) {
#pragma unroll
            for (int f = 0; f < part::FRAGMENTS; f++)
                sums_set(sums + f * 128, dq[f]);
        } else {
            /* The adds go to L2 and cannot start before this loop ends; nothing is read. */
            while (reached < rank)
                reached = turn_read(turn);
            __syncwarp();
#pragma unroll
            for (int f = 0; f < part::FRAGMENTS; f++)
                sums_add(sums + f * 128, dq[f]);
        }
        added = turn;
        stage ^= 1;
        at = after;
    }
    copies_wait<0>();
    __syncthreads();
    if (added != nullptr && threadIdx.x == 0) {
        __threadfence();
        atomicAdd(added, 1u);
    }

    int j = key + warp * 16 + lane / 4;
    int64_t k_at = k_token * call.k_stride + (int64_t)kv * D + columns + lane % 4 * 2;
    int64_t v_at = k_token * call.v_stride + (int64_t)kv * D + columns + lane % 4 * 2;
    if (call.splits > 1) {
        int64_t stride = (int64_t)call.kv_heads * D;
        int64_t at = (split * ((int64_t)call.batch * call.seq_k) + k_token) * stride + (int64_t)kv * D + columns + lane % 4 * 2;
        part::store(mine.dk, call.scale, call.dk_part + at, stride, j, mask.seq_k, false);
        part::store(mine.dv, 1.0f, call.dv_part + at, stride, j, mask.seq_k, false);
    } else if (call.dkv_fp32) {
        part::store(mine.dk, call.scale, (float *)call.dk + k_at, call.k_stride, j, mask.seq_k, call.dkv_accumulate);
        part::store(mine.dv, 1.0f, (float *)call.dv + v_at, call.v_stride, j, mask.seq_k, call.dkv_accumulate);
    } else {
        part::store(mine.dk, call.scale, (T *)call.dk + k_at, call.k_stride, j, mask.seq_k, false);
        part::store(mine.dv, 1.0f, (T *)call.dv + v_at, call.v_stride, j, mask.seq_k, false);
    }
}

/* ---- before and after ---- */

/* delta and lse2, one warp per row of [batch * heads][seq_q]. 4 * D bytes read per row, so 80 us for 32768 rows of 16 heads. */
template <typename T, int D> __global__ void __launch_bounds__(256) delta_kernel(const __grid_constant__ struct flash2_call call)
{
    int64_t rows = (int64_t)call.batch * call.heads * call.seq_q;
    int lane = (int)threadIdx.x % 32;
    /* token-major, so that neighbouring warps read neighbouring heads */
    for (int64_t at = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; at < rows; at += (int64_t)gridDim.x * 8) {
        int head = (int)(at % call.heads);
        int64_t token = at / call.heads, first = token * call.o_stride + (int64_t)head * D;
        int64_t row = (token / call.seq_q * call.heads + head) * call.seq_q + token % call.seq_q;
        float sum = 0;
        for (int c = lane; c < D / 2; c += 32) {
            uint32_t a = ((const uint32_t *)((const T *)call.o + first))[c];
            uint32_t b = ((const uint32_t *)((const T *)call.d_o + first))[c];
            const T *x = (const T *)&a, *y = (const T *)&b;
            sum += (float)x[0] * (float)y[0] + (float)x[1] * (float)y[1];
        }
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) {
            float lse = call.lse[row];
            call.delta[row] = sum;
            call.lse2[row] = lse == -INFINITY ? INFINITY : lse * LOG2E;
        }
    }
}

/* dK (blockIdx.y 0) or dV from the parts that splits of a group made, in their order. */
template <typename T> __global__ void __launch_bounds__(256) parts_kernel(const __grid_constant__ struct flash2_call call, int dim)
{
    int64_t width = (int64_t)call.kv_heads * dim, n = (int64_t)call.batch * call.seq_k * width;
    const float *from = blockIdx.y == 0 ? call.dk_part : call.dv_part;
    int64_t stride = blockIdx.y == 0 ? call.k_stride : call.v_stride;
    void *out = blockIdx.y == 0 ? call.dk : call.dv;
    for (int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4; i < n; i += (int64_t)gridDim.x * 1024) {
        int64_t to = i / width * stride + i % width;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), old = sum;
        if (call.dkv_accumulate)
            old = *(const float4 *)((const float *)out + to);
        for (int split = 0; split < call.splits; split++) {
            float4 x = *(const float4 *)(from + split * n + i);
            sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
        }
        if (call.dkv_fp32)
            *(float4 *)((float *)out + to) = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
        else
            *(uint2 *)((T *)out + to) = make_uint2(pair(sum.x, sum.y, T()), pair(sum.z, sum.w, T()));
    }
}

/* The sums to dQ, one block per query tile, laid out as the adders' warps are. */
template <typename T, int D, int H, int QUERIES, int WARPS, int DOWN>
__global__ void __launch_bounds__(WARPS * 32) dq_kernel(const __grid_constant__ struct flash2_call call)
{
    using part = backward<T, D, H, QUERIES, WARPS, DOWN>;
    int64_t index = blockIdx.x, tile = index % call.q_tiles, unit = index / call.q_tiles;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int head = (int)(unit / part::PARTS % call.heads), columns = (int)(unit % part::PARTS) * H;
    struct flash2_segment segment = segment_find(call, unit / part::PARTS / call.heads, tile, true);
    int first = segment.tile * QUERIES, end = min(first + QUERIES, segment.mask.seq_q);
    struct flash2_blocks adders = flash2_key_blocks(&segment.mask, first, end, part::KEYS);
    bool some = adders.first < adders.end;
    const float *sums = call.dq_sum + index * (QUERIES * H) + (warp * part::FRAGMENTS * 32 + lane) * 4;
    int row = first + warp / part::ACROSS * part::DQ_ROWS + lane / 4;
    int column = columns + warp % part::ACROSS * part::DQ_COLUMNS + lane % 4 * 2;
    T *dq = (T *)call.dq + (segment.batch * call.seq_q + segment.q_token) * call.q_stride + (int64_t)head * D + column;
#pragma unroll
    for (int f = 0; f < part::FRAGMENTS; f++) {
        int i = row + f / (part::DQ_COLUMNS / 8) * 16, c = f % (part::DQ_COLUMNS / 8) * 8;
        float4 x = some ? *(const float4 *)(sums + f * 128) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < end)
            *(uint32_t *)(dq + (int64_t)i * call.q_stride + c) = pair(x.x * call.scale, x.y * call.scale, T());
        if (i + 8 < end)
            *(uint32_t *)(dq + (int64_t)(i + 8) * call.q_stride + c) = pair(x.z * call.scale, x.w * call.scale, T());
    }
}

template <typename T, int D, int H, int QUERIES, int WARPS, int DOWN>
enum status backward_launch(const struct flash2_call *call, struct dev_queue *queue)
{
    using part = backward<T, D, H, QUERIES, WARPS, DOWN>;
    cudaStream_t stream = dev_cuda_stream(queue);
    int64_t rows = (int64_t)call->batch * call->heads * call->seq_q;
    int64_t tiles = (int64_t)call->batch * call->heads * part::PARTS * call->q_tiles;
    int64_t blocks = call->order.tiles * call->order.units, most = (int64_t)dev_cuda_sms(dev_queue_dev(queue)) * 64;
    auto kernel = backward_kernel<T, D, H, QUERIES, WARPS, DOWN>;
    TRY(flash2_shared_memory((const void *)kernel, part::SHARED_BYTES, "backward pass", D, queue));
    if (rows > 0) {
        delta_kernel<T, D><<<(unsigned)((rows + 7) / 8 < most ? (rows + 7) / 8 : most), 256, 0, stream>>>(*call);
        TRY(dev_cuda_launched("flash2's pass before the backward kernel"));
    }
    if (blocks > 0) {
        kernel<<<(unsigned)blocks, WARPS * 32, part::SHARED_BYTES, stream>>>(*call);
        TRY(dev_cuda_launched("flash2's backward kernel"));
    }
    if (call->splits > 1 && call->batch * call->seq_k > 0) {
        parts_kernel<T><<<dim3((unsigned)(most / 8), 2), 256, 0, stream>>>(*call, D);
        TRY(dev_cuda_launched("flash2's sum over a group"));
    }
    if (tiles > 0) {
        dq_kernel<T, D, H, QUERIES, WARPS, DOWN><<<(unsigned)tiles, WARPS * 32, 0, stream>>>(*call);
        TRY(dev_cuda_launched("flash2's pass after the backward kernel"));
    }
    return STATUS_OK;
}

template <typename T> enum status launch(int head_dim, const struct flash2_call *call, struct dev_queue *queue)
{
    int shared_bytes = 0;
    switch (head_dim) {
    case 64: return backward_launch<T, 64, 64, 64, 8, 2>(call, queue);
    case 96: return backward_launch<T, 96, 96, 64, 8, 4>(call, queue);
    case 128: return backward_launch<T, 128, 128, 64, 8, 2>(call, queue);
    default:
        TRY(flash2_shared_most(queue, &shared_bytes));
        return shared_bytes >= FLASH2_ROOMY ? backward_launch<T, 256, 128, 32, 8, 2>(call, queue)
                                            : backward_launch<T, 256, 128, 32, 4, 1>(call, queue);
    }
}

} // namespace

struct flash2_tiles flash2_backward_tiles(int head_dim, bool roomy)
{
    struct flash2_tiles tiles = {head_dim == 256 ? 32 : 64, head_dim == 256 && !roomy ? 64 : 128,
                                 head_dim == 256 ? 128 : head_dim};
    return tiles;
}

enum status flash2_launch_backward(int head_dim, enum dtype dtype, const struct flash2_call *call, struct dev_queue *queue)
{
    struct flash2_call sectioned = *call;
    /* Blocks of one unit walk the same query tiles one step apart and so share them in L2: some 8 at a time are enough. More would
     * wait longer for the first's first step. */
    int64_t section = dev_cuda_sms(dev_queue_dev(queue)) / 8;
    sectioned.order.section = section < 1 ? 1 : section;
    return dtype == DTYPE_BF16 ? launch<__nv_bfloat16>(head_dim, &sectioned, queue)
                               : launch<__half>(head_dim, &sectioned, queue);
}
