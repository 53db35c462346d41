/* tests/comm/test_ucx_load.c -- a UCX that is not there, and a library that is none: what is said, and how the program ends. */
#include "base/check.h"
#include "comm/transport_ucx.h"

#include <stdlib.h>

static void test_no_file(void **state)
{
    const struct ucx_api *api = NULL;
    (void)state;
    setenv("SPTUNE_UCX", "/nowhere/libucp.so", 1);
    CHECK_FAILS(STATUS_ABSENT, "UCX cannot be loaded: /nowhere/libucp.so", ucx_load(true, &api));
    assert_non_null(strstr(status_last()->hint, "SPTUNE_UCX"));
    assert_int_equal(status_exit_code(STATUS_ABSENT), 2);
}

static void test_another_library(void **state)
{
    const struct ucx_api *api = NULL;
    (void)state;
    setenv("SPTUNE_UCX", "libm.so.6", 1);
    CHECK_FAILS(STATUS_ABSENT, "libm.so.6 has no function ucp", ucx_load(true, &api));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_another_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
