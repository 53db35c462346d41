/* sp/exec_chunk.c -- head arithmetic of chunks. */
#include "sp/exec_chunk.h"

#include "model/model.h"

/* The query heads and the kv heads they read, without what other chunks do. */
static void heads_of(const struct problem *problem, const struct plan *plan, int rank, int chunk,
                     struct exec_chunk *out)
{
    int group = problem->heads / problem->kv_heads, ranks = plan_head_ranks(plan);
    plan_chunk(problem, plan, chunk, &out->first, &out->count);
    int head = rank * (problem->heads / ranks) + out->first; /* global */
    out->group_first = head % group;
    out->kv_first = head / group - model_kv_first(problem->kv_heads, ranks, rank);
    out->kv_count = (out->group_first + out->count - 1) / group + 1;
}

void exec_chunk(const struct problem *problem, const struct plan *plan, int rank, int chunk, struct exec_chunk *out)
{
    struct exec_chunk before;
    int moved = 0;
    heads_of(problem, plan, rank, chunk, out);
    if (chunk > 0) {
        heads_of(problem, plan, rank, chunk - 1, &before);
        moved = before.kv_first + before.kv_count;
    }
    out->new_first = out->kv_first > moved ? out->kv_first : moved;
    out->new_count = out->kv_first + out->kv_count - out->new_first;
    out->out_first = out->kv_first;
    out->out_count = out->kv_count;
    if (exec_chunk_shared(problem, plan, rank)) {
        bool last = chunk == plan->chunks - 1;
        out->out_first = 0;
        out->out_count = last ? model_kv_local(problem->kv_heads, plan_head_ranks(plan)) : 0;
    }
}

void exec_chunk_rest(const struct exec_chunk *first, int heads, int kv_heads, struct exec_chunk *out)
{
    *out = (struct exec_chunk){.first = first->count, .new_first = first->new_count};
    out->count = heads - out->first;
    out->new_count = kv_heads - out->new_first;
}

bool exec_chunk_shared(const struct problem *problem, const struct plan *plan, int rank)
{
    struct exec_chunk chunk;
    for (int c = 1; c < plan->chunks; c++) {
        heads_of(problem, plan, rank, c, &chunk);
        if (chunk.group_first != 0)
            return true;
    }
    return false;
}

int64_t exec_row_elems(const struct problem *problem, const struct plan *plan)
{
    int64_t heads = problem->heads / plan_head_ranks(plan),
            kv = model_kv_local(problem->kv_heads, plan_head_ranks(plan));
    int64_t dim = problem->head_dim, dim_v = problem_dim_v(problem);
    int64_t in = heads * dim + kv * (dim + dim_v), out = heads * dim_v;
    return in > out ? in : out;
}
