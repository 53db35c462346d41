/* tests/train/test_loss.c -- the loss of a step against sums by hand, and its gradient through every way of reducing it. */
#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "train/loss.h"

#include <math.h>

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want))))
        fail_msg("got %.17g, expected %.17g", got, want);
}

/* Shards of one group in one micro-step, given as means. */
static struct loss_part shards(int n, const double *mean, const int64_t *valid)
{
    struct loss_part sum = {0};
    for (int i = 0; i < n; i++) {
        struct loss_part part = loss_from_mean(mean[i], valid[i]);
        loss_add(&sum, &part);
    }
    return sum;
}

/* C03: sp 2, 100 labels of mean 2 and 10 of mean 4: 240 / 110, not the 3 that the mean of means says. */
static void c03_shards_weigh_by_their_labels(void **state)
{
    (void)state;
    struct loss_part group = shards(2, (const double[]){2, 4}, (const int64_t[]){100, 10});
    assert_int_equal(group.valid, 110);
    for (int norm = LOSS_TOKENS; norm <= LOSS_GROUP; norm++) /* one group, one micro-step: the same */
        near(loss_combine((enum loss_norm)norm, 1, 1, &group), 240.0 / 110);
}

/* C04: a shard of prompt alone has mean 0/0; it adds nothing. When nobody has a label the loss is 0, the factor of gradients finite
 * (and there is no token that it multiplies), and a warning is seen. */
static void c04_a_shard_without_labels_adds_nothing(void **state)
{
    (void)state;
    log_reset();
    log_setup(LOG_QUIET, false);
    struct loss_part one = shards(2, (const double[]){NAN, 2}, (const int64_t[]){0, 50});
    near(loss_combine(LOSS_TOKENS, 1, 1, &one), 2);
    near(loss_combine(LOSS_GROUP, 1, 1, &one), 2);
    const struct loss_part poisoned = {.sum = NAN, .valid = 0};
    loss_add(&one, &poisoned);
    near(one.sum, 100);
    assert_int_equal(log_warning_count(), 0);
    struct loss_part none = shards(2, (const double[]){NAN, NAN}, (const int64_t[]){0, 0});
    near(loss_combine(LOSS_TOKENS, 1, 1, &none), 0);
    near(loss_combine(LOSS_GROUP, 1, 1, &none), 0);
    assert_int_equal(log_warning_count(), 1);
    assert_non_null(strstr(log_warning(0), "no label that counts"));
    const struct loss_share share = {.groups = 1, .micros = 1, .averaged = 2};
    near(loss_scale(LOSS_TOKENS, &share), 2);
    near(loss_scale(LOSS_GROUP, &share), 2);
    const struct loss_part half[] = {{.sum = 6, .valid = 2}, {.sum = 0, .valid = 0}};
    near(loss_combine(LOSS_GROUP, 2, 1, half), 1.5);
    near(loss_combine(LOSS_TOKENS, 2, 1, half), 3);
    assert_int_equal(log_warning_count(), 2); /* by groups, the empty one halves the loss */
    log_reset();
}

/* C05: 8 GPUs, sp 8, dp 1, 100 tokens of loss 1 per rank, gradients averaged over 8 ranks: each rank's part is 100/800 * 8 = 1. Undoing
 * the average by dp = 1 would give 0.125. */
static void c05_averages_are_undone_by_all_ranks(void **state)
{
    (void)state;
    struct loss_share share = {.groups = 1, .micros = 1, .step_valid = 800, .part_valid = 800, .averaged = 8};
    double average = 0;
    for (int rank = 0; rank < 8; rank++)
        average += 100 * 1.0 * loss_scale(LOSS_TOKENS, &share) / 8;
    near(100 * loss_scale(LOSS_TOKENS, &share), 1);
    near(average, 1);
    near(100 * loss_scale(LOSS_GROUP, &share), 1);
    share.averaged = 1;
    near(8 * 100 * loss_scale(LOSS_TOKENS, &share), 1);
}

/* Two groups, two micro-steps: 1 + 3, then 2 + 2 labels. */
static void norms_differ_where_labels_are_unequal(void **state)
{
    (void)state;
    const struct loss_part parts[] = {
        {.sum = 8, .valid = 1}, {.sum = 6, .valid = 3}, {.sum = 2, .valid = 2}, {.sum = 10, .valid = 2}};
    near(loss_combine(LOSS_TOKENS, 2, 2, parts), 26.0 / 8);
    near(loss_combine(LOSS_GROUP, 2, 2, parts), (8 + 2 + 1 + 5) / 4.0);
}

static void a_loss_that_diverged_is_seen(void **state)
{
    (void)state;
    const struct loss_part parts[] = {{.sum = INFINITY, .valid = 1}, {.sum = 6, .valid = 3}};
    assert_true(isinf(loss_combine(LOSS_TOKENS, 2, 1, parts)));
    assert_true(isinf(loss_combine(LOSS_GROUP, 2, 1, parts)));
}

/* ---- gradients ---- */

enum { RANKS = 4, MICROS = 3, TOKENS = 5 };

/* One parameter x: the loss of token t of a rank in a micro-step is a (x - b)^2; no label where counts is false. */
struct token {
    double a, b;
    bool counts;
};
static struct token token[RANKS][MICROS][TOKENS];

static double token_loss(const struct token *t, double x)
{
    return t->a * (x - t->b) * (x - t->b);
}

