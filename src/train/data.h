/* train/data.h -- what a rank reads: rows of tokens with labels, positions and documents, from a file of bytes or of token ids.
 *
 * The file is cut into windows of as many tokens as the longest row. Each epoch takes them in another order, none twice, and a step
 * takes the next micro_batch x accumulate x groups of them; what is left at the end of an epoch is less than a step and waits for
 * the next order. Everything is a function of (options, size of the file, step): every rank knows without asking how many steps there are,
 * and a run goes on at step n by asking for step n.
 *
 * Who reads what. W ranks form W / P groups of P consecutive ranks each (plan_sequence_ranks). Every rank has windows of its own, as under
 * HuggingFace Accelerate, and a group takes those of its P ranks one after another, each cut P ways. So all ranks of a group read the same row, groups
 * read different ones, and a step sees micro_batch * accumulate * W / P rows. Micro-step m of a step reads the windows of all groups
 * before micro-step m + 1 reads any: splits with the same number of rows per step see the same rows in the same steps.
 *
 * Rows. Inputs are `seq` tokens; the label of a token is the one after it, also across the cut between ranks, and of the last token of a
 * row the first that follows in the file. Rows are then padded to a multiple of pad_to: id 0, label DATA_IGNORED, positions from
 * 0 again. With several lengths, one is drawn for each step, and a shorter row begins anywhere in its window.
 * Packed, a document ends after the separator (of several in a row, after the last): its last token has no label and positions begin
 * again at 0. A document that a row cuts goes on as one of its own; what a row holds beyond PROBLEM_MAX_DOCS - 2 documents becomes
 * one document without labels.
 *
 *     TRY(data_open(&options, &data));
 *     for (int64_t step = first; step < data_steps(data); step++)
 *         for (int micro = 0; micro < accumulate; micro++) {
 *             shard_of(plan, data_padded(data, step), data_index(rank, ranks), &shard);
 *             TRY(data_read(data, step, micro, data_group(rank, ranks), &shard, &batch));
 *         }
 *     data_batch_free(&batch);
 *     data_close(data);
 */
#ifndef SPTUNE_TRAIN_DATA_H
#define SPTUNE_TRAIN_DATA_H

#include "base/status.h"
#include "kernels/nn.h"
#include "sp/shard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DATA_IGNORED = NN_IGNORE, DATA_SEPARATOR_MAX = 16 };

/* Little-endian ids without a header; DATA_BYTES is any file, its bytes being the tokens. */
enum data_form { DATA_BYTES, DATA_U16, DATA_U32 };
const char *data_form_name(enum data_form form); /* "bytes" */
/* `auto` goes by the end of the path: .u16, .u32, else bytes. */
enum status data_form_parse(const char *text, const char *option, const char *path, enum data_form *out);

struct data_separator {
    int n; /* 0: rows are not packed */
    int32_t token[DATA_SEPARATOR_MAX];
};
/* Of bytes: text with \n \t \r \0 \\ \xHH, as "\n\n". Of ids: numbers with commas. */
enum status data_separator_parse(const char *text, const char *option, enum data_form form, struct data_separator *out);

struct data_options {
    const char *path;
    const char *name; /* what messages call it; NULL: path */
    enum data_form form;
    int64_t vocab;       /* every token is below it; bytes: 256 */
    const int64_t *seqs; /* lengths of rows before padding; one of them is drawn for each step */
    int n_seqs;
    int64_t pad_to; /* rows become a multiple of it */
    struct data_separator separator;
    int micro_batch; /* rows per micro-step of a group */
    int accumulate;  /* micro-steps per step */
    int groups;      /* W / P */
    int64_t epochs;
    uint64_t seed;
};

struct data; /* owned; one thread uses it */
/* STATUS_USAGE: what the options or the file lack, with what would be right. Borrows nothing after the call. */
enum status data_open(const struct data_options *options, struct data **out);
void data_close(struct data *data); /* accepts NULL */

/* Is every token of the file below the vocabulary? Ranks share the question, in rounds of at most 128 MiB each; 0 where no token of this form is
 * as large. */
int data_check_rounds(const struct data *data, int ranks);
/* Part `part` of `parts` of it. STATUS_USAGE names the first that is not; an interrupt ends it. */
enum status data_check(struct data *data, int part, int parts);

/* A hash of up to 64 pieces of the file, of 4 KiB each, its ends among them: two that differ are different files. */
enum status data_sample(const struct data *data, uint64_t *out);

int64_t data_tokens(const struct data *data);            /* of the file */
int64_t data_steps(const struct data *data);             /* that every group can be served in; the same on every rank */
int64_t data_seq(const struct data *data, int64_t step); /* tokens of its rows before padding */
int64_t data_padded(const struct data *data, int64_t step); /* and after */
/* The first token, in the file, of one row. */
int64_t data_first(const struct data *data, int64_t step, int micro, int group, int row);

/* Groups are `ranks` consecutive ranks: which one, and which place in it. */
static inline int data_group(int rank, int ranks)
{
    return rank / ranks;
}
static inline int data_index(int rank, int ranks)
{
    return rank % ranks;
}

/* The first n tokens of the file, n at most the longest row. */
enum status data_head(struct data *data, int64_t n, int32_t *out);

/* One micro-step of one rank. Zero-initialise; owned by the caller, used again from read to read. */
struct data_batch {
    int rows;
    int64_t seq, padded;               /* of whole rows */
    int64_t local;                     /* tokens of a row that this rank holds */
    int32_t *ids, *labels, *positions; /* [rows][local] */
    int32_t *docs;                     /* [rows] in each whole row; NULL: not packed */
    int64_t
        *doc_len;  /* [rows][PROBLEM_MAX_DOCS] of whole rows, sum = seq, padding is no part of any. NULL: not packed */
    int64_t valid; /* labels that count in all whole rows: of the group, not of the rank */
    void *store, *doc_store; /* what the pointers point into */
    size_t store_cap, doc_cap;
};
/* A token that is not below the vocabulary and a file that became shorter are STATUS_USAGE and STATUS_IO; a step beyond data_steps
 * is STATUS_NODATA. All ranks of a group fail alike, but not all groups: agree before the next collective. */
enum status data_read(struct data *data, int64_t step, int micro, int group, const struct shard *shard,
                      struct data_batch *out);
void data_batch_free(struct data_batch *batch);

#endif
