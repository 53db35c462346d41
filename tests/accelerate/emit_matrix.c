/* tests/accelerate/emit_matrix.c -- emits many recommendations, one directory each, for test_config.py to read with
 * Accelerate.
 *
 * Every legal (world, sp) x zero stage x attention class; dtype, loss, offload, checkpointing, micro batch,
 * accumulation, documents and device change along, so that each value meets several others. Usage: emit_matrix
 * DIRECTORY, or emit_matrix DIRECTORY CONFIG DEVICE: plans small enough to be trained for test_train.py, of the model
 * that CONFIG describes, on cpu or cuda.
 */
#include "base/log.h"
#include "tuner/emit.h"
#include "tuner/sample.h"

#include <stdio.h>

struct row {
    const char *name, *model, *class;
    int world, sp, zero, index;
};

static void vary(const struct row *row, struct recommendation *rec)
{
    struct problem *problem = &rec->request.problem;
    struct plan *plan = &rec->candidates[0].plan;
    int i = row->index;
    problem->dtype = i % 5 == 4 ? DTYPE_FP16 : DTYPE_BF16;
    plan->loss = (enum plan_loss)(i / 2 % 3);
    plan->offload = (enum plan_offload)(i % 4 == 3 ? (row->zero == 3 ? PLAN_OFFLOAD_PARAMS : PLAN_OFFLOAD_OPTIMIZER)
                                                   : PLAN_OFFLOAD_NONE);
    plan->checkpointing = i % 7 == 6 ? PLAN_CHECKPOINTING_NONE : PLAN_CHECKPOINTING_FULL;
    plan->micro_batch = 1 + i % 2;
    plan->accumulate = (int64_t)1 << (i % 4);
    if (strcmp(row->class, "sdpa") != 0 && i % 3 == 0) { /* packed */
        plan->micro_batch = 1;
        problem->docs = 3;
        problem->doc_len[0] = problem->seq / 2;
        problem->doc_len[1] = 1;
        problem->doc_len[2] = problem->seq - problem->seq / 2 - 1;
    }
    if (i % 5 == 0 && plan->sp < row->world) { /* only the product of the two matters */
        plan->dp_replicate = row->world / plan->sp;
        plan->dp_shard = 1;
    }
    if (i % 6 == 1) { /* ranks in reverse, host by host */
        plan->order_n = row->world;
        for (int r = 0; r < row->world; r++)
            plan->order[r] = (int16_t)(row->world - 1 - r);
    }
    problem->batch = plan->micro_batch;
}

static enum status emit_one(const char *root, const struct row *row, const char *model_name)
{
    static const char *const names[] = {"accelerate"};
    struct recommendation rec;
    char dir[512], command[256];
    const struct sample_options options = {.model = row->model,
                                           .seq = 4096 + row->index % 3,
                                           .world = row->world,
                                           .sp = row->sp,
                                           .zero = row->zero,
                                           .per_host = row->world > 4 ? 4 : row->world,
                                           .class = row->class,
                                           .dev = row->index % 6 == 5 ? DEV_CPU : DEV_CUDA};
    TRY(sample_recommendation(&options, &rec));
    vary(row, &rec);
    if (model_name != NULL)
        text_print(rec.request.model.name, sizeof rec.request.model.name, "%s", model_name);
    text_print(dir, sizeof dir, "%s/%s", root, row->name);
    text_print(command, sizeof command, "sptune tune --model %s", rec.request.model.name);
    const struct emit_context context = {.dir = dir, .command = command, .envelope = {.command = command}};
    enum status status = emit_all(&rec, names, 1, &context);
    recommend_free(&rec);
    return status;
}

