/* tuner/admitted.h -- for tests: everything that a search may ask of a device, at every level and scale, put to the rules of bench. What
 * these waive has no time, and a plan is then priced from less, or not at all: a fake machine, which answers everything, does not show it.
 */
#ifndef SPTUNE_TESTS_TUNER_ADMITTED_H
#define SPTUNE_TESTS_TUNER_ADMITTED_H

#include "bench/admitted.h"
#include "tuner/fake.h"

#include "base/text.h"
#include "sp/exchange.h"
#include "sp/target.h"
#include "tuner/search_state.h"

static inline void check_level(const struct request *request, const struct plan *plan, enum parts_level level,
                               const struct parts_scale *scale)
{
    struct parts parts = {0};
    char text[PLAN_TEXT], name[96], why[256];
    CHECK_OK(parts_list(request, plan, level, scale, &parts));
    assert_true(parts.n > 0);
    for (int p = 0; p < parts.n; p++)
        if (parts.item[p].possible && !is_admitted(&parts.item[p].c, request->dev, why))
            fail_msg("%s %s: level %d, %s is waived: %s", request->model.name, plan_text(plan, text), (int)level,
                     parts_name(&parts.item[p], name, sizeof name), why);
    parts_free(&parts);
}

/* Returns how many candidates there are, by which every part is timed. */
static inline int check_parts(const struct request *request)
{
    struct candidates candidates;
    int n = 0;
    CHECK_OK(candidates_build(request, &candidates));
    for (int i = 0; i < candidates.n; i++) {
        enum parts_level level = PARTS_LAYER;
        struct parts_scale scale = {0};
        if (!verdict_ok(&candidates.rows[i].verdict))
            continue;
        n++;
        check_level(request, &candidates.rows[i].plan, PARTS_COARSE, &scale);
        do
            check_level(request, &candidates.rows[i].plan, level, &scale);
        while (search_scale_next(request, &level, &scale));
    }
    candidates_free(&candidates);
    return n;
}

/* What --exchange and --method search may name besides what a target searches. */
static inline void ask_all(struct request *out)
{
    struct plan_space *space = &out->space;
    for (int m = 0; m <= PLAN_METHOD_SPLIT_GATHER; m++)
        space->method[space->nmethod++] = (enum plan_method)m;
    for (int e = 0; exchanges[e] != NULL && space->nexchange < PLAN_LIST_MAX; e++)
        if (exchanges[e]->dev == out->dev)
            text_print(space->exchange[space->nexchange++], PLAN_NAME, "%s", exchanges[e]->name);
}

static const struct {
    const char *model, *docs;
    int ranks, world;
    int64_t micro; /* and 1 */
} askings[] = {
    {"llama-3-8b", "none", 1, 1, 3},
    {"llama-3-8b", "fixed:3000", 8, 8, 1},
    {"llama-3-8b", "none", 2, 16, 2},
    {"qwen2.5-0.5b", "none", 2, 2, 2},
    {"qwen2.5-0.5b", "none", 14, 14, 1},
    {"qwen2.5-0.5b", "fixed:100", 1, 2, 1},
    {"mistral-7b-v0.1", "none", 1, 1, 1},
    {"mistral-7b-v0.1", "none", 8, 8, 2},
    {"mistral-7b-v0.1", "fixed:5000", 2, 2, 1},
    {"gemma-3-1b", "none", 1, 1, 1},
    {"gemma-3-1b", "fixed:100", 4, 4, 2},
    {"gemma-2-2b", "none", 2, 2, 1},
    {"gemma-2b", "none", 8, 8, 1},
    {"falcon-7b", "none", 1, 1, 1},
    {"phi-3-mini", "fixed:3000", 2, 4, 2},
    {"mixtral-8x7b", "none", 4, 4, 1},
    {"gpt-oss-20b", "none", 1, 1, 1},
    {"gpt-oss-20b", "fixed:3000", 8, 8, 2},
    {"deepseek-v2-lite", "none", 2, 2, 1},
    {"smollm2-135m", "none", 3, 3, 1},
};

/* Models of all kinds, documents or none, few ranks and many, both targets. Not every kernel takes every model. */
static inline void check_everything(const struct fake_bench *bench, const struct topo *topo, enum dev_kind dev)
{
    static struct request request;
    int n = 0;
    for (int i = 0; i < 2 * CHECK_COUNT(askings); i++) {
        const bool native = i % 2 == 1;
        fake_request(bench, askings[i / 2].model, 20000, askings[i / 2].ranks, &request);
        request.world = askings[i / 2].world;
        request.target = target_find(native ? "sptune" : "accelerate");
        request.topo = topo;
        request.dev = request.planned = dev;
        request.micro_batch[0] = 1;
        request.micro_batch[1] = askings[i / 2].micro;
        request.nmicro = 2;
        CHECK_OK(problem_set_docs(&request.problem, askings[i / 2].docs));
        if (native)
            ask_all(&request);
        CHECK_OK(request_complete(&request));
        request_with_overlap(&request);
        n += check_parts(&request);
    }
    assert_true(n > 300);
}

#endif
