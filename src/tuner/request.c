/* tuner/request.c -- open fields get the target's defaults and this machine's limits, each listed as an assumption. */
#include "tuner/request.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"
#include "sp/exchange.h"
#include "tuner/installed.h"

#include <string.h>

void request_init(struct request *out)
{
    memset(out, 0, sizeof *out);
    out->ranks = 1;
    out->use_memory = 0.5;
    out->effort = REQUEST_QUICK;
    out->seed = 1;
    out->problem.dtype = DTYPE_BF16;
    plan_default(&out->space.base);
}

void request_assume(struct request *request, const char *name, const char *value, const char *from)
{
    if (request->nassumptions == REQUEST_ASSUMPTIONS)
        return;
    struct request_assumption *a = &request->assumptions[request->nassumptions++];
    text_print(a->name, sizeof a->name, "%s", name);
    text_print(a->value, sizeof a->value, "%s", value);
    text_print(a->from, sizeof a->from, "%s", from);
}

const char *request_speed_note(enum dev_kind measured, enum dev_kind planned)
{
    return measured != planned ? "speeds are of CPUs in place of the planned GPUs: they do not order plans there; "
                                 "memory and legality do hold; measure on GPUs (scripts/package)"
                               : NULL;
}

static void assume_default(struct request *request, bool open, const char *name, const char *value)
{
    char from[64];
    if (!open)
        return;
    text_print(from, sizeof from, "default of %s", request->target->name);
    request_assume(request, name, value, from);
}

static bool needs_windows(const char *name)
{
    const struct exchange *exchange = exchange_find(name);
    return exchange != NULL && exchange->windows;
}

/* A target's own exchange, unless these ranks cannot run it. */
static void own_exchange(struct request *request, bool *stands_in)
{
    char *exchange = request->space.base.exchange;
    text_print(exchange, PLAN_NAME, "%s", request->target->exchange(request->dev, stands_in));
    if (!needs_windows(exchange) || request->no_direct[0] == '\0')
        return;
    text_print(exchange, PLAN_NAME, "%s", request->dev == DEV_CPU ? "packed" : "nccl");
    if (request->exchange_open)
        request_assume(request, "exchange", exchange, request->no_direct);
}

/* What is searched beside it, where the target has a choice. */
static void own_exchanges(struct request *request)
{
    struct plan_space *space = &request->space;
    const char *const *names = request->target->exchanges != NULL ? request->target->exchanges(request->dev) : NULL;
    if (!request->exchange_open)
        return;
    space->nexchange = 0;
    for (int i = 0; names != NULL && names[i] != NULL; i++)
        if (exchange_find(names[i]) != NULL && (request->no_direct[0] == '\0' || !needs_windows(names[i])))
            text_print(space->exchange[space->nexchange++], PLAN_NAME, "%s", names[i]);
}

void request_without_direct(struct request *request, const char *why)
{
    bool stands_in;
    text_print(request->no_direct, sizeof request->no_direct, "%s", why);
    own_exchange(request, &stands_in);
    own_exchanges(request);
}

static void own_methods(struct request *request)
{
    struct plan_space *space = &request->space;
    if (!request->method_open)
        return;
    space->nmethod = 0;
    for (int method = 0; method < PLAN_METHOD_COUNT; method++)
        if (request->target->searched & 1u << method)
            space->method[space->nmethod++] = (enum plan_method)method;
}

/* Powers of two: more chunks hide more of the exchange and make its messages smaller. */
static void own_chunks(struct request *request)
{
    static const int chunks[] = {1, 2, 4};
    struct plan_space *space = &request->space;
    space->nchunks = 0;
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0] && request->overlap && request->target->overlap; i++)
        space->chunks[space->nchunks++] = chunks[i];
}

void request_with_overlap(struct request *request)
{
    request->overlap = true;
    own_chunks(request);
}

