/* tuner/explain_fixture.h -- for tests of explain: a recommendation of three plans and its document; questions, and what their answers say. */
#ifndef SPTUNE_TESTS_TUNER_EXPLAIN_FIXTURE_H
#define SPTUNE_TESTS_TUNER_EXPLAIN_FIXTURE_H

#include "base/check.h"
#include "base/log.h"
#include "tuner/explain.h"
#include "tuner/sample.h"

struct fixture {
    struct recommendation rec;
    json_t *document;
};

static inline void make_document(struct fixture *f)
{
    const struct json_envelope envelope = {.command = "sptune tune --model llama-3-8b"};
    json_decref(f->document);
    f->document = recommend_to_json(&f->rec, &envelope);
    assert_non_null(f->document);
}

static inline int open_fixture(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const struct sample_options options = {.model = "llama-3-8b",
                                           .seq = 131072,
                                           .world = 16,
                                           .sp = 8,
                                           .zero = 3,
                                           .per_host = 8,
                                           .class = "flash_attention_2"};
    assert_non_null(f);
    log_reset();
    log_setup(LOG_QUIET, false);
    CHECK_OK(sample_recommendation(&options, &f->rec));
    make_document(f);
    *state = f;
    return 0;
}

static inline int close_fixture(void **state)
{
    struct fixture *f = *state;
    recommend_free(&f->rec);
    json_decref(f->document);
    free(f);
    return 0;
}

static inline enum status ask(struct fixture *f, struct explain_options options, char **out)
{
    return explain_run(f->document, &options, out);
}

#define TERM(word)    ((struct explain_options){.term = (word)})
#define WHY_NOT(word) ((struct explain_options){.why_not = (word)})
#define WHAT_IF(word) ((struct explain_options){.what_if = (word)})

/* In place: line breaks and what they indent become one blank. */
static inline void unwrap(char *text)
{
    char *to = text;
    for (const char *at = text; *at != '\0';) {
        size_t blanks = strspn(at, " \n");
        at += blanks;
        if (blanks > 0)
            *to++ = ' ';
        else
            *to++ = *at++;
    }
    *to = '\0';
}

/* The answer fits a terminal, and holds every one of the words. */
static inline void assert_answer(struct fixture *f, struct explain_options options, const char *const *words, int n)
{
    char *text = NULL;
    CHECK_OK(ask(f, options, &text));
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n')
        if (strcspn(line, "\n") > 80)
            fail_msg("longer than 80 columns: %s", line);
    unwrap(text);
    for (int i = 0; i < n; i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("no \"%s\" in:\n%s", words[i], text);
    free(text);
}

#define SAYS(f, options, ...)                                                                                          \
    assert_answer(f, options, (const char *const[]){__VA_ARGS__},                                                      \
                  (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static inline double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)

#endif