static enum status emit_matrix(const char *root)
{
    static const int worlds[] = {1, 2, 8, 16};
    static const char *const classes[] = {"sdpa", "flash_attention_2", "flash_attention_3"};
    static const char *const models[] = {"qwen2.5-0.5b", "llama-3-8b", "qwen3-30b-a3b", "llama-3.2-1b"};
    int n = 0;
    for (int w = 0; w < 4; w++)
        for (int sp = 1; sp <= 4 && sp <= worlds[w]; sp *= 2)
            for (int zero = 1; zero <= 3; zero++)
                for (int c = 0; c < 3; c++) {
                    char name[64];
                    struct row row = {
                        .name = name, .class = classes[c], .world = worlds[w], .sp = sp, .zero = zero, .index = n};
                    row.model = models[sp == 4 ? 1 + n % 3 : n % 4]; /* 14 heads have no sp 4 */
                    text_print(name, sizeof name, "w%d-sp%d-z%d-%s", row.world, sp, zero, row.class);
                    n++;
                    TRY(emit_one(root, &row, NULL));
                }
    static const char *const odd[] = {"meta-llama/Llama-3.1-8B", "a'b\"c\\d$(touch x)`y`", "two\nlines: {x",
                                      "\xc3\xa9\xf0\x9f\x98\x80\xff"};
    for (int i = 0; i < 4; i++) {
        char name[64];
        struct row row = {
            .name = name, .model = "llama-3.2-1b", .class = "sdpa", .world = 8, .sp = 4, .zero = 3, .index = i};
        text_print(name, sizeof name, "odd %d '\"$x\n", i);
        TRY(emit_one(root, &row, odd[i]));
    }
    return STATUS_OK;
}

/* Steps of equal tokens, 4 sequences of 66, split in every way that 1, 2 and 4 processes allow. */
static enum status emit_small(const char *root, const char *config, enum dev_kind dev)
{
    static const char *const names[] = {"accelerate"};
    static const struct {
        int world, sp, zero;
        enum plan_loss loss;
    } rows[] = {{1, 1, 3, PLAN_LOSS_PLAIN}, {1, 1, 2, PLAN_LOSS_PLAIN}, {2, 1, 3, PLAN_LOSS_PLAIN},
                {2, 2, 3, PLAN_LOSS_PLAIN}, {2, 2, 3, PLAN_LOSS_TILED}, {2, 2, 2, PLAN_LOSS_PLAIN},
                {2, 2, 1, PLAN_LOSS_TILED}, {4, 2, 3, PLAN_LOSS_PLAIN}, {4, 2, 2, PLAN_LOSS_PLAIN},
                {4, 4, 3, PLAN_LOSS_PLAIN}};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        struct recommendation rec;
        char dir[512];
        const struct sample_options options = {.model = config,
                                               .seq = 66,
                                               .world = rows[i].world,
                                               .sp = rows[i].sp,
                                               .zero = rows[i].zero,
                                               .per_host = rows[i].world,
                                               .class = "sdpa",
                                               .dev = dev};
        TRY(sample_recommendation(&options, &rec));
        rec.request.problem.dtype = DTYPE_FP32;
        rec.candidates[0].plan.loss = rows[i].loss;
        rec.candidates[0].plan.accumulate = 4 * rows[i].sp / rows[i].world;
        text_print(dir, sizeof dir, "%s/w%d-sp%d-z%d-%s", root, rows[i].world, rows[i].sp, rows[i].zero,
                   plan_loss_name(rows[i].loss));
        const struct emit_context context = {
            .dir = dir, .command = "emit_matrix", .envelope = {.command = "emit_matrix"}};
        enum status status = emit_all(&rec, names, 1, &context);
        recommend_free(&rec);
        TRY(status);
    }
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    log_setup(LOG_NORMAL, true);
    enum status status = argc == 2 ? emit_matrix(argv[1])
                         : argc == 4
                             ? emit_small(argv[1], argv[2], strcmp(argv[3], "cuda") == 0 ? DEV_CUDA : DEV_CPU)
                             : FAIL(STATUS_USAGE, "one directory, and a configuration and a device, are expected");
    if (status != STATUS_OK)
        fprintf(stderr, "emit_matrix: %s (%s)\n", status_last()->what, status_last()->where);
    return status == STATUS_OK ? 0 : 1;
}
