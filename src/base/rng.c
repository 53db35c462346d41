/* base/rng.c -- xoshiro256** (Blackman, Vigna 2018) seeded through a 64-bit finaliser. */
#include "base/rng.h"

#include <math.h>

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

void rng_seed(struct rng *rng, uint64_t seed, uint64_t stream)
{
    uint64_t key = rng_hash(seed, stream);
    for (uint64_t i = 0; i < 4; i++)
        rng->s[i] = rng_hash(key, i);
    if (!(rng->s[0] | rng->s[1] | rng->s[2] | rng->s[3]))
        rng->s[0] = 1; /* all zero is the one state that never moves */
}

uint64_t rng_u64(struct rng *rng)
{
    uint64_t *s = rng->s, result = rotate(s[1] * 5, 7) * 9, shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate(s[3], 45);
    return result;
}

double rng_uniform(struct rng *rng)
{
    return (double)(rng_u64(rng) >> 11) * 0x1p-53;
}

double rng_normal(struct rng *rng)
{
    const double two_pi = 6.283185307179586;
    double radius = sqrt(-2.0 * log(1.0 - rng_uniform(rng))); /* 1 - [0,1) is never 0 */
    return radius * cos(two_pi * rng_uniform(rng));
}

int64_t rng_below(struct rng *rng, int64_t n)
{
    if (n <= 1)
        return 0;
    uint64_t range = (uint64_t)n;
    uint64_t reject = (0 - range) % range; /* 2^64 mod n: below it the remainder would be biased */
    uint64_t draw;
    do
        draw = rng_u64(rng);
    while (draw < reject);
    return (int64_t)(draw % range);
}

void rng_shuffle(struct rng *rng, int *array, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)rng_below(rng, (int64_t)i + 1);
        int held = array[i];
        array[i] = array[j];
        array[j] = held;
    }
}
