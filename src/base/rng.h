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
/* A stateless mix of a counter: index-encoded test data and per-element fills. */
uint64_t rng_hash(uint64_t key, uint64_t counter);

#ifdef __cplusplus
}
#endif
#endif
