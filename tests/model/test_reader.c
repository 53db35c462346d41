/* tests/model/test_reader.c -- config.json files as people have them: old names, flags, nulls, floats, wrappers. */
#include "model_test.h"

#define LLAMA_SIZES                                                                                                    \
    "'hidden_size':4096,'num_hidden_layers':32,'num_attention_heads':32,'intermediate_size':14336,'vocab_size':128256"

static void llama_with_all_that_is_ignored(void **state)
{
    (void)state;
    struct model m = parse_ok("{'architectures':['LlamaForCausalLM'],'model_type':'llama'," LLAMA_SIZES
                              ",'num_key_value_heads':8,'max_position_embeddings':8192,'rope_scaling':{'factor':8.0,"
                              "'rope_type':'llama3'},'rope_theta':500000.0,'torch_dtype':'bfloat16','use_cache':true,"
                              "'pretraining_tp':1,'attention_bias':false,'mlp_bias':false,'head_dim':null,"
                              "'tie_word_embeddings':false,'some_future_key':[1,{'a':2}],'huge':1e300}");
    assert_int_equal(m.params, 8030261248);
    assert_int_equal(m.params_layer, 218112000);
    assert_int_equal(m.params_embedding, 128256 * 4096);
    assert_int_equal(m.params_active, m.params);
    assert_int_equal(m.head_dim, 128);
    assert_int_equal(m.head_dim_v, 128);
    assert_int_equal(m.max_positions, 8192);
    assert_true(m.gated);
    assert_false(m.tied);
    assert_string_equal(m.type, "llama");
    assert_string_equal(m.name, "dir");
}

static void nulls_are_absent_and_whole_floats_integers(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'llama','hidden_size':4096.0,'num_hidden_layers':3.2e1,"
                              "'num_attention_heads':32.0,'intermediate_size':14336,'vocab_size':128256.0,"
                              "'num_key_value_heads':null,'head_dim':null,'tie_word_embeddings':null,"
                              "'max_position_embeddings':null,'layer_types':null,'quantization_config':null}");
    assert_int_equal(m.layers, 32);
    assert_int_equal(m.kv_heads, 32);
    assert_int_equal(m.max_positions, 0);
    assert_false(m.tied);
}

static void absent_kv_heads_are_the_classs(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'llama'," LLAMA_SIZES "}");
    assert_int_equal(m.kv_heads, 32);
    m = parse_ok("{'model_type':'mistral'," LLAMA_SIZES "}");
    assert_int_equal(m.kv_heads, 8);
    m = parse_ok("{'model_type':'mistral'," LLAMA_SIZES ",'num_key_value_heads':null}");
    assert_int_equal(m.kv_heads, 32);
    assert_refused("{'model_type':'qwen2','hidden_size':896,'num_hidden_layers':24,'num_attention_heads':14,"
                   "'intermediate_size':4864,'vocab_size':151936}",
                   "num_key_value_heads is missing", "num_key_value_heads");
}

static void biases_change_the_count(void **state)
{
    (void)state;
    struct model plain = parse_ok("{'model_type':'llama'," LLAMA_SIZES ",'num_key_value_heads':8}");
    struct model biased = parse_ok("{'model_type':'llama'," LLAMA_SIZES
                                   ",'num_key_value_heads':8,'attention_bias':true,'mlp_bias':true}");
    assert_true(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
    assert_int_equal(biased.params - plain.params, 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096));
}

static void without_model_type_the_architecture_tells(void **state)
{
    (void)state;
    struct model m = parse_ok("{'architectures':['MistralForCausalLM']," LLAMA_SIZES ",'num_key_value_heads':8}");
    assert_string_equal(m.type, "mistral");
    m = parse_ok("{'model_type':null,'architectures':['LlamaForCausalLM']," LLAMA_SIZES "}");
    assert_string_equal(m.type, "llama");
    assert_refused("{" LLAMA_SIZES "}", "model_type is missing", "config.json");
    assert_refused("{'architectures':['FooForCausalLM']," LLAMA_SIZES "}", "FooForCausalLM", "architectures");
    assert_refused("{'architectures':[]," LLAMA_SIZES "}", "model_type is missing", "config.json");
}

