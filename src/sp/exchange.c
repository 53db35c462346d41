/* sp/exchange.c -- the table of exchanges, and who holds which head. */
#include "sp/exchange.h"

#include <string.h>

extern const struct exchange exchange_packed;
extern const struct exchange exchange_packed_separate;

const struct exchange *const exchanges[] = {
    &exchange_packed,
    &exchange_packed_separate,
    NULL,
};

const struct exchange *exchange_find(const char *name)
{
    for (int i = 0; name != NULL && exchanges[i] != NULL; i++)
        if (strcmp(exchanges[i]->name, name) == 0)
            return exchanges[i];
    return NULL;
}

int exchange_first_head(int heads, int group_size, int rank)
{
    return (int)((int64_t)rank * heads / group_size);
}

int exchange_local_heads(int heads, int group_size)
{
    return heads > group_size ? heads / group_size : 1;
}

int exchange_copies(int heads, int group_size)
{
    return group_size > heads ? group_size / heads : 1;
}

int64_t exchange_bytes(const struct exchange_shape *shape, int group_size, int count, int dim)
{
    return shape->batch * shape->seq_local * count * dim * dtype_bytes(shape->dtype) * group_size;
}
