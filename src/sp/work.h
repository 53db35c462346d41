/* sp/work.h -- what a step costs, as pure functions of (model, problem, plan, target): bytes, FLOPs, memory by term.
 *
 * Reports, models, tuner and harness all use these. Bytes and FLOPs are per rank. docs/models.md derives every formula; the
 * sources are named in work_*.c. s = B * S/P local tokens, P = sp, W = world. B is the problem's batch, S its length padded for
 * P; plans and problems are those that plan_check and problem_check accept.
 */
#ifndef SPTUNE_SP_WORK_H
#define SPTUNE_SP_WORK_H

#include "base/dev.h"
#include "model/model.h"
#include "sp/plan.h"
#include "sp/problem.h"
#include "sp/target.h"

#include <stdint.h>

/* One exchange of one layer: bytes of one rank's send buffers (own block included) and the share that leaves the rank. Of a ring what a
 * rank passes on, all of which leaves it: keys and values in, and on the way back dk and dv, in fp32 but for the last pass, out. Of split_gather what a layer's
 * all-gathers bring together (in) and its reduce-scatters scatter (out), the whole of it on each rank: of a problem with hidden. */
struct work_exchange {
    int64_t bytes_in, bytes_out;           /* forward: q+k+v in, o out. Backward: do in, dq+dk+dv out */
    int64_t wire_in, wire_out;             /* (P-1)/P of what is exchanged, all that is passed on */
    int64_t tensor_bytes[4];               /* forward q, k, v, o alone */
};
void work_exchange(const struct problem *problem, const struct plan *plan, bool backward, struct work_exchange *out);

/* Attention FLOPs of one layer and rank: 2 * heads/P * (d_qk + d_v) * pairs; backward 2.5 times. */
double work_attention_flops(const struct problem *problem, const struct plan *plan, bool backward);

/* Linear layers of all transformer layers and one rank as (m, n, k) products, under split_gather of this rank's pieces with the tokens
 * of all; backward runs each twice (dX, dW). A forward pass multiplies 2*m*n*k * count * layers, once or, where layers run again, twice. */
struct work_gemm {
    const char *name; /* "qkv", "o", "router", "gate_up", "down", "shared_gate_up", "dense_down", ..., "logits" */
    int64_t m, n, k;
    int count;        /* products of this shape in a layer: the experts that a token visits, else 1 */
    int layers;       /* layers that have it */
    int64_t rows;     /* rows of one product as it runs: m, of experts m * count / experts */
    int forwards;     /* passes; 1 of a layer's last product, as nothing keeps its output; not if target->keeps_late */
};
enum { WORK_GEMMS = 12 };
/* Of a mixture: the active experts, shared ones, and the layers that are dense. target: whose layers run again; NULL: none that keeps late. */
int work_gemms(const struct model *model, const struct problem *problem, const struct plan *plan,
               const struct target *target, struct work_gemm out[WORK_GEMMS]);
struct work_gemm work_logits(const struct model *model, const struct problem *problem, const struct plan *plan);

/* Bytes that what is neither product nor attention reads and writes on one rank in a micro-step, forward as often as the plan has it:
 * norms, rotary positions, activations and residual sums of all layers, and the loss on its logits. 0 of heads alone. Not counted:
 * biases, and copies that a runtime makes of checkpoints and gradients. */
double work_elementwise(const struct model *model, const struct problem *problem, const struct plan *plan,
                        const struct target *target);

/* Elements of the parameters that one rank has where nothing is sharded, and how many ranks share each kind of them: the pieces of
 * layers that ranks cut (plan_ways), 0 where none do, and all the rest. Biases and norms of q and k are not told apart from the layers'
 * matrices. */
struct work_params {
    double cut, whole;
    int cut_group, whole_group; /* in stages that shard */
};
void work_params(const struct model *model, const struct problem *problem, const struct plan *plan,
                 const struct target *target, struct work_params *out);

