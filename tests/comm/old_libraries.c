/* tests/comm/old_libraries.c -- an NCCL 2.17.1 and a cuDNN 9.1.0 with nothing but their names and versions: what is loaded and too old. */
#include <stddef.h>

#define EMPTY(name)                                                                                                    \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return 1;                                                                                                      \
    }
EMPTY(ncclGetUniqueId)
EMPTY(ncclCommInitRankConfig)
EMPTY(ncclCommDestroy)
EMPTY(ncclCommAbort)
EMPTY(ncclGetErrorString)
EMPTY(ncclGetLastError)
EMPTY(ncclGroupStart)
EMPTY(ncclGroupEnd)
EMPTY(ncclSend)
EMPTY(ncclRecv)
EMPTY(ncclAllReduce)
EMPTY(ncclReduceScatter)
EMPTY(cudnnGetErrorString)
EMPTY(cudnnGetLastErrorString)
EMPTY(cudnnCreate)
EMPTY(cudnnDestroy)
EMPTY(cudnnSetStream)
EMPTY(cudnnBackendCreateDescriptor)
EMPTY(cudnnBackendDestroyDescriptor)
EMPTY(cudnnBackendFinalize)
EMPTY(cudnnBackendSetAttribute)
EMPTY(cudnnBackendGetAttribute)
EMPTY(cudnnBackendExecute)

int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = 21701;
    return 0;
}

size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    return 90100;
}
