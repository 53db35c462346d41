/* tests/comm/test_nccl_load.c -- an NCCL that is not there, and a library that is none: what is said, and how the program ends. */
#include "base/check.h"
#include "comm/transport_nccl.h"

#include <stdlib.h>

static void test_no_file(void **state)
{
    const struct nccl_api *api = NULL;
    (void)state;
    setenv("SPTUNE_NCCL", "/nowhere/libnccl.so", 1);
    CHECK_FAILS(STATUS_ABSENT, "NCCL cannot be loaded: /nowhere/libnccl.so", nccl_load(&api));
    assert_non_null(strstr(status_last()->hint, "SPTUNE_NCCL"));
    assert_int_equal(status_exit_code(STATUS_ABSENT), 2);
}

static void test_another_library(void **state)
{
    const struct nccl_api *api = NULL;
    (void)state;
    setenv("SPTUNE_NCCL", "libm.so.6", 1);
    CHECK_FAILS(STATUS_ABSENT, "has no function nccl", nccl_load(&api));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_another_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
