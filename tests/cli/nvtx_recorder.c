/* cli/nvtx_recorder.c -- a profiler as small as can be: NVTX loads it by NVTX_INJECTION64_PATH, and it writes what it is told, in
 * order, to the file NVTX_RECORD.PID, a line each:
 *
 *   domain NAME          string NAME          push THREAD INDEX-or-dash NAME          pop THREAD
 *
 * A push whose message is not a registered string is "text" instead.
 */
#include <nvtx3/nvToolsExt.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_once_t file_once = PTHREAD_ONCE_INIT;
static int file = -1;

static void file_open(void)
{
    char path[1024];
    const char *base = getenv("NVTX_RECORD");
    snprintf(path, sizeof path, "%s.%ld", base != NULL ? base : "/dev/null", (long)getpid());
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void record(const char *line)
{
    pthread_once(&file_once, file_open);
    if (write(file, line, strlen(line)) < 0)
        _exit(70); /* a record with holes would prove nothing */
}

static long thread(void)
{
    return syscall(SYS_gettid);
}

static nvtxDomainHandle_t domain_create(const char *name)
{
    char line[256];
    snprintf(line, sizeof line, "domain %s\n", name);
    record(line);
    return (nvtxDomainHandle_t)(void *)strdup(name);
}

static nvtxStringHandle_t string_register(nvtxDomainHandle_t domain, const char *name)
{
    char line[256];
    (void)domain;
    snprintf(line, sizeof line, "string %s\n", name);
    record(line);
    return (nvtxStringHandle_t)(void *)strdup(name);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    char line[256], index[24] = "-";
    (void)domain;
    if (event->payloadType == NVTX_PAYLOAD_TYPE_INT64)
        snprintf(index, sizeof index, "%lld", (long long)event->payload.llValue);
    if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
        snprintf(line, sizeof line, "push %ld %s %s\n", thread(), index, (const char *)event->message.registered);
    else
        snprintf(line, sizeof line, "text %ld %s\n", thread(), event->message.ascii);
    record(line);
    return 0;
}

static int pop(nvtxDomainHandle_t domain)
{
    char line[64];
    (void)domain;
    snprintf(line, sizeof line, "pop %ld\n", thread());
    record(line);
    return 0;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
        size <= NVTX_CBID_CORE2_DomainCreateA)
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)string_register;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
