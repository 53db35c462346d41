/* kernels/attention_flash2_forward.cu -- O and LSE with mma.sync (m16n8k16, fp32 sums), for compute capability 8.0 and later.
 *
 * A block owns `q` rows of one head and walks the key blocks they see from the last to the first; a warp owns MT * 16 rows and
 * all keys of a block, so a row's maximum and sum need two shuffles within four lanes. K and V come by cp.async into two
 * stages: one barrier per key block.
 *
 * Arithmetic per key block of 64, head_dim 128, warp of 32 rows: 256 products of 4096 FLOP. Hopper's mma.sync does about 0.6 of
 * them per clock and multiprocessor, so 4 warps' 1024 take 1700 clocks; ldmatrix moves 160 bytes per product, 1300 clocks at
 * 128 bytes; exp2 of 8192 scores at 16 per clock 512 clocks. Two blocks per multiprocessor let one's exp2 run under the
 * other's products.
 *
 * The maximum that is subtracted is kept while no score passes it by more than 2^RISE: then the sums so far need no scaling.
 */
#include "base/dev_cuda.h"
#include "kernels/attention_flash2_tile.cuh"

namespace {

constexpr float LOG2E = 1.4426950408889634f;
constexpr float RISE = 8.0f;        /* exp2 stays below 256: far from fp16's end */
constexpr float FUSED_MAX = 65536;  /* beyond, one rounding of score * scale and maximum alike */

template <typename T, int D, int MT, int WARPS, int BN> struct forward {
    static constexpr int BM = WARPS * MT * 16, THREADS = WARPS * 32;
    static constexpr int Q_BYTES = BM * D * 2, K_BYTES = BN * D * 2;
    static constexpr int SHARED_BYTES = Q_BYTES + 4 * K_BYTES;

    float s[MT][BN / 8][4], o[MT][D / 8][4];
    float max[MT][2], sum[MT][2];

    FLASH2_DEVICE void clear()
    {
#pragma unroll
        for (int t = 0; t < MT; t++) {
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                o[t][n][0] = o[t][n][1] = o[t][n][2] = o[t][n][3] = 0;
            max[t][0] = max[t][1] = -INFINITY;
            sum[t][0] = sum[t][1] = 0;
        }
    }

    FLASH2_DEVICE void scores(const lane_address<D> &q, const lane_address<D> &k)
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
                s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
                fragments_load(a[t], q.at(16 * t, 2 * step));
#pragma unroll
            for (int n = 0; n < BN / 16; n++) {
                uint32_t b[4];
                fragments_load(b, k.at(16 * n, 2 * step));
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    product_add(s[t][2 * n], a[t], b[0], b[1], T());
                    product_add(s[t][2 * n + 1], a[t], b[2], b[3], T());
                }
            }
        }
    }

    /* i: this lane's first row, j: its first key, both within the segment. */
    FLASH2_DEVICE void hide(const struct flash2_mask &mask, int i, int j)
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = i + 16 * t + 8 * r;
                int first = row + mask.first_shift, end = min(row + mask.end_shift, mask.seq_k);
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int key = j + 8 * n + e;
                        if (key < first || key >= end)
                            s[t][n][2 * r + e] = -INFINITY;
                    }
            }
    }

    /* A higher maximum for the rows; sums so far are scaled to it. */
    FLASH2_DEVICE void raise(const float (&next)[MT][2], float scale2)
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float to = next[t][r] > max[t][r] ? next[t][r] : max[t][r];
                float shrink = to == -INFINITY ? 1.0f : exp2_fast((max[t][r] - to) * scale2);
                max[t][r] = to;
                sum[t][r] *= shrink;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    o[t][n][2 * r] *= shrink;
                    o[t][n][2 * r + 1] *= shrink;
                }
            }
    }

    /* Scores to probabilities relative to the rows' maximum. */
    FLASH2_DEVICE void probabilities(float scale2)
    {
        float next[MT][2];
        bool higher = false, large = false;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = fmaxf(s[t][0][2 * r], s[t][0][2 * r + 1]);
#pragma unroll
                for (int n = 1; n < BN / 8; n++)
                    top = fmaxf(top, fmaxf(s[t][n][2 * r], s[t][n][2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                next[t][r] = top;
                higher |= top * scale2 > max[t][r] * scale2 + RISE;
            }
        if (__any_sync(~0u, higher))
            raise(next, scale2);
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                large |= fabsf(max[t][r] * scale2) > FUSED_MAX && max[t][r] != -INFINITY;
        bool apart = __any_sync(~0u, large);
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = max[t][r] == -INFINITY ? 0.0f : max[t][r] * scale2, total = 0;
                if (apart) {
#pragma unroll
                    for (int n = 0; n < BN / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            s[t][n][2 * r + e] = exp2_fast(__fmul_rn(s[t][n][2 * r + e], scale2) - top);
                } else {
#pragma unroll
                    for (int n = 0; n < BN / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            s[t][n][2 * r + e] = exp2_fast(__fmaf_rn(s[t][n][2 * r + e], scale2, -top));
                }
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
                    total += s[t][n][2 * r] + s[t][n][2 * r + 1];
                sum[t][r] += total;
            }
    }

    FLASH2_DEVICE void outputs(const lane_address<D> &v)
    {
#pragma unroll
        for (int step = 0; step < BN / 16; step++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float(&p)[4] = s[t][2 * step + half];
                    a[t][2 * half] = pair(p[0], p[1], T());
                    a[t][2 * half + 1] = pair(p[2], p[3], T());
                }
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t b[4];
                fragments_load_turned(b, v.at(16 * step, 2 * n));
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    product_add(o[t][2 * n], a[t], b[0], b[1], T());
                    product_add(o[t][2 * n + 1], a[t], b[2], b[3], T());
                }
            }
        }
    }

    /* O through this warp's rows of the Q tile, which no lane reads any more, so that rows are written 16 bytes at a time. */
    FLASH2_DEVICE void store(unsigned char *q_tile, T *out, int64_t stride, float *lse, int row, int valid, float scale)
    {
        int lane = (int)threadIdx.x % 32, warp_row = (int)threadIdx.x / 32 * MT * 16;
        __syncwarp();
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float total = sum[t][r];
                total += __shfl_xor_sync(~0u, total, 1);
                total += __shfl_xor_sync(~0u, total, 2);
                float inverse = total == 0 ? 0.0f : 1.0f / total;
                int at = warp_row + 16 * t + 8 * r + lane / 4;
                if (lane % 4 == 0 && row + at < valid)
                    lse[row + at] = max[t][r] == -INFINITY ? -INFINITY : max[t][r] * scale + logf(total);
#pragma unroll
                for (int n = 0; n < D / 8; n++)
                    *(uint32_t *)(q_tile + at * D * 2 + flash2_swizzle(D / 8, at, n) * 16 + lane % 4 * 4) =
                        pair(o[t][n][2 * r] * inverse, o[t][n][2 * r + 1] * inverse, T());
            }
        __syncwarp();
