/* kernels/gate.cu -- one thread that looks at a word of host memory: some microsecond from the host's store to the next kernel. */
#include "base/dev_cuda.h"
#include "kernels/gate.h"

#include <stdlib.h>

struct words {             /* host memory that the GPU reads and writes */
    uint32_t open, missed; /* number of the gate */
};

struct gate {
    volatile struct words *words;
    uint32_t number;
};

__global__ void gate_kernel(volatile struct words *words, uint32_t number, uint64_t limit_ns)
{
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while ((int32_t)(words->open - number) < 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - start > limit_ns) {
            words->missed = number;
            return;
        }
    }
}

enum status gate_create(struct gate **out)
{
    void *words = NULL;
    struct gate *gate = (struct gate *)calloc(1, sizeof *gate);
    if (gate == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a gate");
    enum status status = dev_cuda_status(cudaHostAlloc(&words, sizeof(struct words), cudaHostAllocMapped), "a gate");
    if (status != STATUS_OK) {
        free(gate);
        return status;
    }
    gate->words = (volatile struct words *)words;
    gate->words->open = gate->words->missed = 0;
    *out = gate;
    return STATUS_OK;
}

void gate_destroy(struct gate *gate)
{
    if (gate == NULL)
        return;
    if (!dev_cuda_stuck())
        cudaFreeHost((void *)gate->words);
    free(gate);
}

enum status gate_shut(struct gate *gate, int64_t limit_us, struct dev_queue *queue)
{
    gate->number++;
    gate_kernel<<<1, 1, 0, dev_cuda_stream(queue)>>>(gate->words, gate->number, (uint64_t)limit_us * 1000);
    return dev_cuda_launched("a gate");
}

void gate_open(struct gate *gate)
{
    gate->words->open = gate->number;
}

bool gate_missed(const struct gate *gate)
{
    return gate->number != 0 && gate->words->missed == gate->number;
}
