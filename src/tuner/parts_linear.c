/* tuner/parts_linear.c -- the rest of a step: products, what goes over elements, gathers and reductions of ZeRO, the optimizer.
 *
 * Products are cut to what takes milliseconds on one device; their time is linear in what is left out. Experts see
 * fewer rows than a dense layer: s * top_k / experts each.
 */
#include "tuner/parts_build.h"

#include "base/text.h"
#include "sp/work.h"

#include <string.h>

/* Sizes from which on a rate hardly grows: of a GPU's products and copies they are what takes tenths of a millisecond. */
static const struct sizes {
    int64_t coarse_rows, coarse_side; /* of the product that all plans share */
    int64_t rows, columns;            /* of a product, at most */
    int64_t copy_bytes; /* of the copy that prices the optimizer and what goes over elements, and of a gather at most */
} sizes_of[] = {[DEV_CPU] = {512, 1024, 256, 512, 16 << 20}, [DEV_CUDA] = {4096, 4096, 4096, 8192, 256 << 20}};

static double flops_of(int64_t m, int64_t n, int64_t k)
{
    return 2.0 * (double)m * (double)n * (double)k;
}

/* Rows and columns beyond which the rate of a product hardly grows. Plans whose ranks have more rows share one sample,
 * so that what disturbs it disturbs them alike. */
static void cut(const struct sizes *most, int64_t *m, int64_t *n)
{
    *m = *m < most->rows ? *m : most->rows;
    *n = *n < most->columns ? *n : most->columns;
}

/* `flops` in all, at the rate of a product of m x n x k. */
static enum status add_product(const struct parts_build *build, int64_t m, int64_t n, int64_t k, double flops,
                               enum price_part where)
{
    const struct sizes *sizes = &sizes_of[build->request->dev];
    struct part part = parts_base(build, "gemm", "", 1);
    if (flops <= 0 || m < 1 || n < 1 || k < 1)
        return STATUS_OK;
    part.c.m = m;
    part.c.n = n;
    part.c.k = k;
    part.slack_kind = PARTS_SLACK_GEMM;
    part.part = where;
    if (build->coarse) {
        part.c.m = sizes->coarse_rows;
        part.c.n = part.c.k = sizes->coarse_side;
        part.source = RECOMMEND_ASSUMED;
        part.slack = SLACK_RATE;
    } else {
        cut(sizes, &part.c.m, &part.c.n);
        part.slack = part.c.m < m || part.c.n < n ? SLACK_LENGTH : 0;
    }
    part.times = flops / flops_of(part.c.m, part.c.n, part.c.k);
    return parts_append(build, &part);
}

enum status parts_linear(const struct parts_build *build)
{
    const struct model *model = &build->request->model;
    const struct plan *plan = build->plan;
    double steps = (double)plan->accumulate;
    struct problem problem = build->request->problem;
    struct work_gemm gemms[WORK_GEMMS];
    problem.batch = plan->micro_batch;
    for (int i = 0, n = work_gemms(model, &problem, plan, build->request->target, gemms); i < n; i++) {
        const struct work_gemm *g = &gemms[i];
        double passes = (g->forwards + 2) * steps;
        TRY(add_product(build, g->rows, g->n, g->k, flops_of(g->m, g->n, g->k) * g->count * g->layers * passes,
                        PRICE_GEMM));
    }
    struct work_gemm logits = work_logits(model, &problem, plan);
    return add_product(build, logits.m, logits.n, logits.k,
                       flops_of(logits.m, logits.n, logits.k) * logits.count * work_loss_products(plan) * steps,
                       PRICE_LOGITS);
}

/* A copy from cold memory, by all ranks at once and in the fastest way there is: what the arithmetic of an optimizer, and of all that goes over
 * elements, hides behind. NCCL's copy of a rank's own block is no measure of that: 1.5 of 4.2 TB/s on an H200. */