static void draw_tokens(void)
{
    struct rng rng;
    rng_seed(&rng, 5, 0);
    for (int r = 0; r < RANKS; r++)
        for (int m = 0; m < MICROS; m++)
            for (int t = 0; t < TOKENS; t++)
                token[r][m][t] = (struct token){.a = rng_normal(&rng),
                                                .b = rng_normal(&rng),
                                                .counts = (r != 1 || m != 2) && rng_uniform(&rng) < 0.6};
}

static struct loss_part rank_part(int rank, int micro, double x)
{
    struct loss_part part = {0};
    for (int t = 0; t < TOKENS; t++) {
        if (token[rank][micro][t].counts) {
            part.sum += token_loss(&token[rank][micro][t], x);
            part.valid++;
        }
    }
    return part;
}

static void group_parts(int sp, double x, struct loss_part *parts)
{
    for (int i = 0; i < RANKS / sp * MICROS; i++)
        parts[i] = (struct loss_part){0};
    for (int r = 0; r < RANKS; r++)
        for (int m = 0; m < MICROS; m++) {
            struct loss_part part = rank_part(r, m, x);
            loss_add(&parts[r / sp * MICROS + m], &part);
        }
}

/* As ranks do it: each scales its tokens, adds over micro-steps, then a sum or a mean over ranks. */
static double reduced_gradient(enum loss_norm norm, int sp, bool averages, double x)
{
    struct loss_part parts[RANKS * MICROS], all = {0};
    double sum = 0;
    group_parts(sp, x, parts);
    for (int i = 0; i < RANKS / sp * MICROS; i++)
        loss_add(&all, &parts[i]);
    for (int r = 0; r < RANKS; r++)
        for (int m = 0; m < MICROS; m++) {
            const struct loss_share share = {.groups = RANKS / sp,
                                             .micros = MICROS,
                                             .step_valid = all.valid,
                                             .part_valid = parts[r / sp * MICROS + m].valid,
                                             .averaged = averages ? RANKS : 1};
            for (int t = 0; t < TOKENS; t++) {
                const struct token *at = &token[r][m][t];
                if (at->counts)
                    sum += loss_scale(norm, &share) * 2 * at->a * (x - at->b);
            }
        }
    return averages ? sum / RANKS : sum;
}

static double loss_at(enum loss_norm norm, int sp, double x)
{
    struct loss_part parts[RANKS * MICROS];
    group_parts(sp, x, parts);
    return loss_combine(norm, RANKS / sp, MICROS, parts);
}

/* The loss is quadratic in x, so the central difference is exact but for rounding. */
static void scaled_gradients_are_those_of_the_loss(void **state)
{
    (void)state;
    log_reset();
    log_setup(LOG_QUIET, false);
    draw_tokens();
    for (int sp = 1; sp <= RANKS; sp *= 2)
        for (int norm = LOSS_TOKENS; norm <= LOSS_GROUP; norm++)
            for (int averages = 0; averages < 2; averages++) {
                enum loss_norm by = (enum loss_norm)norm;
                double want = (loss_at(by, sp, 0.75) - loss_at(by, sp, 0.25)) / 0.5;
                double got = reduced_gradient(by, sp, averages, 0.5);
                if (fabs(got - want) > 1e-12)
                    fail_msg("sp %d, %s, averages %d: got %.17g, expected %.17g", sp, loss_norm_name(by), averages, got,
                             want);
            }
    log_reset();
}

static void only_the_norm_by_tokens_is_the_same_for_every_split(void **state)
{
    (void)state;
    log_reset();
    log_setup(LOG_QUIET, false);
    draw_tokens();
    near(loss_at(LOSS_TOKENS, 1, 0.5), loss_at(LOSS_TOKENS, 4, 0.5));
    near(loss_at(LOSS_TOKENS, 2, 0.5), loss_at(LOSS_TOKENS, 4, 0.5));
    near(reduced_gradient(LOSS_TOKENS, 1, false, 0.5), reduced_gradient(LOSS_TOKENS, 4, true, 0.5));
    assert_true(fabs(loss_at(LOSS_GROUP, 1, 0.5) - loss_at(LOSS_GROUP, 4, 0.5)) > 1e-3);
    log_reset();
}

static void norms_are_parsed(void **state)
{
    (void)state;
    enum loss_norm norm = LOSS_TOKENS;
    CHECK_OK(loss_norm_parse("group", "--loss-norm", &norm));
    assert_int_equal(norm, LOSS_GROUP);
    assert_string_equal(loss_norm_name(norm), "group");
    CHECK_OK(loss_norm_parse("tokens", "--loss-norm", &norm));
    assert_int_equal(norm, LOSS_TOKENS);
    CHECK_FAILS(STATUS_USAGE, "'mean' is no way to normalise a loss", loss_norm_parse("mean", "--loss-norm", &norm));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c03_shards_weigh_by_their_labels),
        cmocka_unit_test(c04_a_shard_without_labels_adds_nothing),
        cmocka_unit_test(c05_averages_are_undone_by_all_ranks),
        cmocka_unit_test(norms_differ_where_labels_are_unequal),
        cmocka_unit_test(a_loss_that_diverged_is_seen),
        cmocka_unit_test(scaled_gradients_are_those_of_the_loss),
        cmocka_unit_test(only_the_norm_by_tokens_is_the_same_for_every_split),
        cmocka_unit_test(norms_are_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
