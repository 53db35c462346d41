/* train/test_scarce.c -- one rank has no memory for a training run: all ranks are told, and none keeps what it had for it. What is taken once in
 * a run. Which waits are long. */
#include "comm/ranks.h"
#include "comm/scarce.h"
#include "train/groups.h"
#include "train/trainer.h"

static const char *const wants[] = {"a training run", "shares of memory", "parameters", "a decoder", "frequencies"};

static enum status options_make(struct trainer_options *out)
{
    memset(out, 0, sizeof *out);
    TRY(model_load("toy", &out->model));
    plan_default(&out->plan);
    out->plan.sp = 2;
    out->dtype = DTYPE_FP32;
    out->seqs[0] = 16;
    out->n_seqs = 1;
    out->epochs = 1;
    return STATUS_OK;
}

/* Rank 1 lacks `what`, NULL: nothing. */
static int create(struct side *side, const struct trainer_options *o, const char *what)
{
    struct trainer *trainer = NULL;
    bool happened;
    scarce_begin(comm_rank(side->comm) == 1 ? what : NULL, 1);
    enum status status = trainer_create(o, side->comm, side->dev, &trainer);
    RANK_CHECK((trainer == NULL) == (status != STATUS_OK));
    trainer_destroy(trainer);
    int kept = scarce_end(&happened);
    if (kept > 0 || !happened)
        fprintf(stderr, "%s: %s%d pieces of memory kept\n", what != NULL ? what : "all there",
                happened ? "" : "not asked for; ", kept);
    RANK_CHECK(happened && kept == 0);
    RANK_CHECK(status == (what != NULL ? STATUS_NOMEM : STATUS_OK));
    return 0;
}

static int runs(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer_options o;
    int failed = 0;
    (void)arg;
    RANK_TRY(options_make(&o));
    RANK_TRY(side_open(&side, launch, NULL));
    for (size_t i = 0; i < 2 * sizeof wants / sizeof wants[0] && !failed; i++) {
        const char *what = wants[i / 2];
        o.plan.sp = i % 2 == 0 ? launch->size : 1; /* ranks that share a sequence, or have one each */
        o.plan.dp_shard = launch->size / o.plan.sp;
        failed = create(&side, &o, what);
        if (!failed) /* and it works again */
            failed = create(&side, &o, NULL);
    }
    side_close(&side);
    return failed;
}

static void test_runs(void **state)
{
    (void)state;
    ranks_pass(2, runs, NULL);
}

/* Micro-steps of packed rows, each with other documents, have the attention layer of the first. */
static int packed(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer_options o;
    struct trainer *trainer = NULL;
    struct trainer_report report;
    bool asked;
    (void)arg;
    RANK_TRY(options_make(&o));
    o.plan.accumulate = 3;
    o.plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    o.seqs[0] = 128;
    o.separator = (struct data_separator){.n = 1, .token = {'\n'}};
    o.lr = 1e-3;
    o.eps = 1e-8; /* a gradient may be 0 by chance */
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
    scarce_begin("an attention layer", 2);
    RANK_TRY(trainer_step(trainer, 0, &report));
    RANK_TRY(trainer_step(trainer, 1, &report));
    (void)scarce_end(&asked);
    RANK_CHECK(!asked && scarce.asked == 1 && report.loss > 1);
    trainer_destroy(trainer);
    side_close(&side);
    return 0;
}

static void packed_rows_share_a_layer(void **state)
{
    (void)state;
    ranks_pass(2, packed, NULL);
}

/* What ranks do one by one takes as long as the model is large: who is done first is patient there, and nowhere else. */
static const char *const patient[] = {"allocate parameters", "draw weights", "allocate activations", "prepare a layer"};
static int asked_patiently, asked_otherwise;

enum status __real_comm_agree(struct comm *comm, enum status mine, const char *doing);
enum status __wrap_comm_agree(struct comm *comm, enum status mine, const char *doing);

enum status __wrap_comm_agree(struct comm *comm, enum status mine, const char *doing)
{
    for (size_t i = 0; i < sizeof patient / sizeof patient[0]; i++)
        if (comm_size(comm) == 2 && strcmp(doing, patient[i]) == 0 && comm_deadline_us(comm) == GROUPS_PATIENCE_US)
            asked_patiently |= 1 << i;
    asked_otherwise +=
        comm_size(comm) == 2 && strcmp(doing, "read its rows") == 0 && comm_deadline_us(comm) != BOOT_DEADLINE_US;
    return __real_comm_agree(comm, mine, doing);
}

static int waits(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer_options o;
    struct trainer *trainer = NULL;
    struct trainer_report report;
    (void)arg;
    RANK_TRY(options_make(&o));
    o.lr = 1e-3;
    o.eps = 1e-8; /* a gradient may be 0 by chance */
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
    RANK_TRY(trainer_step(trainer, 0, &report));
    RANK_CHECK(asked_patiently == (1 << sizeof patient / sizeof patient[0]) - 1 && asked_otherwise == 0);
    RANK_CHECK(comm_deadline_us(side.comm) == BOOT_DEADLINE_US);
    trainer_destroy(trainer);
    side_close(&side);
    return 0;
}

static void what_takes_long_is_waited_for(void **state)
{
    (void)state;
    ranks_pass(2, waits, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(packed_rows_share_a_layer),
        cmocka_unit_test(what_takes_long_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
