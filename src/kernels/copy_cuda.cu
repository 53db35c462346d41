/* kernels/copy_cuda.cu -- the layout-changing copy on a CUDA GPU.
 *
 * Bytes are read once and written once, so the floor is 2 * bytes over the memory rate (4.2 TB/s on an H200: 64 MiB in 32 us).
 * To come near it a warp reads neighbouring 16-byte units of a row, and each thread has ROWS loads in flight; two 32-bit divisions find
 * a row's place and hide behind them. All jobs of a call go in one launch, one row of blocks each.
 */
#include "base/dev_cuda.h"
#include "kernels/copy_cuda.h"
#include "kernels/copy_move.cuh"
#include "kernels/copy_rows.h"
#include "kernels/copy_sum.cuh"

enum { THREADS = 256, ROWS = 4, MOVES = 32 /* of a launch: they travel as its argument */, BLOCKS_PER_SM = 8 };

struct batch {
    struct move move[MOVES];
};

template <typename unit> __global__ void __launch_bounds__(THREADS) copy_kernel(const __grid_constant__ struct batch batch)
{
    move_rows<unit, THREADS, ROWS>(batch.move[blockIdx.y], blockIdx.x, gridDim.x);
}

struct launcher {
    struct batch batch;
    int n;
    uint32_t unit, most_blocks; /* that one of the moves can use */
    struct dev_queue *queue;
};

static enum status launch(struct launcher *launcher)
{
    if (launcher->n == 0)
        return STATUS_OK;
    uint32_t fill = (uint32_t)(dev_cuda_sms(dev_queue_dev(launcher->queue)) * BLOCKS_PER_SM / launcher->n + 1);
    dim3 grid(launcher->most_blocks < fill ? launcher->most_blocks : fill, (unsigned)launcher->n);
    cudaStream_t stream = dev_cuda_stream(launcher->queue);
    switch (launcher->unit) {
    case 16: copy_kernel<uint4><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    case 8: copy_kernel<uint2><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    case 4: copy_kernel<uint32_t><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    case 2: copy_kernel<uint16_t><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    default: copy_kernel<uint8_t><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    }
    launcher->n = 0;
    launcher->most_blocks = 0;
    return dev_cuda_launched("the layout-changing copy");
}

static enum status take(void *arg, const struct move *move, uint32_t unit)
{
    struct launcher *launcher = (struct launcher *)arg;
    if (launcher->n == MOVES || (launcher->n > 0 && unit != launcher->unit))
        TRY(launch(launcher));
    uint32_t blocks = move_blocks(move, THREADS, ROWS);
    launcher->unit = unit;
    launcher->most_blocks = blocks > launcher->most_blocks ? blocks : launcher->most_blocks;
    launcher->batch.move[launcher->n++] = *move;
    return STATUS_OK;
}

enum status copy_cuda_run(const struct copy_job *jobs, int njobs, struct dev_queue *queue)
{
    struct launcher launcher = {};
    launcher.queue = queue;
    for (int i = 0; i < njobs; i++) {
        struct copy_job merged = copy_rows_merge(jobs[i]);
        TRY(move_split(&merged, THREADS, take, &launcher));
    }
    return launch(&launcher);
}

/* ---- sums ---- */

__global__ void __launch_bounds__(THREADS) sum_kernel(const __grid_constant__ struct sum sum)
{
    sum_rows(sum, blockIdx.x, gridDim.x);
}

enum status copy_cuda_sum(const struct copy_sum *job, struct dev_queue *queue)
{
    struct sum sum = {};
    TRY(sum_fill(job, &sum));
    uint64_t blocks = (sum_units(&sum) + THREADS - 1) / THREADS;
    uint64_t most = (uint64_t)dev_cuda_sms(dev_queue_dev(queue)) * 16;
    sum_kernel<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, dev_cuda_stream(queue)>>>(sum);
    return dev_cuda_launched("the sum of copies");
}
