/* kernels/attention_cudnn_plan.c -- from a graph to a kernel that can be launched: engine, compilation, launch.
 *
 * cuDNN's heuristics list engines, best first; the first whose plan can be made is taken, as PyTorch does. Compiling takes about a
 * second or two of one thread, so plans are kept, what cuDNN refused is kept too, and of several plans each gets a thread.
 */
#include "kernels/attention_cudnn.h"

#include "base/dev_cuda.h"
#include "base/team.h"
#include "base/text.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 64, COMPILERS = 8 };

/* What the plans of one device need beside the graph. `json` describes a device that is not here. */
struct place {
    cudnnHandle_t handle;
    cudnn_node properties;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudnnHandle_t handles[DEVICES][COMPILERS]; /* one for each thread that compiles; the first also runs */
static struct cudnn_plan *plans; /* newest first */

static void say(const struct cudnn_graph *graph, const char *what, char *why, size_t size)
{
    char more[256] = "";
    graph->api->cudnnGetLastErrorString(more, sizeof more);
    text_print(why, size, "%s: %.80s", what, more[0] ? more : graph->api->cudnnGetErrorString(graph->error));
    text_clean(why);
}

static void describe_device(struct cudnn_graph *graph, const char *json, struct place *place)
{
    cudnn_node node = cudnn_create(graph, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    cudnn_set(graph, node, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json);
    cudnn_finish(graph, node, "the description of a device");
    place->properties = node;
}

static void set_handle(struct cudnn_graph *graph, cudnn_node node, const struct place *place, bool of_plan)
{
    if (place->handle)
        cudnn_set(graph, node, of_plan ? CUDNN_ATTR_EXECUTION_PLAN_HANDLE : CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
                  CUDNN_TYPE_HANDLE, 1, &place->handle);
    else if (of_plan)
        cudnn_set(graph, node, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                  &place->properties);
}

static cudnn_node finish_graph(struct cudnn_graph *graph, const struct place *place)
{
    cudnn_node whole = cudnn_create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(graph, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->noperations,
              graph->operations);
    set_handle(graph, whole, place, false);
    cudnn_finish(graph, whole, "the graph");
    return whole;
}

static void list_candidates(struct cudnn_plan *plan, cudnn_node whole, const struct place *place)
{
    struct cudnn_graph *graph = &plan->graph;
    cudnn_node heuristics = cudnn_create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnn_set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &whole);
    cudnn_set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!place->handle)
        cudnn_set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                  &place->properties);
    cudnn_finish(graph, heuristics, "the choice of an engine");
    for (int i = 0; i < CUDNN_CANDIDATES; i++)
        plan->candidates[i] = cudnn_create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->error != CUDNN_STATUS_SUCCESS)
        return;
    graph->failed = "the choice of an engine";
    graph->error =
        graph->api->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                             CUDNN_CANDIDATES, &count, plan->candidates);
    plan->ncandidates = count < CUDNN_CANDIDATES ? (int)count : CUDNN_CANDIDATES;
}

/* Number of the engine of a configuration, and whether it says that its results vary. */
static int engine_of(struct cudnn_graph *graph, cudnn_node candidate, bool *out_unordered)
{
    cudnn_node engine = cudnn_create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0, index = -1;
    *out_unordered = false;
    if (!engine ||
        graph->api->cudnnBackendGetAttribute(candidate, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                             &count, &engine) != CUDNN_STATUS_SUCCESS)
        return -1;
    (void)graph->api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                               &index);
    if (graph->api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                             CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) == CUDNN_STATUS_SUCCESS)
        for (int64_t i = 0; i < count; i++)
            *out_unordered |= notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return (int)index;
}

