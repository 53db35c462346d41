/* comm/transport.c -- the transports of this build. */
#include "comm/transport.h"
#include "comm/transport_ucx.h"
#if SPTUNE_NCCL
#include "comm/transport_nccl.h"
#endif

#include <string.h>

const struct transport *const transports[] = {
    &transport_ucx,
#if SPTUNE_NCCL
    &transport_nccl,
#endif
    NULL,
};

const struct transport *transport_usual(enum dev_kind dev)
{
    int i = 0;
    while (transports[i] != NULL && transports[i]->dev != dev)
        i++;
    return transports[i];
}

const struct transport *transport_find(const char *name)
{
    for (int i = 0; transports[i]; i++)
        if (name && strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}