static void take_defaults(struct request *request)
{
    struct plan_space *space = &request->space;
    bool stands_in = false;
    space->dev = request->dev;
    space->base = request->target->defaults;
    own_methods(request);
    own_exchange(request, &stands_in);
    own_exchanges(request);
    own_chunks(request);
    const struct plan *base = &space->base;
    char zero[8];
    text_print(zero, sizeof zero, "%d", base->zero_stage);
    assume_default(request, space->nloss == 0, "loss", plan_loss_name(base->loss));
    assume_default(request, space->nzero == 0, "zero", zero);
    assume_default(request, space->ncheckpointing == 0, "checkpointing", plan_checkpointing_name(base->checkpointing));
    assume_default(request, space->noffload == 0, "offload", plan_offload_name(base->offload));
    assume_default(request, true, "optimizer", "adamw");
    if (request->nmicro == 0) {
        request->micro_batch[request->nmicro++] = 1;
        request_assume(request, "micro_batch", "1", "one sequence per sp group");
    }
    if (stands_in && request->exchange_open)
        request_assume(request, "exchange", base->exchange, "stands in for the target's own on this device");
}

static enum status unknown_class(const struct target *target, const char *word)
{
    const char *names[TARGET_CLASSES + 1];
    size_t n = 0;
    struct text all = {0};
    for (; target->classes[n] != NULL; n++) {
        names[n] = target->classes[n];
        text_add(&all, "%s%s", n > 0 ? ", " : "", names[n]);
    }
    const char *near = text_nearest(word, names, n);
    enum status status = FAIL(STATUS_USAGE, "%s has no attention '%.40s'", target->name, word);
    status = HINT(status, "%s%s%sone of: %s", near != NULL ? "did you mean " : "", near != NULL ? near : "",
                  near != NULL ? "? " : "", text_get(&all));
    text_free(&all);
    return status;
}

