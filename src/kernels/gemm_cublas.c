/* kernels/gemm_cublas.c -- C = A B or C += A B by cuBLASLt: bf16, fp16 or fp32 operands, fp32 sums, a result in fp32 or as narrow as they.
 *
 * Loaded when first asked: libcublasLt.so.13 or .12, or the file that SPTUNE_CUBLAS names. The types here are those of its ABI, which
 * both versions share. It thinks in columns: a row-major C[m][n] is its C^T, so it is asked for C^T = B^T A^T with the operands
 * exchanged and nothing is moved. It chooses a kernel for a shape by itself; the choice is kept, since choosing takes longer than a
 * small product. What is put on the queue can be captured: only the first product of a shape allocates, on the host.
 */
#include "kernels/gemm_cublas.h"

#include "base/dev_cuda.h"

#include <dlfcn.h>
#include <library_types.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct handle_st *lt_handle;
typedef struct desc_st *lt_desc;
typedef struct layout_st *lt_layout;
typedef struct preference_st *lt_preference;

enum { DONE = 0 };                         /* cublasStatus_t */
enum { OP_N = 0, OP_T = 1 };               /* cublasOperation_t */
enum { COMPUTE_32F = 68 };                 /* cublasComputeType_t */
enum { DESC_TRANSA = 3, DESC_TRANSB = 4 }; /* cublasLtMatmulDescAttributes_t */
enum { PREFER_WORKSPACE_BYTES = 1 };       /* cublasLtMatmulPreferenceAttributes_t */
struct lt_algo {
    uint64_t data[8];
};
struct lt_choice {
    struct lt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

#define CUBLAS_FUNCTIONS(X)                                                                                            \
    X(cublasLtCreate, (lt_handle *))                                                                                   \
    X(cublasLtMatmulDescCreate, (lt_desc *, int compute, int scale_type))                                              \
    X(cublasLtMatmulDescDestroy, (lt_desc))                                                                            \
    X(cublasLtMatmulDescSetAttribute, (lt_desc, int attribute, const void *value, size_t bytes))                       \
    X(cublasLtMatrixLayoutCreate, (lt_layout *, int type, uint64_t rows, uint64_t columns, int64_t step))              \
    X(cublasLtMatrixLayoutDestroy, (lt_layout))                                                                        \
    X(cublasLtMatmulPreferenceCreate, (lt_preference *))                                                               \
    X(cublasLtMatmulPreferenceDestroy, (lt_preference))                                                                \
    X(cublasLtMatmulPreferenceSetAttribute, (lt_preference, int attribute, const void *value, size_t bytes))           \
    X(cublasLtMatmulAlgoGetHeuristic, (lt_handle, lt_desc, lt_layout a, lt_layout b, lt_layout c, lt_layout d,         \
                                       lt_preference, int wanted, struct lt_choice *, int *found))                     \
    X(cublasLtMatmul, (lt_handle, lt_desc, const void *alpha, const void *a, lt_layout, const void *b, lt_layout,      \
                       const void *beta, const void *c, lt_layout, void *d, lt_layout, const struct lt_algo *,         \
                       void *workspace, size_t workspace_bytes, cudaStream_t))

/* A shape that was seen: what the library needs to be told of it, and its choice. */
struct product {
    struct gemm_shape shape;
    lt_desc desc;
    lt_layout first, second, result; /* first: b; second: a */
    struct lt_choice choice;
};
enum { PRODUCTS = 64 };

static struct {
    pthread_mutex_t lock;
    bool loaded;
    char name[64];
    size_t (*version)(void);
#define CUBLAS_FIELD(name, parameters) int(*name) parameters;
    CUBLAS_FUNCTIONS(CUBLAS_FIELD)
#undef CUBLAS_FIELD
    lt_handle handle; /* of this process's GPU */
    struct product products[PRODUCTS];
    int nproducts;
} lt = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum status said(int code, const char *what)
{
    if (code == DONE)
        return STATUS_OK;
    TRY(dev_cuda_late_status());
    return FAIL(STATUS_MACHINE, "cuBLAS failed at %s: status %d", what, code);
}

static enum status find(void *library, const char *name, void *at)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL)
        return HINT(FAIL(STATUS_ABSENT, "cuBLAS has no function %s", name), "install cuBLAS 12 or newer");
    memcpy(at, &symbol, sizeof symbol);
    return STATUS_OK;
}

