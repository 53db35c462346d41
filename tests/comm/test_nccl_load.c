/* tests/comm/test_nccl_load.c -- an NCCL that is not there, a library that is none, an old one: what is said, and how the program
 * ends; one rank alone needs none. */
#include "base/check.h"
#include "base/dev_ops.h"
#include "comm/ranks.h"
#include "comm/transport_nccl.h"

#include <stdlib.h>
#include <string.h>

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

static void test_an_old_one(void **state)
{
    const struct nccl_api *api = NULL;
    (void)state;
    setenv("SPTUNE_NCCL", OLD_LIBRARIES, 1);
    CHECK_FAILS(STATUS_UNSUPPORTED, "NCCL 2.17.1 is loaded", nccl_load(&api));
    assert_non_null(strstr(status_last()->hint, "2.18 or newer"));
}

/* Ranks on a device that says it is a GPU, without an NCCL. */
static int on_gpus(const struct launch *launch, void *arg)
{
    struct boot *boot = NULL;
    struct dev *gpu = NULL;
    struct comm *comm = NULL;
    char out[100], in[100] = "";
    (void)arg;
    setenv("SPTUNE_NCCL", "/nowhere/libnccl.so", 1);
    RANK_TRY(boot_open(launch, INT64_MAX, &boot));
    RANK_TRY(dev_open(DEV_CPU, 0, &gpu));
    struct dev_ops ops = *gpu->ops;
    ops.kind = DEV_CUDA;
    gpu->ops = &ops;
    enum status status = comm_open(boot, gpu, "nccl", NULL, &comm);
    if (launch->size > 1) {
        RANK_CHECK(status == STATUS_ABSENT && comm == NULL);
        RANK_CHECK(strstr(status_last()->what, "/nowhere/libnccl.so") != NULL);
    } else {
        RANK_TRY(status);
        memset(out, 7, sizeof out);
        RANK_TRY(comm_alltoall(comm, out, in, sizeof out, NULL));
        RANK_CHECK(memcmp(out, in, sizeof out) == 0);
        RANK_TRY(comm_allreduce(comm, in, (int64_t)sizeof in / 4, DTYPE_FP32, NULL, NULL));
        RANK_TRY(comm_barrier(comm, NULL));
        RANK_CHECK(strcmp(comm_transport(comm), "nccl") == 0);
    }
    comm_close(comm);
    boot_close(boot);
    dev_close(gpu);
    return 0;
}

static void test_one_rank_needs_none(void **state)
{
    (void)state;
    ranks_pass(1, on_gpus, NULL);
    ranks_pass(2, on_gpus, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_another_library),
        cmocka_unit_test(test_an_old_one),
        cmocka_unit_test(test_one_rank_needs_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
