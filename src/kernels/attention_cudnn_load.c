/* kernels/attention_cudnn_load.c -- load cuDNN once. */
#include "kernels/attention_cudnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CUDNN_LIBRARY "libcudnn.so.9"
/* Until 9.15 a key length that is no multiple of 128 needs a padding mask of its own, 9.10 has a wrong backward. */
enum { OLDEST = 91600 };

static enum status resolve(void *library, struct cudnn_api *api)
{
    void *symbol;
#define CUDNN_RESOLVE(name)                                                                                            \
    symbol = dlsym(library, #name);                                                                                    \
    if (!symbol)                                                                                                       \
        return HINT(FAIL(STATUS_ABSENT, "%s has no function %s", CUDNN_LIBRARY, #name),                                \
                    "install cuDNN 9.16 or newer");                                                                    \
    memcpy(&api->name, &symbol, sizeof symbol);
    CUDNN_FUNCTIONS(CUDNN_RESOLVE)
#undef CUDNN_RESOLVE
    return STATUS_OK;
}

static enum status load(struct cudnn_api *api)
{
    const char *file = getenv("SPTUNE_CUDNN");
    void *library = dlopen(file && *file ? file : CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return HINT(FAIL(STATUS_ABSENT, "cuDNN cannot be loaded: %s", dlerror()),
                    "install cuDNN 9, or set SPTUNE_CUDNN to the file of one (PyTorch brings one)");
    TRY(resolve(library, api));
    api->version = (int)api->cudnnGetVersion();
    if (api->version < OLDEST)
        return HINT(FAIL(STATUS_UNSUPPORTED, "cuDNN %d.%d.%d is loaded", api->version / 10000, api->version / 100 % 100,
                         api->version % 100),
                    "install cuDNN 9.16 or newer");
    return STATUS_OK;
}

enum status cudnn_load(const struct cudnn_api **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct cudnn_api api;
    static bool loaded;
    pthread_mutex_lock(&lock);
    enum status status = loaded ? STATUS_OK : load(&api);
    loaded = status == STATUS_OK;
    pthread_mutex_unlock(&lock);
    *out = &api;
    return status;
}
