/* tests/train/one_fails_test.h -- for tests: one rank of a training run fails, in what the ranks with other sequences have no part in. */
#ifndef SPTUNE_TESTS_TRAIN_ONE_FAILS_TEST_H
#define SPTUNE_TESTS_TRAIN_ONE_FAILS_TEST_H

#include "base/text.h"
#include "comm/ranks.h"
#include "comm/scarce.h"
#include "sp/exec.h"
#include "train/run.h"

#include <stdlib.h>

enum { RANKS = 4, FAILS = 3 };

static const struct {
    const char *what; /* that rank 3 has no memory for */
    const char *said; /* what all are told, those that do not share its sequence too */
    enum status status;
    bool documents; /* of packed rows fail */
} one_fails_cases[] = {
    {"attention layers", "no memory for attention layers", STATUS_NOMEM, false},
    {"an attention layer", "no memory for an attention layer", STATUS_NOMEM, false},
    {"sums of squares", "no memory for sums of squares", STATUS_NOMEM, false},
    {NULL, "a kernel that does not take them", STATUS_UNSUPPORTED, true},
};

static bool documents_fail;

enum status __real_exec_documents(struct exec *exec, const struct problem *problem);
enum status __wrap_exec_documents(struct exec *exec, const struct problem *problem);

enum status __wrap_exec_documents(struct exec *exec, const struct problem *problem)
{
    return documents_fail ? FAIL(STATUS_UNSUPPORTED, "a kernel that does not take them")
                          : __real_exec_documents(exec, problem);
}

static inline enum status one_fails_options(struct dev *dev, bool packed, struct run_options *out)
{
    bool gpu = dev_kind_of(dev) == DEV_CUDA;
    memset(out, 0, sizeof *out);
    struct trainer_options *o = &out->trainer;
    TRY(model_load("toy", &o->model));
    plan_default(&o->plan);
    o->plan.sp = 2;
    o->plan.dp_shard = RANKS / 2;
    o->plan.zero_stage = 3;
    o->plan.accumulate = 2;
    if (gpu) {
        text_print(o->plan.attention, sizeof o->plan.attention, "gpu_reference");
        text_print(o->plan.exchange, sizeof o->plan.exchange, "nccl");
    }
    o->dtype = DTYPE_FP32;
    o->seqs[0] = 128;
    o->n_seqs = 1;
    o->epochs = 1;
    o->steps = 2;
    o->lr = 1e-3;
    o->eps = 1e-8;
    if (packed)
        o->separator = (struct data_separator){.n = 1, .token = {'\n'}};
    out->trains = true;
    return STATUS_OK;
}

/* As ranks of `sptune train`: behind a run the others wait for what rank 0 says next. */
static inline enum status one_fails_take_part(struct boot *boot, struct comm *comm, struct dev *dev,
                                              const struct run_options *options)
{
    static char end[] = "end";
    struct run_result result;
    enum status status = run_train(options, comm, dev, NULL, &result);
    struct status_message message = *status_last();
    bool root = comm_rank(comm) == 0;
    void *data = end;
    size_t bytes = sizeof end;
    if (boot_bcast(boot, 0, &data, &bytes, root ? clock_deadline(BOOT_DEADLINE_US) : INT64_MAX) == STATUS_OK && !root)
        free(data);
    status_restore(&message);
    return status;
}

static inline int one_fails_run(const struct launch *launch, struct boot *boot, struct comm *comm, struct dev *dev,
                                size_t c)
{
    struct run_options *options = malloc(sizeof *options);
    bool happened;
    RANK_CHECK(options != NULL);
    RANK_TRY(one_fails_options(dev, one_fails_cases[c].documents, options));
    comm_set_deadline(comm, INT64_C(3600) * 1000 * 1000);
    documents_fail = launch->rank == FAILS && one_fails_cases[c].documents;
    scarce_begin(launch->rank == FAILS ? one_fails_cases[c].what : NULL, 1);
    ranks_note(launch, one_fails_take_part(boot, comm, dev, options));
    (void)scarce_end(&happened);
    RANK_CHECK(happened);
    free(options);
    return 0;
}

/* Each case among RANKS ranks that rank_main, told the case's number, makes of what is above. */
static inline void one_fails_test(launch_rank_main rank_main)
{
    for (size_t c = 0; c < sizeof one_fails_cases / sizeof one_fails_cases[0]; c++) {
        ranks_pass(RANKS, rank_main, &c);
        for (int r = 0; r < RANKS; r++)
            if ((enum status)board->code[r] != one_fails_cases[c].status ||
                strstr(board->what[r], one_fails_cases[c].said) == NULL)
                fail_msg("case %zu: rank %d ended with %s: %s", c, r, status_name((enum status)board->code[r]),
                         board->what[r]);
        if (board->rank[0] != FAILS && strstr(board->what[0], "rank 3") == NULL)
            fail_msg("case %zu: rank 0 names rank %d: %s", c, board->rank[0], board->what[0]);
    }
}

#endif
