/* tuner/fake.h -- for tests: a machine whose rates are known, and a store with everything that could be timed on it.
 *
 * A search on it measures nothing: it replays. What it must answer follows from the rates (fake_step_us), by the sums
 * of docs/models.md, "Times", written out here once more and apart from tuner/parts.c.
 */
#ifndef SPTUNE_TESTS_TUNER_FAKE_H
#define SPTUNE_TESTS_TUNER_FAKE_H

#include "base/check.h"
#include "base/temp.h"

#include "bench/bench.h"
#include "tuner/candidates.h"
#include "tuner/recommend.h"
#include "tuner/request.h"

#define CHECK_NEAR(a, b, tolerance)                                                                                    \
    do {                                                                                                               \
        double check_a_ = (a), check_b_ = (b);                                                                         \
        if (!(fabs(check_a_ - check_b_) <= (tolerance)))                                                               \
            fail_msg("%s is %.17g, expected %.17g", #a, check_a_, check_b_);                                           \
    } while (0)

struct fake {
    double attention_GFLOPs, backward_share; /* rate forward; backward runs at this share of it */
    double small_share;                      /* rate of attention up to 1,024 tokens, over the rate beyond */
    double gemm_GFLOPs;
    double exchange_GBps;   /* what leaves a rank over this */
    double collective_GBps; /* what arrives at a rank over this */
    double copy_GBps;       /* read and written */
    double noise;           /* relative deviation of a sample */
};
extern const struct fake fake_default;

/* One iteration of a case, in microseconds, without noise. */
double fake_case_us(const struct fake *fake, const struct bench_case *c);
/* A step of the whole job under this plan. */
double fake_step_us(const struct fake *fake, const struct request *request, const struct plan *plan);

/* A store and a session that replays it. */
struct fake_bench {
    struct temp temp;
    struct topo topo;
    struct store *store;
    int64_t run;
    struct bench_session session;
    int samples;
    const char *versions; /* of the samples that are put from now on, NULL: none */
    enum rule waived;     /* those samples are waived by this rule; RULE_OK: they are not */
};
void fake_open(struct fake_bench *bench);
void fake_close(struct fake_bench *bench);
/* What a search of this request looks up: estimates, and every layer whole. */
void fake_fill(struct fake_bench *bench, const struct fake *fake, const struct request *request);
/* Estimates, and layers in parts, at every length that a search may shorten them to. */
void fake_fill_scales(struct fake_bench *bench, const struct fake *fake, const struct request *request);
/* One level and scale. */
void fake_fill_level(struct fake_bench *bench, const struct fake *fake, const struct request *request,
                     enum parts_level level, const struct parts_scale *scale);
/* Later samples go to another machine: what was filled before is not found. */
void fake_forget(struct fake_bench *bench);

/* A request for a shipped model, accelerate, on `ranks` ranks, one GiB limit for all: change what matters, then
 * complete it. */
void fake_request(const struct fake_bench *bench, const char *model, int64_t seq, int ranks, struct request *out);

#endif
