/* results/sample_summary.c -- median, interval and rates of one sample; which rate applies to which subject. */
#include "results/sample.h"

#include <math.h>
#include <string.h>

/* What an operation sends over the wire as a share of nccl-tests' "size", by docs/measurement.md. */
static double wire_share(const char *op, int ranks)
{
    char plain[SAMPLE_NAME];
    int len = 0;
    for (; *op; op++) /* all-to-all, all_to_all and alltoall are one operation */
        if (*op != '-' && *op != '_')
            plain[len++] = *op;
    plain[len] = '\0';
    if (strcmp(plain, "sendrecv") == 0)
        return 1;
    if (ranks < 1)
        return NAN;
    double others = (ranks - 1) / (double)ranks;
    if (strcmp(plain, "alltoall") == 0 || strcmp(plain, "allgather") == 0 || strcmp(plain, "reducescatter") == 0)
        return others;
    return strcmp(plain, "allreduce") == 0 ? 2 * others : NAN;
}

static double share(double rate, double ceiling)
{
    return ceiling > 0 ? rate / ceiling : NAN;
}

double sample_predicted_within(const struct sample *sample)
{
    if (!sample->scaled || !sample->conditions)
        return NAN;
    json_t *conditions = json_loads(sample->conditions, 0, NULL);
    const json_t *within = json_object_get(conditions, "predicted_within");
    double value = json_is_number(within) ? json_number_value(within) : NAN;
    json_decref(conditions);
    return value >= 0 && value < 1 ? value : NAN;
}

void sample_summarize(const struct sample *sample, struct sample_summary *out)
{
    struct sample_summary s = {NAN, NAN, {NAN, NAN}, NAN, NAN, NAN, NAN, NAN};
    if (sample->n > 0) {
        s.median_us = stats_median(sample->times_us, sample->n);
        s.p95_us = stats_quantile(sample->times_us, sample->n, 0.95);
        s.ci95_us = stats_median_ci95(sample->times_us, sample->n, 1);
        double within = sample_predicted_within(sample);
        if (!isnan(within)) {
            s.ci95_us.lo *= 1 - within;
            s.ci95_us.hi *= 1 + within;
        }
    }
    const char *subject = sample->key.subject;
    bool collective = strcmp(subject, "collective") == 0, exchange = strcmp(subject, "exchange") == 0;
    if (sample->bytes >= 0 && (collective || exchange || strcmp(subject, "link") == 0))
        s.algbw_GBps = stats_GBps((double)sample->bytes, s.median_us);
    if (collective)
        s.busbw_GBps = s.algbw_GBps * wire_share(sample->key.op, sample->group);
    if (exchange)
        s.effective_GBps = s.algbw_GBps;
    if (sample->flops > 0)
        s.tflops = stats_tflops(sample->flops, s.median_us);
    double rate = collective ? s.busbw_GBps : exchange ? s.effective_GBps : s.algbw_GBps;
    s.ceiling_share = isnan(rate) ? share(s.tflops, sample->ceiling_tflops) : share(rate, sample->ceiling_GBps);
    *out = s;
}
