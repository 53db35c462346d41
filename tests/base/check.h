/* tests/base/check.h -- for tests: cmocka, and the checks of a status and its message. */
#ifndef SPTUNE_TESTS_BASE_CHECK_H
#define SPTUNE_TESTS_BASE_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/status.h"

#define CHECK_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* A failure prints the message, so that a log of CI is enough to understand it. */
#define CHECK_OK(expr)                                                                                                 \
    do {                                                                                                               \
        enum status check_status_ = (expr);                                                                            \
        if (check_status_ != STATUS_OK) {                                                                              \
            const struct status_message *check_last_ = status_last();                                                  \
            fail_msg("%s: %s: %s (%s) [%s] %s", #expr, status_name(check_status_), check_last_->what,                  \
                     check_last_->where, check_last_->hint, check_last_->source);                                      \
        }                                                                                                              \
    } while (0)

/* `expr` fails with `code`, and its message says `word`. */
#define CHECK_FAILS(code, word, expr)                                                                                  \
    do {                                                                                                               \
        status_clear();                                                                                                \
        enum status check_status_ = (expr);                                                                            \
        if (check_status_ != (code) || !strstr(status_last()->what, (word)))                                           \
            fail_msg("%s: expected %s '%s', got %s '%s'", #expr, status_name(code), (word),                            \
                     status_name(check_status_), status_last()->what);                                                 \
    } while (0)

#endif
