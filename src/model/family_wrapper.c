/* model/family_wrapper.c -- multimodal models whose language part is a decoder that is read, under text_config.
 *
 * Image and audio parts feed it tokens; their own weights and work are not counted, and a warning says so. A
 * text_config that names another model_type is read as that. Older files of some types hold the keys of the text part
 * on top.
 */
#include "model/family.h"

const struct model_family family_wrapper[] = {
    {.type = "gemma3", .architecture = "Gemma3ForConditionalGeneration", .text_type = "gemma3_text"},
    {.type = "mistral3", .architecture = "Mistral3ForConditionalGeneration", .text_type = "mistral"},
    {.type = "llava", .architecture = "LlavaForConditionalGeneration", .text_type = "llama"},
    {.type = "llava_next", .architecture = "LlavaNextForConditionalGeneration", .text_type = "llama"},
    {.type = "paligemma", .architecture = "PaliGemmaForConditionalGeneration", .text_type = "gemma"},
    {.type = "idefics3", .architecture = "Idefics3ForConditionalGeneration", .text_type = "llama"},
    {.type = "smolvlm", .architecture = "SmolVLMForConditionalGeneration", .text_type = "llama"},
    {.type = "internvl", .architecture = "InternVLForConditionalGeneration", .text_type = "qwen2"},
    {.type = "qwen2_vl", .architecture = "Qwen2VLForConditionalGeneration", .text_type = "qwen2_vl_text"},
    {.type = "qwen2_5_vl", .architecture = "Qwen2_5_VLForConditionalGeneration", .text_type = "qwen2_5_vl_text"},
    {.type = "qwen3_vl", .architecture = "Qwen3VLForConditionalGeneration", .text_type = "qwen3_vl_text"},
    {.type = "qwen3_vl_moe", .architecture = "Qwen3VLMoeForConditionalGeneration", .text_type = "qwen3_vl_moe_text"},
    {.type = NULL},
};