static void *open_library(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *named = getenv("SPTUNE_CUBLAS");
    void *library = NULL;
    if (named != NULL && named[0] != '\0')
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static enum status load(void)
{
    if (lt.loaded)
        return STATUS_OK;
    void *library = open_library();
    if (library == NULL)
        return HINT(FAIL(STATUS_ABSENT, "cuBLAS cannot be loaded: %s", dlerror()),
                    "install it, or set SPTUNE_CUBLAS to a file libcublasLt.so.13 or .12 (PyTorch brings one)");
#define CUBLAS_FIND(name, parameters) TRY(find(library, #name, &lt.name));
    CUBLAS_FUNCTIONS(CUBLAS_FIND)
#undef CUBLAS_FIND
    TRY(find(library, "cublasLtGetVersion", &lt.version));
    size_t version = lt.version(); /* 130002: 13.0.2 */
    snprintf(lt.name, sizeof lt.name, "cublaslt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    lt.loaded = true;
    return STATUS_OK;
}

enum status gemm_cublas_load(void)
{
    pthread_mutex_lock(&lt.lock);
    enum status status = load();
    pthread_mutex_unlock(&lt.lock);
    return status;
}

const char *gemm_cublas_name(void)
{
    if (gemm_cublas_load() == STATUS_OK)
        return lt.name;
    status_clear();
    return "";
}

static int type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

static bool same(const struct gemm_shape *x, const struct gemm_shape *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->dtype == y->dtype && x->trans_a == y->trans_a &&
           x->trans_b == y->trans_b && x->narrow == y->narrow; /* not `add`: that is an argument of the call */
}

static void forget(struct product *p)
{
    if (p->result != NULL)
        lt.cublasLtMatrixLayoutDestroy(p->result);
    if (p->second != NULL)
        lt.cublasLtMatrixLayoutDestroy(p->second);
    if (p->first != NULL)
        lt.cublasLtMatrixLayoutDestroy(p->first);
    if (p->desc != NULL)
        lt.cublasLtMatmulDescDestroy(p->desc);
    *p = (struct product){.desc = NULL};
}

/* A matrix of `rows` x `columns`, row by row, is to the library one of columns x rows. */
static enum status layout_of(int type, int64_t rows, int64_t columns, lt_layout *out)
{
    return said(lt.cublasLtMatrixLayoutCreate(out, type, (uint64_t)columns, (uint64_t)rows, columns), "a layout");
}

static enum status choose_kernel(struct product *p)
{
    lt_preference preference = NULL;
    size_t most = GEMM_CUBLAS_WORKSPACE;
    int found = 0;
    TRY(said(lt.cublasLtMatmulPreferenceCreate(&preference), "a preference"));
    int code = lt.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_WORKSPACE_BYTES, &most, sizeof most);
    if (code == DONE)
        code = lt.cublasLtMatmulAlgoGetHeuristic(lt.handle, p->desc, p->first, p->second, p->result, p->result,
                                                 preference, 1, &p->choice, &found);
    lt.cublasLtMatmulPreferenceDestroy(preference);
    TRY(said(code, "choosing a kernel"));
    if (found > 0 && p->choice.state == DONE)
        return STATUS_OK;
    return FAIL(STATUS_UNSUPPORTED, "cuBLAS has no kernel for a product of %lld x %lld x %lld in %s",
                (long long)p->shape.m, (long long)p->shape.n, (long long)p->shape.k, dtype_name(p->shape.dtype));
}

static enum status describe(struct product *p)
{
    const struct gemm_shape *s = &p->shape;
    int type = type_of(s->dtype), op_first = s->trans_b ? OP_T : OP_N, op_second = s->trans_a ? OP_T : OP_N;
    TRY(said(lt.cublasLtMatmulDescCreate(&p->desc, COMPUTE_32F, CUDA_R_32F), "a product"));
    TRY(said(lt.cublasLtMatmulDescSetAttribute(p->desc, DESC_TRANSA, &op_first, sizeof op_first), "a product"));
    TRY(said(lt.cublasLtMatmulDescSetAttribute(p->desc, DESC_TRANSB, &op_second, sizeof op_second), "a product"));
    TRY(layout_of(type, s->trans_b ? s->n : s->k, s->trans_b ? s->k : s->n, &p->first));
    TRY(layout_of(type, s->trans_a ? s->k : s->m, s->trans_a ? s->m : s->k, &p->second));
    TRY(layout_of(s->narrow ? type : CUDA_R_32F, s->m, s->n, &p->result));
    return choose_kernel(p);
}

static enum status product_of(const struct gemm_shape *shape, const struct product **out)
{
    for (int i = 0; i < lt.nproducts; i++)
        if (same(&lt.products[i].shape, shape)) {
            *out = &lt.products[i];
            return STATUS_OK;
        }
    if (lt.handle == NULL)
        TRY(said(lt.cublasLtCreate(&lt.handle), "its start"));
    if (lt.nproducts == PRODUCTS) /* a run of so many shapes is past the first ones */
        forget(&lt.products[--lt.nproducts]);
    struct product *p = &lt.products[lt.nproducts];
    *p = (struct product){.shape = *shape};
    enum status status = describe(p);
    if (status != STATUS_OK) {
        forget(p);
        return status;
    }
    lt.nproducts++;
    *out = p;
    return STATUS_OK;
}

static enum status run(const struct gemm_shape *shape, const void *a, const void *b, void *c, void *workspace,
                       struct dev_queue *queue)
{
    static const float one = 1, zero = 0;
    const struct product *p = NULL;
    TRY(load());
    TRY(product_of(shape, &p));
    TRY(said(lt.cublasLtMatmul(lt.handle, p->desc, &one, b, p->first, a, p->second, shape->add ? &one : &zero, c,
                               p->result, c, p->result, &p->choice.algo, workspace, GEMM_CUBLAS_WORKSPACE,
                               dev_cuda_stream(queue)),
             "a product"));
    return dev_cuda_launched("a product");
}

enum status gemm_cublas_run(const struct gemm_shape *shape, const void *a, const void *b, void *c, void *workspace,
                            struct dev_queue *queue)
{
    pthread_mutex_lock(&lt.lock);
    enum status status = run(shape, a, b, c, workspace, queue);
    pthread_mutex_unlock(&lt.lock);
    return status;
}