#pragma unroll
        for (int at = lane; at < MT * 16 * (D / 8); at += 32) {
            int local = warp_row + at / (D / 8), chunk = at % (D / 8);
            if (row + local < valid)
                *(uint4 *)(out + (int64_t)(row + local) * stride + chunk * 8) =
                    *(const uint4 *)(q_tile + local * D * 2 + flash2_swizzle(D / 8, local, chunk) * 16);
        }
    }
};

template <typename T, int D, int MT, int WARPS, int BN, int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS) forward_kernel(const __grid_constant__ struct flash2_call call)
{
    using part = forward<T, D, MT, WARPS, BN>;
    constexpr int BM = part::BM, THREADS = part::THREADS;
    extern __shared__ __align__(128) unsigned char memory[];
    uint32_t q_tile = shared_address(memory), k_tile = q_tile + part::Q_BYTES, v_tile = k_tile + 2 * part::K_BYTES;
    int lane = (int)threadIdx.x % 32, warp_row = (int)threadIdx.x / 32 * MT * 16;

    struct flash2_work work = flash2_work_at(&call.order, blockIdx.x);
    int head = (int)(work.unit % call.heads), kv = (call.group_first + head) / call.group;
    struct flash2_segment segment = segment_find(call, work.unit / call.heads, call.order.tiles - 1 - work.tile, true);
    const struct flash2_mask &mask = segment.mask;
    int64_t q_token = segment.batch * call.seq_q + segment.q_token, k_token = segment.batch * call.seq_k + segment.k_token;
    const T *q = (const T *)call.q + q_token * call.q_stride + (int64_t)head * D;
    const T *k = (const T *)call.k + k_token * call.k_stride + (int64_t)kv * D;
    const T *v = (const T *)call.v + k_token * call.v_stride + (int64_t)kv * D;
    T *o = (T *)call.o + q_token * call.o_stride + (int64_t)head * D;
    float *lse = call.lse + (segment.batch * call.heads + head) * call.seq_q + segment.q_token;
    int row = segment.tile * BM, row_end = min(row + BM, mask.seq_q);
    struct flash2_blocks blocks = flash2_key_blocks(&mask, row, row_end, BN);
    float scale2 = call.scale * LOG2E;

    lane_address<D> q_at(q_tile, warp_row + lane % 16, lane / 16);
    lane_address<D> k_at(k_tile, lane % 8 + lane / 16 * 8, lane / 8 % 2);
    lane_address<D> v_at(v_tile, lane % 16, lane / 16);
    part mine;
    mine.clear();
    int stage = 0;
    if (blocks.first < blocks.end) {
        tile_load<D, BM, THREADS>(q_tile, q, call.q_stride, row, mask.seq_q);
        tile_load<D, BN, THREADS>(k_tile, k, call.k_stride, (blocks.end - 1) * BN, mask.seq_k);
        tile_load<D, BN, THREADS>(v_tile, v, call.v_stride, (blocks.end - 1) * BN, mask.seq_k);
    }
    copies_commit();
#pragma unroll 1
    for (int n = blocks.end - 1; n >= blocks.first; n--) {
        uint32_t here = (uint32_t)(stage * part::K_BYTES), there = (uint32_t)((stage ^ 1) * part::K_BYTES);
        copies_wait<0>();
        __syncthreads();
        if (n > blocks.first) {
            tile_load<D, BN, THREADS>(k_tile + there, k, call.k_stride, (n - 1) * BN, mask.seq_k);
            tile_load<D, BN, THREADS>(v_tile + there, v, call.v_stride, (n - 1) * BN, mask.seq_k);
        }
        copies_commit();
        lane_address<D> k_now = k_at, v_now = v_at;
        k_now.row += here;
        v_now.row += here;
        mine.scores(q_at, k_now);
        if (!flash2_all_seen(&mask, row, row_end, n * BN, (n + 1) * BN))
            mine.hide(mask, row + warp_row + lane / 4, n * BN + lane % 4 * 2);
        mine.probabilities(scale2);
        mine.outputs(v_now);
        stage ^= 1;
    }
    mine.store(memory, o, call.o_stride, lse, row, mask.seq_q, call.scale);
}