static void gpt2_names(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'gpt2','n_embd':768,'n_head':12,'n_layer':12,'n_inner':null,"
                              "'n_positions':1024,'n_ctx':1024,'vocab_size':50257,'activation_function':'gelu_new'}");
    assert_int_equal(m.params, 124439808);
    assert_int_equal(m.ffn, 3072);
    assert_int_equal(m.kv_heads, 12);
    assert_int_equal(m.max_positions, 1024);
    assert_true(m.tied && m.qkv_bias && m.o_bias && m.mlp_bias && !m.gated);
    m = parse_ok("{'model_type':'gpt2','hidden_size':768,'num_attention_heads':12,'num_hidden_layers':12,"
                 "'n_inner':1000,'max_position_embeddings':512,'vocab_size':50257}");
    assert_int_equal(m.ffn, 1000);
    assert_int_equal(m.max_positions, 512);
    assert_refused("{'model_type':'gpt2','n_embd':768,'hidden_size':769,'n_head':12,'n_layer':12,'vocab_size':50257}",
                   "769", "hidden_size");
}

#define FALCON "{'model_type':'falcon','hidden_size':4544,'num_hidden_layers':32,'num_attention_heads':71,"

static void c36_the_flags_decide_not_the_field(void **state)
{
    (void)state;
    struct model m = parse_ok(FALCON "'num_kv_heads':71,'multi_query':true,'new_decoder_architecture':false,"
                                     "'parallel_attn':true,'bias':false,'alibi':false,'vocab_size':65024}");
    assert_int_equal(m.kv_heads, 1);
    assert_int_equal(m.head_dim, 64);
    assert_int_equal(m.params, 6921720704);
    assert_true(m.tied);
    for (int sp = 1; sp <= 71; sp++) {
        struct verdict verdict = model_sp(&m, sp, 0);
        assert_int_equal(verdict_ok(&verdict), sp == 1 || sp == 71);
    }
    struct verdict verdict = model_sp(&m, 71, 71);
    assert_true(verdict_ok(&verdict));
    assert_int_equal(model_kv_copies(m.kv_heads, 71), 71);
}

static void falcon_flags(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'falcon','hidden_size':8192,'num_hidden_layers':60,"
                              "'num_attention_heads':128,'num_kv_heads':8,'new_decoder_architecture':true,"
                              "'multi_query':true,'parallel_attn':true,'bias':false,'vocab_size':65024}");
    assert_int_equal(m.kv_heads, 8);
    assert_int_equal(m.params, 41303293952);
    struct model one_norm = parse_ok("{'model_type':'falcon','hidden_size':8192,'num_hidden_layers':60,"
                                     "'num_attention_heads':128,'num_kv_heads':8,'new_decoder_architecture':true,"
                                     "'num_ln_in_parallel_attn':1,'vocab_size':65024}");
    assert_int_equal(m.params - one_norm.params, 60 * 2 * 8192);
    /* The 1B of the series: attention of as many KV heads, biases, alibi, no parallel block. */
    m = parse_ok("{'model_type':'falcon','n_layer':24,'n_head':32,'hidden_size':2048,'multi_query':false,"
                 "'new_decoder_architecture':false,'parallel_attn':false,'bias':true,'alibi':true,'vocab_size':50304}");
    assert_int_equal(m.kv_heads, 32);
    assert_int_equal(m.params, 1311625216);
    assert_refused(FALCON "'num_kv_heads':8,'multi_query':false,'vocab_size':65024}", "num_kv_heads is 8",
                   "num_kv_heads");
}

#define QWEN2                                                                                                          \
    "{'model_type':'qwen2','hidden_size':3584,'num_hidden_layers':28,'num_attention_heads':28,"                        \
    "'num_key_value_heads':4,'intermediate_size':18944,'vocab_size':152064,'sliding_window':131072,"

