/* tuner/test_explain_documents.c -- documents of other programs, other builds and older ones, and broken ones: none can crash an answer. */
#include "tuner/explain_fixture.h"

#include "base/rng.h"

/* An older document has no such part: nothing is wrong with it. */
static void test_elementwise_is_newer(void **state)
{
    struct fixture *f = *state;
    json_t *candidates = json_object_get(f->document, "candidates"), *candidate;
    size_t i;
    json_array_foreach(candidates, i, candidate)
        json_object_del(json_object_get(json_object_get(candidate, "predicted"), "breakdown_us"), "elementwise");
    SAYS(f, TERM("elementwise"), "elementwise = 0 us", "the sptune that wrote this document did not price it");
    SAYS(f, WHAT_IF("loss=fused"), "after sp 8 loss=fused");
}

/* A kernel of GPUs was timed, and this build has none by that name: the target was told another. */
static void test_kernel_of_another_build(void **state)
{
    struct fixture *f = *state;
    json_t *candidates = json_object_get(f->document, "candidates"), *candidate;
    size_t i;
    json_array_foreach(candidates, i, candidate)
        json_object_set_new(json_object_get(candidate, "plan"), "attention", json_string("elsewhere"));
    json_object_set_new(json_object_get(f->document, "plan"), "attention", json_string("elsewhere"));
    SAYS(f, WHAT_IF("loss=fused"), "after sp 8 loss=fused");
}

static void set_root(struct fixture *f, const char *key, json_t *value)
{
    json_object_set_new(f->document, key, value);
}

static void test_foreign_documents(void **state)
{
    struct fixture *f = *state;
    char *text = NULL;
    set_root(f, "schema", json_string("sptune.recommendation/2"));
    CHECK_FAILS(STATUS_USAGE, "another sptune", ask(f, TERM("logits"), &text));
    set_root(f, "schema", json_string("sptune.plans/1"));
    CHECK_FAILS(STATUS_USAGE, "table of answers", ask(f, TERM("logits"), &text));
    set_root(f, "schema", json_string("sptune.model/1"));
    CHECK_FAILS(STATUS_USAGE, "no recommendation", ask(f, TERM("logits"), &text));
    json_object_del(f->document, "schema");
    CHECK_FAILS(STATUS_USAGE, "\"schema\" is missing", ask(f, TERM("logits"), &text));
    json_t *list = json_array();
    CHECK_FAILS(STATUS_USAGE, "no recommendation", explain_run(list, NULL, &text));
    assert_null(explain_to_json(list, NULL));
    json_decref(list);
    CHECK_FAILS(STATUS_USAGE, "no recommendation", explain_run(NULL, NULL, &text));
    make_document(f);
    set_root(f, "target", json_string("sky"));
    CHECK_FAILS(STATUS_USAGE, "target 'sky'", ask(f, TERM("logits"), &text));
    make_document(f);
    json_object_del(f->document, "problem");
    CHECK_FAILS(STATUS_USAGE, "\"problem\" is missing", ask(f, TERM("logits"), &text));
    make_document(f);
    set_root(f, "candidates", json_array());
    CHECK_FAILS(STATUS_USAGE, "not among the candidates", ask(f, TERM("logits"), &text));
    assert_null(text);
}

static void test_nothing_legal(void **state)
{
    struct fixture *f = *state;
    char *text = NULL;
    f->rec.chosen = -1;
    for (int i = 0; i < 2; i++)
        f->rec.candidates[i].priced = false;
    make_document(f);
    SAYS(f, (struct explain_options){0}, "No plan is legal", "sp 7 flash_attention_2 is refused");
    SAYS(f, WHY_NOT("sp=7"), "refused");
    CHECK_FAILS(STATUS_USAGE, "no plan was legal", ask(f, TERM("logits"), &text));
    CHECK_FAILS(STATUS_USAGE, "no plan was legal", ask(f, WHAT_IF("loss=fused"), &text));
}

