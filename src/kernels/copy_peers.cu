/* kernels/copy_peers.cu -- every rank stores its rows where its peers want them, between two barriers of all ranks' kernels.
 *
 * Floor: the bytes that leave over the rate of the links (390 GB/s each way on two H200), as each is read once here and stored once
 * there. A barrier costs a store and a load across the link, some 2 us; there are two. Loads in flight hide the latency of this
 * GPU's memory, and stores across the link need no answer, so pushing needs fewer threads than pulling. Warps draw tickets of up to 2 KiB until
 * none are left: with shares dealt out beforehand the last blocks cost 2 to 6 % of the time, by size. Tickets
 * go round the ranks, so that from first to last every link is busy and so is the memory that the own block stays in.
 */
#include "base/dev_cuda.h"
#include "kernels/copy_peers.h"
#include "kernels/copy_move.cuh"
#include "kernels/copy_rows.h"
#include "kernels/copy_sum.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 512,
    ROWS = 4,
    MOVES = 96, /* of a launch */
    FEW_MOVES = 12, /* of a launch whose arguments fit the first 4 KiB of its parameters: those of two ranks */
    LOOKS = 256,   /* at a flag, between two looks at the clock */
};

static_assert(COPY_PEERS_RANKS * 3 <= MOVES, "q, k and v to and from as many ranks as are promised");

struct draw {
    uint32_t next, done; /* tickets drawn; blocks that draw no more */
};

struct meeting {
    uint32_t *flags[COPY_PEERS_RANKS]; /* of each rank: [sender][COPY_PEERS_BLOCKS] */
    uint32_t *count;                   /* [COPY_PEERS_BLOCKS], this rank's alone: meetings so far */
    int32_t *late;                     /* host memory */
    uint64_t limit_ns;
    int rank, size;
};

struct copy_peers {
    struct dev *dev;
    struct meeting meeting;
    struct draw *draw;
    int32_t *late;
    struct dev_cuda_late watched; /* late, for whoever waits for the kernel */
    bool early; /* the kernels that this GPU runs were built with the wait that an early launch needs */
    int exactly, most_blocks; /* 0: as many as are good */
};

template <int most> struct work {
    struct meeting meeting;
    int nmoves;
    uint32_t rows; /* chunks of a ticket */
    struct draw *draw; /* this rank's alone; 0 between launches */
    uint32_t start[most + 1]; /* first chunk of each, and how many in all */
    struct move move[most];
};

__device__ __forceinline__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* At the scope of all GPUs. `release`: what other threads of the block stored before its barrier comes first, which costs the way to the
 * farthest of it and back. */
