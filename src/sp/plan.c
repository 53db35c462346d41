/* sp/plan.c -- plans as values: names, the one-line text form and back, hash, chunks of heads.
 *
 * Text form: METHOD key=value... EXCHANGE ATTENTION key=value... ; the three bare words come in this order, keys in any
 * order and at most once each; a key that is absent keeps its value of plan_default. The rank order is not part of the
 * text, but of the hash.
 */
#include "sp/plan.h"

#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "sp/shard.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_ROW(name, text) text,
static const char *const methods[] = {PLAN_METHOD_LIST(NAME_ROW)};
static const char *const checkpointings[] = {PLAN_CHECKPOINTING_LIST(NAME_ROW)};
static const char *const offloads[] = {PLAN_OFFLOAD_LIST(NAME_ROW)};
static const char *const losses[] = {PLAN_LOSS_LIST(NAME_ROW)};
static const char *const mlps[] = {PLAN_MLP_LIST(NAME_ROW)};
#undef NAME_ROW

static const char *name_at(const char *const *names, unsigned n, unsigned index)
{
    return index < n ? names[index] : "unknown";
}

const char *plan_method_name(enum plan_method method)
{
    return name_at(methods, PLAN_METHOD_COUNT, method);
}

const char *plan_split_name(const struct plan *plan)
{
    return plan->sp > 1 ? plan_method_name(plan->method) : "whole";
}

const char *plan_method_exchange(enum plan_method method)
{
    return method == PLAN_METHOD_RING           ? PLAN_RING_EXCHANGE
           : method == PLAN_METHOD_SPLIT_GATHER ? PLAN_GATHER_EXCHANGE
                                                : NULL;
}

const char *plan_checkpointing_name(enum plan_checkpointing checkpointing)
{
    return name_at(checkpointings, PLAN_CHECKPOINTING_COUNT, checkpointing);
}

const char *plan_offload_name(enum plan_offload offload)
{
    return name_at(offloads, PLAN_OFFLOAD_COUNT, offload);
}

const char *plan_loss_name(enum plan_loss loss)
{
    return name_at(losses, PLAN_LOSS_COUNT, loss);
}

const char *plan_mlp_name(enum plan_mlp mlp)
{
    return name_at(mlps, PLAN_MLP_COUNT, mlp);
}

void plan_default(struct plan *out)
{
    *out = (struct plan){
        .method = PLAN_METHOD_ULYSSES,
        .sp = 1,
        .dp_shard = 1,
        .dp_replicate = 1,
        .tp = 1,
        .ring = 1,
        .exchange = "packed",
        .attention = "cpu",
        .chunks = 1,
        .zero_stage = 3,
        .micro_batch = 1,
        .accumulate = 1,
    };
}

char *plan_text(const struct plan *plan, char buf[PLAN_TEXT])
{
    char ring[24] = "";
    if (plan->method == PLAN_METHOD_ULYSSES_RING)
        snprintf(ring, sizeof ring, " ring=%d", plan->ring);
    snprintf(buf, PLAN_TEXT,
             "%s sp=%d%s dp_shard=%d dp_replicate=%d tp=%d %.31s %.31s chunks=%d zero=%d mb=%lld acc=%lld ckpt=%s "
             "offload=%s "
             "loss=%s mlp=%s",
             plan_method_name(plan->method), plan->sp, ring, plan->dp_shard, plan->dp_replicate, plan->tp,
             plan->exchange, plan->attention, plan->chunks, plan->zero_stage, (long long)plan->micro_batch,
             (long long)plan->accumulate, plan_checkpointing_name(plan->checkpointing),
             plan_offload_name(plan->offload), plan_loss_name(plan->loss), plan_mlp_name(plan->mlp));
    return buf;
}

char *plan_hash(const struct plan *plan, char buf[17])
{
    char bytes[PLAN_TEXT + PLAN_ORDER_MAX * 7];
    char hex[65];
    plan_text(plan, bytes);
    size_t len = strlen(bytes);
    for (int i = 0; i < plan->order_n && i < PLAN_ORDER_MAX; i++)
        len += (size_t)snprintf(bytes + len, sizeof bytes - len, " %d", plan->order[i]);
    file_sha256(bytes, len, hex);
    memcpy(buf, hex, 16);
    buf[16] = '\0';
    return buf;
}

