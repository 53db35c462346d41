/* train/test_verify_kernel.c -- --verify computes the whole run with the plan's kernel, also where that takes no single query with a single
 * key, as cuDNN's does not.
 */
#include "base/text.h"
#include "comm/ranks.h"
#include "kernels/attention.h"
#include "train/trainer.h"

#include <string.h>

static struct attention picky; /* the kernel "cpu" of this build, but for that */
static const struct attention *cpu;
static int others; /* times that another one was looked up */

const struct attention *__real_attention_find(const char *name);
const struct attention *__wrap_attention_find(const char *name);

static struct verdict supports(const struct attention_shape *shape)
{
    return shape->seq_q == 1 && shape->seq_k == 1 ? verdict_no(RULE_KERNEL_CANNOT, "one query with one key")
                                                  : cpu->supports(shape);
}

const struct attention *__wrap_attention_find(const char *name)
{
    if (strcmp(name, "cpu") != 0) {
        others++;
        return __real_attention_find(name);
    }
    cpu = __real_attention_find(name);
    picky = *cpu;
    picky.supports = supports;
    return &picky;
}

static int verifies(struct side *side, bool packed)
{
    struct trainer_options o;
    struct trainer *trainer = NULL;
    struct trainer_verdict verdict;
    memset(&o, 0, sizeof o);
    RANK_TRY(model_load("toy", &o.model));
    plan_default(&o.plan);
    o.plan.sp = 2;
    text_print(o.plan.attention, sizeof o.plan.attention, "cpu");
    o.dtype = DTYPE_FP32;
    o.seqs[0] = 64;
    o.n_seqs = 1;
    o.epochs = 1;
    o.lr = 1e-3;
    if (packed)
        o.separator = (struct data_separator){.n = 1, .token = {'\n'}};
    RANK_TRY(trainer_create(&o, side->comm, side->dev, &trainer));
    RANK_TRY(trainer_verify(trainer, &verdict));
    RANK_CHECK(others == 0 && verdict.worst <= verdict.allowed);
    trainer_destroy(trainer);
    return 0;
}

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = verifies(&side, false);
    failed = failed ? failed : verifies(&side, true);
    side_close(&side);
    return failed;
}

static void the_whole_run_has_the_kernel_of_the_plan(void **state)
{
    (void)state;
    ranks_pass(2, rank_main, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_whole_run_has_the_kernel_of_the_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
