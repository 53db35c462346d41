/* bench/gemm_check.c -- products of this device, plain and transposed, added and narrow, in every dtype, against sums in double. */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "bench/data.h"
#include "bench/mirror.h"
#include "kernels/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SYNC_US = 60 * 1000 * 1000 };

static const struct gemm_shape gemm_shapes[] = {
    {.m = 1, .n = 1, .k = 1},
    {.m = 7, .n = 5, .k = 3},
    {.m = 33, .n = 17, .k = 65},
    {.m = 33, .n = 17, .k = 65, .trans_b = true},
    {.m = 33, .n = 17, .k = 65, .trans_a = true},
    {.m = 16, .n = 24, .k = 600, .trans_b = true},
    {.m = 128, .n = 64, .k = 96, .trans_b = true}, /* sides that kernels of tensor cores take */
    {.m = 3, .n = 4, .k = 0},
};
enum { GEMM_CASES = sizeof gemm_shapes / sizeof gemm_shapes[0], FORMS = 4 * DTYPE_COUNT };

/* Operands and result as the host has them, and on the device. */
struct product {
    const struct gemm_shape *shape;
    struct dev *dev;
    struct dev_queue *queue;
    void *a, *b, *c, *was, *workspace; /* was: c before it is added to, NULL unless it is */
    struct mirror on_a, on_b, on_c;
};

static enum dtype c_dtype(const struct gemm_shape *g)
{
    return g->narrow ? g->dtype : DTYPE_FP32;
}

static size_t product_bytes(const struct gemm_shape *g, int64_t elems)
{
    return (size_t)elems * (size_t)dtype_bytes(g->dtype);
}

/* A matrix of random elements on the host. */
static enum status matrix_make(enum dtype dtype, int64_t elems, uint64_t seed, enum data_tensor tensor, void **out)
{
    TRY(mem_alloc((size_t)(elems * dtype_bytes(dtype)), "a product", out));
    struct data_side one = {
        .base = *out, .dtype = dtype, .batch = 1, .seq = elems, .heads = 1, .dim = 1, .token_stride = 1};
    data_fill(seed, tensor, &one);
    return STATUS_OK;
}

static enum status product_make(struct product *p, uint64_t seed)
{
    const struct gemm_shape *g = p->shape;
    size_t c_bytes = (size_t)(g->m * g->n * dtype_bytes(c_dtype(g)));
    TRY(matrix_make(g->dtype, g->m * g->k, seed, DATA_A, &p->a));
    TRY(matrix_make(g->dtype, g->n * g->k, seed, DATA_B, &p->b));
    TRY(mem_alloc(c_bytes, "a product", &p->c));
    memset(p->c, 0xff, c_bytes); /* NaN: nothing may be left of it */
    if (g->add) {
        TRY(matrix_make(c_dtype(g), g->m * g->n, seed, DATA_X, &p->was));
        memcpy(p->c, p->was, c_bytes);
    }
    TRY(mirror_of_host(p->dev, p->a, product_bytes(g, g->m * g->k), &p->on_a));
    TRY(mirror_of_host(p->dev, p->b, product_bytes(g, g->n * g->k), &p->on_b));
    TRY(mirror_of_host(p->dev, p->c, c_bytes, &p->on_c));
    TRY(dev_alloc(p->dev, gemm_workspace(dev_kind_of(p->dev), g), "a product", &p->workspace));
    return dev_queue_create(p->dev, &p->queue);
}

static void product_free(struct product *p)
{
    mirror_close(&p->on_a);
    mirror_close(&p->on_b);
    mirror_close(&p->on_c);
    dev_free(p->dev, p->workspace);
    dev_queue_destroy(p->queue);
    free(p->a);
    free(p->b);
    free(p->c);
    free(p->was);
}

static enum status product_run(struct product *p)
{
    TRY(gemm_run(dev_kind_of(p->dev), p->shape, p->on_a.device, p->on_b.device, p->on_c.device, p->workspace,
                 p->queue));
    TRY(dev_sync(p->queue, clock_deadline(SYNC_US)));
    return mirror_load(&p->on_c);
}

/* Sums are those of fp32, of k + 1 terms where c is added to. A narrow c is rounded once; one that is added to twice, as cuBLAS 13.0
 * does on an H200: the product, then the sum. */
static void product_compare(const struct product *p, struct tally *tally)
{
    static const double roundings[DTYPE_COUNT] = {0, 0x1p-8, 0x1p-11};
    const struct gemm_shape *g = p->shape;
    enum dtype type = c_dtype(g);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double was = g->add ? (double)dtype_get(type, p->was, i * g->n + j) : 0, want = was, size = fabs(was),
                   got = (double)dtype_get(type, p->c, i * g->n + j);
            for (int64_t l = 0; l < g->k; l++) {
                double term = (double)dtype_get(g->dtype, p->a, g->trans_a ? l * g->m + i : i * g->k + l) *
                              (double)dtype_get(g->dtype, p->b, g->trans_b ? j * g->k + l : l * g->n + j);
                want += term;
                size += fabs(term);
            }
            double rounded = fabs(want) + (g->add ? fabs(want - was) : 0);
            if (!(fabs(got - want) <= (double)(g->k + 2) * 0x1p-24 * size + roundings[type] * rounded))
                tally_wrong(tally, "%lld x %lld x %lld %s%s%s: c[%lld][%lld] is %g, not %g", (long long)g->m,
                            (long long)g->n, (long long)g->k, dtype_name(g->dtype), g->add ? ", added" : "",
                            g->narrow ? ", narrow" : "", (long long)i, (long long)j, got, want);
        }
}

static enum status gemm_one(struct dev *dev, uint64_t seed, const struct gemm_shape *g, struct tally *tally)
{
    struct product p = {.shape = g, .dev = dev};
    enum status status = product_make(&p, seed);
    if (status == STATUS_OK)
        status = product_run(&p);
    if (status == STATUS_OK) {
        product_compare(&p, tally);
        tally->cases++;
    } else if (status == STATUS_UNSUPPORTED && (g->m % 8 != 0 || g->n % 8 != 0 || g->k % 8 != 0)) {
        /* a library may have no kernel for sides as odd as these */
        status_clear();
        status = STATUS_OK;
    }
    product_free(&p);
    return status;
}

enum status check_products(struct dev *dev, uint64_t seed, int rank, int ranks, struct tally *tally)
{
    for (int i = rank; i < GEMM_CASES * FORMS; i += ranks) {
        struct gemm_shape shape = gemm_shapes[i / FORMS];
        shape.dtype = (enum dtype)(i % DTYPE_COUNT);
        shape.add = i / DTYPE_COUNT % 2 == 1;
        shape.narrow = i / DTYPE_COUNT / 2 % 2 == 1;
        TRY(tally_status(tally, gemm_one(dev, seed, &shape, tally)));
    }
    return STATUS_OK;
}
