/* scripts/peers/alltoall_mpi.c -- the whole forward exchange of Ulysses by MPI_Alltoall: q, k, v in, then o out.
 *
 * What a trainer written over MPI does, for comparison with `sptune bench exchange`; no part of sptune. Layouts as in
 * src/sp/exchange.h:
 *
 *     sequence side  [B][S/P][heads][D]        every head of my S/P tokens
 *     head side      [B][S][heads/P][D]        my heads of all tokens; with P > kv_heads one kv head per rank
 *
 * One tensor, sequence side to head side; the other way is the mirror image:
 *
 *     pack       [B][S/P][P x h][D]  ->  [P][B][S/P][h][D]      one block per peer
 *     transfer   MPI_Alltoall of blocks
 *     unpack     [P][B][S/P][h][D]   ->  [B][P x S/P][h][D]     with B = 1 a plain copy
 *
 * Forms:  separate   each tensor by its own all-to-all, both passes always (what PyTorch trainers do)
 *         needed     the same, without the pass that B = 1 does not need
 *         together   q, k, v in one all-to-all; o without the pass that B = 1 does not need
 *
 * Driven over stdin of rank 0, one command a line:
 *
 *     run ITERATIONS FORM S HEADS KV_HEADS D B ELEM_BYTES BUFFERS
 *
 * answers one JSON line, times_us = per iteration the maximum over ranks, ranks aligned by a barrier before each. BUFFERS: hot, nobody
 * touches them between iterations; used, every rank reads what came to it and rewrites what it sends before each one, untimed, as
 * `sptune bench --buffers used` does (src/bench/use.h).
 * The timed data are verified (every byte is a function of its origin) before the last iteration's answer counts. Ends at end of
 * input. `--once "COMMAND"` runs one and ends; `--corrupt` spoils a byte, to show that verifying finds it.
 * Exit: 0 done; 1 wrong data; 2 wrong usage.
 */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TENSORS = 4, LINE_MAX_BYTES = 256, WARMUPS = 3, CACHE_LINE = 64 };
enum form { SEPARATE, NEEDED, TOGETHER, FORMS };
static const char *const form_names[FORMS] = {"separate", "needed", "together"};

struct command {
    long iterations;
    enum form form;
    int64_t seq, heads, kv_heads, dim, batch, elem_bytes;
    bool used;
};

struct tensor {
    int64_t heads, local; /* on the sequence side; per rank on the head side */
    char *seq, *head;     /* the two sides */
};

struct exchange {
    struct command c;
    int rank, size;
    int64_t tokens;           /* S/P */
    struct tensor t[TENSORS]; /* q k v o */
    char *out, *in;           /* staging, P blocks each */
};

