/* bench/suite.c -- the suites, and what is in each. */
#include "bench/suite.h"

#include <stddef.h>
#include <string.h>

#define HEADS     "--heads 8 --kv-heads 4 "
#define GPU_HEADS "--heads 32 --kv-heads 8 --head-dim 128 "

/* 39 rows in 25 cells on CPUs. Sizes are such that a sample takes a few milliseconds at most, so that on two quiet cores every row has its
 * interval within a minute, checks included; eight ranks can still split the heads. On GPUs as many, whose sizes fill one. */
static const struct suite ci = {
    .name = "ci",
    .about = "every part at small sizes, within a minute on two cores",
    .lines =
        {
            {"link", "--op memcpy,peer --bytes 64k,4M --buffers hot,cold", SUITE_ALL},
            {"collective",
             "--op alltoall,allgather,reduce_scatter,allreduce,sendrecv --bytes 1M --dtype fp32 --buffers hot",
             SUITE_ALL},
            {"exchange",
             HEADS "--head-dim 64 --seq 256,2k --batch 1 --dtype fp32 --op whole --direction fwd,bwd --buffers hot "
                   "--exchange packed,packed-separate,direct",
             SUITE_CPUS},
            {"exchange",
             GPU_HEADS "--seq 4k,32k --batch 1 --dtype bf16 --op whole --direction fwd,bwd --buffers hot "
                       "--exchange nccl-separate,nccl,push,ce",
             SUITE_GPUS},
            {"attention",
             HEADS "--head-dim 64,128 --seq 1k --batch 1 --dtype fp32,bf16 --direction fwd,bwd --causal 1 --window 0 "
                   "--buffers hot --attention cpu",
             SUITE_CPUS},
            {"attention",
             GPU_HEADS "--seq 8k --batch 1 --dtype bf16 --direction fwd,bwd --causal 1 --window 0 --buffers hot "
                       "--attention flash2",
             SUITE_GPUS},
#if SPTUNE_CUDNN
            {"attention",
             GPU_HEADS "--seq 8k --batch 1 --dtype bf16 --direction fwd,bwd --causal 1 --window 0 --buffers hot "
                       "--attention cudnn",
             SUITE_GPUS},
#endif
            {"gemm", "--m 512 --n 512 --k 512 --dtype fp32,bf16 --buffers hot", SUITE_ALL},
            {"layer",
             HEADS
             "--head-dim 64 --seq 1k --batch 1 --dtype fp32 --direction fwd,bwd --causal 1 --window 0 --buffers hot "
             "--exchange packed,direct --attention cpu --chunks 1",
             SUITE_CPUS},
            {"layer",
             GPU_HEADS "--seq 8k --batch 1 --dtype bf16 --direction fwd,bwd --causal 1 --window 0 --buffers hot "
                       "--exchange nccl,push --attention flash2 --chunks 1",
             SUITE_GPUS},
        },
};

const struct suite *const suites[] = {&ci, NULL};

const struct suite *suite_find(const char *name)
{
    for (int i = 0; name != NULL && suites[i] != NULL; i++)
        if (strcmp(suites[i]->name, name) == 0)
            return suites[i];
    return NULL;
}
