/* base/verdict.h -- yes, or which rule says no.
 *
 * A verdict is a plain value. RULE_OK means admissible; anything else names the rule by the code that every JSON `rule`
 * field carries, with one sentence for people (`why`) and, where it helps, the nearest values that would be admissible.
 */
#ifndef SPTUNE_BASE_VERDICT_H
#define SPTUNE_BASE_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RULE_LIST(X)                                                                     \
    X(OK, "ok")                                                                          \
    X(HEADS_NOT_DIVISIBLE, "heads_not_divisible") /* Hq % P != 0 */                      \
    X(KV_RULE, "kv_rule")                         /* neither Hkv % P nor P % Hkv is 0 */ \
    X(FFN_NOT_DIVISIBLE, "ffn_not_divisible")     /* split_gather: ffn % P != 0 */       \
    X(WORLD, "world")                             /* P or the product does not divide or match the world */ \
    X(SEQ, "seq")                                 /* a fixed S that P does not divide */ \
    X(MEMORY, "memory")                           /* does not fit */                     \
    X(GLOBAL_BATCH, "global_batch")               /* accumulation would not be an integer >= 1 */ \
    X(TARGET_CANNOT, "target_cannot")             /* the target runtime does not execute it */ \
    X(KERNEL_CANNOT, "kernel_cannot")             /* no kernel for this shape, mask or dtype */ \
    X(EXCHANGE_CANNOT, "exchange_cannot")         /* no such path between these ranks */ \
    X(TIED, "tied")                               /* same time; lost by the tie rule */  \
    X(SLOWER, "slower")                           /* loses by time */                    \
    X(MEASURE_FIRST, "measure_first")             /* between 80 and 95 % of memory */    \
    X(ABSENT, "absent")                           /* library or device is not here */    \
    X(OVERSUBSCRIBED, "oversubscribed")           /* more ranks than usable CPUs */      \
    X(BUDGET, "budget")                           /* the time budget ended first */      \
    X(TAINTED, "tainted")                         /* conditions of the sample were bad */ \
    X(NOT_MEASURED, "not_measured")               /* no measurement of this class */     \
    X(NOT_MODELLED, "not_modelled")               /* a model feature whose shapes we do not know */ \
    X(INDEX, "index")                             /* beyond what an index can hold */

enum rule {
#define RULE_ENUM(name, code) RULE_##name,
    RULE_LIST(RULE_ENUM)
#undef RULE_ENUM
        RULE_COUNT
};

struct verdict {
    enum rule rule;
    char why[224];      /* "" when ok */
    int64_t nearest[2]; /* admissible values below and above, 0 when there is none or it does not apply */
};

#define VERDICT_YES ((struct verdict){.rule = RULE_OK})

const char *rule_code(enum rule rule); /* "heads_not_divisible" */
static inline bool verdict_ok(const struct verdict *verdict)
{
    return verdict->rule == RULE_OK;
}
struct verdict verdict_no(enum rule rule, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
