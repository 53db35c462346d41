/* tuner/emit_accelerate_config.c -- accelerate.yaml by libyaml, ds_config.json by jansson: exact keys and nothing else.
 *
 * Sources: accelerate 1.12 to 1.15 commands/config/config_args.py (an unknown top-level key is an error),
 * utils/launch.py (keys inside parallelism_config without the parallelism_config_ prefix are ignored without a word),
 * utils/dataclasses.py (with a deepspeed_config_file the YAML must not hold mixed_precision, zero_stage,
 * gradient_accumulation_steps, gradient_clipping, offload_*), deepspeed 0.18 to 0.19 runtime/config.py and
 * runtime/zero/config.py.
 */
#include "tuner/emit_accelerate.h"

#include <stdio.h>
#include <yaml.h>

/* A document being emitted; the first failure is kept. */
struct yaml {
    yaml_emitter_t emitter;
    bool failed;
};

static int sink(void *out, unsigned char *bytes, size_t len)
{
    text_add_raw(out, (const char *)bytes, len);
    return !((struct text *)out)->failed;
}

static void put_event(struct yaml *yaml, int made, yaml_event_t *event)
{
    yaml->failed = yaml->failed || !made || !yaml_emitter_emit(&yaml->emitter, event);
}

/* Words and numbers that YAML reads as what they are; nothing here is anybody's free text. */
static void put_scalar(struct yaml *yaml, const char *value)
{
    yaml_event_t event;
    put_event(
        yaml,
        yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)value, -1, 1, 1, YAML_ANY_SCALAR_STYLE),
        &event);
}

static void put_text(struct yaml *yaml, const char *key, const char *value)
{
    put_scalar(yaml, key);
    put_scalar(yaml, value);
}

static void put_int(struct yaml *yaml, const char *key, int value)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%d", value);
    put_scalar(yaml, key);
    put_scalar(yaml, digits);
}

static void put_bool(struct yaml *yaml, const char *key, bool value)
{
    put_scalar(yaml, key);
    put_scalar(yaml, value ? "true" : "false");
}

static void map_begin(struct yaml *yaml, const char *key)
{
    yaml_event_t event;
    if (key != NULL)
        put_scalar(yaml, key);
    put_event(yaml, yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE), &event);
}

static void map_end(struct yaml *yaml)
{
    yaml_event_t event;
    put_event(yaml, yaml_mapping_end_event_initialize(&event), &event);
}

static void put_parallelism(struct yaml *yaml, const struct accelerate_facts *facts)
{
    map_begin(yaml, "parallelism_config");
    put_int(yaml, "parallelism_config_dp_replicate_size", facts->plan->dp_replicate);
    put_int(yaml, "parallelism_config_dp_shard_size", facts->plan->dp_shard);
    put_int(yaml, "parallelism_config_tp_size", 1);
    put_int(yaml, "parallelism_config_cp_size", 1);
    put_int(yaml, "parallelism_config_sp_size", facts->plan->sp);
    put_text(yaml, "parallelism_config_sp_backend", "deepspeed");
    put_bool(yaml, "parallelism_config_sp_seq_length_is_variable", true);
    put_text(yaml, "parallelism_config_sp_attn_implementation", facts->class);
    map_end(yaml);
}

static void put_config(struct yaml *yaml, const struct accelerate_facts *facts)
{
    map_begin(yaml, NULL);
    put_text(yaml, "compute_environment", "LOCAL_MACHINE");
    put_text(yaml, "distributed_type", "DEEPSPEED");
    map_begin(yaml, "deepspeed_config");
    put_text(yaml, "deepspeed_config_file", "ds_config.json");
    put_text(yaml, "deepspeed_multinode_launcher", "standard");
    put_bool(yaml, "zero3_init_flag", facts->plan->zero_stage == 3);
    map_end(yaml);
    put_int(yaml, "machine_rank", 0);
    put_text(yaml, "main_training_function", "main");
    put_int(yaml, "num_machines", facts->hosts);
    put_int(yaml, "num_processes", facts->world);
    put_text(yaml, "rdzv_backend", "static");
    put_bool(yaml, "same_network", true);
    put_bool(yaml, "use_cpu", facts->cpu);
    if (facts->plan->sp > 1)
        put_parallelism(yaml, facts);
    map_end(yaml);
}