static void fail(int status, const char *what)
{
    fprintf(stderr, "alltoall_mpi: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, status);
}

static char *memory(int64_t bytes)
{
    char *p = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
    if (p == NULL)
        fail(2, "no memory");
    memset(p, 0, (size_t)bytes);
    return p;
}

static int64_t row_bytes(const struct exchange *x)
{
    return x->c.dim * x->c.elem_bytes;
}

static int64_t block_bytes(const struct exchange *x, const struct tensor *t)
{
    return x->c.batch * x->tokens * t->local * row_bytes(x);
}

/* First head that `rank` holds on the head side. */
static int64_t first_head(const struct exchange *x, const struct tensor *t, int rank)
{
    return t->heads >= x->size ? rank * t->local : rank * t->heads / x->size;
}

/* Where the heads for or of `peer` begin in the sequence side of batch b, local token s. */
static char *seq_at(const struct exchange *x, const struct tensor *t, int64_t b, int64_t s, int peer)
{
    return t->seq + ((b * x->tokens + s) * t->heads + first_head(x, t, peer)) * row_bytes(x);
}

/* Where batch b, local token s of `peer` is in the head side. */
static char *head_at(const struct exchange *x, const struct tensor *t, int64_t b, int64_t s, int peer)
{
    return t->head + ((b * x->c.seq + peer * x->tokens + s) * t->local) * row_bytes(x);
}

/* Blocks of consecutive peers are `pitch` bytes apart in staging. */
static void seq_pack(const struct exchange *x, const struct tensor *t, char *to, int64_t pitch)
{
    size_t bytes = (size_t)(t->local * row_bytes(x));
    for (int p = 0; p < x->size; p++) {
        char *d = to + p * pitch;
        for (int64_t b = 0; b < x->c.batch; b++)
            for (int64_t s = 0; s < x->tokens; s++, d += bytes)
                memcpy(d, seq_at(x, t, b, s, p), bytes);
    }
}

static void seq_unpack(const struct exchange *x, const struct tensor *t, const char *from, int64_t pitch)
{
    size_t bytes = (size_t)(t->local * row_bytes(x));
    for (int p = 0; p < x->size; p++) {
        const char *s = from + p * pitch;
        for (int64_t b = 0; b < x->c.batch; b++)
            for (int64_t i = 0; i < x->tokens; i++, s += bytes)
                memcpy(seq_at(x, t, b, i, p), s, bytes);
    }
}

/* A block's tokens of one batch are contiguous on the head side. */
static void head_pack(const struct exchange *x, const struct tensor *t, char *to, int64_t pitch)
{
    size_t bytes = (size_t)(x->tokens * t->local * row_bytes(x));
    for (int p = 0; p < x->size; p++)
        for (int64_t b = 0; b < x->c.batch; b++)
            memcpy(to + p * pitch + b * (int64_t)bytes, head_at(x, t, b, 0, p), bytes);
}

static void head_unpack(const struct exchange *x, const struct tensor *t, const char *from, int64_t pitch)
{
    size_t bytes = (size_t)(x->tokens * t->local * row_bytes(x));
    for (int p = 0; p < x->size; p++)
        for (int64_t b = 0; b < x->c.batch; b++)
            memcpy(head_at(x, t, b, 0, p), from + p * pitch + b * (int64_t)bytes, bytes);
}

static void alltoall(const void *out, void *in, int64_t bytes)
{
    MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* The head side is the blocks one after another. */
static bool is_flat(const struct exchange *x)
{
    return x->c.form != SEPARATE && x->c.batch == 1;
}

static void to_heads_one(const struct exchange *x, const struct tensor *t)
{
    int64_t bytes = block_bytes(x, t);
    seq_pack(x, t, x->out, bytes);
    alltoall(x->out, is_flat(x) ? t->head : x->in, bytes);
    if (!is_flat(x))
        head_unpack(x, t, x->in, bytes);
}

static void to_heads_together(const struct exchange *x)
{
    int64_t pitch = 0, at = 0;
    for (int i = 0; i < 3; i++)
        pitch += block_bytes(x, &x->t[i]);
    for (int i = 0; i < 3; at += block_bytes(x, &x->t[i++]))
        seq_pack(x, &x->t[i], x->out + at, pitch);
    alltoall(x->out, x->in, pitch);
    at = 0;
    for (int i = 0; i < 3; at += block_bytes(x, &x->t[i++]))
        head_unpack(x, &x->t[i], x->in + at, pitch);
}

static void to_seq_one(const struct exchange *x, const struct tensor *t)
{
    int64_t bytes = block_bytes(x, t);
    if (!is_flat(x))
        head_pack(x, t, x->out, bytes);
    alltoall(is_flat(x) ? t->head : x->out, x->in, bytes);
    seq_unpack(x, t, x->in, bytes);
}

static void exchange_run(const struct exchange *x)
{
    if (x->c.form == TOGETHER)
        to_heads_together(x);
    else
        for (int i = 0; i < 3; i++)
            to_heads_one(x, &x->t[i]);
    to_seq_one(x, &x->t[3]);
}

/* Eight bytes that tell tensor, batch, token, head and lane. */
static uint64_t origin(int tensor, int64_t b, int64_t token, int64_t head, int64_t lane)
{
    uint64_t v = (uint64_t)tensor + 4 * ((uint64_t)b + 64 * ((uint64_t)token + (UINT64_C(1) << 30) * (uint64_t)head));
    return (v ^ (uint64_t)lane << 52) * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

enum side { SEQ, HEAD };

/* Writes the side, or says whether it holds what it should. */
static bool side_do(const struct exchange *x, int i, enum side side, bool check)
{
    const struct tensor *t = &x->t[i];
    int64_t tokens = side == SEQ ? x->tokens : x->c.seq, heads = side == SEQ ? t->heads : t->local;
    int64_t token_first = side == SEQ ? x->rank * x->tokens : 0,
            head_first = side == SEQ ? 0 : first_head(x, t, x->rank);
    uint64_t *at = (uint64_t *)(void *)(side == SEQ ? t->seq : t->head);
    for (int64_t b = 0; b < x->c.batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t lane = 0; lane < row_bytes(x) / 8; lane++, at++) {
                    uint64_t want = origin(i, b, token_first + s, head_first + h, lane);
                    if (!check)
                        *at = want;
                    else if (*at != want)
                        return false;
                }
    return true;
}

static int64_t side_bytes(const struct exchange *x, const struct tensor *t, enum side side)
{
    return x->c.batch * (side == SEQ ? x->tokens * t->heads : x->c.seq * t->local) * row_bytes(x);
}

/* o goes from heads to sequence, the others the other way. */
static enum side side_from(int i)
{
    return i == 3 ? HEAD : SEQ;
}

static void poison(const struct exchange *x)
{
    for (int i = 0; i < TENSORS; i++) {
        enum side to = side_from(i) == SEQ ? HEAD : SEQ;
        memset(to == SEQ ? x->t[i].seq : x->t[i].head, 0xa5, (size_t)side_bytes(x, &x->t[i], to));
    }
}

static bool verified(const struct exchange *x)
{
    bool ok = true;
    for (int i = 0; i < TENSORS; i++)
        ok = ok && side_do(x, i, side_from(i) == SEQ ? HEAD : SEQ, true);
    return ok;
}

/* Every line of a side is read, and stored to as well where it is sent from. */
static void side_use(const struct exchange *x, enum side side)
{
    for (int i = 0; i < TENSORS; i++) {
        const struct tensor *t = &x->t[i];
        volatile char *at = side == SEQ ? t->seq : t->head;
        for (int64_t byte = 0; byte < side_bytes(x, t, side); byte += CACHE_LINE) {
            char held = at[byte];
            if (side_from(i) == side)
                at[byte] = held;
        }
    }
}

/* What a layer does between exchanges: attention on the heads, projections on the sequence. */
static void use(const struct exchange *x)
{
    MPI_Barrier(MPI_COMM_WORLD);
    side_use(x, HEAD);
    side_use(x, SEQ);
}

static void exchange_open(const struct command *c, int rank, int size, struct exchange *x)
{
    *x = (struct exchange){.c = *c, .rank = rank, .size = size, .tokens = c->seq / size};
    int64_t staging = 0;
    for (int i = 0; i < TENSORS; i++) {
        struct tensor *t = &x->t[i];
        t->heads = i == 0 || i == 3 ? c->heads : c->kv_heads;
        t->local = t->heads >= size ? t->heads / size : 1;
        t->seq = memory(side_bytes(x, t, SEQ));
        t->head = memory(side_bytes(x, t, HEAD));
        side_do(x, i, side_from(i), false);
        staging += size * block_bytes(x, t);
    }
    x->out = memory(staging);
    x->in = memory(staging);
}

static void exchange_close(struct exchange *x)
{
    for (int i = 0; i < TENSORS; i++) {
        free(x->t[i].seq);
        free(x->t[i].head);
    }
    free(x->out);
    free(x->in);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void time_all(const struct exchange *x, bool corrupt, double *times_us)
{
    for (int i = 0; i < WARMUPS; i++)
        exchange_run(x);
    for (long i = 0; i < x->c.iterations; i++) {
        if (i == x->c.iterations - 1)
            poison(x);
        if (x->c.used)
            use(x);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now_us();
        exchange_run(x);
        times_us[i] = now_us() - begin;
    }
    if (corrupt && x->rank == x->size - 1)
        x->t[2].head[side_bytes(x, &x->t[2], HEAD) / 2] ^= 1;
    int ok = verified(x);
    MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!ok) {
        if (x->rank == 0)
            fprintf(stderr, "alltoall_mpi: wrong data after %s, S=%" PRId64 "\n", form_names[x->c.form], x->c.seq);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void command_run(const struct command *c, int rank, int size, bool corrupt)
{
    struct exchange x;
    exchange_open(c, rank, size, &x);
    double *mine = calloc((size_t)c->iterations, sizeof *mine), *most = calloc((size_t)c->iterations, sizeof *most);
    if (mine == NULL || most == NULL)
        fail(2, "no memory");
    time_all(&x, corrupt, mine);
    MPI_Reduce(mine, most, (int)c->iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        int64_t bytes = 0;
        for (int i = 0; i < TENSORS; i++)
            bytes += size * block_bytes(&x, &x.t[i]);
        printf("{\"form\": \"%s\", \"buffers\": \"%s\", \"ranks\": %d, \"bytes\": %" PRId64
               ", \"verified\": true, \"times_us\": [",
               form_names[c->form], c->used ? "used" : "hot", size, bytes);
        for (long i = 0; i < c->iterations; i++)
            printf("%s%.3f", i > 0 ? ", " : "", most[i]);
        printf("]}\n");
        fflush(stdout);
    }
    free(mine);
    free(most);
    exchange_close(&x);
}

static bool is_legal(const struct command *c, int size)
{
    bool kv = c->kv_heads > 0 && (c->kv_heads % size == 0 || (size % c->kv_heads == 0 && c->kv_heads < size));
    bool positive = c->iterations > 0 && c->iterations <= 1000000 && c->seq > 0 && c->heads > 0 && c->dim > 0 &&
                    c->batch > 0 && c->elem_bytes > 0;
    if (!positive || !kv || c->heads % size != 0 || c->seq % size != 0 || c->dim * c->elem_bytes % 8 != 0)
        return false;
    double together =
        (double)(c->heads + 2 * c->kv_heads) * (double)c->batch * (double)c->seq * (double)(c->dim * c->elem_bytes);
    return together / size < (double)INT_MAX; /* a block's bytes are an int of MPI */
}

static bool command_read(const char *line, int size, struct command *c)
{
    char form[16], buffers[8];
    int n = sscanf(line, "run %ld %15s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %7s",
                   &c->iterations, form, &c->seq, &c->heads, &c->kv_heads, &c->dim, &c->batch, &c->elem_bytes, buffers);
    bool known = n == 9 && (strcmp(buffers, "hot") == 0 || strcmp(buffers, "used") == 0);
    c->used = known && buffers[0] == 'u';
    for (c->form = SEPARATE; known && c->form < FORMS; c->form++)
        if (strcmp(form, form_names[c->form]) == 0)
            return is_legal(c, size);
    return false;
}

/* The other ranks sleep while rank 0 waits for its input: a blocking broadcast would spin, and disturb whoever is timed meanwhile. */
static void command_share(struct command *c)
{
    MPI_Request request;
    int done = 0;
    MPI_Ibcast(c, (int)sizeof *c, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 2000 * 1000}, NULL);
    }
}

/* The next command, from the argument or stdin; iterations 0: no more. */
static struct command command_next(const char **once, bool from_stdin, int rank, int size)
{
    struct command c = {0};
    char line[LINE_MAX_BYTES];
    const char *text = *once;
    if (rank == 0) {
        if (text == NULL && from_stdin)
            text = fgets(line, sizeof line, stdin);
        if (text != NULL && !command_read(text, size, &c))
            fail(2, "want: run ITERATIONS separate|needed|together S HEADS KV_HEADS D B ELEM_BYTES hot|used; "
                    "P divides S and HEADS, KV_HEADS divides P or is divided by it");
        *once = NULL;
    }
    command_share(&c);
    return c;
}

int main(int argc, char **argv)
{
    const char *once = NULL;
    bool corrupt = false, from_stdin = true;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--corrupt") == 0) {
            corrupt = true;
        } else if (strcmp(argv[i], "--once") == 0 && i + 1 < argc) {
            once = argv[++i];
            from_stdin = false;
        } else {
            fail(2, "usage: alltoall_mpi [--corrupt] [--once \"run ...\"]");
        }
    }
    if (rank == 0) {
        char library[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(library, &length);
        library[strcspn(library, ",\n\"\\")] = '\0';
        printf("{\"ready\": true, \"library\": \"%s\", \"ranks\": %d}\n", library, size);
        fflush(stdout);
    }
    for (;;) {
        struct command c = command_next(&once, from_stdin, rank, size);
        if (c.iterations == 0)
            break;
        command_run(&c, rank, size, corrupt);
    }
    MPI_Finalize();
    return 0;
}