static bool try_candidate(struct cudnn_plan *plan, cudnn_node candidate, const struct place *place)
{
    struct cudnn_graph *graph = &plan->graph;
    int64_t count = 0;
    int engine = engine_of(graph, candidate, &plan->unordered);
    if (plan->key.ordered && plan->unordered)
        return false;
    cudnn_node node = cudnn_create(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_handle(graph, node, place, true);
    cudnn_set(graph, node, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &candidate);
    cudnn_finish(graph, node, "compiling");
    if (graph->error != CUDNN_STATUS_SUCCESS)
        return false;
    if (graph->api->cudnnBackendGetAttribute(node, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                             &count, &plan->workspace_bytes) != CUDNN_STATUS_SUCCESS)
        return false;
    plan->plan = node;
    plan->engine = engine;
    return true;
}

/* Builds the graph and lists who takes it. */
static void recognise(struct cudnn_plan *plan, const struct place *place)
{
    struct cudnn_graph *graph = &plan->graph;
    plan->recognised = true;
    cudnn_sdpa(graph, &plan->key);
    list_candidates(plan, finish_graph(graph, place), place);
    if (graph->error != CUDNN_STATUS_SUCCESS) {
        say(graph, graph->failed, plan->why, sizeof plan->why);
        plan->ncandidates = 0;
    } else if (plan->ncandidates == 0) {
        text_print(plan->why, sizeof plan->why, "no engine takes this graph");
    }
}

static void compile(struct cudnn_plan *plan, const struct place *place)
{
    struct cudnn_graph *graph = &plan->graph;
    plan->compiled = true;
    for (int i = 0; i < plan->ncandidates; i++) {
        if (try_candidate(plan, plan->candidates[i], place)) {
            plan->why[0] = '\0';
            return;
        }
        if (graph->error != CUDNN_STATUS_SUCCESS)
            say(graph, graph->failed, plan->why, sizeof plan->why);
        else
            text_print(plan->why, sizeof plan->why, "no engine whose sums have a fixed order");
        graph->error = CUDNN_STATUS_SUCCESS;
        graph->failed = NULL;
    }
}

static void fill_values(struct cudnn_plan *plan)
{
    const struct cudnn_key *key = &plan->key;
    int64_t shift = key->causal == ATTENTION_BOTTOM_RIGHT && !key->packed ? key->seq_k - key->seq_q : 0;
    plan->scale = key->scale;
    plan->never = -INFINITY;
    plan->one = 1.0f;
    plan->all_q = (int32_t)key->seq_q;
    plan->all_k = (int32_t)key->seq_k;
    plan->window_int = (int32_t)key->window;
    plan->window = (float)(key->window - shift);
}

static enum status new_plan(const struct cudnn_key *key, struct cudnn_plan **out)
{
    const struct cudnn_api *api;
    TRY(cudnn_load(&api));
    struct cudnn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return FAIL(STATUS_NOMEM, "no memory for a plan of cuDNN");
    plan->key = *key;
    plan->graph.api = api;
    fill_values(plan);
    *out = plan;
    return STATUS_OK;
}

static enum status handle_of(int device, int thread, cudnnHandle_t *out)
{
    const struct cudnn_api *api;
    TRY(cudnn_load(&api));
    if (device < 0 || device >= DEVICES)
        return FAIL(STATUS_UNSUPPORTED, "cuDNN on GPU %d: there is room for %d", device, DEVICES);
    cudnnHandle_t *handle = &handles[device][thread];
    if (!*handle) {
        cudnnStatus_t error = api->cudnnCreate(handle);
        if (error != CUDNN_STATUS_SUCCESS) {
            *handle = NULL;
            return FAIL(STATUS_MACHINE, "cuDNN does not start on GPU %d: %s", device, api->cudnnGetErrorString(error));
        }
    }
    *out = *handle;
    return STATUS_OK;
}

static struct cudnn_plan *find(const struct cudnn_key *key)
{
    struct cudnn_plan *plan = plans;
    while (plan && memcmp(&plan->key, key, sizeof *key) != 0)
        plan = plan->next;
    return plan;
}

/* That of the key, as yet unknown to cuDNN where it is new. */
static enum status entry(const struct cudnn_key *key, struct cudnn_plan **out)
{
    struct cudnn_plan *plan = find(key);
    if (!plan) {
        TRY(new_plan(key, &plan));
        plan->next = plans;
        plans = plan;
    }
    *out = plan;
    return STATUS_OK;
}

static enum status get_locked(const struct cudnn_key *key, bool compiled, const struct cudnn_plan **out)
{
    struct place place = {0};
    struct cudnn_plan *plan;
    TRY(handle_of(key->device, 0, &place.handle));
    TRY(entry(key, &plan));
    if (!plan->recognised)
        recognise(plan, &place);
    if (compiled && !plan->compiled)
        compile(plan, &place);
    *out = plan;
    return STATUS_OK;
}

enum status cudnn_plan_get(const struct cudnn_key *key, bool compiled, const struct cudnn_plan **out)
{
    pthread_mutex_lock(&lock);
    enum status status = get_locked(key, compiled, out);
    pthread_mutex_unlock(&lock);
    return status;
}

static void forget(struct cudnn_plan *plan)
{
    cudnn_graph_free(&plan->graph);
    plan->graph = (struct cudnn_graph){.api = plan->graph.api};
    plan->ncandidates = 0;
    plan->recognised = plan->compiled = false;
    plan->why[0] = '\0';
}

/* A handle, and what was made with it, is one thread's at a time. */
static void compile_task(void *arg, int64_t task, int thread)
{
    struct cudnn_plan *plan = ((struct cudnn_plan **)arg)[task];
    struct place place = {0};
    if (dev_cuda_status(cudaSetDevice(plan->key.device), "turning to a GPU") != STATUS_OK ||
        handle_of(plan->key.device, thread, &place.handle) != STATUS_OK) {
        status_clear(); /* compiled when it is asked for, then */
        return;
    }
    forget(plan);
    recognise(plan, &place);
    compile(plan, &place);
    if (plan->why[0] && plan->ncandidates > 0)
        forget(plan); /* perhaps only many at once were too many: it is tried again alone, when it is asked for */
}

/* Plans of these keys, each once, that were neither compiled nor refused yet. */
static int pending(const struct cudnn_key *keys, int n, struct cudnn_plan **out)
{
    int found = 0;
    for (int i = 0; i < n; i++) {
        struct cudnn_plan *plan;
        if (entry(&keys[i], &plan) != STATUS_OK) {
            status_clear();
            break;
        }
        bool done = plan->compiled || plan->why[0] != '\0';
        for (int k = 0; k < found && !done; k++)
            done = out[k] == plan;
        if (!done)
            out[found++] = plan;
    }
    return found;
}

void cudnn_plans_compile(const struct cudnn_key *keys, int n)
{
    struct cudnn_plan **waiting = calloc((size_t)n, sizeof *waiting);
    if (!waiting)
        return;
    pthread_mutex_lock(&lock);
    int found = pending(keys, n, waiting);
    struct team *team = found > 1 ? team_or_alone(team_spare(found < COMPILERS ? found : COMPILERS)) : NULL;
    if (team) /* else one after the other, when they are asked for */
        team_run(team, found, compile_task, waiting);
    team_destroy(team);
    pthread_mutex_unlock(&lock);
    free(waiting);
}

enum status cudnn_plan_candidates(const struct cudnn_key *key, const char *json, int *out_engines, char why[160])
{
    struct place place = {0};
    struct cudnn_plan *plan = NULL;
    TRY(new_plan(key, &plan));
    describe_device(&plan->graph, json, &place);
    recognise(plan, &place);
    *out_engines = plan->ncandidates;
    memcpy(why, plan->why, sizeof plan->why);
    cudnn_graph_free(&plan->graph);
    free(plan);
    return STATUS_OK;
}

/* Where a tensor's memory is: of the call, or a value of the plan. */
static const void *memory_of(const struct cudnn_plan *plan, void *const memory[CUDNN_TENSORS], int name)
{
    bool by_document = plan->key.packed && plan->key.causal == ATTENTION_BOTTOM_RIGHT;
    switch (name) {
    case CUDNN_SCALE:
        return &plan->scale;
    case CUDNN_NEVER:
        return &plan->never;
    case CUDNN_ONE:
        return &plan->one;
    case CUDNN_ALL_Q:
        return &plan->all_q;
    case CUDNN_ALL_K:
        return &plan->all_k;
    case CUDNN_WINDOW:
        return by_document ? (const void *)&plan->window_int : &plan->window;
    default:
        return memory[name];
    }
}

static enum status execute(const struct cudnn_plan *plan, struct cudnn_graph *pack, int n, const int64_t *names,
                           const void *const *pointers, void *workspace, struct dev_queue *queue)
{
    const struct cudnn_api *api = pack->api;
    cudnnHandle_t handle = handles[plan->key.device][0];
    cudnn_node node = cudnn_create(pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    cudnn_set(pack, node, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, names);
    cudnn_set(pack, node, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    cudnn_set(pack, node, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnn_finish(pack, node, "the arguments");
    cudnnStatus_t error = pack->error;
    if (error == CUDNN_STATUS_SUCCESS)
        error = api->cudnnSetStream(handle, dev_cuda_stream(queue));
    if (error == CUDNN_STATUS_SUCCESS)
        error = api->cudnnBackendExecute(handle, plan->plan, node);
    if (error == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    TRY(dev_cuda_late_status());
    return FAIL(STATUS_MACHINE, "cuDNN's attention failed on GPU %d: %s", plan->key.device,
                api->cudnnGetErrorString(error));
}

enum status cudnn_plan_run(const struct cudnn_plan *plan, void *const memory[CUDNN_TENSORS], void *workspace,
                           struct dev_queue *queue)
{
    int64_t names[CUDNN_TENSORS];
    const void *pointers[CUDNN_TENSORS];
    struct cudnn_graph pack = {.api = plan->graph.api};
    int n = 0;
    for (int name = 1; name < CUDNN_TENSORS; name++)
        if (plan->graph.used[name]) {
            names[n] = name;
            pointers[n++] = memory_of(plan, memory, name);
        }
    pthread_mutex_lock(&lock);
    enum status status = execute(plan, &pack, n, names, pointers, workspace, queue);
    pthread_mutex_unlock(&lock);
    cudnn_graph_free(&pack);
    return status;
}
