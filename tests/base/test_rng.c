/* tests/base/test_rng.c -- equal seeds, equal streams; plain statistics; bounds. */
#include "base/check.h"
#include "base/rng.h"

#include <math.h>

/* Computed by hand from the published recurrence: the first output depends on s[1] alone, rotl(5 s1, 7) * 9. */
static void the_recurrence_is_xoshiro256starstar(void **state)
{
    (void)state;
    struct rng rng = {{1, 2, 3, 4}};
    assert_true(rng_u64(&rng) == 11520);
    assert_true(rng_u64(&rng) == 0);
    assert_true(rng_u64(&rng) == 1509978240);
}

static void a_seed_is_a_stream(void **state)
{
    (void)state;
    struct rng a, b, other_stream, other_seed;
    rng_seed(&a, 1, 0);
    rng_seed(&b, 1, 0);
    rng_seed(&other_stream, 1, 1);
    rng_seed(&other_seed, 2, 0);
    for (int i = 0; i < 100; i++) {
        uint64_t value = rng_u64(&a);
        assert_true(value == rng_u64(&b));
        assert_true(value != rng_u64(&other_stream));
        assert_true(value != rng_u64(&other_seed));
    }
}

static void uniform_and_normal_have_their_moments(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct rng rng;
    double sum = 0, normal_sum = 0, normal_squares = 0;
    rng_seed(&rng, 7, 3);
    for (int i = 0; i < N; i++) {
        double u = rng_uniform(&rng), z = rng_normal(&rng);
        assert_true(u >= 0 && u < 1 && isfinite(z));
        sum += u;
        normal_sum += z;
        normal_squares += z * z;
    }
    /* five standard errors; the seed is fixed, so this is exact in practice */
    assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
    assert_true(fabs(normal_sum / N) < 5 / sqrt(N));
    assert_true(fabs(normal_squares / N - 1) < 5 * sqrt(2.0) / sqrt(N));
}

static void below_is_bounded_and_even(void **state)
{
    (void)state;
    struct rng rng;
    int seen[3] = {0};
    rng_seed(&rng, 5, 0);
    for (int i = 0; i < 3000; i++)
        seen[rng_below(&rng, 3)]++;
    for (int i = 0; i < 3; i++)
        assert_in_range(seen[i], 870, 1130);
    for (int i = 0; i < 100; i++) {
        int64_t huge = rng_below(&rng, INT64_MAX);
        assert_true(huge >= 0 && huge < INT64_MAX);
    }
    assert_int_equal(rng_below(&rng, 1), 0);
    assert_int_equal(rng_below(&rng, 0), 0);
    assert_int_equal(rng_below(&rng, -5), 0);
}

static void a_shuffle_is_a_permutation(void **state)
{
    (void)state;
    struct rng rng;
    int array[100], moved = 0, seen[100] = {0};
    rng_seed(&rng, 5, 0);
    for (int i = 0; i < 100; i++)
        array[i] = i;
    rng_shuffle(&rng, array, 100);
    for (int i = 0; i < 100; i++) {
        seen[array[i]]++;
        moved += array[i] != i;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
    assert_true(moved > 80);
    rng_shuffle(&rng, array, 1);
    rng_shuffle(&rng, NULL, 0);
}

static void the_hash_separates_neighbours(void **state)
{
    (void)state;
    int flipped = 0;
    for (uint64_t i = 0; i < 256; i++) {
        assert_true(rng_hash(3, i) == rng_hash(3, i));
        flipped += __builtin_popcountll(rng_hash(3, i) ^ rng_hash(3, i + 1));
        flipped += __builtin_popcountll(rng_hash(i, 3) ^ rng_hash(i + 1, 3));
        assert_true(i == 3 || rng_hash(3, i) != rng_hash(i, 3));
    }
    assert_in_range(flipped / 512, 30, 34);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recurrence_is_xoshiro256starstar),
        cmocka_unit_test(a_seed_is_a_stream),
        cmocka_unit_test(uniform_and_normal_have_their_moments),
        cmocka_unit_test(below_is_bounded_and_even),
        cmocka_unit_test(a_shuffle_is_a_permutation),
        cmocka_unit_test(the_hash_separates_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
