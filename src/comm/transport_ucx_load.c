/* comm/transport_ucx_load.c -- load UCX once, with defaults that the user has not set. Its modules are found by libucs, in the folder
 * `ucx` beside itself. */
#include "comm/transport_ucx.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define UCX_LIBRARY "libucp.so.0"

/* A sanitizer that wants to see every mmap itself crashes under UCX's patched one. */
#if defined(__SANITIZE_THREAD__)
#define HOOK_MODE "none"
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOOK_MODE "none"
#endif
#endif

#if defined(__SANITIZE_THREAD__)
/* UCX's own thread and its exit code, which nobody instruments. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libucs.so\nrace:libucp.so\nrace:libuct.so\n";
}
#endif

static void set_defaults(bool speaking)
{
    static const char *const defaults[][2] = {
        {"UCX_LOG_FILE", "stderr"}, /* stdout is ours; the name /dev/stderr would truncate a file that stderr goes to */
        {"UCX_ERROR_SIGNALS", ""},  /* a crash is for the supervisor to report */
#ifdef HOOK_MODE
        {"UCX_MEM_MMAP_HOOK_MODE", HOOK_MODE},
#endif
    };
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        setenv(defaults[i][0], defaults[i][1], 0);
    if (!speaking)
        setenv("UCX_LOG_LEVEL", "fatal", 0);
}

static enum status resolve(void *library, const char *file, struct ucx_api *api)
{
    void *symbol;
#define UCX_RESOLVE(name)                                                                                              \
    symbol = dlsym(library, #name);                                                                                    \
    if (!symbol)                                                                                                       \
        return HINT(FAIL(STATUS_ABSENT, "%s has no function %s", file, #name), "install UCX %d.%d or newer",           \
                    UCP_API_MAJOR, UCP_API_MINOR);                                                                     \
    memcpy(&api->name, &symbol, sizeof symbol);
    UCX_FUNCTIONS(UCX_RESOLVE)
#undef UCX_RESOLVE
    return STATUS_OK;
}

static enum status check_version(const struct ucx_api *api)
{
    unsigned major, minor, release;
    api->ucp_get_version(&major, &minor, &release);
    if (major != UCP_API_MAJOR || minor < UCP_API_MINOR)
        return HINT(FAIL(STATUS_ABSENT, "UCX %u.%u.%u is loaded, built for %d.%d", major, minor, release, UCP_API_MAJOR,
                         UCP_API_MINOR),
                    "install UCX %d.%d or newer, or build again with this one", UCP_API_MAJOR, UCP_API_MINOR);
    return STATUS_OK;
}

enum status ucx_load(bool speaking, const struct ucx_api **out)
{
    static struct ucx_api api;
    static bool loaded;
    if (!loaded) {
        const char *file = getenv("SPTUNE_UCX");
        if (file == NULL || file[0] == '\0')
            file = UCX_LIBRARY;
        set_defaults(speaking);
        void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return HINT(FAIL(STATUS_ABSENT, "UCX cannot be loaded: %s", dlerror()),
                        "install UCX (libucx0, ucx), or set SPTUNE_UCX to the file of one");
        TRY(resolve(library, file, &api));
        TRY(check_version(&api));
        loaded = true;
    }
    *out = &api;
    return STATUS_OK;
}