/* Data-parallel traffic of one optimizer step and rank: bytes that arrive from other ranks, number of collective calls. */
struct work_zero {
    int64_t gather_bytes, reduce_bytes; /* per step, all accumulations */
    int group;                          /* ranks that share */
    int calls;
    int64_t optimizer_elems;            /* elements this rank updates */
    double optimizer_bytes;             /* read and written there */
    double gradient_bytes; /* and of whole gradients, copied or cleared, in all micro-steps; hidden behind nothing */
};
void work_zero(const struct model *model, const struct problem *problem, const struct plan *plan,
               const struct target *target, struct work_zero *out);

/* Bytes that exec_create allocates on one rank for this layer, staging of the exchange included, the kernel's workspace not. */
int64_t work_exec_bytes(const struct problem *problem, const struct plan *plan);
/* What windows of the exchange take beside them: their ends, which no buffer fills. */
int64_t work_window_bytes(const struct problem *problem, const struct plan *plan);
/* The workspace that the plan's kernel asks for there on a device of so many threads; 0 of a kernel that is not in this build. */
int64_t work_kernel_bytes(const struct problem *problem, const struct plan *plan, int threads);

/* Products with the vocabulary per micro-step: logits, dX and dW; one more where the loss computes the logits again (tiled: each
 * tile is checkpointed). Fused losses make both gradients in the forward pass, from the logits they have. */
int work_loss_products(const struct plan *plan);

/* Forward executions of each layer per micro-step: 1, or 2 with activation checkpointing. What a tiled MLP runs again is not counted. */
int work_forward_passes(const struct plan *plan);

/* Always live: params states gather context; rows of split_gather in the layers; grads and buckets too, where the target allocates them at the start (ZeRO-3), else from
 * the first layer's backward on. Outside the optimizer step: checkpoints or activations. One phase at a time: attention, kv_copies |
 * mlp | logits, logits_fp32, logits_grad | step_grads. Host: host_states host_params host_checkpoints. */
struct work_term {
    char name[24];
    int64_t bytes;
    char formula[160];  /* with its numbers, for `explain` */
    bool host;          /* host memory, not the device's */
    bool live_at_peak;  /* adds to the peak (the phases attention, mlp, loss and step exclude each other) */
};
enum { WORK_TERMS = 24 };
struct work_memory {
    int n;
    struct work_term term[WORK_TERMS];
    int64_t peak_bytes;  /* of one device */
    int64_t host_bytes;  /* of one rank */
    char peak_at[24];    /* "loss", "attention", "mlp", "step" (the optimizer's); "run": all stay from step to step */
};
/* The device context is that of the device of the plan's exchange; CUDA when this build does not know it. */
void work_memory(const struct model *model, const struct problem *problem, const struct plan *plan,
                 const struct target *target, struct work_memory *out);
/* The same on a device of another kind than the exchange's: a plan measured on a stand-in, made for a machine that is not here. threads: of
 * a rank's kernels on CPUs, each of which has some workspace; 1 where that is not known. */
void work_memory_on(const struct model *model, const struct problem *problem, const struct plan *plan,
                    const struct target *target, enum dev_kind dev, int threads, struct work_memory *out);

/* Bytes in fp32 of the logits that a harness has at a time under a tiled loss, at most. */
int64_t work_logits_tile(enum dev_kind dev);

enum work_fit { WORK_FITS, WORK_MEASURE_FIRST, WORK_DOES_NOT_FIT }; /* <= 80 %, <= 95 %, above */
enum work_fit work_fit(int64_t peak_bytes, int64_t limit_bytes);

/* Tokens of one optimizer step and the accumulation that a global batch asks for: A = G*P/(S*B*W). */
int64_t work_step_tokens(const struct problem *problem, const struct plan *plan);
struct verdict work_accumulate(const struct problem *problem, const struct plan *plan, int64_t global_tokens,
                               int64_t *out_accumulate);

#endif
