/* tuner/emit_accelerate.c -- a plan as files for Accelerate with the DeepSpeed backend.
 *
 * accelerate.yaml ds_config.json trainer_args.py train.py launch.sh, and launch.slurm. Refused before anything is
 * written: what Accelerate, DeepSpeed or the model would end with an error later, or run as something else than was
 * measured.
 */
#include "tuner/emit_accelerate.h"

#include "base/log.h"
#include "base/version.h"
#include "tuner/emit_batch.h"
#include "tuner/emit_quote.h"

#include <string.h>

extern const struct emit emit_accelerate;

int accelerate_host_of(const struct accelerate_facts *facts, int host)
{
    return facts->plan->order_n > 0 ? facts->plan->order[host * facts->per_host] / facts->per_host : host;
}

static void order_fill(struct accelerate_facts *facts)
{
    const struct plan *plan = facts->plan;
    facts->order = false;
    facts->order_by_host = true;
    for (int r = 0; r < plan->order_n; r++) {
        facts->order = facts->order || plan->order[r] != r;
        if (plan->order[r] / facts->per_host != accelerate_host_of(facts, r / facts->per_host))
            facts->order_by_host = false;
    }
}

/* Sizes first: dp_shard_size = W/sp and dp_replicate_size = 1 are the canonical ones, only their product matters. */
static enum status plan_refuse(const struct accelerate_facts *facts)
{
    const struct plan *plan = facts->plan;
    struct verdict sizes =
        target_accelerate_sizes(facts->world, plan->dp_replicate, plan->dp_shard, plan->tp, 1, plan->sp);
    if (!verdict_ok(&sizes))
        return FAIL(STATUS_USAGE, "no files for this plan: %s", sizes.why);
    if (plan->method != PLAN_METHOD_ULYSSES)
        return FAIL(STATUS_USAGE, "no files for this plan: Accelerate does not run %s", plan_method_name(plan->method));
    if (plan->zero_stage < 1 || plan->zero_stage > 3)
        return HINT(FAIL(STATUS_USAGE, "no files for ZeRO stage %d: with sequence parallelism it ends in an error",
                         plan->zero_stage),
                    "stages 1 to 3 run");
    if (facts->class == NULL)
        return HINT(FAIL(STATUS_USAGE, "no files for attention '%s': Accelerate cannot be told it", plan->attention),
                    "sdpa, flash_attention_2 and flash_attention_3 can");
    if (facts->problem->docs > 0 && strcmp(facts->class, "sdpa") == 0)
        return HINT(FAIL(STATUS_USAGE, "no files for packed documents with sdpa: it attends across them"),
                    "use --attention flash_attention_2");
    if (facts->problem->docs > 0 && plan->micro_batch > 1)
        return HINT(FAIL(STATUS_USAGE,
                         "no files for packed documents in micro batches of %lld: Transformers sees their ends in "
                         "batches of one only",
                         (long long)plan->micro_batch),
                    "use --micro-batch 1");
    if (plan->checkpointing == PLAN_CHECKPOINTING_OFFLOAD || plan->mlp == PLAN_MLP_TILED || plan->chunks > 1)
        return FAIL(STATUS_USAGE,
                    "no files for this plan: Transformers has no checkpoint offload, tiled MLP or chunked exchange");
    if (plan->micro_batch < 1 || plan->accumulate < 1)
        return FAIL(STATUS_USAGE, "no files for micro batch %lld and accumulation %lld", (long long)plan->micro_batch,
                    (long long)plan->accumulate);
    struct problem problem = *facts->problem;
    problem.world = facts->world;
    struct verdict order = plan_check_sizes(&problem, plan);
    return verdict_ok(&order) ? STATUS_OK : FAIL(STATUS_USAGE, "no files for this plan: %s", order.why);
}

enum status accelerate_facts_fill(const struct recommendation *recommendation, const char *command,
                                  struct accelerate_facts *out)
{
    const struct request *request = &recommendation->request;
    if (recommendation->chosen < 0 || recommendation->chosen >= recommendation->n)
        return FAIL(STATUS_USAGE, "there is no plan to write files for");
    const struct recommend_candidate *chosen = &recommendation->candidates[recommendation->chosen];
    const struct plan *plan = &chosen->plan;
    const struct target *accelerate = target_find("accelerate");
    const char *told = chosen->attention_class[0] != '\0' ? chosen->attention_class : plan->attention;
    *out = (struct accelerate_facts){.recommendation = recommendation,
                                     .plan = plan,
                                     .problem = &request->problem,
                                     .model = &request->model,
                                     .command = command != NULL ? command : "",
                                     .class = target_class(accelerate, told),
                                     .world = request->world,
                                     .cpu = request->planned == DEV_CPU};
    TRY(plan_refuse(out));
    out->padded = problem_padded(&request->problem, plan->sp);
    out->per_host = request->ranks_per_host;
    out->hosts = out->world / out->per_host;
    order_fill(out);
    return STATUS_OK;
}

void accelerate_provenance(const struct accelerate_facts *facts, struct text *out)
{
    char text[PLAN_TEXT], hash[17];
    text_add(out, "# Written by sptune %s; recommendation.json beside this file says why.\n# plan %s ", SPTUNE_VERSION,
             plan_hash(facts->plan, hash));
    quote_comment(out, plan_text(facts->plan, text), PLAN_TEXT);
    text_add(out, "\n# model ");
    quote_comment(out, facts->model->name, 100);
    text_add(out, ", %lld tokens\n# from ", (long long)facts->problem->seq);
    quote_comment(out, facts->command, 400);
    text_add(out, "\n");
}

typedef enum status (*writer)(const struct accelerate_facts *facts, struct text *out);

static enum status put(struct recommendation *recommendation, const struct emit_context *context,
                       const struct accelerate_facts *facts, const char *name, const char *kind, bool executable,
                       writer write)
{
    struct text text = {0};
    enum status status = write(facts, &text);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    return emit_file(recommendation, context, name, kind, executable, &text);
}

static enum status run(struct recommendation *recommendation, const struct emit_context *context)
{
    struct accelerate_facts facts;
    TRY(accelerate_facts_fill(recommendation, context->command, &facts));
    TRY(put(recommendation, context, &facts, "accelerate.yaml", "accelerate", false, accelerate_yaml));
    TRY(put(recommendation, context, &facts, "ds_config.json", "deepspeed", false, accelerate_deepspeed));
    TRY(put(recommendation, context, &facts, "trainer_args.py", "trainer", false, accelerate_trainer_args));
    TRY(put(recommendation, context, &facts, "train.py", "script", true, accelerate_train));
    TRY(put(recommendation, context, &facts, "launch.sh", "launch", true, accelerate_launch));
    TRY(put(recommendation, context, &facts, "launch.slurm", "slurm", false, accelerate_slurm));
    if (facts.order && !facts.order_by_host)
        log_warn("the rank order mixes hosts, which a launcher per host cannot do: launch.sh lists it as a comment");
    return STATUS_OK;
}

/* Either says what is missing where Accelerate is not installed. */
static const char *next(const struct recommendation *recommendation)
{
    const struct request *request = &recommendation->request;
    return request->ranks_per_host < request->world ? "sbatch launch.slurm" : "./launch.sh";
}

const struct emit emit_accelerate = {
    .name = "accelerate",
    .about = "Accelerate YAML, DeepSpeed JSON, Trainer arguments, training script, launchers",
    .run = run,
    .main_file = "accelerate.yaml",
    .next = next,
};
