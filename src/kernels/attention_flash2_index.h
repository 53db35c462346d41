/* kernels/attention_flash2_index.h -- where flash2's tiles lie: shared-memory swizzle, which blocks meet, order of work.
 *
 * Within a segment (a batch item, a packed document) positions are int32: row i sees keys [i + first_shift, i + end_shift) of
 * [0, seq_k), whatever the mask; FAR shifts mean no bound. A segment is shorter than FLASH2_FAR.
 *
 * Included by host code, device code and tests: valid C11, C++ and CUDA.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_FLASH2_INDEX_H
#define SPTUNE_KERNELS_ATTENTION_FLASH2_INDEX_H

#include "kernels/attention_mask.h"

enum { FLASH2_FAR = 1 << 29 };

/* 16-byte chunk `chunk` of row `row` sits at this chunk of the row, so that 8 rows at one chunk use all 32 banks: a row of
 * 128 bytes or a multiple starts at bank 0, rows of 64 or 192 bytes start at banks 0 and 16 in turn. */
ATTENTION_INLINE int flash2_swizzle(int chunks_per_row, int row, int chunk)
{
    return chunks_per_row % 8 == 0 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
}

struct flash2_mask {
    int32_t seq_q, seq_k, first_shift, end_shift;
};

struct flash2_blocks {
    int32_t first, end; /* [first, end); first == end: none */
};

ATTENTION_INLINE struct flash2_mask flash2_mask_make(enum attention_causal causal, int64_t window, int32_t seq_q,
                                                     int32_t seq_k, bool hidden)
{
    int32_t shift = causal == ATTENTION_BOTTOM_RIGHT ? seq_k - seq_q : 0;
    struct flash2_mask mask = {seq_q, seq_k, -FLASH2_FAR, FLASH2_FAR};
    if (causal != ATTENTION_FULL)
        mask.end_shift = shift + 1;
    if (window > 0 && window < (int64_t)seq_q + seq_k)
        mask.first_shift = shift + 1 - (int32_t)window;
    if (hidden)
        mask.end_shift = -FLASH2_FAR;
    return mask;
}

ATTENTION_INLINE int32_t flash2_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

