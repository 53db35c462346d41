/* model/family_qwen.c -- Qwen2 and Qwen3, dense: biases on q, k, v (2) or norms on q, k (3); a window only if switched
 * on. */
#include "model/reader.h"

/* The last layers use the window, those from max_window_layers on. */
static enum status read_window(struct reader *r)
{
    bool use = false;
    int64_t first = 28;
    TRY(reader_bool(r, "use_sliding_window", false, &use));
    TRY(reader_int(r, "max_window_layers", first, 0, READER_LAYERS_MAX, &first));
    if (!use)
        return reader_no_window(r);
    return reader_window(r, 4096, first < r->model->layers ? r->model->layers - (int)first : 0);
}

static enum status read_qwen2(struct reader *r)
{
    TRY(reader_shape(r));
    r->model->gated = true;
    r->model->qkv_bias = true;
    count_dense(r->model, 2, &r->counts);
    return read_window(r);
}

static enum status read_qwen3(struct reader *r)
{
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    r->model->gated = true;
    r->model->qk_norm = true;
    count_dense(r->model, 2, &r->counts);
    return read_window(r);
}

#define QWEN2_DEFAULTS                                                                                                 \
    .kv_heads = 32, .default_vocab = 151936,                                                                           \
    .defaults = {[ROLE_LAYERS] = 32, [ROLE_HIDDEN] = 4096, [ROLE_HEADS] = 32, [ROLE_FFN] = 22016}

const struct model_family family_qwen[] = {
    {.type = "qwen2", .architecture = "Qwen2ForCausalLM", .decoder = true, QWEN2_DEFAULTS, .read = read_qwen2},
    {.type = "qwen2_vl_text", QWEN2_DEFAULTS, .read = read_qwen2},
    {.type = "qwen2_5_vl_text", QWEN2_DEFAULTS, .read = read_qwen2},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .decoder = true,
     .kv_heads = 32,
     .head_dim = 128,
     .defaults = {[ROLE_LAYERS] = 32, [ROLE_HIDDEN] = 4096, [ROLE_HEADS] = 32, [ROLE_FFN] = 22016},
     .default_vocab = 151936,
     .read = read_qwen3},
    {.type = "qwen3_vl_text",
     .kv_heads = 32,
     .head_dim = 128,
     .defaults = {[ROLE_LAYERS] = 32, [ROLE_HIDDEN] = 4096, [ROLE_HEADS] = 32, [ROLE_FFN] = 22016},
     .default_vocab = 151936,
     .read = read_qwen3},
    {.type = NULL},
};