/* Where a key goes: an int, an int64, or an enum by its names. */
struct key {
    const char *name;
    size_t offset;
    int64_t min;
    enum { KEY_INT, KEY_INT64, KEY_ENUM } kind;
    const char *const *names;
    size_t n;
};
static const struct key keys[] = {
    {"sp", offsetof(struct plan, sp), 1, KEY_INT, NULL, 0},
    {"ring", offsetof(struct plan, ring), 1, KEY_INT, NULL, 0},
    {"dp_shard", offsetof(struct plan, dp_shard), 1, KEY_INT, NULL, 0},
    {"dp_replicate", offsetof(struct plan, dp_replicate), 1, KEY_INT, NULL, 0},
    {"tp", offsetof(struct plan, tp), 1, KEY_INT, NULL, 0},
    {"chunks", offsetof(struct plan, chunks), 1, KEY_INT, NULL, 0},
    {"zero", offsetof(struct plan, zero_stage), 0, KEY_INT, NULL, 0},
    {"mb", offsetof(struct plan, micro_batch), 1, KEY_INT64, NULL, 0},
    {"acc", offsetof(struct plan, accumulate), 1, KEY_INT64, NULL, 0},
    {"ckpt", offsetof(struct plan, checkpointing), 0, KEY_ENUM, checkpointings, PLAN_CHECKPOINTING_COUNT},
    {"offload", offsetof(struct plan, offload), 0, KEY_ENUM, offloads, PLAN_OFFLOAD_COUNT},
    {"loss", offsetof(struct plan, loss), 0, KEY_ENUM, losses, PLAN_LOSS_COUNT},
    {"mlp", offsetof(struct plan, mlp), 0, KEY_ENUM, mlps, PLAN_MLP_COUNT},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static enum status enum_parse(const char *what, const char *const *names, size_t n, const char *word, int *out)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], word) != 0)
            continue;
        *out = (int)i;
        return STATUS_OK;
    }
    const char *near = text_nearest(word, names, n);
    enum status status = FAIL(STATUS_USAGE, "a plan's %s cannot be '%.40s'", what, word);
    if (near != NULL)
        return HINT(status, "did you mean %s?", near);
    struct text all = {0};
    for (size_t i = 0; i < n; i++)
        text_add(&all, "%s%s", i ? ", " : "", names[i]);
    status = HINT(status, "one of %s", text_get(&all));
    text_free(&all);
    return status;
}

static enum status key_parse(const char *name, const char *value, unsigned *seen, struct plan *plan)
{
    const char *names[KEYS];
    for (size_t i = 0; i < KEYS; i++) {
        const struct key *key = &keys[i];
        char *field = (char *)plan + key->offset;
        int64_t number;
        names[i] = key->name;
        if (strcmp(key->name, name) != 0)
            continue;
        if (*seen & (1u << i))
            return HINT(FAIL(STATUS_USAGE, "a plan gives %s twice", name), "each key at most once");
        *seen |= 1u << i;
        if (key->kind == KEY_ENUM)
            return enum_parse(name, key->names, key->n, value, (int *)(void *)field);
        TRY(units_parse_count(value, name, key->min, key->kind == KEY_INT ? INT32_MAX : INT64_MAX, &number));
        if (key->kind == KEY_INT)
            *(int *)(void *)field = (int)number;
        else
            *(int64_t *)(void *)field = number;
        return STATUS_OK;
    }
    enum status status = FAIL(STATUS_USAGE, "a plan has no key '%.40s'", name);
    const char *near = text_nearest(name, names, KEYS);
    return near ? HINT(status, "did you mean %s?", near)
                : HINT(status, "keys are sp ring dp_shard dp_replicate tp chunks zero mb acc ckpt offload loss mlp");
}

