/* tests/kernels/test_attention_flash2.c -- flash2's index arithmetic, exhaustively for small shapes; no GPU is needed. */
#include "kernels/attention_flash2_index.h"

#include "base/check.h"
#include "base/rng.h"

#include <stdlib.h>

static void swizzle_is_a_permutation_without_bank_conflicts(void **state)
{
    (void)state;
    static const int chunks[] = {4, 8, 12, 16, 32};
    for (int c = 0; c < CHECK_COUNT(chunks); c++)
        for (int row = 0; row < 64; row++) {
            uint64_t seen = 0;
            for (int chunk = 0; chunk < chunks[c]; chunk++) {
                int at = flash2_swizzle(chunks[c], row, chunk);
                assert_in_range(at, 0, chunks[c] - 1);
                seen |= UINT64_C(1) << at;
            }
            assert_int_equal(seen, (UINT64_C(1) << chunks[c]) - 1);
        }
    for (int c = 0; c < CHECK_COUNT(chunks); c++)
        for (int chunk = 0; chunk < chunks[c]; chunk++)
            for (int row = 0; row < 64; row += 8) { /* the 8 rows of one matrix: 8 different groups of 4 banks */
                unsigned banks = 0;
                for (int r = row; r < row + 8; r++)
                    banks |= 1u << (r * chunks[c] + flash2_swizzle(chunks[c], r, chunk)) % 8;
                assert_int_equal(banks, 0xff);
            }
}

/* What a kernel's lane relies on: an even step along a row is an xor, a step of 8 rows changes nothing. */
static void swizzle_steps_by_xor(void **state)
{
    (void)state;
    static const int chunks[] = {4, 8, 12, 16, 32};
    for (int c = 0; c < CHECK_COUNT(chunks); c++)
        for (int row = 0; row < 32; row++)
            for (int low = 0; low < 2; low++)
                for (int step = 0; step + low < chunks[c]; step += 2)
                    assert_int_equal(flash2_swizzle(chunks[c], row + 8, low + step),
                                     flash2_swizzle(chunks[c], row, low) ^ step);
}

static struct attention_shape shape_of(int64_t seq_q, int64_t seq_k, int causal, int64_t window)
{
    struct attention_shape shape = {.batch = 1,
                                    .seq_q = seq_q,
                                    .seq_k = seq_k,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .group = 1,
                                    .causal = (enum attention_causal)causal,
                                    .window = window};
    return shape;
}

static bool within(struct flash2_blocks blocks, int32_t at)
{
    return at >= blocks.first && at < blocks.end;
}

/* One mask against the pairs that attention_mask.h tells. */
static void mask_agrees(const struct attention_shape *shape, const struct attention_segment *segment, int32_t bm,
                        int32_t bn)
{
    int32_t seq_q = (int32_t)segment->seq_q, seq_k = (int32_t)segment->seq_k;
    struct flash2_mask mask = flash2_mask_make(shape->causal, shape->window, seq_q, seq_k, segment->hidden);
    for (int32_t i = 0; i < seq_q; i++) {
        struct attention_range keys = attention_keys(shape, segment, i);
        for (int32_t j = 0; j < seq_k + 2; j++)
            assert_int_equal(flash2_sees(&mask, i, j), j >= keys.first && j < keys.end);
    }
    for (int32_t m = 0; m * bm < seq_q; m++) {
        int32_t i0 = m * bm, i1 = flash2_min(i0 + bm, seq_q);
        struct flash2_blocks blocks = flash2_key_blocks(&mask, i0, i1, bn);
        assert_true(blocks.first <= blocks.end);
        for (int32_t n = 0; n * bn < seq_k; n++) {
            bool some = false, all = (n + 1) * bn <= seq_k;
            for (int32_t i = i0; i < i1; i++)
                for (int32_t j = n * bn; j < (n + 1) * bn; j++) {
                    some |= flash2_sees(&mask, i, j);
                    all &= flash2_sees(&mask, i, j);
                }
            assert_true(!some || within(blocks, n));
            assert_int_equal(flash2_all_seen(&mask, i0, i1, n * bn, (n + 1) * bn), all);
            /* both directions visit the same pairs of blocks: the turns of dQ count on it */
            assert_int_equal(within(blocks, n), within(flash2_query_blocks(&mask, n, bn, bm), m));
        }
        assert_true(blocks.first == blocks.end || blocks.end <= (seq_k + bn - 1) / bn);
    }
}

static void blocks_meet_where_pairs_are(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 3, 7, 8, 9, 16, 21}, windows[] = {0, 1, 2, 5, 8, 17, 40, INT64_MAX};
    static const int32_t tiles[][2] = {{1, 1}, {4, 8}, {8, 4}, {8, 8}, {3, 5}};
    for (int at = 0; at < 9 * 9 * 3 * 8 * 5; at++) {
        int q = at % 9, k = at / 9 % 9, causal = at / 81 % 3, w = at / 243 % 8, t = at / 1944;
        struct attention_shape shape = shape_of(lengths[q], lengths[k], causal, windows[w]);
        struct attention_segment segment = attention_segment_get(&shape, 0);
        mask_agrees(&shape, &segment, tiles[t][0], tiles[t][1]);
        segment.hidden = true;
        mask_agrees(&shape, &segment, tiles[t][0], tiles[t][1]);
    }
}

