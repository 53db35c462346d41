/* tests/model/model_test.h -- parse a config.json given in the test, and look at how one was refused. */
#ifndef SPTUNE_TESTS_MODEL_TEST_H
#define SPTUNE_TESTS_MODEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "model/model.h"

/* JSON with ' for ", so that tests stay readable. */
static inline enum status parse(const char *quoted, struct model *out)
{
    char text[8192];
    size_t len = strlen(quoted);
    assert_true(len < sizeof text);
    for (size_t i = 0; i <= len; i++)
        text[i] = quoted[i] == '\'' ? '"' : quoted[i];
    return model_parse(text, len, "dir/config.json", out);
}

static inline struct model parse_ok(const char *quoted)
{
    struct model model;
    memset(&model, 0x5a, sizeof model);
    enum status status = parse(quoted, &model);
    if (status != STATUS_OK)
        fail_msg("refused: %s (%s) %s", status_last()->what, status_last()->where, status_last()->hint);
    return model;
}

/* Refused as the user's mistake, saying `what`, naming the file and `key`, with a hint; and *out untouched. */
static inline void assert_refused(const char *quoted, const char *what, const char *key)
{
    struct model model, before;
    memset(&model, 0x5a, sizeof model);
    before = model;
    if (parse(quoted, &model) != STATUS_USAGE)
        fail_msg("not refused: %s", quoted);
    const struct status_message *last = status_last();
    if (strstr(last->what, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", last->what, what);
    assert_non_null(strstr(last->where, "dir/config.json"));
    if (strstr(last->where, key) == NULL)
        fail_msg("\"%s\" does not name %s", last->where, key);
    assert_true(last->hint[0] != '\0');
    assert_memory_equal(&model, &before, sizeof model);
}

#endif