static enum status name_parse(const char *what, const char *word, char out[PLAN_NAME])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./";
    size_t len = strlen(word);
    if (len >= PLAN_NAME || word[strspn(word, letters)] != '\0')
        return HINT(FAIL(STATUS_USAGE, "a plan's %s cannot be '%.40s'", what, word),
                    "letters, digits and _-+./, at most %d", PLAN_NAME - 1);
    memcpy(out, word, len + 1);
    return STATUS_OK;
}

static enum status word_parse(int position, const char *word, struct plan *plan)
{
    int method = 0;
    switch (position) {
    case 0:
        TRY(enum_parse("method", methods, PLAN_METHOD_COUNT, word, &method));
        plan->method = (enum plan_method)method;
        return STATUS_OK;
    case 1:
        return name_parse("exchange", word, plan->exchange);
    case 2:
        return name_parse("attention", word, plan->attention);
    default:
        return HINT(FAIL(STATUS_USAGE, "a plan has no place for '%.40s'", word),
                    "METHOD EXCHANGE ATTENTION, and key=value");
    }
}

enum status plan_parse(const char *text, struct plan *out)
{
    struct plan plan;
    char copy[PLAN_TEXT], *save = NULL;
    int position = 0;
    unsigned seen = 0;
    plan_default(&plan);
    if (!text_print(copy, sizeof copy, "%s", text))
        return HINT(FAIL(STATUS_USAGE, "a plan's text is longer than %d characters", PLAN_TEXT - 1),
                    "one line, as `ulysses sp=4 dp_shard=2 packed cpu zero=3`");
    for (char *word = strtok_r(copy, " \t\r\n", &save); word != NULL; word = strtok_r(NULL, " \t\r\n", &save)) {
        char *value = strchr(word, '=');
        if (value != NULL) {
            *value++ = '\0';
            TRY(key_parse(word, value, &seen, &plan));
        } else {
            TRY(word_parse(position++, word, &plan));
        }
    }
    if (position == 0)
        return HINT(FAIL(STATUS_USAGE, "a plan's text names no method"),
                    "as `ulysses sp=4 dp_shard=2 packed cpu zero=3`");
    *out = plan;
    return STATUS_OK;
}

bool plan_same_way(const struct plan *a, const struct plan *b)
{
    if (a->sp != b->sp || strcmp(a->attention, b->attention) != 0)
        return false;
    if (a->sp > 1 && (a->method != b->method || plan_ring(a) != plan_ring(b)))
        return false;
    return a->sp == 1 || (a->chunks == b->chunks && strcmp(a->exchange, b->exchange) == 0);
}

int plan_sequence_ranks(const struct plan *plan)
{
    return (plan->sp > 1 ? plan->sp : 1) * (plan->tp > 1 ? plan->tp : 1);
}

int plan_ways(const struct plan *plan)
{
    int ways = plan->method == PLAN_METHOD_SPLIT_GATHER ? plan->sp : plan->tp;
    return ways > 1 ? ways : 1;
}

enum status plan_cut(struct problem *problem, struct plan *plan)
{
    int ways = plan_ways(plan);
    if (ways == 1)
        return STATUS_OK;
    TRY(problem_cut(problem, ways, shard_padded(problem, plan)));
    problem->world /= ways;
    if (plan->method == PLAN_METHOD_SPLIT_GATHER)
        plan->sp = 1;
    else
        plan->tp = 1;
    return STATUS_OK;
}

int plan_ring(const struct plan *plan)
{
    if (plan->method == PLAN_METHOD_RING)
        return plan->sp > 0 ? plan->sp : 1;
    return plan->method == PLAN_METHOD_ULYSSES_RING && plan->ring > 0 ? plan->ring : 1;
}

int plan_head_ranks(const struct plan *plan)
{
    return plan->sp > 0 ? plan->sp / plan_ring(plan) : 1;
}

void plan_chunk(const struct problem *problem, const struct plan *plan, int chunk, int *first, int *count)
{
    int ranks = plan_head_ranks(plan);
    int64_t heads = problem->heads / (ranks > 0 ? ranks : 1);
    int64_t chunks = plan->chunks > 0 ? plan->chunks : 1;
    int64_t from = heads * chunk / chunks, to = heads * (chunk + 1) / chunks;
    *first = (int)from;
    *count = (int)(to - from);
}