template <typename T, int D, int MT, int WARPS, int BN, int BLOCKS>
enum status forward_launch(const struct flash2_call *call, struct dev_queue *queue)
{
    constexpr int BYTES = forward<T, D, MT, WARPS, BN>::SHARED_BYTES;
    auto kernel = forward_kernel<T, D, MT, WARPS, BN, BLOCKS>;
    int64_t blocks = call->order.tiles * call->order.units;
    TRY(flash2_shared_memory((const void *)kernel, BYTES, "forward pass", D, queue));
    kernel<<<(unsigned)blocks, WARPS * 32, BYTES, dev_cuda_stream(queue)>>>(*call);
    return dev_cuda_launched("flash2's forward kernel");
}

template <typename T> enum status launch(int head_dim, const struct flash2_call *call, struct dev_queue *queue)
{
    int shared_bytes = 0;
    switch (head_dim) {
    case 64: return forward_launch<T, 64, 2, 4, 64, 3>(call, queue);
    case 96: return forward_launch<T, 96, 2, 4, 64, 2>(call, queue);
    case 128: return forward_launch<T, 128, 2, 4, 64, 2>(call, queue);
    default:
        TRY(flash2_shared_most(queue, &shared_bytes));
        return shared_bytes >= FLASH2_ROOMY ? forward_launch<T, 256, 1, 8, 64, 1>(call, queue)
                                            : forward_launch<T, 256, 1, 8, 32, 1>(call, queue);
    }
}

} // namespace

struct flash2_tiles flash2_forward_tiles(int head_dim)
{
    struct flash2_tiles tiles = {128, 64, head_dim}; /* nothing depends on the key tile here */
    return tiles;
}

enum status flash2_launch_forward(int head_dim, enum dtype dtype, const struct flash2_call *call, struct dev_queue *queue)
{
    if (call->order.tiles * call->order.units == 0)
        return STATUS_OK;
    struct flash2_call sectioned = *call;
    const struct dev *dev = dev_queue_dev(queue);
    int64_t unit_bytes = call->seq_k * 4 * head_dim * call->kv_heads / call->heads; /* a query head's share of K and V */
    int64_t fit = (int64_t)(dev_cuda_l2_bytes(dev) / 2) / (unit_bytes > 0 ? unit_bytes : 1);
    int64_t fill = 8 * dev_cuda_sms(dev) / call->order.tiles + 1; /* four rounds of blocks: a section ends in its short tiles */
    sectioned.order.section = flash2_section(call->order.units, fit > fill ? fit : fill);
    return dtype == DTYPE_BF16 ? launch<__nv_bfloat16>(head_dim, &sectioned, queue)
                               : launch<__half>(head_dim, &sectioned, queue);
}

namespace {

struct entries {
    struct flash2_entry entry[240];
};

__global__ void place_entries(const __grid_constant__ struct entries from, int count, struct flash2_entry *to)
{
    if ((int)threadIdx.x < count)
        to[threadIdx.x] = from.entry[threadIdx.x];
}

} // namespace

enum status flash2_launch_entries(const struct flash2_entry *list, int count, struct flash2_entry *out, struct dev_queue *queue)
{
    struct entries chunk = {};
    constexpr int ROOM = (int)(sizeof chunk.entry / sizeof chunk.entry[0]);
    for (int at = 0; at < count; at += ROOM) {
        int n = count - at < ROOM ? count - at : ROOM;
        for (int i = 0; i < n; i++)
            chunk.entry[i] = list[at + i];
        place_entries<<<1, 256, 0, dev_cuda_stream(queue)>>>(chunk, n, out + at);
        TRY(dev_cuda_launched("placing packed documents"));
    }
    return STATUS_OK;
}
