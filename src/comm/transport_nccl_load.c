/* comm/transport_nccl_load.c -- load NCCL once, with defaults that the user has not set. */
#include "comm/transport_nccl.h"

#include "base/text.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_LIBRARY "libnccl.so.2"
enum { OLDEST = 21800 };

static void set_defaults(void)
{
    static const char *const defaults[][2] = {
        {"NCCL_NVLS_ENABLE", "0"}, /* multicast is for those who ask for it: it changes what other collectives do */
        {"NCCL_DEBUG_FILE", "/dev/stderr"}, /* stdout is ours */
    };
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        setenv(defaults[i][0], defaults[i][1], 0);
}

static enum status resolve(void *library, struct nccl_api *api)
{
    void *symbol;
#define NCCL_RESOLVE(name)                                                                                             \
    symbol = dlsym(library, #name);                                                                                    \
    if (!symbol)                                                                                                       \
        return HINT(FAIL(STATUS_ABSENT, "%s has no function %s", NCCL_LIBRARY, #name), "install NCCL 2.18 or newer");  \
    memcpy(&api->name, &symbol, sizeof symbol);
    NCCL_FUNCTIONS(NCCL_RESOLVE)
#undef NCCL_RESOLVE
#define NCCL_LOOK(name)                                                                                                \
    symbol = dlsym(library, #name);                                                                                    \
    memcpy(&api->name, &symbol, sizeof symbol);
    NCCL_ROUTE_FUNCTIONS(NCCL_LOOK)
#undef NCCL_LOOK
    return STATUS_OK;
}

char *nccl_version_text(int version, char buf[NCCL_VERSION_TEXT])
{
    text_print(buf, NCCL_VERSION_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return buf;
}

enum status nccl_load(const struct nccl_api **out)
{
    static struct nccl_api api;
    static bool loaded;
    if (!loaded) {
        const char *file = getenv("SPTUNE_NCCL");
        set_defaults();
        void *library = dlopen(file != NULL && file[0] != '\0' ? file : NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return HINT(FAIL(STATUS_ABSENT, "NCCL cannot be loaded: %s", dlerror()),
                        "install NCCL, or set SPTUNE_NCCL to the file of one (PyTorch brings one)");
        TRY(resolve(library, &api));
        char version[NCCL_VERSION_TEXT];
        if (api.ncclGetVersion(&api.version) != ncclSuccess || api.version < OLDEST)
            return HINT(FAIL(STATUS_UNSUPPORTED, "NCCL %s is loaded", nccl_version_text(api.version, version)),
                        "install NCCL 2.18 or newer");
        loaded = true;
    }
    *out = &api;
    return STATUS_OK;
}