ATTENTION_INLINE int32_t flash2_max(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

ATTENTION_INLINE bool flash2_sees(const struct flash2_mask *mask, int32_t i, int32_t j)
{
    return j >= i + mask->first_shift && j < i + mask->end_shift && j < mask->seq_k;
}

/* Key blocks of bn keys that some query of [i0, i1) may see: those between the first row's first key and the last row's last. */
ATTENTION_INLINE struct flash2_blocks flash2_key_blocks(const struct flash2_mask *mask, int32_t i0, int32_t i1,
                                                        int32_t bn)
{
    struct flash2_blocks none = {0, 0};
    int32_t first = flash2_max(0, i0 + mask->first_shift);
    int32_t end = flash2_min(mask->seq_k, i1 - 1 + mask->end_shift);
    if (first >= end)
        return none;
    struct flash2_blocks blocks = {first / bn, (end - 1) / bn + 1};
    return blocks;
}

/* Query blocks of bm rows for which key block n is one of flash2_key_blocks. */
ATTENTION_INLINE struct flash2_blocks flash2_query_blocks(const struct flash2_mask *mask, int32_t n, int32_t bn,
                                                          int32_t bm)
{
    struct flash2_blocks none = {0, 0};
    int32_t key_end = flash2_min((n + 1) * bn, mask->seq_k);
    int32_t i_first = flash2_max(0, n * bn - mask->end_shift + 1); /* i + end_shift > n * bn */
    int32_t i_end = key_end - mask->first_shift;                   /* i0 + first_shift < key_end */
    if (i_first >= mask->seq_q || i_end <= 0)
        return none;
    struct flash2_blocks blocks = {i_first / bm, flash2_min((i_end - 1) / bm, (mask->seq_q - 1) / bm) + 1};
    if (blocks.first >= blocks.end)
        return none;
    return blocks;
}

/* Does every query of [i0, i1) see every key of [j0, j1)? Then no mask is needed. */
ATTENTION_INLINE bool flash2_all_seen(const struct flash2_mask *mask, int32_t i0, int32_t i1, int32_t j0, int32_t j1)
{
    return j1 <= mask->seq_k && j1 <= i0 + mask->end_shift && j0 >= i1 - 1 + mask->first_shift;
}

struct flash2_heads {
    int32_t first, end;
};

/* Query heads of kv head `kv` that split `split` of `splits` sums; maybe none. */
ATTENTION_INLINE struct flash2_heads flash2_heads_of(int kv, int split, int splits, int group, int group_first,
                                                     int heads)
{
    int per = (group + splits - 1) / splits, base = kv * group - group_first;
    int32_t first = base + flash2_min(split * per, group), end = base + flash2_min((split + 1) * per, group);
    struct flash2_heads out = {flash2_min(flash2_max(first, 0), heads), flash2_min(flash2_max(end, 0), heads)};
    return out;
}

/* Order of work: units (batch items times heads) in sections whose keys fit in L2 together; within a section tile by tile, so
 * that tiles of one length start together and the short ones come last. */
struct flash2_order {
    int64_t tiles, units, section; /* tiles per unit, units, units per section (>= 1) */
};

/* Sections of at most `most` units (>= 1), as equal as can be. */
ATTENTION_INLINE int64_t flash2_section(int64_t units, int64_t most)
{
    int64_t sections = (units + most - 1) / most;
    return sections > 0 ? (units + sections - 1) / sections : 1;
}

struct flash2_work {
    int64_t tile, unit;
};

ATTENTION_INLINE struct flash2_work flash2_work_at(const struct flash2_order *order, int64_t index)
{
    int64_t per_section = order->tiles * order->section;
    int64_t section = index / per_section, rest = index - section * per_section;
    int64_t left = order->units - section * order->section;
    int64_t width = left < order->section ? left : order->section;
    struct flash2_work work = {rest / width, section * order->section + rest % width};
    return work;
}

/* Packed documents as ascending entries: before the first document (hidden), the documents, after the last (hidden), and an
 * entry that ends the list. */
struct flash2_entry {
    int32_t q_first, k_first;           /* tokens */
    int32_t q_tile_first, k_tile_first; /* tiles before this entry's */
};

ATTENTION_INLINE int64_t flash2_tiles_of(int64_t rows, int per_tile)
{
    return (rows + per_tile - 1) / per_tile;
}

/* Entry `index` of a packed shape, 0 <= index < docs + 3, for tiles of tile_q and tile_k rows; `before`: the one before it, NULL
 * for the first. */
ATTENTION_INLINE struct flash2_entry flash2_entry_make(const struct attention_shape *shape, int tile_q, int tile_k,
                                                       int index, const struct flash2_entry *before)
{
    struct flash2_entry entry = {0, 0, 0, 0};
    if (before == NULL)
        return entry;
    bool end = index == shape->docs + 2;
    entry.q_first = (int32_t)(end ? shape->seq_q : shape->cu_q[index - 1]);
    entry.k_first = (int32_t)(end ? shape->seq_k : shape->cu_k[index - 1]);
    entry.q_tile_first = before->q_tile_first + (int32_t)flash2_tiles_of(entry.q_first - before->q_first, tile_q);
    entry.k_tile_first = before->k_tile_first + (int32_t)flash2_tiles_of(entry.k_first - before->k_first, tile_k);
    return entry;
}

/* The entry whose tile this is; `by_q` chooses which tiles. Entries without tiles are never found. */
ATTENTION_INLINE int flash2_entry_find(const struct flash2_entry *entries, int count, bool by_q, int32_t tile)
{
    int low = 0, high = count; /* first tile of low <= tile < first tile of high */
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        int32_t at = by_q ? entries[mid].q_tile_first : entries[mid].k_tile_first;
        if (at <= tile)
            low = mid;
        else
            high = mid;
    }
    return low;
}

struct flash2_segment {
    struct flash2_mask mask;
    int64_t batch, q_token, k_token; /* first tokens, from the start of the batch item */
    int64_t q_tile_first;
    int32_t tile; /* within the segment */
};

#endif
