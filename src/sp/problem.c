/* sp/problem.c -- the values of an attention problem: from a model, checked, padded. */
#include "sp/problem.h"

#include "base/mem.h"

#include <limits.h>
#include <string.h>

void problem_from_model(const struct model *model, int64_t seq, int world, struct problem *out)
{
    memset(out, 0, sizeof *out);
    out->batch = 1;
    out->seq = seq;
    out->heads = model->heads;
    out->kv_heads = model->kv_heads;
    out->head_dim = model->head_dim;
    out->head_dim_v = model->head_dim_v;
    out->hidden = model->hidden;
    out->ffn = model->ffn;
    out->dtype = DTYPE_BF16;
    out->causal = true;
    /* Where only some layers slide, the layers that see everything cost most and are what this problem stands for. */
    out->window = model->window_layers >= model->layers ? model->window : 0;
    out->direction = PROBLEM_BOTH;
    out->world = world;
}

bool problem_alike(const struct problem *a, const struct problem *b)
{
    return a->batch == b->batch && a->seq == b->seq && a->seq_fixed == b->seq_fixed && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->head_dim_v == b->head_dim_v &&
           a->hidden == b->hidden && a->ffn == b->ffn && a->dtype == b->dtype && a->causal == b->causal &&
           a->window == b->window && a->direction == b->direction && a->world == b->world;
}

static enum status positive(const char *name, int64_t value)
{
    if (value >= 1)
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "%s %lld is not positive", name, (long long)value), "use 1 or more");
}

static enum status not_negative(const char *name, int64_t value)
{
    if (value >= 0)
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "%s %lld is negative", name, (long long)value), "use 0 or more");
}

/* The largest tensor, padded for the largest legal sp (at most heads; under ring twice the world, for each rank has two pieces), in
 * fp32: beyond 2^57 bytes nothing that follows is meaningful, and below it nothing of this room wraps: a layer holds about thirty such
 * tensors (work_exec_bytes). */
static enum status size_check(const struct problem *problem)
{
    const int64_t limit = INT64_C(1) << 57;
    int64_t dim = problem->head_dim > problem_dim_v(problem) ? problem->head_dim : problem_dim_v(problem);
    int64_t row, tokens, bytes;
    if (problem->seq > limit)
        return FAIL(STATUS_USAGE, "seq %lld is beyond any machine", (long long)problem->seq);
    TRY(mem_mul(problem->batch, problem->seq + problem->heads + 2 * (int64_t)problem->world, "batch x seq", &tokens));
    TRY(mem_mul(problem->heads, dim * 4, "heads x head_dim", &row));
    TRY(mem_mul(tokens, row, "batch x seq x heads x head_dim", &bytes));
    if (bytes > limit)
        return HINT(FAIL(STATUS_USAGE, "batch %lld x seq %lld x %d heads x head_dim %lld is beyond any machine",
                         (long long)problem->batch, (long long)problem->seq, problem->heads, (long long)dim),
                    "one tensor in fp32 has at most 2^57 bytes");
    int64_t wide = problem->hidden > problem->ffn ? problem->hidden : problem->ffn;
    TRY(mem_mul(tokens, 4, "batch x seq", &bytes));
    TRY(mem_mul(bytes, wide, "batch x seq x hidden or ffn", &bytes));
    if (bytes > limit)
        return FAIL(STATUS_USAGE, "batch %lld x seq %lld x hidden %lld or ffn %lld is beyond any machine",
                    (long long)problem->batch, (long long)problem->seq, (long long)problem->hidden,
                    (long long)problem->ffn);
    return STATUS_OK;
}

static enum status docs_check(const struct problem *problem)
{
    int64_t left = problem->seq;
    if (problem->docs < 0 || problem->docs > PROBLEM_MAX_DOCS)
        return HINT(FAIL(STATUS_USAGE, "%d documents in a row", problem->docs), "0 to %d", PROBLEM_MAX_DOCS);
    for (int i = 0; i < problem->docs; i++) {
        TRY(not_negative("length of a document", problem->doc_len[i]));
        if (problem->doc_len[i] > left)
            return HINT(FAIL(STATUS_USAGE, "documents 0 to %d hold more than the %lld tokens of the row", i,
                             (long long)problem->seq),
                        "document lengths sum to seq");
        left -= problem->doc_len[i];
    }
    if (problem->docs > 0 && left != 0)
        return HINT(FAIL(STATUS_USAGE, "%d documents hold %lld tokens, the row %lld", problem->docs,
                         (long long)(problem->seq - left), (long long)problem->seq),
                    "document lengths sum to seq");
    return STATUS_OK;
}

enum status problem_check(const struct problem *problem)
{
    TRY(positive("batch", problem->batch));
    TRY(not_negative("seq", problem->seq));
    TRY(positive("heads", problem->heads));
    TRY(positive("kv_heads", problem->kv_heads));
    TRY(positive("head_dim", problem->head_dim));
    TRY(not_negative("head_dim_v", problem->head_dim_v));
    TRY(not_negative("hidden", problem->hidden));
    TRY(not_negative("ffn", problem->ffn));
    TRY(not_negative("window", problem->window));
    TRY(positive("world", problem->world));
    if (problem->heads % problem->kv_heads != 0)
        return HINT(FAIL(STATUS_USAGE, "%d heads do not divide into groups over %d kv_heads", problem->heads,
                         problem->kv_heads),
                    "heads is a multiple of kv_heads");
    if ((unsigned)problem->dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "dtype %d does not exist", (int)problem->dtype);
    if (problem->direction < PROBLEM_FORWARD || problem->direction > PROBLEM_BOTH)
        return FAIL(STATUS_USAGE, "direction %d does not exist", (int)problem->direction);
    TRY(size_check(problem));
    return docs_check(problem);
}

int64_t problem_padded(const struct problem *problem, int sp)
{
    if (sp < 1)
        return problem->seq;
    int64_t rest = problem->seq % sp;
    return rest == 0 ? problem->seq : problem->seq + (sp - rest);
}

int64_t problem_local(const struct problem *problem, int sp)
{
    return problem_padded(problem, sp) / (sp > 1 ? sp : 1);
}

int problem_dim_v(const struct problem *problem)
{
    return problem->head_dim_v > 0 ? problem->head_dim_v : problem->head_dim;
}

enum status problem_cut(struct problem *problem, int ways, int64_t padded)
{
    int64_t padding = padded - problem->seq;
    if (padding > 0 && problem->docs == PROBLEM_MAX_DOCS)
        return FAIL(STATUS_UNSUPPORTED, "%d documents and padding of %lld tokens: at most %d documents then",
                    problem->docs, (long long)padding, PROBLEM_MAX_DOCS - 1);
    if (padding > 0 && problem->docs == 0 && !problem->causal)
        problem->doc_len[problem->docs++] = problem->seq;
    if (padding > 0 && problem->docs > 0)
        problem->doc_len[problem->docs++] = padding;
    problem->seq = padded;
    problem->heads /= ways;
    problem->kv_heads = model_kv_local(problem->kv_heads, ways);
    return STATUS_OK;
}
