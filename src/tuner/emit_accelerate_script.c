/* tuner/emit_accelerate_script.c -- train.py and trainer_args.py: the plan as Python literals, in front of code that
 * reads them.
 *
 * The body of train.py is emit_accelerate_train.py of this directory, compiled in; lines "# @NAME@" are replaced.
 */
#include "tuner/emit_accelerate.h"
#include "tuner/emit_quote.h"

#include <stdlib.h>
#include <string.h>

extern const char emit_accelerate_train_template[]; /* embed.cmake */

enum { HEADS_ONLY_VOCAB = 512 }; /* bytes, and room */

static void put_text(struct text *out, const char *key, const char *value)
{
    text_add(out, "    \"%s\": ", key);
    quote_python(out, value);
    text_add(out, ",\n");
}

static void put_int(struct text *out, const char *key, int64_t value)
{
    text_add(out, "    \"%s\": %lld,\n", key, (long long)value);
}

/* A name with an owner, "meta-llama/Llama-3.1-8B", is loaded from the hub or its cache; others name no weights that we
 * know of. */
static bool is_hub_id(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const char *slash = strchr(name, '/');
    return slash != NULL && slash != name && slash[1] != '\0' && strspn(name, letters) == (size_t)(slash - name) &&
           slash[1 + strspn(slash + 1, letters)] == '\0' && name[0] != '.';
}

/* Keyword arguments of the model's configuration class, by the names that Transformers maps to a family's own. Bare
 * head counts become a Llama block of these heads. */
static void put_shape(struct text *out, const struct accelerate_facts *facts)
{
    const struct model *m = facts->model;
    bool heads_only = m->vocab <= 0 || m->ffn <= 0 || m->type[0] == '\0';
    int64_t positions = m->max_positions > facts->padded ? m->max_positions : facts->padded;
    text_add(out, "    \"shape\": {\"model_type\": ");
    quote_python(out, heads_only ? "llama" : m->type);
    text_add(out, ", \"num_hidden_layers\": %d, \"hidden_size\": %lld, \"num_attention_heads\": %d,\n", m->layers,
             (long long)m->hidden, m->heads);
    text_add(out, "              \"num_key_value_heads\": %d, \"head_dim\": %d, \"intermediate_size\": %lld,\n",
             m->kv_heads, m->head_dim,
             (long long)(heads_only                              ? 4 * m->hidden
                         : m->experts > 0 && m->dense_layers > 0 ? m->ffn_dense
                                                                 : m->ffn));
    text_add(out, "              \"vocab_size\": %lld, \"tie_word_embeddings\": %s, \"max_position_embeddings\": %lld",
             (long long)(heads_only ? HEADS_ONLY_VOCAB : m->vocab), m->tied ? "True" : "False", (long long)positions);
    if (m->experts > 0)
        text_add(out,
                 ",\n              \"num_local_experts\": %d, \"num_experts\": %d, \"num_experts_per_tok\": %d, "
                 "\"moe_intermediate_size\": %lld",
                 m->experts, m->experts, m->experts_per_token, (long long)m->ffn);
    if (m->window > 0)
        text_add(out, ",\n              \"sliding_window\": %lld},\n", (long long)m->window);
    else
        text_add(out, ",\n              \"sliding_window\": None},\n");
}

static void put_documents(struct text *out, const struct problem *problem)
{
    text_add(out, "    \"documents\": [");
    for (int i = 0; i < problem->docs; i++)
        text_add(out, "%s%lld",
                 i == 0        ? ""
                 : i % 12 == 0 ? ",\n                  "
                               : ", ",
                 (long long)problem->doc_len[i]);
    text_add(out, "],\n");
}

static void put_plan(struct text *out, const struct accelerate_facts *facts)
{
    const struct plan *plan = facts->plan;
    const struct recommend_candidate *chosen = &facts->recommendation->candidates[facts->recommendation->chosen];
    text_add(out, "PLAN = {\n");
    put_text(out, "model", facts->model->name);
    put_text(out, "weights", is_hub_id(facts->model->name) ? "pretrained" : "random");
    put_shape(out, facts);
    put_int(out, "vocab", facts->model->vocab > 0 ? facts->model->vocab : HEADS_ONLY_VOCAB);
    put_int(out, "seq", facts->problem->seq);
    put_documents(out, facts->problem);
    put_int(out, "sp_size", plan->sp);
    put_int(out, "world", facts->world);
    put_int(out, "micro_batch", plan->micro_batch);
    put_int(out, "accumulate", plan->accumulate);
    put_int(out, "zero_stage", plan->zero_stage);
    put_text(out, "dtype", dtype_name(facts->problem->dtype));
    put_text(out, "attention", facts->class);
    put_text(out, "loss", plan_loss_name(plan->loss));
    put_text(out, "checkpointing", plan_checkpointing_name(plan->checkpointing));
    put_text(out, "predicted_on", dev_kind_name(facts->recommendation->request.dev));
    text_add(out, "    \"predicted_step_s\": %.6g,\n", chosen->time.step_us * 1e-6);
    text_add(out, "    \"predicted_peak_gib\": %.4g,\n}\n", (double)chosen->memory.peak_bytes / 1073741824.0);
}

