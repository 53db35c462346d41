/* tuner/parts_price.c -- parts and samples become a price. */
#include "tuner/parts.h"

#include "base/json.h"

void parts_layer_shares(const struct sample *sample, double share[3])
{
    static const char *const names[] = {"exchange_in_us", "attention_us", "exchange_out_us"};
    double sum = 0;
    json_t *conditions = sample->conditions != NULL ? json_loads(sample->conditions, 0, NULL) : NULL;
    for (int i = 0; i < 3; i++) {
        double us = json_number_value(json_object_get(conditions, names[i]));
        share[i] = us > 0 ? us : 0;
        sum += share[i];
    }
    json_decref(conditions);
    for (int i = 0; i < 3; i++)
        share[i] = sum > 0 ? share[i] / sum : i == 1;
}

static enum status add_term(const struct part *part, int sample, const struct pool *pool, struct price *out)
{
    struct price_term term = {.sample = sample,
                              .times = part->times,
                              .part = part->part,
                              .source = part->source,
                              .slack = part->slack,
                              .slack_kind = part->slack_kind};
    if (!part->split_layer)
        return price_add(out, &term);
    static const enum price_part where[] = {PRICE_EXCHANGE_IN, PRICE_ATTENTION, PRICE_EXCHANGE_OUT};
    double share[3];
    parts_layer_shares(pool_row(pool, sample), share);
    for (int i = 0; i < 3; i++) {
        term.part = where[i];
        term.times = part->times * share[i];
        if (term.times > 0)
            TRY(price_add(out, &term));
    }
    return STATUS_OK;
}

enum status parts_price(const struct parts *parts, const struct pool *pool, struct price *out,
                        const struct part **missing)
{
    const struct part *first = NULL;
    *out = (struct price){0};
    for (int i = 0; parts->item != NULL && i < parts->n; i++) {
        const struct part *part = &parts->item[i];
        int sample = pool_find(pool, part->key);
        if (sample >= 0)
            TRY(add_term(part, sample, pool, out));
        else if (first == NULL)
            first = part;
    }
    if (missing != NULL)
        *missing = first;
    return STATUS_OK;
}