static void qwen2_window_is_off_unless_switched_on(void **state)
{
    (void)state;
    struct model m = parse_ok(QWEN2 "'use_sliding_window':false,'max_window_layers':28}");
    assert_int_equal(m.params, 7615616512);
    assert_int_equal(m.window, 0);
    assert_int_equal(m.window_layers, 0);
    assert_true(m.qkv_bias);
    assert_false(m.o_bias);
    m = parse_ok(QWEN2 "'use_sliding_window':true,'max_window_layers':20}");
    assert_int_equal(m.window, 131072);
    assert_int_equal(m.window_layers, 8);
    m = parse_ok(QWEN2 "'use_sliding_window':true,'max_window_layers':40}");
    assert_int_equal(m.window, 0);
    assert_int_equal(m.window_layers, 0);
}

static void c34_head_dim_as_given(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'qwen3','hidden_size':5120,'num_hidden_layers':64,"
                              "'num_attention_heads':64,'num_key_value_heads':8,'head_dim':128,"
                              "'intermediate_size':25600,'vocab_size':151936,'attention_bias':false}");
    assert_int_equal(m.head_dim, 128);
    assert_int_equal(m.params, 32762123264);
    m = parse_ok("{'model_type':'llama','hidden_size':1792,'num_attention_heads':24,'num_key_value_heads':8,"
                 "'head_dim':128,'num_hidden_layers':2,'intermediate_size':4096,'vocab_size':1000}");
    assert_int_equal(m.head_dim, 128); /* 1792 / 24 is not even whole */
    assert_refused("{'model_type':'llama','hidden_size':1792,'num_attention_heads':24,'num_hidden_layers':2,"
                   "'intermediate_size':4096,'vocab_size':1000}",
                   "1792", "hidden_size");
}

#define GEMMA3                                                                                                         \
    "'hidden_size':1152,'num_hidden_layers':26,'num_attention_heads':4,'num_key_value_heads':1,'head_dim':256,"        \
    "'intermediate_size':6912,'vocab_size':262144,'sliding_window':512,"

static void gemma3_patterns(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'gemma3_text'," GEMMA3 "'sliding_window_pattern':6}");
    assert_int_equal(m.params, 999885952);
    assert_true(m.params_exact);
    assert_int_equal(m.window, 512);
    assert_int_equal(m.window_layers, 22);
    m = parse_ok("{'model_type':'gemma3_text'," GEMMA3 "'_sliding_window_pattern':2}");
    assert_int_equal(m.window_layers, 13);
    m = parse_ok("{'model_type':'gemma3_text'," GEMMA3 "'sliding_window_pattern':1}");
    assert_int_equal(m.window_layers, 0);
    assert_int_equal(m.window, 0);
    m = parse_ok("{'model_type':'gemma2','hidden_size':64,'num_hidden_layers':3,'num_attention_heads':4,"
                 "'num_key_value_heads':2,'head_dim':16,'intermediate_size':128,'vocab_size':100,'sliding_window':8,"
                 "'layer_types':['sliding_attention','full_attention','full_attention']}");
    assert_int_equal(m.window_layers, 1);
}

/* As the 4B file is: what equals the class's default is left out. */
static void nested_text_config_with_defaults(void **state)
{
    (void)state;
    struct model m =
        parse_ok("{'architectures':['Gemma3ForConditionalGeneration'],'model_type':'gemma3',"
                 "'text_config':{'hidden_size':2560,'intermediate_size':10240,"
                 "'model_type':'gemma3_text','num_hidden_layers':34,'rope_scaling':{'factor':8.0,"
                 "'rope_type':'linear'},'sliding_window':1024},"
                 "'vision_config':{'hidden_size':1152,'num_attention_heads':16},'mm_tokens_per_image':256}");
    assert_int_equal(m.heads, 8);
    assert_int_equal(m.kv_heads, 4);
    assert_int_equal(m.head_dim, 256);
    assert_int_equal(m.vocab, 262208);
    assert_int_equal(m.params, 3880263168);
    assert_int_equal(m.window_layers, 29);
    assert_string_equal(m.type, "gemma3_text");
    assert_false(
        m.params_exact); /* of the language part; the rest of the weights is not counted, and a warning says so */
}

