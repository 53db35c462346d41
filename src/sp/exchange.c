/* sp/exchange.c -- the table of exchanges, and what a call may ask of them. */
#include "sp/exchange.h"

#include "model/model.h"

#include <string.h>

extern const struct exchange exchange_packed;
extern const struct exchange exchange_packed_separate;
extern const struct exchange exchange_direct;
#if SPTUNE_CUDA
extern const struct exchange exchange_nccl;
extern const struct exchange exchange_nccl_separate;
extern const struct exchange exchange_nccl_registered;
extern const struct exchange exchange_nccl_window;
extern const struct exchange exchange_nccl_ce;
extern const struct exchange exchange_ucx;
extern const struct exchange exchange_push;
extern const struct exchange exchange_pull;
extern const struct exchange exchange_ce;
#endif

const struct exchange *const exchanges[] = {
    &exchange_packed,
    &exchange_packed_separate,
    &exchange_direct,
#if SPTUNE_CUDA
    &exchange_nccl,
    &exchange_nccl_separate,
    &exchange_nccl_registered,
    &exchange_nccl_window,
    &exchange_nccl_ce,
    &exchange_ucx,
    &exchange_push,
    &exchange_pull,
    &exchange_ce,
#endif
    NULL,
};

const struct exchange *exchange_find(const char *name)
{
    for (int i = 0; name != NULL && exchanges[i] != NULL; i++)
        if (strcmp(exchanges[i]->name, name) == 0)
            return exchanges[i];
    return NULL;
}

const struct exchange *exchange_first(enum dev_kind dev)
{
    for (int i = 0; exchanges[i] != NULL; i++)
        if (exchanges[i]->dev == dev)
            return exchanges[i];
    return NULL;
}

const char *exchange_in_use(const struct exchange *exchange, const void *state, const struct comm *group)
{
    return exchange->in_use != NULL ? exchange->in_use(state) : comm_transport(group);
}

struct verdict exchange_can(enum dev_kind dev, const struct exchange_shape *shape, const struct comm *group)
{
    if (group != NULL && dev_kind_of(comm_dev(group)) != dev)
        return verdict_no(RULE_EXCHANGE_CANNOT, "this exchange is for ranks on the %s, not on the %s",
                          dev_kind_name(dev), dev_kind_name(dev_kind_of(comm_dev(group))));
    if ((unsigned)shape->dtype >= DTYPE_COUNT || shape->batch < 1 || shape->seq_local < 0 || shape->row_elems_max < 1)
        return verdict_no(RULE_EXCHANGE_CANNOT, "batch %lld, %lld local tokens, rows of %lld elements, dtype %d",
                          (long long)shape->batch, (long long)shape->seq_local, (long long)shape->row_elems_max,
                          (int)shape->dtype);
    return VERDICT_YES;
}

enum status exchange_check_tensors(const struct exchange_tensor *tensors, int n, int size)
{
    if (n < 1 || n > EXCHANGE_TENSORS_MAX)
        return FAIL(STATUS_USAGE, "an exchange of %d tensors; 1 to %d move in a call", n, EXCHANGE_TENSORS_MAX);
    for (int i = 0; i < n; i++) {
        const struct exchange_tensor *t = &tensors[i];
        if (t->heads < 1 || (t->heads % size != 0 && size % t->heads != 0))
            return FAIL(STATUS_USAGE, "an exchange of %d heads over %d ranks: neither number divides the other",
                        t->heads, size);
        int local = model_kv_local(t->heads, size);
        if (t->dim < 1 || t->first < 0 || t->count < 0 || t->first > local - t->count)
            return FAIL(STATUS_USAGE, "an exchange of %d heads from %d on, of %d local ones, %d in all, over %d ranks",
                        t->count, t->first, local, t->heads, size);
        if (t->head_stride < (int64_t)t->count * t->dim)
            return FAIL(STATUS_USAGE, "an exchange of %d heads of %d into tokens %lld elements apart", t->count, t->dim,
                        (long long)t->head_stride);
    }
    return STATUS_OK;
}

bool exchange_merges(const struct exchange_tensor *tensor, enum exchange_direction direction, int size)
{
    return direction == EXCHANGE_TO_SEQ && model_kv_copies(tensor->heads, size) > 1;
}

int64_t exchange_bytes(const struct exchange_shape *shape, int group_size, int count, int dim)
{
    return shape->batch * shape->seq_local * count * dim * dtype_bytes(shape->dtype) * group_size;
}
