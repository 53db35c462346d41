/* tuner/test_live.c -- a search that really measures, on two forked ranks, and what a replay of its store says. */
#include "base/temp.h"
#include "bench/bench_test.h"

#include "base/interrupt.h"
#include "base/text.h"
#include "bench/check.h"
#include "tuner/search.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

struct job {
    char path[1024];
    bool interrupt;
    enum plan_method method; /* ulysses for accelerate, else for sptune */
};

/* ---- a serve loop as the program has one ---- */

static enum status tell(void *arg, const char *mode, const void *data, size_t bytes)
{
    size_t name = strlen(mode) + 1, total = name + bytes;
    char *message = malloc(total);
    void *borrowed = message;
    if (message == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a message");
    memcpy(message, mode, name);
    if (bytes > 0)
        memcpy(message + name, data, bytes);
    enum status status = boot_bcast(arg, 0, &borrowed, &total, clock_deadline(BOOT_DEADLINE_US));
    free(message);
    return status;
}

static enum status serve(struct bench_env *env, struct boot *boot)
{
    for (;;) {
        void *message = NULL;
        size_t bytes = 0;
        TRY(boot_bcast(boot, 0, &message, &bytes, clock_deadline(BOOT_DEADLINE_US)));
        const char *mode = message;
        size_t name = strlen(mode) + 1;
        bool end = strcmp(mode, "bench") != 0;
        enum status status = end ? STATUS_OK : bench_serve(env, mode + name, bytes - name);
        free(message);
        if (end || status != STATUS_OK)
            return status;
    }
}

/* One layer of four heads, 96 tokens, sp 2: milliseconds. The budget is one that no load ends: samples are counted, and few. */
static enum status ask(const struct job *job, const struct topo *topo, struct request *request)
{
    static const char whole[] = "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,"
                                "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"
                                "\"vocab_size\":64}";
    bool ulysses = job->method == PLAN_METHOD_ULYSSES;
    request_init(request);
    TRY(ulysses ? model_from_heads(4, 2, 16, &request->model)
                : model_parse(whole, strlen(whole), "test", &request->model));
    problem_from_model(&request->model, 96, 2, &request->problem);
    request->target = target_find(ulysses ? "accelerate" : "sptune");
    request->space.nmethod = 1;
    request->space.method[0] = job->method;
    request->topo = topo;
    request->ranks = request->world = 2;
    request->space.nsp = 1;
    request->space.sp[0] = 2;
    request->budget_us = INT64_C(3600) * 1000 * 1000;
    request->device_memory_bytes = (int64_t)64 << 30;
    request->oversubscribe = true; /* a test machine is busy: its state is recorded, never judged */
    return request_complete(request);
}

static bool was_rough(const struct recommendation *r)
{
    for (int i = 0; i < r->request.nassumptions; i++)
        if (strcmp(r->request.assumptions[i].name, "samples") == 0)
            return true;
    return false;
}

/* A second search measures nothing, and one without ranks needs none: both answer as the first did. */
static int remembered(const struct request *request, struct bench_session *session, const struct recommendation *live)
{
    static struct recommendation again, replayed;
    RANK_TRY(search_run(request, session, &again));
    RANK_CHECK(again.measured == 0);
    struct bench_session replay = {.store = session->store, .reuse = true};
    RANK_TRY(search_run(request, &replay, &replayed));
    const struct recommendation *others[] = {&again, &replayed};
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(others[i]->candidates[0].plan.sp == live->candidates[0].plan.sp);
        RANK_CHECK(others[i]->candidates[0].time.step_us == live->candidates[0].time.step_us);
        RANK_CHECK(others[i]->candidates[0].time.lo_us == live->candidates[0].time.lo_us);
    }
    recommend_free(&again);
    recommend_free(&replayed);
    return 0;
}

static int search(struct bench_env *env, struct side *side, const struct job *job)
{
    static struct request request;
    static struct recommendation live;
    struct topo topo;
    struct bench_session session = {.env = env, .tell = tell, .tell_arg = side->boot, .reuse = true, .checked = true};
    RANK_TRY(topo_open("synth:2xcpu", &topo));
    RANK_TRY(ask(job, &topo, &request));
    session.versions = bench_versions(env);
    RANK_TRY(store_open(job->path, STORE_WRITE, &session.store));
    RANK_TRY(store_run_begin(session.store, "tune", "test", "", env->machine, 1, &session.run));
    if (job->interrupt) { /* before the first sample there is no answer to hold */
        interrupt_setup(NULL);
        raise(SIGINT);
        RANK_CHECK(search_run(&request, &session, &live) == STATUS_INTERRUPTED);
        RANK_CHECK(live.interrupted && live.measured == 0 && live.n == 0);
    } else {
        RANK_TRY(search_run(&request, &session, &live));
        RANK_CHECK(live.measured > 8 && live.chosen == 0 && live.candidates[0].timed);
        RANK_CHECK(live.candidates[0].plan.sp == 2 && live.candidates[0].time.exchange_in > 0);
        RANK_CHECK(isfinite(live.candidates[0].time.step_us) && live.candidates[0].time.step_us > 0);
        RANK_CHECK(live.candidates[0].plan.method == job->method);
        RANK_CHECK((live.native_best >= 0) == (job->method == PLAN_METHOD_ULYSSES));
        if (was_rough(&live)) /* what was is measured anew */
            printf("skipped: this machine was too busy for samples that are kept\n");
        else
            RANK_CHECK(remembered(&request, &session, &live) == 0);
    }
    recommend_free(&live);
    store_close(session.store);
    free(session.versions);
    topo_free(&topo);
    RANK_TRY(tell(side->boot, "end", NULL, 0));
    return 0;
}

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct bench_env env;
    RANK_TRY(bench_test_open(&side, launch, &env));
    int code = launch->rank == 0 ? search(&env, &side, arg) : 0;
    if (launch->rank != 0)
        RANK_TRY(serve(&env, side.boot));
    side_close(&side);
    return code;
}

static void run(bool interrupt, enum plan_method method)
{
    struct temp temp;
    struct job job = {.interrupt = interrupt, .method = method};
    temp_open(&temp);
    text_print(job.path, sizeof job.path, "%s", temp_path(&temp, "live.db"));
    ranks_pass(2, rank_main, &job);
    temp_close(&temp);
}

static void test_search(void **state)
{
    (void)state;
    run(false, PLAN_METHOD_ULYSSES);
    run(false, PLAN_METHOD_RING);
    run(false, PLAN_METHOD_SPLIT_GATHER);
}

static void test_interrupted(void **state)
{
    (void)state;
    run(true, PLAN_METHOD_ULYSSES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