static struct part copy_of(const struct parts_build *build, enum price_part where)
{
    struct part part = parts_base(build, "link", "memcpy", build->request->ranks);
    part.c.bytes = sizes_of[build->request->dev].copy_bytes;
    part.c.buffers = BENCH_COLD;
    part.part = where;
    part.slack = SLACK_RATE;
    part.slack_kind = PARTS_SLACK_OPTIMIZER;
    part.source = RECOMMEND_ASSUMED;
    return part;
}

enum status parts_elementwise(const struct parts_build *build)
{
    const struct plan *plan = build->plan;
    struct problem problem = build->request->problem;
    problem.batch = plan->micro_batch;
    double bytes = work_elementwise(&build->request->model, &problem, plan, build->request->target);
    struct part copy = copy_of(build, PRICE_ELEMENTWISE);
    copy.times = bytes * (double)plan->accumulate / (2.0 * (double)copy.c.bytes); /* a copy reads and writes */
    if (!build->coarse)
        copy.source = RECOMMEND_INTERPOLATED;
    return copy.times > 0 ? parts_append(build, &copy) : STATUS_OK;
}

/* 1, 4, 16 MiB or so on: the one below what a call of this plan brings. */
static int64_t call_bytes(const struct parts_build *build, int64_t call)
{
    int64_t bytes = 1 << 20;
    while (!build->coarse && bytes < sizes_of[build->request->dev].copy_bytes && call >= 4 * bytes)
        bytes *= 4;
    return bytes;
}

/* No wire to time: of ZeRO the least it can take. */
static enum status add_guess(const struct parts_build *build, const struct parts_traffic *traffic)
{
    struct part part = copy_of(build, traffic->part);
    part.slack = SLACK_GUESS;
    part.slack_kind = PARTS_SLACK_ZERO;
    part.times = traffic->arriving / (double)part.c.bytes;
    part.possible = traffic->part == PRICE_ZERO;
    return parts_append(build, &part);
}

enum status parts_collective(const struct parts_build *build, const struct parts_traffic *traffic)
{
    const struct request *r = build->request;
    bool more = traffic->group > r->ranks;
    if (traffic->arriving <= 0)
        return STATUS_OK;
    if (r->ranks == 1)
        return add_guess(build, traffic);
    struct part part = parts_base(build, "collective", traffic->op, r->ranks);
    part.c.bytes = call_bytes(build, traffic->call);
    part.part = traffic->part;
    part.slack_kind = traffic->part == PRICE_ZERO ? PARTS_SLACK_ZERO : PARTS_SLACK_EXCHANGE;
    part.slack = more ? SLACK_RANKS : build->coarse ? SLACK_EXCHANGE : SLACK_LENGTH;
    part.source = more ? RECOMMEND_EXTRAPOLATED : build->coarse ? RECOMMEND_ASSUMED : RECOMMEND_INTERPOLATED;
    double arrives = (double)part.c.bytes; /* of a gather and of a sum all but the own part of the whole */
    if (strcmp(traffic->op, "sendrecv") != 0)
        arrives *= (double)(r->ranks - 1) / r->ranks;
    part.times = traffic->arriving / arrives;
    return parts_append(build, &part);
}

enum status parts_states(const struct parts_build *build)
{
    const struct request *r = build->request;
    struct work_zero zero;
    work_zero(&r->model, &r->problem, build->plan, r->target, &zero);
    struct parts_traffic traffic = {.call = zero.calls > 0 ? (zero.gather_bytes + zero.reduce_bytes) / zero.calls : 0,
                                    .group = r->world, /* ZeRO shards over the job */
                                    .part = PRICE_ZERO};
    traffic.op = "allgather";
    traffic.arriving = (double)zero.gather_bytes;
    TRY(parts_collective(build, &traffic));
    traffic.op = "reduce_scatter";
    traffic.arriving = (double)zero.reduce_bytes;
    TRY(parts_collective(build, &traffic));
    struct part copy = copy_of(build, PRICE_OPTIMIZER);
    double bytes = zero.optimizer_bytes + zero.gradient_bytes;
    copy.times = bytes / (2.0 * (double)copy.c.bytes); /* a copy reads and writes */
    return copy.times > 0 ? parts_append(build, &copy) : STATUS_OK;
}
