/* comm/transport_ucx_cuda.c -- memory of GPUs: whether the UCX that is loaded moves it, and by which way.
 *
 * Between two GPUs of a host that reach each other UCX copies from memory to memory (cuda_ipc). Where they do not, it finds that out when
 * it first maps the peer's memory, and takes pieces through the host (cuda_copy, then what carries data of CPUs) without a word: the lanes of an
 * endpoint are the same. So ranks try here what UCX tries.
 */
#include "base/log.h"
#include "base/mem.h"
#include "comm/comm_group.h"
#include "comm/transport_ucx.h"

#include <stdlib.h>

/* A context of its own, for UCX names what is missing among transports that were asked for. */
static ucs_status_t memory_types(const struct ucx_api *api, uint64_t *out)
{
    ucp_config_t *config;
    ucp_context_h context;
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucs_status_t code = api->ucp_config_read(NULL, NULL, &config);
    if (code != UCS_OK)
        return code;
    code = api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
    api->ucp_config_release(config);
    if (code != UCS_OK)
        return code;
    code = api->ucp_context_query(context, &attr);
    api->ucp_cleanup(context);
    *out = attr.memory_types;
    return code;
}

enum status ucx_check_cuda(const struct ucx_api *api)
{
    const char *tls = getenv("UCX_TLS");
    uint64_t types = 0;
    ucs_status_t code = memory_types(api, &types);
    if (code != UCS_OK)
        return FAIL(STATUS_UNSUPPORTED, "UCX %s: asking what memory it moves: %s", api->ucp_get_version_string(),
                    api->ucs_status_string(code));
    if (types & UINT64_C(1) << UCS_MEMORY_TYPE_CUDA)
        return STATUS_OK;
    if (tls != NULL)
        return FAIL(STATUS_UNSUPPORTED,
                    "UCX %s moves no memory of GPUs with UCX_TLS=%.60s; it needs cuda_copy and cuda_ipc there",
                    api->ucp_get_version_string(), tls);
    return FAIL(STATUS_UNSUPPORTED,
                "UCX %s has no CUDA modules that work here: pip install libucx-cu13, and set SPTUNE_UCX to its "
                "libucx/lib/libucp.so.0",
                api->ucp_get_version_string());
}

struct offer { /* to the other members */
    struct transport_key key;
    bool ok;
};
_Static_assert(sizeof(struct offer) <= GROUP_SLOT_BYTES, "it can be shared");

static bool maps(const struct comm_job *job, int peer, const struct offer *offer)
{
    void *mapping, *address;
    if (!offer->ok || job->transport->memory_map(job->state, peer, &offer->key, &mapping, &address) != STATUS_OK)
        return false;
    job->transport->memory_unmap(job->state, mapping);
    return true;
}

enum status ucx_cuda_reaches(const struct ucx *ucx, bool *out)
{
    const struct comm_job *job = ucx->group->job;
    struct offer mine = {.ok = false}, *all = NULL;
    void *memory = NULL, *local;
    bool reaches = true;
    enum status status = mem_alloc((size_t)ucx->nmembers * sizeof *all, "memory of ranks", (void **)&all);
    status = ucx_agree(ucx, status);
    if (status != STATUS_OK) {
        free(all);
        return status;
    }
    status_clear();
    mine.ok = job->transport->memory_create != NULL &&
              job->transport->memory_create(job->state, 1, "a try", &memory, &local, &mine.key) == STATUS_OK;
    status = ucx_share(ucx, &mine, sizeof mine, all);
    for (int m = 0; status == STATUS_OK && m < ucx->nmembers; m++)
        reaches = reaches && (m == ucx->place || maps(job, ucx->members[m], &all[m]));
    if (status == STATUS_OK) {
        if (!reaches && status_last()->code != STATUS_OK)
            log_verbose("ucx: %s", status_last()->what);
        status_clear();
        status = ucx_agree(ucx, STATUS_OK); /* nobody looks any more */
    }
    if (mine.ok)
        job->transport->memory_destroy(job->state, memory);
    free(all);
    *out = reaches;
    return status;
}
