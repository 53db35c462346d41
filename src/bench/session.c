/* bench/session.c -- rank 0's side: look a case up, else put all ranks to work; and the other ranks' side of that. */
#include "bench/bench.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* What the ranks are told: this, then n cases. */
struct order {
    int n;
    struct bench_options options;
};

static void key_of(const struct bench_session *session, const struct bench_case *c, struct sample_key *out, double *scale)
{
    struct sample sample;
    const struct bench_subject *subject = bench_subject_of(c);
    sample_init(&sample);
    if (subject != NULL)
        subject->key(c, session->env, &sample);
    *out = sample.key;
    *scale = sample.scale;
    sample_free(&sample);
}

/* The newest ok sample of a key, on any machine; where none is ok, the newest that says why. */
struct newest {
    const struct sample_key *key;
    struct sample *out;
    bool found;
};

static enum status newest_visit(void *arg, int64_t run, const struct sample *sample)
{
    struct newest *newest = arg;
    (void)run;
    bool worse = newest->found && newest->out->outcome == SAMPLE_OK && sample->outcome != SAMPLE_OK;
    if (worse || !sample_key_equal(&sample->key, newest->key))
        return STATUS_OK;
    if (newest->found)
        sample_free(newest->out);
    newest->found = false;
    TRY(sample_copy(sample, newest->out));
    newest->found = true;
    return STATUS_OK;
}

static enum status find_anywhere(const struct bench_session *session, const struct sample_key *key, struct sample *out)
{
    struct newest newest = {.key = key, .out = out};
    enum status status = store_each(session->store, session->reuse_run > 0 ? session->reuse_run : -1, newest_visit, &newest);
    if (status == STATUS_OK && !newest.found)
        status = FAIL(STATUS_NODATA, "no sample");
    if (status != STATUS_OK && newest.found)
        sample_free(out);
    return status;
}

/* STATUS_NODATA when the store has none. */
static enum status find(const struct bench_session *session, const struct sample_key *key, struct sample *out)
{
    const char *machine = session->env != NULL ? session->env->machine : session->machine;
    if (session->store == NULL)
        return FAIL(STATUS_NODATA, "no store");
    if (machine[0] == '\0')
        return find_anywhere(session, key, out);
    return store_find(session->store, key, machine, session->env != NULL ? session->versions : NULL,
                      session->reuse_run > 0 ? session->reuse_run : -1, out, NULL);
}

/* *out, initialised by the caller, is what the store has. *found: no more is needed; false of a row of the run that is gone on with whose
 * samples are not enough. */