enum status accelerate_yaml(const struct accelerate_facts *facts, struct text *out)
{
    struct yaml yaml = {.failed = false};
    yaml_event_t event;
    accelerate_provenance(facts, out);
    text_add(
        out,
        "# deepspeed_config_file is looked for in the current directory: launch from this one, as launch.sh does.\n"
        "# Precision, ZeRO stage, accumulation, clipping and offload belong in ds_config.json alone; Accelerate "
        "refuses\n"
        "# them here. num_processes = dp_replicate_size x dp_shard_size x sp_size = %d x %d x %d.\n",
        facts->plan->dp_replicate, facts->plan->dp_shard, facts->plan->sp);
    if (facts->plan->sp > 1)
        text_add(out, "# sp_attn_implementation has to equal the attn_implementation that the model is loaded with.\n");
    if (!yaml_emitter_initialize(&yaml.emitter))
        return FAIL(STATUS_NOMEM, "no memory for the YAML writer");
    yaml_emitter_set_output(&yaml.emitter, sink, out);
    put_event(&yaml, yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING), &event);
    put_event(&yaml, yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1), &event);
    put_config(&yaml, facts);
    put_event(&yaml, yaml_document_end_event_initialize(&event, 1), &event);
    put_event(&yaml, yaml_stream_end_event_initialize(&event), &event);
    yaml_emitter_delete(&yaml.emitter);
    return yaml.failed ? FAIL(STATUS_NOMEM, "the YAML writer failed") : text_status(out);
}

static json_t *offload(void)
{
    return json_pack("{s:s, s:b}", "device", "cpu", "pin_memory", 1);
}

static int add_zero(json_t *root, const struct plan *plan)
{
    json_t *zero =
        json_pack("{s:i, s:b, s:b}", "stage", plan->zero_stage, "overlap_comm", 1, "contiguous_gradients", 1);
    int failed = 0;
    if (plan->offload != PLAN_OFFLOAD_NONE)
        failed |= json_object_set_new(zero, "offload_optimizer", offload());
    if (plan->offload == PLAN_OFFLOAD_PARAMS)
        failed |= json_object_set_new(zero, "offload_param", offload());
    if (plan->sp > 1)
        failed |= json_object_set_new(zero, "reduce_bucket_size",
                                      json_integer(target_find("accelerate")->memory.reduce_elems[1]));
    if (plan->zero_stage == 3)
        failed |= json_object_set_new(zero, "stage3_gather_16bit_weights_on_model_save", json_true());
    return failed | json_object_set_new(root, "zero_optimization", zero);
}

/* seq_parallel_communication_data_type fp32 is DeepSpeed's default, said aloud: gradient sums over the ranks of a
 * sequence diverged in bf16 (DeepSpeed pull request 4530). In ZeRO-3 the default bucket of 5e8 elements would then take
 * 2 GB from start to end, and as much again while it is reduced (4 GB in Arctic Training's guide); a quarter of the
 * bucket takes a quarter. The memory model has the same number from the target. */
enum status accelerate_deepspeed(const struct accelerate_facts *facts, struct text *out)
{
    const struct plan *plan = facts->plan;
    enum dtype dtype = facts->problem->dtype;
    json_t *root = json_object();
    char *bytes = NULL;
    int failed = 0;
    if (dtype == DTYPE_BF16)
        failed |= json_object_set_new(root, "bf16", json_pack("{s:b}", "enabled", 1));
    if (dtype == DTYPE_FP16) /* loss_scale 0 is a dynamic scale */
        failed |= json_object_set_new(
            root, "fp16", json_pack("{s:b, s:i, s:i}", "enabled", 1, "loss_scale", 0, "initial_scale_power", 16));
    failed |= add_zero(root, plan);
    failed |= json_object_set_new(root, "gradient_clipping", json_real(1.0));
    failed |= json_object_set_new(root, "gradient_accumulation_steps", json_integer(plan->accumulate));
    failed |= json_object_set_new(root, "train_micro_batch_size_per_gpu", json_integer(plan->micro_batch));
    failed |= json_object_set_new(root, "train_batch_size", json_string("auto"));
    if (plan->sp > 1)
        failed |= json_object_set_new(root, "seq_parallel_communication_data_type", json_string("fp32"));
    enum status status = failed || root == NULL ? FAIL(STATUS_NOMEM, "no memory for the DeepSpeed configuration")
                                                : json_format(root, true, &bytes);
    json_decref(root);
    TRY(status);
    text_add(out, "%s\n", bytes);
    free(bytes);
    return text_status(out);
}