static void nested_text_config_of_another_type(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'mistral3','text_config':{'model_type':'mistral','hidden_size':5120,"
                              "'num_hidden_layers':40,'num_attention_heads':32,'num_key_value_heads':8,'head_dim':128,"
                              "'intermediate_size':32768,'vocab_size':131072,'sliding_window':null,"
                              "'max_position_embeddings':131072},'vision_config':{'model_type':'pixtral'}}");
    assert_int_equal(m.params, 23572403200);
    assert_string_equal(m.type, "mistral");
    assert_int_equal(m.window, 0);
    m = parse_ok("{'model_type':'llava','text_config':{'_name_or_path':'x','model_type':'llama','vocab_size':32064}}");
    assert_int_equal(m.hidden, 4096);
    assert_int_equal(m.kv_heads, 32);
    /* An older file of this kind: the keys of the language part on top. */
    m = parse_ok("{'model_type':'qwen2_vl','hidden_size':1536,'num_hidden_layers':28,'num_attention_heads':12,"
                 "'num_key_value_heads':2,'intermediate_size':8960,'vocab_size':151936,'tie_word_embeddings':true,"
                 "'use_sliding_window':false,'vision_config':{'depth':32}}");
    assert_int_equal(m.params, 1543714304);
    /* tie_word_embeddings of the whole applies where the part is silent. */
    m = parse_ok("{'model_type':'qwen2_5_vl','tie_word_embeddings':true,'text_config':{'hidden_size':1536,"
                 "'num_hidden_layers':28,'num_attention_heads':12,'num_key_value_heads':2,'intermediate_size':8960,"
                 "'vocab_size':151936}}");
    assert_int_equal(m.params, 1543714304);
}

#define MOE                                                                                                            \
    "{'model_type':'qwen3_moe','hidden_size':2048,'num_hidden_layers':48,'num_attention_heads':32,"                    \
    "'num_key_value_heads':4,'head_dim':128,'intermediate_size':6144,'moe_intermediate_size':768,"                     \
    "'num_experts_per_tok':8,'vocab_size':151936,"

static void experts_in_some_layers(void **state)
{
    (void)state;
    struct model all = parse_ok(MOE "'num_experts':128,'decoder_sparse_step':1,'mlp_only_layers':[]}");
    assert_int_equal(all.params, 30532122624);
    assert_int_equal(all.dense_layers, 0);
    assert_int_equal(all.ffn, 768);
    assert_int_equal(all.params_layer, 623120640);
    struct model renamed = parse_ok(MOE "'num_local_experts':128}");
    assert_int_equal(renamed.params, all.params);
    int64_t sparse = 128 * (INT64_C(3) * 2048 * 768 + 2048), dense = INT64_C(3) * 2048 * 6144;
    struct model some = parse_ok(MOE "'num_experts':128,'decoder_sparse_step':2,'mlp_only_layers':[1,3.0]}");
    assert_int_equal(some.dense_layers, 24 + 2);
    assert_int_equal(all.params - some.params, 26 * (sparse - dense));
    assert_int_equal(some.params_layer, all.params_layer);
}