enum status accelerate_train(const struct accelerate_facts *facts, struct text *out)
{
    const char *line = emit_accelerate_train_template;
    while (*line != '\0') {
        size_t len = strcspn(line, "\n");
        if (len == 14 && strncmp(line, "# @PROVENANCE@", len) == 0)
            accelerate_provenance(facts, out);
        else if (len == 8 && strncmp(line, "# @PLAN@", len) == 0)
            put_plan(out, facts);
        else
            text_add(out, "%.*s\n", (int)len, line);
        line += len + (line[len] == '\n');
    }
    return text_status(out);
}

static void put_parallelism(struct text *out, const struct accelerate_facts *facts)
{
    text_add(out,
             "        \"parallelism_config\": ParallelismConfig(\n"
             "            dp_replicate_size=%d, dp_shard_size=%d, sp_size=%d, sp_backend=\"deepspeed\",\n"
             "            sp_handler=DeepSpeedSequenceParallelConfig(\n"
             "                sp_seq_length_is_variable=True,\n"
             "                sp_attn_implementation=\"%s\")),\n",
             facts->plan->dp_replicate, facts->plan->dp_shard, facts->plan->sp, facts->class);
}

/* max_grad_norm repeats gradient_clipping of the DeepSpeed JSON: Trainer refuses two that differ. */
enum status accelerate_trainer_args(const struct accelerate_facts *facts, struct text *out)
{
    const struct plan *plan = facts->plan;
    bool split = plan->sp > 1;
    accelerate_provenance(facts, out);
    text_add(
        out,
        "\"\"\"TrainingArguments of Hugging Face's Trainer for this plan: training_arguments(output_dir, **more).\n\n"
        "Launch with --config_file accelerate.yaml from this directory, and load the model "
        "with\nattn_implementation=\"%s\".",
        facts->class);
    if (split)
        text_add(out,
                 " The collator has to pad to a multiple of %d and return position_ids.\n\n"
                 "Trainer averages the loss over the ranks of one sequence and then over groups; with ZeRO 1 or 2 its "
                 "gradients are\n"
                 "sp_size times those of train.py, which clipping sees.",
                 plan->sp);
    text_add(out, "\n\"\"\"\n\n");
    text_add(out, "from pathlib import Path\n\nfrom transformers import TrainingArguments\n");
    if (split)
        text_add(out, "from accelerate.utils import DeepSpeedSequenceParallelConfig, ParallelismConfig\n");
    text_add(out, "\n\ndef training_arguments(output_dir=\"trainer-out\", **more):\n    arguments = {\n");
    text_add(out,
             "        \"output_dir\": output_dir,\n        \"per_device_train_batch_size\": %lld,\n"
             "        \"gradient_accumulation_steps\": %lld,\n        \"gradient_checkpointing\": %s,\n",
             (long long)plan->micro_batch, (long long)plan->accumulate,
             plan->checkpointing == PLAN_CHECKPOINTING_FULL ? "True" : "False");
    if (plan->checkpointing == PLAN_CHECKPOINTING_FULL)
        text_add(out, "        \"gradient_checkpointing_kwargs\": {\"use_reentrant\": False},\n");
    text_add(out, "        \"bf16\": %s,\n        \"fp16\": %s,\n        \"max_grad_norm\": 1.0,\n",
             facts->problem->dtype == DTYPE_BF16 ? "True" : "False",
             facts->problem->dtype == DTYPE_FP16 ? "True" : "False");
    text_add(
        out,
        "        \"dataloader_drop_last\": True,  # a short last batch has a shape that the sequence split refuses\n"
        "        \"deepspeed\": str(Path(__file__).resolve().with_name(\"ds_config.json\")),\n");
    if (split)
        put_parallelism(out, facts);
    text_add(out, "    }\n    arguments.update(more)\n    return TrainingArguments(**arguments)\n");
    return text_status(out);
}
