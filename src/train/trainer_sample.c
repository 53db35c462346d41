/* train/trainer_sample.c -- tokens drawn from the model, each by a forward pass over all that came before it.
 *
 * Nothing is cached: it shows what was learnt, it does not serve. The rows of every group are the same, one row of a window, so that all
 * ranks join the collectives of a forward pass; the rank of the first group that has the last token draws, and tells the others.
 */
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/nn.h"
#include "sp/shard.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_MAX = 64, STREAM = 0x73616d70 /* of the seed's random numbers */ };

struct sampling {
    struct trainer *trainer;
    int64_t window;                    /* tokens of a row */
    struct shard shard;                /* of it here */
    int32_t *tokens;                   /* [prompt + n] */
    int32_t *ids, *labels, *positions; /* [shard.local] */
    float *logits;                     /* [vocab] */
    struct rng rng;
    double temperature;
    bool stopped; /* rank 0 was interrupted */
};

/* The row of a rank's tokens: those that end at `end`, then zeros, which no earlier token sees. Where the last of them is; -1: elsewhere. */
static int64_t fill(struct sampling *s, int64_t end)
{
    int64_t begin = end > s->window ? end - s->window : 0;
    for (int64_t i = 0; i < s->shard.local; i++) {
        int64_t position = shard_position(&s->shard, i), at = begin + position;
        s->ids[i] = at < end ? s->tokens[at] : 0;
        s->labels[i] = NN_IGNORE;
        s->positions[i] = (int32_t)position;
    }
    return shard_index(&s->shard, end - begin - 1);
}

static int32_t likeliest(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    return (int32_t)best;
}

/* One uniform number for each token, whoever draws. */
static int32_t draw(struct sampling *s, int64_t vocab)
{
    int32_t best = likeliest(s->logits, vocab);
    double sum = 0, share = rng_uniform(&s->rng), top = s->logits[best];
    if (s->temperature <= 0)
        return best;
    for (int64_t v = 0; v < vocab; v++)
        sum += exp((s->logits[v] - top) / s->temperature);
    double left = share * sum;
    for (int64_t v = 0; v < vocab; v++) {
        left -= exp((s->logits[v] - top) / s->temperature);
        if (left < 0)
            return (int32_t)v;
    }
    return best;
}

static enum status next(struct sampling *s, int64_t end)
{
    struct trainer *t = s->trainer;
    int64_t row = fill(s, end), vocab = t->options.model.vocab;
    struct decoder_batch batch = {s->ids, s->labels, s->positions};
    struct problem problem;
    double loss, told[] = {0, 0}; /* the token; to stop */
    bool mine = row >= 0;
    trainer_problem(&t->options, &(struct data_batch){.rows = 1, .seq = s->window}, comm_size(t->world), &problem);
    TRY(decoder_run(t->decoder, &problem, &batch, 0, false, t->queue, &loss));
    TRY(decoder_logits(t->decoder, mine ? row : -1, t->queue, s->logits));
    if (mine && comm_rank(t->world) < plan_sequence_ranks(&t->options.plan))
        told[0] = draw(s, vocab);
    else
        (void)rng_uniform(&s->rng);
    if (comm_rank(t->world) == 0)
        told[1] = interrupt_pending() != 0;
    TRY(groups_sum(&t->groups, told, 2, t->queue));
    s->tokens[end] = (int32_t)told[0];
    s->stopped = told[1] > 0;
    return STATUS_OK;
}

static enum status prepare(struct sampling *s, int64_t prompt, int64_t n)
{
    size_t row = (size_t)s->shard.local * sizeof *s->ids;
    TRY(mem_alloc((size_t)(prompt + n) * sizeof *s->tokens, "a sample", (void **)&s->tokens));
    TRY(mem_alloc(row, "a sample", (void **)&s->ids));
    TRY(mem_alloc(row, "a sample", (void **)&s->labels));
    TRY(mem_alloc(row, "a sample", (void **)&s->positions));
    TRY(mem_alloc((size_t)s->trainer->options.model.vocab * sizeof *s->logits, "a sample", (void **)&s->logits));
    return data_head(s->trainer->data, prompt, s->tokens);
}

enum status trainer_sample(struct trainer *t, int64_t n, double temperature, int64_t *prompt, int64_t *drawn,
                           int32_t **out)
{
    const struct trainer_options *o = &t->options;
    int64_t done = 0;
    struct problem longest;
    trainer_longest(o, comm_size(t->world), &longest);
    struct sampling s = {.trainer = t, .temperature = temperature};
    int multiple = shard_multiple(&o->plan);
    s.window = (longest.seq + multiple - 1) / multiple * multiple;
    shard_of(&o->plan, s.window, data_index(comm_rank(t->world), plan_sequence_ranks(&o->plan)), &s.shard);
    int64_t given = longest.seq / 2 < PROMPT_MAX ? longest.seq / 2 : PROMPT_MAX;
    given = given < 1 ? 1 : given;
    rng_seed(&s.rng, o->seed, STREAM);
    enum status status = comm_agree(t->world, prepare(&s, given, n), "prepare a sample");
    for (; done < n && status == STATUS_OK && !s.stopped; done++)
        status = next(&s, given + done);
    free(s.ids);
    free(s.labels);
    free(s.positions);
    free(s.logits);
    if (status != STATUS_OK) {
        free(s.tokens);
        return status;
    }
    *prompt = given;
    *drawn = done;
    *out = s.tokens;
    return STATUS_OK;
}