static void test_control_characters(void **state)
{
    struct fixture *f = *state;
    strcpy(f->rec.request.model.name, "x\x1b[31m\ny");
    strcpy(f->rec.candidates[1].lost.why, "a\x1b]0;b\a");
    make_document(f);
    char *text = NULL;
    CHECK_OK(ask(f, (struct explain_options){0}, &text));
    for (const char *c = text; *c != '\0'; c++)
        assert_true(*c == '\n' || (unsigned char)*c >= ' ');
    free(text);
}

/* One random node of the tree becomes something else, or goes. */
static json_t *odd_value(struct rng *rng)
{
    switch (rng_u64(rng) % 12) {
    case 0:
        return json_null();
    case 1:
        return json_integer(0);
    case 2:
        return json_integer(-1);
    case 3:
        return json_integer(INT64_MAX);
    case 4:
        return json_integer(INT64_MIN);
    case 5:
        return json_integer((json_int_t)1 << (rng_u64(rng) % 50));
    case 6:
        return json_real(1e30);
    case 7:
        return json_real(-0.5);
    case 8:
        return json_string("");
    case 9:
        return json_string("sp=4\n\xe2\x82\xac %s %n "
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    case 10:
        return json_array();
    default:
        return json_object();
    }
}

static void mutate(json_t *node, struct rng *rng)
{
    for (int depth = 0; depth < 8; depth++) {
        json_t *next = NULL;
        if (json_is_object(node) && json_object_size(node) > 0) {
            size_t skip = rng_u64(rng) % json_object_size(node);
            void *at = json_object_iter(node);
            while (skip-- > 0)
                at = json_object_iter_next(node, at);
            next = json_object_iter_value(at);
            if ((!json_is_object(next) && !json_is_array(next)) || rng_u64(rng) % 8 == 0) {
                if (rng_u64(rng) % 6 == 0)
                    json_object_del(node, json_object_iter_key(at));
                else
                    json_object_iter_set_new(node, at, odd_value(rng));
                return;
            }
        } else if (json_is_array(node) && json_array_size(node) > 0) {
            size_t i = rng_u64(rng) % json_array_size(node);
            next = json_array_get(node, i);
            if (!json_is_object(next) || rng_u64(rng) % 8 == 0) {
                json_array_set_new(node, i, odd_value(rng));
                return;
            }
        } else {
            return;
        }
        node = next;
    }
}

static void test_mutations(void **state)
{
    struct fixture *f = *state;
    const struct explain_options questions[] = {{0},
                                                TERM("memory"),
                                                TERM("attention"),
                                                TERM("logits"),
                                                TERM("gemm"),
                                                TERM("zero"),
                                                TERM("accumulate"),
                                                TERM("sp_size"),
                                                TERM("peak_bytes"),
                                                TERM("tokens_per_s_per_device"),
                                                WHY_NOT("sp=4"),
                                                WHY_NOT("loss=plain"),
                                                WHAT_IF("loss=fused"),
                                                WHAT_IF("global-batch=8"),
                                                WHAT_IF("zero=1 checkpointing=none device-memory=1TiB")};
    struct rng rng;
    int answered = 0, refused = 0;
    rng_seed(&rng, 7, 0);
    f->rec.request.problem.docs = 2; /* lists to mutate, too */
    f->rec.request.problem.doc_len[0] = 131000;
    f->rec.request.problem.doc_len[1] = 72;
    make_document(f);
    for (int i = 0; i < 3000; i++) {
        json_t *copy = json_deep_copy(f->document);
        char *text = NULL;
        for (uint64_t n = 1 + rng_u64(&rng) % 2; n > 0; n--)
            mutate(copy, &rng);
        enum status status = explain_run(copy, &questions[i % CHECK_COUNT(questions)], &text);
        assert_true(status == STATUS_OK || status == STATUS_USAGE);
        assert_true((text != NULL) == (status == STATUS_OK));
        answered += status == STATUS_OK;
        refused += status != STATUS_OK;
        free(text);
        json_decref(copy);
    }
    assert_true(answered > 100 && refused > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_elementwise_is_newer),
        TEST(test_kernel_of_another_build),
        TEST(test_foreign_documents),
        TEST(test_nothing_legal),
        TEST(test_control_characters),
        TEST(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