static bool listed(char names[][PLAN_NAME], int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Its own packages say what it takes. */
static void assume_installed(struct request *request, const char *class)
{
    char value[64], from[224];
    installed_about(request->installed, class, request->topo->fingerprint, value, from);
    request_assume(request, class, value, from);
}

/* A class is searched through the kernel that stands in for it here, or under its own name when none does, or when it was
 * timed as it is installed. */
static enum status take_class(struct request *request, const char *class)
{
    const struct target *target = request->target;
    struct plan_space *space = &request->space;
    const char *known = target_class(target, class);
    if (known == NULL || strcmp(known, class) != 0)
        return unknown_class(target, class);
    bool installed = installed_has(request->installed, class);
    const char *kernel = installed ? NULL : target_stand_in(target, class, request->dev);
    const char *name = kernel != NULL ? kernel : class;
    if (listed(space->attention, space->nattention, name))
        return STATUS_OK;
    text_print(space->attention[space->nattention++], PLAN_NAME, "%s", name);
    if (installed)
        assume_installed(request, class);
    if (kernel != NULL && strcmp(kernel, class) != 0) {
        char value[96];
        text_print(value, sizeof value, "kernel %s", kernel);
        request_assume(request, class, value, "stands in for it on this device");
    }
    return STATUS_OK;
}

static enum status take_classes(struct request *request)
{
    request->space.nattention = 0;
    if (request->nclasses == 0)
        for (int i = 0; i < PLAN_LIST_MAX && request->target->classes[i] != NULL; i++)
            if (!request->target->own_kernels ||
                target_stand_in(request->target, request->target->classes[i], request->dev) != NULL)
                text_print(request->classes[request->nclasses++], PLAN_NAME, "%s", request->target->classes[i]);
    for (int i = 0; i < request->nclasses; i++)
        TRY(take_class(request, request->classes[i]));
    if (request->space.nattention > 0)
        text_print(request->space.base.attention, PLAN_NAME, "%s", request->space.attention[0]);
    return STATUS_OK;
}

/* One that the target does not run would leave sp 1, which has no method. */
static enum status check_methods(const struct request *request)
{
    for (int i = 0; i < request->space.nmethod; i++)
        if ((request->target->methods & 1u << request->space.method[i]) == 0)
            return HINT(FAIL(STATUS_USAGE, "%s does not execute method %s", request->target->name,
                             plan_method_name(request->space.method[i])),
                        "--target sptune does");
    return STATUS_OK;
}

static enum status check_exchanges(const struct request *request)
{
    for (int i = 0; i < request->space.nexchange; i++)
        if (exchange_find(request->space.exchange[i]) == NULL)
            return HINT(FAIL(STATUS_USAGE, "--exchange does not know '%.40s'", request->space.exchange[i]),
                        "`sptune bench exchange --exchange list` names them");
    return STATUS_OK;
}

/* Of the smallest GPU that is used here: ranks are planned alike. As NVML tells it, else as CUDA does. */
static enum status gpu_memory(struct request *request)
{
    const struct topo *topo = request->topo;
    for (int i = 0; i < topo->ngpus; i++) {
        const struct topo_gpu *gpu = &topo->gpus[i];
        bool used = gpu->memory_bytes > 0 && gpu->cuda < request->ranks; /* -1: nobody knows its number, so it may be */
        if (!used || (request->device_memory_bytes > 0 && gpu->memory_bytes >= request->device_memory_bytes))
            continue;
        request->device_memory_bytes = gpu->memory_bytes;
        text_print(request->device_memory_from, sizeof request->device_memory_from, "%.40s", gpu->name);
    }
    if (request->device_memory_bytes == 0) {
        request->device_memory_bytes = request->dev_memory_bytes;
        text_print(request->device_memory_from, sizeof request->device_memory_from, "as CUDA tells it");
    }
    return request->device_memory_bytes > 0 ? STATUS_OK
                                            : HINT(FAIL(STATUS_USAGE, "no driver tells how much memory a GPU has"),
                                                   "give --device-memory");
}

static enum status host_memory(struct request *request)
{
    int64_t available = 0;
    if (request->replay)
        return HINT(FAIL(STATUS_USAGE, "--replay does not look at this machine's memory"), "give --device-memory");
    TRY(mem_available(&available));
    if (available < request->ranks)
        return FAIL(STATUS_NOMEM, "no memory is available here");
    request->device_memory_bytes = available / request->ranks;
    text_print(request->device_memory_from, sizeof request->device_memory_from, "available memory / %d ranks",
               request->ranks);
    return STATUS_OK;
}

static enum status take_memory(struct request *request)
{
    char size[UNITS_BUF];
    if (request->device_memory_bytes > 0)
        return STATUS_OK;
    TRY(request->dev == DEV_CUDA ? gpu_memory(request) : host_memory(request));
    request_assume(request, "device_memory", units_format_bytes((double)request->device_memory_bytes, size),
                   request->device_memory_from);
    return STATUS_OK;
}

/* A value given twice is one candidate. */
static void drop_repeats(struct request *request)
{
    struct plan_space *space = &request->space;
    int n = 0;
    for (int i = 0; i < space->nsp; i++) {
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen = seen || space->sp[k] == space->sp[i];
        if (!seen)
            space->sp[n++] = space->sp[i];
    }
    space->nsp = n;
    n = 0;
    for (int i = 0; i < request->nmicro; i++) {
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen = seen || request->micro_batch[k] == request->micro_batch[i];
        if (!seen)
            request->micro_batch[n++] = request->micro_batch[i];
    }
    request->nmicro = n;
    n = 0;
    for (int i = 0; i < space->nexchange; i++)
        if (!listed(space->exchange, n, space->exchange[i]))
            memmove(space->exchange[n++], space->exchange[i], PLAN_NAME);
    space->nexchange = n;
}

/* What a host runs as far as this machine tells. */
static int host_here(const struct request *request)
{
    const struct topo *topo = request->topo;
    int n = request->dev == DEV_CUDA && topo->nhosts > 0 ? topo->ngpus / topo->nhosts : 0;
    return n > 0 ? n : request->ranks;
}

/* The largest count of ranks on one host, at most this, that gives equal hosts. */
static int equal_hosts(int world, int at_most)
{
    int n = at_most < world ? at_most : world;
    while (world % n != 0)
        n--;
    return n;
}

/* The job's size from its hosts, where they tell it. */
static enum status take_world(struct request *request)
{
    int64_t per_host = request->ranks_per_host > 0 ? request->ranks_per_host : host_here(request);
    if (request->world == 0 && request->nodes == 0 && request->ranks_per_host > 0) {
        request->nodes = 1;
        request_assume(request, "nodes", "1", "the least that have so many GPUs each");
    }
    if (request->world == 0 && request->nodes * per_host > REQUEST_WORLD)
        return HINT(FAIL(STATUS_USAGE, "--nodes %d of %lld GPUs each are more than %d processes", request->nodes,
                         (long long)per_host, REQUEST_WORLD),
                    "--nodes %lld or fewer", REQUEST_WORLD / (long long)per_host);
    bool by_hosts = request->world == 0;
    if (by_hosts)
        request->world = request->nodes > 0 ? request->nodes * (int)per_host : request->ranks;
    if (request->ranks >= 1 && request->world >= request->ranks)
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "%s %d is smaller than the %d ranks measured",
                     by_hosts ? "--nodes x --gpus-per-node =" : "--world", request->world, request->ranks),
                "give --ranks %d or fewer", request->world);
}

