/* train/data_order.c -- a shuffle that any position can be asked of: no table, so that a file of any size costs nothing to open.
 *
 * A Feistel network is a bijection of 2 * half bits whatever its round function is. Values beyond n are sent through again until they
 * fall below it, which keeps it a bijection of 0 .. n - 1; the domain is less than 4 n, so four turns are the mean at worst.
 */
#include "train/data_private.h"

#include "base/rng.h"

enum { ROUNDS = 6 };

static uint64_t permute(const uint64_t key[ROUNDS], int half, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << half) - 1, left = value >> half, right = value & mask;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t next = left ^ (rng_hash(key[i], right) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

int64_t data_order(uint64_t seed, int64_t epoch, int64_t n, int64_t i)
{
    uint64_t key[ROUNDS], value = (uint64_t)i;
    int half = 1;
    while (half < 31 && INT64_C(1) << 2 * half < n)
        half++;
    if (INT64_C(1) << 2 * half < n)
        half = 32; /* more than 2^62 windows: beyond any file, and still right */
    for (int round = 0; round < ROUNDS; round++)
        key[round] = rng_hash(rng_hash(seed, (uint64_t)epoch), (uint64_t)round);
    do
        value = permute(key, half, value);
    while (value >= (uint64_t)n);
    return (int64_t)value;
}
