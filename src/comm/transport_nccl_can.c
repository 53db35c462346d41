/* comm/transport_nccl_can.c -- which routes this NCCL has here, and why not the others: by headers, version, functions, switches of the
 * environment and driver; one answer for all ranks. */
#include "comm/transport_nccl.h"

#include "base/clock.h"
#include "base/dev_cuda.h"

#include <stdlib.h>

#if NCCL_VERSION_CODE >= 22800

enum { ENGINE_DRIVER = 12050 };

static const struct need { /* of a route */
    const char *name;
    int since;
} needs[TRANSPORT_ROUTES] = {
    [TRANSPORT_REGISTERED] = {"registered buffers", 21900},
    [TRANSPORT_WINDOW] = {"symmetric windows", 22800},
    [TRANSPORT_ENGINE] = {"an all-to-all by copy engines", 22800},
};

enum { REGISTERED = 1 << TRANSPORT_REGISTERED, WINDOWS = 1 << TRANSPORT_WINDOW | 1 << TRANSPORT_ENGINE };

static const struct {
    const char *name;
    long off;
    int routes;
} switches[] = {
    {"NCCL_LOCAL_REGISTER", 0, REGISTERED},
    {"NCCL_WIN_ENABLE", 0, WINDOWS},
    {"NCCL_CUMEM_ENABLE", 0, WINDOWS},
    {"NCCL_P2P_DISABLE", 1, WINDOWS},
};

static bool has_functions(const struct nccl_api *api, enum transport_route kind, const char **missing)
{
    const bool registered = kind == TRANSPORT_REGISTERED;
    *missing = api->ncclMemAlloc == NULL                              ? "ncclMemAlloc"
               : api->ncclMemFree == NULL                             ? "ncclMemFree"
               : registered && api->ncclCommRegister == NULL          ? "ncclCommRegister"
               : registered && api->ncclCommDeregister == NULL        ? "ncclCommDeregister"
               : !registered && api->ncclCommWindowRegister == NULL   ? "ncclCommWindowRegister"
               : !registered && api->ncclCommWindowDeregister == NULL ? "ncclCommWindowDeregister"
               : !registered && api->ncclAlltoAll == NULL             ? "ncclAlltoAll"
                                                                      : NULL;
    return *missing == NULL;
}

static struct verdict engine_can(int driver)
{
    const char *policy = getenv("NCCL_CTA_POLICY");
    if (driver < ENGINE_DRIVER)
        return verdict_no(RULE_EXCHANGE_CANNOT,
                          "the driver is one of CUDA %d.%d; NCCL's copy engines need one of 12.5 or later",
                          driver / 1000, driver % 1000 / 10);
    if (policy != NULL && policy[0] != '\0' && strtol(policy, NULL, 0) != NCCL_CTA_POLICY_ZERO)
        return verdict_no(RULE_EXCHANGE_CANNOT,
                          "NCCL_CTA_POLICY=%.16s overrides the policy that copy engines need (%d)", policy,
                          NCCL_CTA_POLICY_ZERO);
    return VERDICT_YES;
}

struct verdict nccl_route_can(const struct nccl_api *api, enum transport_route kind, int driver)
{
    const struct need *need = &needs[kind];
    const char *missing;
    char version[NCCL_VERSION_TEXT];
    if (api->version < need->since)
        return verdict_no(RULE_EXCHANGE_CANNOT, "NCCL %s is loaded; %s need %d.%d or later",
                          nccl_version_text(api->version, version), need->name, need->since / 10000,
                          need->since / 100 % 100);
    if (!has_functions(api, kind, &missing))
        return verdict_no(RULE_EXCHANGE_CANNOT, "the NCCL that is loaded has no function %s", missing);
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        const char *value = getenv(switches[i].name);
        if ((switches[i].routes & 1 << kind) && value != NULL && value[0] != '\0' &&
            strtol(value, NULL, 0) == switches[i].off)
            return verdict_no(RULE_EXCHANGE_CANNOT, "%s=%ld leaves NCCL without %s", switches[i].name, switches[i].off,
                              need->name);
    }
    return kind == TRANSPORT_ENGINE ? engine_can(driver) : VERDICT_YES;
}

#else

struct verdict nccl_route_can(const struct nccl_api *api, enum transport_route kind, int driver)
{
    (void)api;
    (void)kind;
    (void)driver;
    return verdict_no(RULE_EXCHANGE_CANNOT,
                      "this build has the headers of NCCL %d.%d.%d; it needs those of 2.28 or later", NCCL_MAJOR,
                      NCCL_MINOR, NCCL_PATCH);
}

#endif

/* Ranks may have been started with different libraries, variables or drivers: the first that says no decides for all. */
enum status nccl_routes_probe(struct nccl *nccl)
{
    struct verdict mine[TRANSPORT_ROUTES], *all = NULL;
    int driver = 0;
    enum status status = dev_cuda_status(cudaDriverGetVersion(&driver), "asking for the driver's version");
    if (status == STATUS_OK && (all = calloc((size_t)nccl->size, sizeof mine)) == NULL)
        status = FAIL(STATUS_NOMEM, "no memory for what ranks can");
    for (int kind = 0; kind < TRANSPORT_ROUTES; kind++)
        mine[kind] = kind != TRANSPORT_REGISTERED && !verdict_ok(&nccl->peers)
                         ? nccl->peers
                         : nccl_route_can(nccl->api, (enum transport_route)kind, driver);
    status = boot_agree(nccl->boot, status, clock_deadline(BOOT_DEADLINE_US));
    if (status == STATUS_OK)
        status = boot_allgather(nccl->boot, mine, sizeof mine, all, clock_deadline(BOOT_DEADLINE_US));
    for (int r = nccl->size - 1; status == STATUS_OK && r >= 0; r--)
        for (int kind = 0; kind < TRANSPORT_ROUTES; kind++)
            if (!verdict_ok(&all[r * TRANSPORT_ROUTES + kind]))
                nccl->routes[kind] = all[r * TRANSPORT_ROUTES + kind];
    free(all);
    return status;
}
