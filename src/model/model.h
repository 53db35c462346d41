/* model/model.h -- what a HuggingFace config.json means: shapes, counts, legal sp sizes.
 *
 * A model is a plain value. The reader names and refuses an unknown model_type, and a known key whose value changes
 * shapes that we do not model; other keys are ignored. null is absent; whole floats are integers. A reader is one row
 * of model_families (family.c): model_type, aliases of the GPT-2 kind, quirks.
 *
 *     struct model model;
 *     TRY(model_load("llama-3-8b", &model));           // file, directory, shipped name, or hub id in the local cache
 *     struct verdict v = model_sp(&model, 8, 8);       // sp 8 of 8 processes
 *
 * Parameter counts are exact for dense models (embedding once when tied).
 */
#ifndef SPTUNE_MODEL_MODEL_H
#define SPTUNE_MODEL_MODEL_H

#include "base/json.h"
#include "base/status.h"
#include "base/verdict.h"

#include <stdbool.h>
#include <stdint.h>

/* RoPE: frequency i of a head is theta^(-2i/head_dim), scaled as Llama 3.1 does where original > 0: wavelengths beyond
 * original/low divided by factor, a ramp up to original/high. original 0: all divided by factor. */
struct model_rope {
    double theta, factor;
    double low, high, original;
};
/* Of lanes `pair` and pair + head_dim/2. */
double model_rope_frequency(const struct model_rope *rope, int head_dim, int pair);

struct model {
    char name[128]; /* as asked for: shipped name, file's directory or hub id */
    char type[48];  /* model_type */
    int layers;
    int64_t hidden;
    int heads, kv_heads;
    int head_dim;       /* of q and k */
    int head_dim_v;     /* of v and o; equal to head_dim except for latent attention (MLA) */
    int64_t ffn;        /* dense MLP width; for MoE the width of one expert */
    int64_t ffn_dense;  /* MLP width of the layers without experts; equal to ffn for dense models */
    int64_t ffn_shared; /* width of all shared experts together, 0 when none */
    int dense_layers;   /* layers without experts: all of a dense model, some of an MoE */
    bool gated;         /* gate and up projections (SwiGLU, GeGLU), else one up projection */
    int64_t vocab;
    bool tied;                      /* lm_head is the embedding */
    int64_t window;                 /* sliding window in tokens, 0 when none */
    int window_layers;              /* how many layers use it */
    int experts, experts_per_token; /* 0 for dense */
    int64_t max_positions;
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    double norm_eps;        /* of the RMS norms */
    double dropout;         /* of attention's probabilities */
    struct model_rope rope;
    char unlike[96];        /* why its layers are not those of sp/block.h, "" when they are */
    int64_t params;           /* all */
    int64_t params_layer;     /* one (largest) transformer layer: the unit ZeRO-3 gathers */
    int64_t params_embedding; /* embedding table (= lm_head when tied) */
    int64_t params_active;    /* used per token; params for dense models */
    bool params_exact;        /* false where more is trained than is counted (multimodal wrappers) */
};

enum status model_load(const char *config, struct model *out);
/* The text of a config.json; `where` names it in messages. */
enum status model_parse(const char *text, size_t len, const char *where, struct model *out);
/* Heads only: `tune --heads --kv-heads --head-dim`; layers 1, no ffn, no vocab, hidden heads * head_dim, params 0. */
enum status model_from_heads(int heads, int kv_heads, int head_dim, struct model *out);
bool model_is_heads(const struct model *model); /* made so: its name is "32/8 heads of 128" */

/* May `sp` split this model's attention on `world` processes? world 0: any. The rule: heads % sp == 0, and
 * kv_heads % sp == 0 or sp % kv_heads == 0, and world % sp == 0. nearest: legal sizes below and above (0: none). */
struct verdict model_sp(const struct model *model, int sp, int world);
/* The same from bare head counts; sp module and reader share it. */
struct verdict model_sp_heads(int heads, int kv_heads, int sp, int world);
/* KV heads each rank holds after the exchange: kv_heads/sp, or 1 when replicated; copies: sp/kv_heads or 1. The same of query heads, which
 * are never replicated. */
int model_kv_local(int kv_heads, int sp);
int model_kv_copies(int kv_heads, int sp);
/* The first KV head that `rank` of sp holds: the interleaved repeat, so ranks 0..3 of sp 4 with 2 KV heads hold
 * 0,0,1,1. */
int model_kv_first(int kv_heads, int sp, int rank);

/* Shipped configurations, values only; NULL-terminated names. */
const char *const *model_shipped(void);
json_t *model_to_json(const struct model *model, int world, const struct json_envelope *envelope); /* sptune.model/1 */

#endif
