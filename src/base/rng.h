/* base/rng.h -- seeded random numbers; the same seed gives the same stream everywhere. Not for secrets. */
#ifndef SPTUNE_BASE_RNG_H
#define SPTUNE_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rng {
    uint64_t s[4];
};

void rng_seed(struct rng *rng, uint64_t seed, uint64_t stream); /* independent streams for one seed */
uint64_t rng_u64(struct rng *rng);
double rng_uniform(struct rng *rng);                     /* [0, 1) */
double rng_normal(struct rng *rng);                      /* mean 0, variance 1 */
int64_t rng_below(struct rng *rng, int64_t n);           /* [0, n), n >= 1 */
void rng_shuffle(struct rng *rng, int *array, int n);

/* A bijection of 64 bits in which every input bit flips half of the output bits (SplitMix64's finaliser). */
static inline uint64_t rng_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A stateless mix of a counter: index-encoded test data and per-element fills. Inline: half of it is the key's alone. */
static inline uint64_t rng_hash(uint64_t key, uint64_t counter)
{
    const uint64_t golden =
        0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: neighbours land far apart, and 0 is no fixed point */
    return rng_mix(rng_mix(key + golden) ^ (counter + 1) * golden);
}

#ifdef __cplusplus
}
#endif
#endif
