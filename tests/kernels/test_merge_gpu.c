/* tests/kernels/test_merge_gpu.c -- the same on a GPU. */
#include "kernels/merge_cases.h"

#include <stdio.h>

static void parts_make_the_whole(void **state)
{
    (void)state;
    merge_all(DEV_CUDA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_make_the_whole)};
    int n = 0;
    if (dev_count(DEV_CUDA, &n) != STATUS_OK || n < 1) {
        puts("skipped: there is no CUDA device here");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