__device__ __forceinline__ void flag_set(uint32_t *flag, uint32_t value, bool release)
{
    if (release)
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
    else
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t flag_get(const uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__device__ __noinline__ void give_up(const struct meeting &meeting, int rank)
{
    *(volatile int32_t *)meeting.late = rank;
    __threadfence_system();
    __trap();
}

/* Block b of all ranks; the number of the meeting grows by one each time. */
__device__ __forceinline__ void meet_peers(const struct meeting &meeting, uint32_t number, bool release)
{
    const int peer = (int)threadIdx.x;
    if (peer < meeting.size && peer != meeting.rank) {
        const uint32_t *mine = meeting.flags[meeting.rank] + peer * COPY_PEERS_BLOCKS + blockIdx.x;
        flag_set(meeting.flags[peer] + meeting.rank * COPY_PEERS_BLOCKS + blockIdx.x, number, release);
        uint64_t start = 0;
        for (int looks = 1; (int32_t)(flag_get(mine) - number) < 0; looks++)
            if (looks % LOOKS == 0) {
                const uint64_t now = now_ns();
                if (start == 0)
                    start = now;
                else if (now - start > meeting.limit_ns)
                    give_up(meeting, peer);
            }
    }
}

/* Everything that a launch reads and writes of others lies between the two. What came before the launch is complete: nothing to release. */
__device__ __forceinline__ uint32_t enter(const struct meeting &meeting)
{
    uint32_t number = 0;
    if (threadIdx.x < COPY_PEERS_RANKS) {
        number = meeting.count[blockIdx.x];
        meet_peers(meeting, number + 1, false);
    }
    __syncthreads();
    return number;
}

__device__ __forceinline__ void leave(const struct meeting &meeting, uint32_t number, bool stored)
{
    __syncthreads();
    meet_peers(meeting, number + 2, stored);
    if (threadIdx.x == 0)
        meeting.count[blockIdx.x] = number + 2;
}

/* A launch of push may begin before the one ahead of it on its queue has ended: until here it touches nothing but its parameters. */
__device__ __forceinline__ void launch_ahead_ended()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Parameters lie in memory that a block reads one line after the other, each some hundreds of nanoseconds the first time: all threads
 * fetch the moves together, while the first ones meet the peers. */
template <typename unit, int most>
__global__ void __launch_bounds__(THREADS, 2) push_kernel(const __grid_constant__ struct work<most> work)
{
    static_assert(sizeof(struct move) % sizeof(uint2) == 0, "moves are copied in units");
    __shared__ struct move moves[most];
    __shared__ uint32_t start[most + 1];
    const int pieces = work.nmoves * (int)(sizeof(struct move) / sizeof(uint2));
    if (threadIdx.x >= COPY_PEERS_RANKS)
        for (int i = (int)threadIdx.x - COPY_PEERS_RANKS; i < pieces; i += THREADS - COPY_PEERS_RANKS)
            ((uint2 *)moves)[i] = ((const uint2 *)work.move)[i];
    if (threadIdx.x >= COPY_PEERS_RANKS && threadIdx.x <= COPY_PEERS_RANKS + work.nmoves)
        start[threadIdx.x - COPY_PEERS_RANKS] = work.start[threadIdx.x - COPY_PEERS_RANKS];
    launch_ahead_ended();
    const uint32_t number = enter(work.meeting);
    const bool drawn = move_list<unit, ROWS>(moves, start, work.nmoves, work.rows, (uint32_t)work.meeting.size, &work.draw->next);
    leave(work.meeting, number, true);
    if (drawn && threadIdx.x == 0 && atomicInc(&work.draw->done, gridDim.x - 1) == gridDim.x - 1)
        work.draw->next = 0;
}

__global__ void __launch_bounds__(THREADS, 2) pull_sum_kernel(const __grid_constant__ struct meeting meeting, const __grid_constant__ struct sum sum)
{
    const uint32_t number = enter(meeting);
    sum_rows(sum, blockIdx.x, gridDim.x);
    leave(meeting, number, false);
}

/* For push one block of each multiprocessor is as fast as two (docs/measurement-gpu.md, What paid for push); the small steps were tried on two
 * H200. Large sums, which fetch, have two. */
static int choose_blocks(const struct copy_peers *peers, int64_t bytes, bool sums)
{
    if (peers->exactly > 0)
        return peers->exactly;
    int most = dev_cuda_sms(peers->dev) * (sums && bytes > 96 << 20 ? 2 : 1);
    most = most < COPY_PEERS_BLOCKS ? most : COPY_PEERS_BLOCKS;
    int blocks = bytes <= 64 << 10 ? 8 : bytes <= 512 << 10 ? 64 : most;
    blocks = blocks < most ? blocks : most;
    return peers->most_blocks > 0 && blocks > peers->most_blocks ? peers->most_blocks : blocks;
}

int copy_peers_multiprocessors(const struct copy_peers *peers)
{
    return dev_cuda_sms(peers->dev);
}

enum status copy_peers_blocks(struct copy_peers *peers, int exactly, int most)
{
    if (exactly < 0 || exactly > COPY_PEERS_BLOCKS || most < 0 || exactly > 2 * dev_cuda_sms(peers->dev))
        return HINT(FAIL(STATUS_USAGE, "%d blocks of an exchange on a GPU of %d multiprocessors", exactly, dev_cuda_sms(peers->dev)),
                    "all of them run at once: 1 to %d", 2 * dev_cuda_sms(peers->dev));
    peers->exactly = exactly;
    peers->most_blocks = most;
    return STATUS_OK;
}

struct gather {
    struct work<MOVES> work;
    uint32_t unit;
};

static enum status take(void *arg, const struct move *move, uint32_t unit)
{
    struct gather *gather = (struct gather *)arg;
    if (gather->work.nmoves == MOVES)
        return FAIL(STATUS_UNSUPPORTED, "more than %d pieces of copies in a launch", MOVES);
    struct move *to = &gather->work.move[gather->work.nmoves++];
    *to = *move;
    to->units *= unit; /* bytes, until the unit of all is known */
    gather->unit = gather->unit == 0 || unit < gather->unit ? unit : gather->unit;
    return STATUS_OK;
}

static void same_unit(struct gather *gather)
{
    gather->work.start[0] = 0;
    for (int m = 0; m < gather->work.nmoves; m++) {
        struct move *move = &gather->work.move[m];
        move->units /= gather->unit;
        move_share(move, 32);
        gather->work.start[m + 1] = gather->work.start[m] + move_chunks(move, 32);
    }
}

template <int most> static enum status push_launch(const struct copy_peers *peers, const struct work<most> &work, uint32_t unit, int grid, cudaStream_t stream)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = peers->early ? 1 : 0;
    cudaError_t error;
    switch (unit) {
    case 16: error = cudaLaunchKernelEx(&config, push_kernel<uint4, most>, work); break;
    case 8: error = cudaLaunchKernelEx(&config, push_kernel<uint2, most>, work); break;
    case 4: error = cudaLaunchKernelEx(&config, push_kernel<uint32_t, most>, work); break;
    case 2: error = cudaLaunchKernelEx(&config, push_kernel<uint16_t, most>, work); break;
    default: error = cudaLaunchKernelEx(&config, push_kernel<uint8_t, most>, work); break;
    }
    return dev_cuda_status(error, "the exchange between GPUs");
}

/* As many as there are to do at once, so that no warp has several where others have none. */
static uint32_t ticket_rows(uint32_t chunks, uint32_t warps)
{
    uint32_t rows = chunks / warps + (chunks % warps > 0);
    return rows < 1 ? 1 : rows < (uint32_t)ROWS ? rows : (uint32_t)ROWS;
}

static enum status run_jobs(struct copy_peers *peers, const struct copy_job *jobs, int njobs, int blocks, struct dev_queue *queue)
{
    struct gather gather;
    int64_t bytes = 0;
    gather.work.meeting = peers->meeting;
    gather.work.nmoves = 0;
    gather.work.draw = peers->draw;
    gather.unit = 0;
    for (int i = 0; i < njobs; i++) {
        struct copy_job merged = copy_rows_merge(jobs[i]);
        TRY(move_split(&merged, THREADS, take, &gather));
        bytes += jobs[i].n[0] * jobs[i].n[1] * jobs[i].n[2] * (int64_t)jobs[i].row_bytes;
    }
    same_unit(&gather);
    int grid = blocks > 0 ? blocks : choose_blocks(peers, bytes, false);
    gather.work.rows = ticket_rows(gather.work.start[gather.work.nmoves], (uint32_t)grid * THREADS / 32);
    cudaStream_t stream = dev_cuda_stream(queue);
    if (gather.work.nmoves <= FEW_MOVES) {
        struct work<FEW_MOVES> few = {gather.work.meeting, gather.work.nmoves, gather.work.rows, peers->draw, {}, {}};
        memcpy(few.start, gather.work.start, (size_t)(few.nmoves + 1) * sizeof few.start[0]);
        memcpy(few.move, gather.work.move, (size_t)few.nmoves * sizeof few.move[0]);
        return push_launch(peers, few, gather.unit, grid, stream);
    }
    return push_launch(peers, gather.work, gather.unit, grid, stream);
}

static enum status run_sum(struct copy_peers *peers, const struct copy_sum *job, int blocks, struct dev_queue *queue)
{
    struct sum sum = {};
    TRY(sum_fill(job, &sum));
    int64_t bytes = (int64_t)sum.rows.nrows * job->elems * dtype_bytes(job->dtype) * job->copies;
    int grid = blocks > 0 ? blocks : choose_blocks(peers, bytes, true);
    pull_sum_kernel<<<grid, THREADS, 0, dev_cuda_stream(queue)>>>(peers->meeting, sum);
    return dev_cuda_launched("the sum of copies between GPUs");
}

enum status copy_peers_run(struct copy_peers *peers, const struct copy_job *jobs, int njobs, const struct copy_sum *sums, int nsums,
                           int blocks, struct dev_queue *queue)
{
    if (blocks < 0 || blocks > COPY_PEERS_BLOCKS)
        return FAIL(STATUS_USAGE, "%d blocks; at most %d", blocks, COPY_PEERS_BLOCKS);
    if (njobs > 0)
        TRY(run_jobs(peers, jobs, njobs, blocks, queue));
    for (int i = 0; i < nsums; i++)
        TRY(run_sum(peers, &sums[i], blocks, queue));
    return STATUS_OK;
}

__global__ void meet_kernel(const __grid_constant__ struct meeting meeting)
{
    const uint32_t number = meeting.count[0] + 1;
    meet_peers(meeting, number, true);
    __syncthreads();
    if (threadIdx.x == 0)
        meeting.count[0] = number;
}

enum status copy_peers_meet(struct copy_peers *peers, struct dev_queue *queue)
{
    meet_kernel<<<1, COPY_PEERS_RANKS, 0, dev_cuda_stream(queue)>>>(peers->meeting);
    return dev_cuda_launched("a meeting of GPUs");
}

size_t copy_peers_flag_bytes(int size)
{
    return (size_t)size * COPY_PEERS_BLOCKS * sizeof(uint32_t);
}

enum status copy_peers_open(struct dev *dev, int rank, int size, void *const *flags, int64_t limit_us, struct copy_peers **out)
{
    void *count = NULL, *late = NULL;
    if (size > COPY_PEERS_RANKS)
        return FAIL(STATUS_UNSUPPORTED, "%d ranks exchange through each other's memory; at most %d can", size, COPY_PEERS_RANKS);
    struct copy_peers *peers = (struct copy_peers *)calloc(1, sizeof *peers);
    if (peers == NULL)
        return FAIL(STATUS_NOMEM, "no memory for an exchange");
    enum status status = dev_alloc(dev, COPY_PEERS_BLOCKS * sizeof(uint32_t) + sizeof(struct draw), "counts of an exchange", &count);
    if (status == STATUS_OK)
        status = dev_cuda_status(cudaHostAlloc(&late, sizeof(int32_t), cudaHostAllocMapped), "a flag of an exchange");
    cudaFuncAttributes built = {};
    if (status == STATUS_OK)
        status = dev_cuda_status(cudaFuncGetAttributes(&built, push_kernel<uint4, MOVES>), "asking for a kernel");
    if (status != STATUS_OK) {
        cudaFreeHost(late);
        dev_free(dev, count);
        free(peers);
        return status;
    }
    peers->dev = dev;
    peers->late = (int32_t *)late;
    *peers->late = -1;
    for (int r = 0; r < size; r++)
        peers->meeting.flags[r] = (uint32_t *)flags[r];
    peers->meeting.count = (uint32_t *)count;
    peers->draw = (struct draw *)(peers->meeting.count + COPY_PEERS_BLOCKS);
    peers->early = built.ptxVersion >= 90; /* as __CUDA_ARCH__ in launch_ahead_ended: a newer GPU may run what was built for an older one */
    peers->meeting.late = peers->late;
    peers->meeting.limit_ns = (uint64_t)limit_us * 1000;
    peers->meeting.rank = rank;
    peers->meeting.size = size;
    peers->watched.rank = peers->late;
    dev_cuda_late_watch(&peers->watched);
    *out = peers;
    return STATUS_OK;
}

void copy_peers_close(struct copy_peers *peers)
{
    if (peers == NULL)
        return;
    dev_cuda_late_forget(&peers->watched);
    if (!dev_cuda_stuck())
        cudaFreeHost(peers->late);
    dev_free(peers->dev, peers->meeting.count);
    free(peers);
}
