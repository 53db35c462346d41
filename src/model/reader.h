/* model/reader.h -- the steps that families read a config.json with: typed keys with limits, sizes, windows, experts.
 *
 * Every failure is STATUS_USAGE with the file and the key in WHERE and what would be right in HINT. null is absent.
 */
#ifndef SPTUNE_MODEL_READER_H
#define SPTUNE_MODEL_READER_H

#include "model/family.h"

/* Beyond these a value is a mistake, and int arithmetic on heads and widths stays far from its limits. */
enum {
    READER_LAYERS_MAX = 10000,
    READER_HEADS_MAX = 16384,
    READER_HEAD_DIM_MAX = 8192,
    READER_EXPERTS_MAX = 65536,
    READER_HIDDEN_MAX = 1 << 22,
    READER_FFN_MAX = 1 << 26,
    READER_VOCAB_MAX = 1 << 27,
};
#define READER_TOKENS_MAX (INT64_C(1) << 40)
#define READER_REQUIRED   INT64_MIN /* as a fallback: the key must be there */

/* `object` is the whole document: finds the family (through a wrapper's text_config), reads, checks, counts. */
enum status reader_run(const json_t *object, const char *where, struct model *model);

/* Fail about one key: WHERE is "file, key text_config.KEY". */
enum status reader_where(const struct reader *reader, const char *key, enum status status);
/* The value of a key of the text model, NULL when absent or null. */
const json_t *reader_get(const struct reader *reader, const char *key);
/* A whole number from 1 (or `min`) to `max`. */
enum status reader_size(const struct reader *reader, const char *key, int64_t fallback, int64_t max, int64_t *out);
enum status reader_int(const struct reader *reader, const char *key, int64_t fallback, int64_t min, int64_t max,
                       int64_t *out);
/* The same under either of two names; both present and different is refused. */
enum status reader_either(const struct reader *reader, const char *key, const char *other, int64_t fallback,
                          int64_t max, int64_t *out);
enum status reader_bool(const struct reader *reader, const char *key, bool fallback, bool *out);

/* Layers, hidden, heads, kv_heads, ffn, vocab, positions, tied; head_dim; then all they must agree on. */
enum status reader_shape(struct reader *reader);
/* Its parts, for families where one of them differs. */
enum status reader_sizes(struct reader *reader);
enum status reader_kv_heads(struct reader *reader);
enum status reader_head_dim(struct reader *reader);
enum status reader_heads_agree(const struct reader *reader);

/* The window from `sliding_window` (`fallback` when absent, 0: none): on `layers` of the layers unless layer_types
 * says which. Refuses layer types other than full and sliding attention. */
enum status reader_window(struct reader *reader, int64_t fallback, int layers);
enum status reader_no_window(struct reader *reader);
/* The common case: one dense MLP of `norms` norms around it, and `attention_bias`, `mlp_bias` if present. */
enum status reader_biases(struct reader *reader);

/* norm_eps, rope and `unlike`; after everything else. */
enum status reader_decoder(struct reader *reader);

/* Experts and experts per token, under the family's names for the former. */
enum status reader_experts(struct reader *reader, const char *key, const char *other);

#endif