/* The nearest multiples that no fewer processes than are measured make; `also` is another way out, or "". */
static enum status uneven(const struct request *request, const char *option, int unit, const char *also)
{
    int below = request->world / unit * unit;
    enum status status =
        FAIL(STATUS_USAGE, "--world %d is no multiple of --%s %d, and hosts are alike", request->world, option, unit);
    if (below == 0 || below < request->ranks)
        return HINT(status, "--world %d%s", below + unit, also);
    return HINT(status, "--world %d or %d%s", below, below + unit, also);
}

/* Nobody said it: what runs here is taken for a host. */
static void assume_hosts(struct request *request)
{
    int here = host_here(request);
    char value[16], from[64] = "as many as run here";
    if (request->ranks_per_host < here)
        text_print(from, sizeof from, "hosts are alike, of at most the %d that run here", here);
    text_print(value, sizeof value, "%d", request->ranks_per_host);
    request_assume(request, "gpus_per_node", value, from);
}

/* Equal hosts that the job fills; one that has more GPUs than the job has processes runs them all. */
static enum status take_hosts(struct request *request)
{
    int nodes = request->nodes, gpus = request->ranks_per_host;
    bool sized = request->world > 0;
    TRY(take_world(request));
    int world = request->world;
    if (gpus == 0 && nodes > 0 && world % nodes != 0)
        return uneven(request, "nodes", nodes, "");
    if (gpus == 0)
        request->ranks_per_host = nodes > 0 ? world / nodes : equal_hosts(world, host_here(request));
    else if (gpus > world)
        request->ranks_per_host = world;
    if (world % request->ranks_per_host != 0) {
        char also[48];
        text_print(also, sizeof also, ", or --gpus-per-node %d", equal_hosts(world, gpus));
        return uneven(request, "gpus-per-node", gpus, also);
    }
    request->nodes = world / request->ranks_per_host;
    if (nodes > 0 && nodes != request->nodes)
        return HINT(FAIL(STATUS_USAGE, "--world %d is not --nodes %d times --gpus-per-node %d", world, nodes, gpus),
                    "--nodes %d, or leave --world out", request->nodes);
    if (gpus == 0 && request->nodes > 1 && !(sized && nodes > 0))
        assume_hosts(request);
    return STATUS_OK;
}

enum status request_complete(struct request *request)
{
    TRY(take_hosts(request));
    request->problem.world = request->world;
    request->problem.seq_fixed = request->sp_fixed;
    TRY(problem_check(&request->problem));
    drop_repeats(request);
    request->method_open = request->space.nmethod == 0;
    request->exchange_open = request->space.nexchange == 0;
    take_defaults(request);
    TRY(take_classes(request));
    TRY(check_methods(request));
    TRY(check_exchanges(request));
    TRY(take_memory(request));
    if (request->world > request->ranks) {
        char value[64];
        text_print(value, sizeof value, "%d of %d", request->ranks, request->world);
        request_assume(request, "measured_ranks", value,
                       request->ranks > 1 ? "what more ranks add is modelled"
                                          : "what ranks exchange cannot be timed by one");
    }
    return STATUS_OK;
}

static void open_offload(struct plan_space *space)
{
    int n = 0;
    for (int i = 0; i < space->ncheckpointing; i++)
        if (space->checkpointing[i] != PLAN_CHECKPOINTING_OFFLOAD)
            space->checkpointing[n++] = space->checkpointing[i];
    space->ncheckpointing = n;
    space->noffload = 0;
}

enum status request_retarget(struct request *request, const struct target *target)
{
    struct plan_space *space = &request->space;
    request->target = target;
    request->installed = NULL; /* of the other runtime's packages */
    request->nassumptions = request->nclasses = 0;
    request->method_open = request->exchange_open = true;
    open_offload(space);
    take_defaults(request);
    return take_classes(request);
}