static void far_positions_do_not_overflow(void **state)
{
    (void)state;
    static const int windows[] = {0, 1, 1 << 20};
    int32_t longest = FLASH2_FAR - 1;
    for (int at = 0; at < 9; at++) {
        struct flash2_mask mask =
            flash2_mask_make((enum attention_causal)(at % 3), windows[at / 3], longest, longest, false);
        int32_t blocks = (longest + 127) / 128;
        struct flash2_blocks keys = flash2_key_blocks(&mask, longest - 64, longest, 128);
        assert_int_equal(keys.end, blocks);
        struct flash2_blocks queries = flash2_query_blocks(&mask, blocks - 1, 128, 64);
        assert_true(queries.first < queries.end && queries.end == (longest + 63) / 64);
        assert_true(flash2_sees(&mask, longest - 1, longest - 1));
    }
}

static void work_comes_once_each(void **state)
{
    (void)state;
    for (int64_t tiles = 1; tiles < 7; tiles++)
        for (int64_t units = 1; units < 9; units++)
            for (int64_t section = 1; section < 11; section++) {
                struct flash2_order order = {tiles, units, section};
                unsigned char seen[64] = {0};
                int64_t last[16];
                for (int u = 0; u < 16; u++)
                    last[u] = -1;
                for (int64_t i = 0; i < tiles * units; i++) {
                    struct flash2_work work = flash2_work_at(&order, i);
                    assert_in_range(work.tile, 0, tiles - 1);
                    assert_in_range(work.unit, 0, units - 1);
                    assert_int_equal(seen[work.tile * units + work.unit]++, 0);
                    assert_int_equal(work.tile,
                                     last[work.unit] + 1); /* a unit's tiles start in order: no wait for later work */
                    last[work.unit] = work.tile;
                }
            }
}

static void sections_are_equal(void **state)
{
    (void)state;
    for (int64_t units = 0; units < 40; units++)
        for (int64_t most = 1; most < 45; most++) {
            int64_t section = flash2_section(units, most), sections = (units + most - 1) / most;
            assert_in_range(section, 1, most);
            assert_int_equal((units + section - 1) / section, sections);
            assert_true(units == 0 || section - units / sections <= 1);
        }
}

static void tiles_of_packed_documents_are_found(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 5, 0);
    for (int run = 0; run < 300; run++) {
        enum { DOCS = 7, BM = 4, BN = 3 };
        int64_t cu_q[DOCS + 1], cu_k[DOCS + 1];
        struct flash2_entry entry[DOCS + 3];
        cu_q[0] = rng_below(&rng, 3) * (run % 2);
        cu_k[0] = rng_below(&rng, 3) * (run % 3);
        for (int d = 0; d < DOCS; d++) {
            cu_q[d + 1] = cu_q[d] + rng_below(&rng, 12) * rng_below(&rng, 2);
            cu_k[d + 1] = cu_k[d] + rng_below(&rng, 12) * rng_below(&rng, 2);
        }
        struct attention_shape shape = shape_of(cu_q[DOCS] + run % 4, cu_k[DOCS] + run % 5, 1, 0);
        shape.docs = DOCS;
        shape.cu_q = cu_q;
        shape.cu_k = cu_k;
        for (int i = 0; i < DOCS + 3; i++)
            entry[i] = flash2_entry_make(&shape, BM, BN, i, i == 0 ? NULL : &entry[i - 1]);
        int64_t rows_q = 0, rows_k = 0;
        for (int32_t tile = 0; tile < entry[DOCS + 2].q_tile_first; tile++) {
            int at = flash2_entry_find(entry, DOCS + 2, true, tile);
            int32_t first = entry[at].q_first + (tile - entry[at].q_tile_first) * BM;
            assert_int_equal(first, rows_q); /* the tiles in order cover every token once */
            rows_q += flash2_min(BM, entry[at + 1].q_first - first);
            bool hidden = first < cu_q[0] || first >= cu_q[DOCS];
            assert_int_equal(hidden, at == 0 || at == DOCS + 1);
        }
        for (int32_t tile = 0; tile < entry[DOCS + 2].k_tile_first; tile++) {
            int at = flash2_entry_find(entry, DOCS + 2, false, tile);
            int32_t first = entry[at].k_first + (tile - entry[at].k_tile_first) * BN;
            assert_int_equal(first, rows_k);
            rows_k += flash2_min(BN, entry[at + 1].k_first - first);
        }
        assert_int_equal(rows_q, shape.seq_q);
        assert_int_equal(rows_k, shape.seq_k);
    }
}

static void splits_cover_every_head_once(void **state)
{
    (void)state;
    for (int group = 1; group < 8; group++)
        for (int first = 0; first < group; first++)
            for (int heads = 1; heads < 20; heads++)
                for (int splits = 1; splits <= group; splits++) {
                    int kv_heads = (first + heads - 1) / group + 2, at = 0; /* the last kv head has no query head */
                    for (int kv = 0; kv < kv_heads; kv++)
                        for (int split = 0; split < splits; split++) {
                            struct flash2_heads of = flash2_heads_of(kv, split, splits, group, first, heads);
                            for (int head = of.first; head < of.end; head++) {
                                assert_int_equal(head, at++);
                                assert_int_equal((first + head) / group, kv);
                            }
                        }
                    assert_int_equal(at, heads);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swizzle_is_a_permutation_without_bank_conflicts),
        cmocka_unit_test(swizzle_steps_by_xor),
        cmocka_unit_test(blocks_meet_where_pairs_are),
        cmocka_unit_test(far_positions_do_not_overflow),
        cmocka_unit_test(splits_cover_every_head_once),
        cmocka_unit_test(work_comes_once_each),
        cmocka_unit_test(sections_are_equal),
        cmocka_unit_test(tiles_of_packed_documents_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