static enum status look_up(const struct bench_session *session, const struct bench_case *c,
                           const struct bench_options *options, struct sample *out, bool *found)
{
    struct sample_key key;
    double scale;
    *found = false;
    if (session->env != NULL && !session->reuse)
        return STATUS_OK;
    key_of(session, c, &key, &scale);
    enum status status = find(session, &key, out);
    if (status == STATUS_OK && session->env != NULL && out->scale > scale * 1.0001) {
        sample_free(out); /* scaled up from fewer heads than are wanted now */
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        *found = session->reuse_run <= 0 || out->n >= options->samples_min;
    if (status != STATUS_NODATA)
        return status;
    status_clear();
    if (session->env != NULL)
        return STATUS_OK;
    char *text = sample_key_text(&key);
    status = HINT(FAIL(STATUS_NODATA, "the store has no sample of %s", text != NULL ? text : "this case"),
                  "measure it first: nothing is measured under replay");
    free(text);
    return status;
}

static enum status tell(const struct bench_session *session, const struct bench_case *cases, int n,
                        const struct bench_options *options)
{
    size_t bytes = sizeof(struct order) + (size_t)n * sizeof *cases;
    char *message = NULL;
    if (session->tell == NULL)
        return STATUS_OK;
    TRY(mem_alloc(bytes, "a message to the ranks", (void **)&message));
    struct order order = {.n = n, .options = *options};
    memcpy(message, &order, sizeof order);
    memcpy(message + sizeof order, cases, (size_t)n * sizeof *cases);
    enum status status = session->tell(session->tell_arg, "bench", message, bytes);
    free(message);
    return status;
}

/* Interrupted rows are not kept: --resume measures them again. */
static bool is_kept(const struct sample *sample)
{
    return !(sample->outcome == SAMPLE_WAIVED && sample->rule == RULE_BUDGET && strncmp(sample->why, "interrupted", 11) == 0);
}

static enum status commit(const struct bench_session *session, struct sample *sample)
{
    if (session->versions != NULL) {
        sample->versions = strdup(session->versions);
        if (sample->versions == NULL)
            return FAIL(STATUS_NOMEM, "no memory for the versions of a sample");
    }
    return session->store != NULL && is_kept(sample) ? store_put(session->store, session->run, sample) : STATUS_OK;
}

static enum status measure_missing(const struct bench_session *session, const struct bench_case *cases, const int *missing, int n,
                                   const struct bench_options *options, struct sample *out)
{
    struct bench_case *told = NULL;
    struct sample samples[BENCH_CASES_MAX];
    enum status status = mem_alloc((size_t)n * sizeof *told, "cases", (void **)&told);
    if (status != STATUS_OK)
        return status;
    for (int i = 0; i < n; i++)
        told[i] = cases[missing[i]];
    status = tell(session, told, n, options);
    if (status == STATUS_OK)
        status = bench_run(session->env, told, n, options, samples);
    free(told);
    TRY(status);
    for (int i = 0; i < n; i++) {
        struct sample *before = &out[missing[i]];
        if (before->n > samples[i].n && samples[i].outcome != SAMPLE_FAILED) {
            sample_free(&samples[i]); /* the budget left fewer samples than were there */
            continue;
        }
        enum status kept = status == STATUS_OK ? commit(session, &samples[i]) : STATUS_OK;
        status = status != STATUS_OK ? status : kept;
        sample_free(before);
        *before = samples[i];
    }
    return status;
}

enum status bench_missing(const struct bench_session *session, const struct bench_case *cases, int n,
                          const struct bench_options *options, int *out)
{
    int missing = 0;
    for (int i = 0; i < n; i++) {
        struct sample sample;
        bool found = false;
        sample_init(&sample);
        TRY(look_up(session, &cases[i], options, &sample, &found));
        sample_free(&sample);
        missing += !found;
    }
    *out = missing;
    return STATUS_OK;
}

enum status bench_measure(struct bench_session *session, const struct bench_case *cases, int n,
                          const struct bench_options *options, struct sample *out, int *measured)
{
    int missing[BENCH_CASES_MAX], nmissing = 0;
    enum status status = STATUS_OK;
    if (measured != NULL)
        *measured = 0;
    if (n < 1 || n > BENCH_CASES_MAX)
        return FAIL(STATUS_USAGE, "%d cases in one call; 1 to %d", n, BENCH_CASES_MAX);
    for (int i = 0; i < n; i++)
        sample_init(&out[i]);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        bool found = false;
        status = look_up(session, &cases[i], options, &out[i], &found);
        if (status == STATUS_OK && !found)
            missing[nmissing++] = i;
    }
    if (status == STATUS_OK && nmissing > 0)
        status = measure_missing(session, cases, missing, nmissing, options, out);
    if (status == STATUS_OK && measured != NULL)
        for (int i = 0; i < nmissing; i++)
            *measured += out[missing[i]].n > 0;
    for (int i = 0; i < n && status != STATUS_OK; i++)
        sample_free(&out[i]);
    return status;
}

enum status bench_serve(struct bench_env *env, const void *data, size_t bytes)
{
    struct order order;
    struct bench_case *cases = NULL;
    if (bytes < sizeof order)
        return FAIL(STATUS_PEER, "an order to bench of %zu bytes", bytes);
    memcpy(&order, data, sizeof order);
    if (order.n < 1 || order.n > BENCH_CASES_MAX || bytes != sizeof order + (size_t)order.n * sizeof *cases)
        return FAIL(STATUS_PEER, "an order to bench %d cases in %zu bytes", order.n, bytes);
    TRY(mem_alloc((size_t)order.n * sizeof *cases, "cases", (void **)&cases));
    memcpy(cases, (const char *)data + sizeof order, (size_t)order.n * sizeof *cases);
    enum status status = bench_run(env, cases, order.n, &order.options, NULL);
    free(cases);
    return status;
}
