/* train/test_one_fails.c -- one rank of a training run fails, in what the ranks with other sequences have no part in: the job ends with what
 * that rank says, long before a deadline. Operations of these runs have none that a test would live to see: on GPUs there is none.
 */
#include "base/file.h"
#include "base/temp.h"
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
} cases[] = {
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

static enum status options_make(bool packed, struct run_options *out)
{
    memset(out, 0, sizeof *out);
    struct trainer_options *o = &out->trainer;
    TRY(model_load("toy", &o->model));
    plan_default(&o->plan);
    o->plan.sp = 2;
    o->plan.dp_shard = RANKS / 2;
    o->plan.zero_stage = 3;
    o->plan.accumulate = 2;
    o->dtype = DTYPE_FP32;
    o->seqs[0] = 128;
    o->n_seqs = 1;
    o->epochs = 1;
    o->steps = 2;
    o->lr = 1e-3;
    if (packed)
        o->separator = (struct data_separator){.n = 1, .token = {'\n'}};
    out->trains = true;
    return STATUS_OK;
}

/* As ranks of `sptune train`: behind a run the others wait for what rank 0 says next. */
static enum status take_part(struct side *side, const struct run_options *options)
{
    static char end[] = "end";
    struct run_result result;
    enum status status = run_train(options, side->comm, side->dev, NULL, &result);
    struct status_message message = *status_last();
    bool root = comm_rank(side->comm) == 0;
    void *data = end;
    size_t bytes = sizeof end;
    if (boot_bcast(side->boot, 0, &data, &bytes, root ? clock_deadline(BOOT_DEADLINE_US) : INT64_MAX) == STATUS_OK &&
        !root)
        free(data);
    status_restore(&message);
    return status;
}

static int rank_main(const struct launch *launch, void *arg)
{
    size_t c = *(const size_t *)arg;
    struct run_options *options = malloc(sizeof *options);
    struct side side;
    bool happened;
    RANK_CHECK(options != NULL);
    RANK_TRY(options_make(cases[c].documents, options));
    RANK_TRY(side_open(&side, launch, NULL));
    comm_set_deadline(side.comm, INT64_C(3600) * 1000 * 1000);
    documents_fail = launch->rank == FAILS && cases[c].documents;
    scarce_begin(launch->rank == FAILS ? cases[c].what : NULL, 1);
    ranks_note(launch, take_part(&side, options));
    (void)scarce_end(&happened);
    RANK_CHECK(happened);
    free(options);
    side_close(&side);
    return 0;
}

static void test_one_rank_fails(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        ranks_pass(RANKS, rank_main, &c);
        for (int r = 0; r < RANKS; r++)
            if ((enum status)board->code[r] != cases[c].status || strstr(board->what[r], cases[c].said) == NULL)
                fail_msg("case %zu: rank %d ended with %s: %s", c, r, status_name((enum status)board->code[r]),
                         board->what[r]);
        if (board->rank[0] != FAILS && strstr(board->what[0], "rank 3") == NULL)
            fail_msg("case %zu: rank 0 names rank %d: %s", c, board->rank[0], board->what[0]);
    }
}

/* One host has a stale copy of the data, of fewer tokens. */
static int rank_with_its_data(const struct launch *launch, void *arg)
{
    static const char data[1 << 16] = "no token but 0 behind this";
    struct temp *temp = arg;
    struct run_options *options = malloc(sizeof *options);
    struct side side;
    RANK_CHECK(options != NULL);
    RANK_TRY(options_make(false, options));
    text_print(options->trainer.data, sizeof options->trainer.data, "%s",
               temp_path(temp, launch->rank == FAILS ? "stale" : "data"));
    RANK_TRY(file_write(options->trainer.data, data, launch->rank == FAILS ? sizeof data / 2 : sizeof data));
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    ranks_note(launch, take_part(&side, options));
    free(options);
    side_close(&side);
    return 0;
}

static void test_data_differ(void **state)
{
    (void)state;
    struct temp temp;
    temp_open(&temp);
    ranks_pass(RANKS, rank_with_its_data, &temp);
    for (int r = 0; r < RANKS; r++)
        if ((enum status)board->code[r] != STATUS_USAGE ||
            strstr(board->what[r], "65536 tokens for one rank, 32768 for another") == NULL)
            fail_msg("rank %d ended with %s: %s", r, status_name((enum status)board->code[r]), board->what[r]);
    temp_close(&temp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_differ),
        cmocka_unit_test(test_one_rank_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