static void deepseek_without_q_lora_and_without_experts(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'deepseek_v2','hidden_size':2048,'num_hidden_layers':27,"
                              "'num_attention_heads':16,'num_key_value_heads':16,'intermediate_size':10944,"
                              "'moe_intermediate_size':1408,'n_routed_experts':64,'n_shared_experts':2,"
                              "'num_experts_per_tok':6,'first_k_dense_replace':1,'moe_layer_freq':1,'q_lora_rank':null,"
                              "'kv_lora_rank':512,'qk_nope_head_dim':128,'qk_rope_head_dim':64,'v_head_dim':128,"
                              "'vocab_size':102400}");
    assert_int_equal(m.params, 15706484224);
    assert_int_equal(m.head_dim, 192);
    assert_int_equal(m.head_dim_v, 128);
    assert_int_equal(m.dense_layers, 1);
    assert_int_equal(m.ffn_shared, 2816);
    m = parse_ok("{'model_type':'deepseek_v2','hidden_size':2048,'num_hidden_layers':2,'num_attention_heads':16,"
                 "'intermediate_size':10944,'n_routed_experts':null,'kv_lora_rank':512,'qk_nope_head_dim':128,"
                 "'qk_rope_head_dim':64,'v_head_dim':128,'vocab_size':102400}");
    assert_int_equal(m.experts, 0);
    assert_int_equal(m.ffn, 10944);
    assert_int_equal(m.dense_layers, 2);
}

static void quantised_files_are_read_as_what_they_came_from(void **state)
{
    (void)state;
    log_reset();
    log_setup(LOG_QUIET, false);
    struct model m = parse_ok("{'model_type':'llama'," LLAMA_SIZES
                              ",'num_key_value_heads':8,'quantization_config':{'quant_method':'fp8','bits':8}}");
    assert_int_equal(m.params, 8030261248);
    assert_int_equal(log_warning_count(), 1);
    assert_non_null(strstr(log_warning(0), "fp8"));
}

static void other_decoders(void **state)
{
    (void)state;
    struct model m = parse_ok("{'model_type':'cohere','hidden_size':8192,'num_hidden_layers':40,"
                              "'num_attention_heads':64,'num_key_value_heads':64,'intermediate_size':22528,"
                              "'vocab_size':256000,'use_qk_norm':false}");
    assert_int_equal(m.params, 34980831232);
    struct model normed = parse_ok("{'model_type':'cohere','hidden_size':8192,'num_hidden_layers':40,"
                                   "'num_attention_heads':64,'num_key_value_heads':64,'intermediate_size':22528,"
                                   "'vocab_size':256000,'use_qk_norm':true}");
    assert_int_equal(normed.params - m.params, 40 * 2 * 8192);
    m = parse_ok("{'model_type':'cohere2','hidden_size':4096,'num_hidden_layers':32,'num_attention_heads':32,"
                 "'num_key_value_heads':8,'intermediate_size':14336,'vocab_size':256000,'sliding_window':4096,"
                 "'sliding_window_pattern':4}");
    assert_int_equal(m.window_layers, 24);
    m = parse_ok("{'model_type':'phi','hidden_size':64,'num_hidden_layers':2,'num_attention_heads':4,"
                 "'intermediate_size':256,'vocab_size':100,'qk_layernorm':true}");
    assert_true(m.qk_norm);
    assert_int_equal(m.params_layer, 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 2 * 64 + 4 * 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_with_all_that_is_ignored),
        cmocka_unit_test(nulls_are_absent_and_whole_floats_integers),
        cmocka_unit_test(absent_kv_heads_are_the_classs),
        cmocka_unit_test(biases_change_the_count),
        cmocka_unit_test(without_model_type_the_architecture_tells),
        cmocka_unit_test(gpt2_names),
        cmocka_unit_test(c36_the_flags_decide_not_the_field),
        cmocka_unit_test(falcon_flags),
        cmocka_unit_test(qwen2_window_is_off_unless_switched_on),
        cmocka_unit_test(c34_head_dim_as_given),
        cmocka_unit_test(gemma3_patterns),
        cmocka_unit_test(nested_text_config_with_defaults),
        cmocka_unit_test(nested_text_config_of_another_type),
        cmocka_unit_test(experts_in_some_layers),
        cmocka_unit_test(deepseek_without_q_lora_and_without_experts),
        cmocka_unit_test(quantised_files_are_read_as_what_they_came_from),
        cmocka_unit_test(other_decoders),
    };
    log_setup(LOG_QUIET, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
