/* bench/mirror.c -- host copies of device buffers, whole or in pieces. */
#include "bench/mirror.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/team.h"

#include <stdlib.h>
#include <string.h>

enum {
    COPY_US = 60 * 1000 * 1000,
    PIECE_BYTES = 32 << 20,
    SLICE_BYTES = 256 << 10, /* of a piece: a thread's task */
    THREADS_MAX = 8
};

static bool on_host(const struct dev *dev)
{
    return dev_kind_of(dev) == DEV_CPU;
}

int mirror_threads(const struct dev *dev)
{
    return on_host(dev) ? 1 : team_spare(THREADS_MAX);
}

static enum status copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes)
{
    return dev_copy_now(queue, dst, src, bytes, clock_deadline(COPY_US));
}

enum status mirror_open(struct dev *dev, void *device, size_t bytes, struct mirror *out)
{
    struct mirror mirror = {.dev = dev, .device = device, .host = device, .bytes = bytes};
    if (!on_host(dev)) {
        TRY(mem_alloc_unset(bytes, "a host copy of a buffer", &mirror.host));
        enum status status = dev_queue_create(dev, &mirror.queue);
        if (status != STATUS_OK) {
            free(mirror.host);
            return status;
        }
    }
    *out = mirror;
    return STATUS_OK;
}

enum status mirror_of_host(struct dev *dev, void *host, size_t bytes, struct mirror *out)
{
    struct mirror mirror = {.dev = dev, .device = host, .host = host, .bytes = bytes};
    if (!on_host(dev)) {
        mirror.owns_device = true;
        TRY(dev_alloc(dev, bytes, "a device copy of a buffer", &mirror.device));
        enum status status = dev_queue_create(dev, &mirror.queue);
        if (status == STATUS_OK)
            status = mirror_store(&mirror);
        if (status != STATUS_OK) {
            dev_queue_destroy(mirror.queue);
            dev_free(dev, mirror.device);
            return status;
        }
    }
    *out = mirror;
    return STATUS_OK;
}

void mirror_close(struct mirror *mirror)
{
    if (mirror->owns_device)
        dev_free(mirror->dev, mirror->device);
    else if (mirror->queue != NULL)
        free(mirror->host);
    dev_queue_destroy(mirror->queue);
    *mirror = (struct mirror){0};
}

enum status mirror_load(struct mirror *mirror)
{
    return mirror->queue != NULL ? copy(mirror->queue, mirror->host, mirror->device, mirror->bytes) : STATUS_OK;
}

enum status mirror_store(struct mirror *mirror)
{
    return mirror->queue != NULL ? copy(mirror->queue, mirror->device, mirror->host, mirror->bytes) : STATUS_OK;
}

/* ---- in pieces ---- */

struct staging {
    struct dev_queue *queue;
    struct team *team; /* NULL: the caller alone */
    char *memory;
};

static void staging_close(struct staging *staging)
{
    team_destroy(staging->team);
    dev_queue_destroy(staging->queue);
    free(staging->memory);
}

/* For buffers of `bytes`. */
static enum status staging_open(struct dev *dev, int64_t bytes, struct staging *out)
{
    struct staging staging = {0};
    enum status status =
        mem_alloc_unset((size_t)(bytes < PIECE_BYTES ? bytes : PIECE_BYTES), "staging", (void **)&staging.memory);
    if (status == STATUS_OK)
        status = dev_queue_create(dev, &staging.queue);
    if (status != STATUS_OK) {
        staging_close(&staging);
        return status;
    }
    if (bytes > 2 * SLICE_BYTES)
        staging.team = team_or_alone(mirror_threads(dev));
    *out = staging;
    return STATUS_OK;
}

/* Tokens [first, first + n) of batch item b. */
static struct data_side part_of(const struct data_side *side, int64_t b, int64_t first, int64_t n, void *base)
{
    struct data_side part = *side;
    part.base = base;
    part.batch = 1;
    part.seq = n;
    part.batch_first += b;
    part.position_first += first;
    return part;
}

static int64_t token_bytes(const struct data_side *side)
{
    return side->token_stride * dtype_bytes(side->dtype);
}

static bool has_gaps(const struct data_side *side)
{
    return side->token_stride != (int64_t)side->heads * side->dim;
}

/* A piece in staging, shared out by tokens. */
struct piece {
    uint64_t seed;
    enum data_tensor tensor;
    struct data_side side;
    int copies;
    int64_t each;               /* tokens of a task */
    struct data_errors *errors; /* [tasks] */
};

static struct data_side task_side(const struct piece *piece, int64_t task)
{
    int64_t first = task * piece->each, n = piece->side.seq - first;
    return part_of(&piece->side, 0, first, n < piece->each ? n : piece->each,
                   (char *)piece->side.base + first * token_bytes(&piece->side));
}

static void fill_task(void *arg, int64_t task, int thread)
{
    const struct piece *piece = arg;
    struct data_side side = task_side(piece, task);
    (void)thread;
    data_fill(piece->seed, piece->tensor, &side);
}

static void compare_task(void *arg, int64_t task, int thread)
{
    const struct piece *piece = arg;
    struct data_side side = task_side(piece, task);
    (void)thread;
    data_compare(piece->seed, piece->tensor, &side, piece->copies, &piece->errors[task]);
}

static int64_t tasks_of(const struct piece *piece)
{
    return (piece->side.seq + piece->each - 1) / piece->each;
}

static int64_t at_least_one(int64_t n)
{
    return n > 0 ? n : 1;
}

static void errors_add(struct data_errors *all, const struct data_errors *part)
{
    int64_t wrong = all->wrong + part->wrong, elements = all->elements;
    if (all->wrong == 0 && part->wrong > 0)
        *all = *part;
    all->wrong = wrong;
    all->elements = elements;
}

/* Every piece of a side through staging: filled, or compared with errors != NULL. */
static enum status pieces_run(struct staging *staging, uint64_t seed, enum data_tensor tensor,
                              const struct data_side *side, int copies, struct data_errors *errors)
{
    int64_t token = token_bytes(side), most = at_least_one(PIECE_BYTES / token);
    struct data_errors *parts = NULL;
    struct piece piece = {.seed = seed, .tensor = tensor, .copies = copies, .each = at_least_one(SLICE_BYTES / token)};
    TRY(mem_alloc((size_t)(most / piece.each + 1) * sizeof *parts, "errors of a comparison", (void **)&parts));
    piece.errors = parts;
    enum status status = STATUS_OK;
    for (int64_t b = 0; b < side->batch && status == STATUS_OK; b++)
        for (int64_t first = 0; first < side->seq && status == STATUS_OK; first += most) {
            int64_t n = side->seq - first < most ? side->seq - first : most;
            char *device = (char *)side->base + (b * side->seq + first) * token;
            piece.side = part_of(side, b, first, n, staging->memory);
            if (errors != NULL || has_gaps(side))
                status = copy(staging->queue, staging->memory, device, (size_t)(n * token));
            if (status != STATUS_OK)
                break;
            team_run(staging->team, tasks_of(&piece), errors != NULL ? compare_task : fill_task, &piece);
            for (int64_t task = 0; errors != NULL && task < tasks_of(&piece); task++)
                errors_add(errors, &parts[task]);
            if (errors == NULL)
                status = copy(staging->queue, device, staging->memory, (size_t)(n * token));
        }
    free(parts);
    return status;
}

/* For `tokens` at a time of a side; nothing on the host. Tokens that alone are larger than a piece do not exist. */
static enum status side_staging(struct dev *dev, const struct data_side *side, int64_t tokens, struct staging *out)
{
    int64_t token = token_bytes(side);
    *out = (struct staging){0};
    if (on_host(dev) || tokens < 1 || token < 1)
        return STATUS_OK;
    if (token > PIECE_BYTES)
        return FAIL(STATUS_UNSUPPORTED, "tokens of %lld bytes", (long long)token);
    return staging_open(dev, tokens * token, out);
}

/* Filled, or compared with errors != NULL, to which it adds. */
static enum status side_run(struct dev *dev, struct staging *staging, uint64_t seed, enum data_tensor tensor,
                            const struct data_side *side, int copies, struct data_errors *errors)
{
    struct data_errors here;
    if (!on_host(dev))
        return staging->memory != NULL ? pieces_run(staging, seed, tensor, side, copies, errors) : STATUS_OK;
    if (errors == NULL) {
        data_fill(seed, tensor, side);
        return STATUS_OK;
    }
    data_compare(seed, tensor, side, copies, &here);
    errors_add(errors, &here);
    return STATUS_OK;
}

static enum status whole_run(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                             int copies, struct data_errors *errors)
{
    struct staging staging;
    TRY(side_staging(dev, side, side->seq, &staging));
    enum status status = side_run(dev, &staging, seed, tensor, side, copies, errors);
    staging_close(&staging);
    return status;
}

enum status mirror_data_fill(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side)
{
    return whole_run(dev, seed, tensor, side, 1, NULL);
}

enum status mirror_data_compare(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                                int copies, struct data_errors *out)
{
    *out = (struct data_errors){.elements = side->batch * side->seq * side->heads * side->dim};
    return whole_run(dev, seed, tensor, side, copies, out);
}

/* Every range of every row, through one staging buffer. */
static enum status shard_run(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                             const struct shard *shard, int copies, struct data_errors *errors)
{
    struct staging staging;
    TRY(side_staging(dev, side, shard->local, &staging));
    enum status status = STATUS_OK;
    for (int64_t b = 0; b < side->batch; b++) {
        int64_t token = b * shard->local;
        for (int i = 0; i < shard->n && status == STATUS_OK; token += shard->range[i++].count) {
            struct data_side range =
                part_of(side, b, 0, shard->range[i].count, (char *)side->base + token * token_bytes(side));
            range.position_first = shard->range[i].first;
            status = side_run(dev, &staging, seed, tensor, &range, copies, errors);
        }
    }
    staging_close(&staging);
    return status;
}

enum status mirror_shard_fill(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                              const struct shard *shard)
{
    return shard_run(dev, seed, tensor, side, shard, 1, NULL);
}

enum status mirror_shard_compare(struct dev *dev, uint64_t seed, enum data_tensor tensor, const struct data_side *side,
                                 const struct shard *shard, int copies, struct data_errors *out)
{
    *out = (struct data_errors){.elements = side->batch * shard->local * side->heads * side->dim};
    return shard_run(dev, seed, tensor, side, shard, copies, out);
}

/* ---- bare bytes ---- */

struct bytes {
    uint64_t seed;
    int from, to;
    int64_t first, n; /* of the piece in the block */
    char *memory;
    int64_t wrong[PIECE_BYTES / SLICE_BYTES], first_wrong[PIECE_BYTES / SLICE_BYTES];
    bool fill;
};

static void bytes_task(void *arg, int64_t task, int thread)
{
    struct bytes *b = arg;
    int64_t at = task * SLICE_BYTES, n = b->n - at < SLICE_BYTES ? b->n - at : SLICE_BYTES;
    (void)thread;
    if (b->fill)
        data_bytes_fill_part(b->seed, b->from, b->to, b->first + at, n, b->memory + at);
    else
        b->wrong[task] =
            data_bytes_wrong(b->seed, b->from, b->to, b->first + at, n, b->memory + at, &b->first_wrong[task]);
}

/* *wrong and *first_wrong: of a comparison. */
static enum status bytes_run(struct dev *dev, struct bytes *b, int64_t bytes, char *device, int64_t *wrong,
                             int64_t *first_wrong)
{
    struct staging staging;
    if (bytes < 1)
        return STATUS_OK;
    TRY(staging_open(dev, bytes, &staging));
    enum status status = STATUS_OK;
    b->memory = staging.memory;
    for (b->first = 0; b->first < bytes && status == STATUS_OK; b->first += PIECE_BYTES) {
        b->n = bytes - b->first < PIECE_BYTES ? bytes - b->first : PIECE_BYTES;
        int64_t tasks = (b->n + SLICE_BYTES - 1) / SLICE_BYTES;
        if (!b->fill)
            status = copy(staging.queue, staging.memory, device + b->first, (size_t)b->n);
        if (status == STATUS_OK)
            team_run(staging.team, tasks, bytes_task, b);
        for (int64_t task = 0; task < tasks && !b->fill && status == STATUS_OK; task++) {
            *first_wrong = *wrong == 0 && b->wrong[task] > 0 ? b->first_wrong[task] : *first_wrong;
            *wrong += b->wrong[task];
        }
        if (b->fill && status == STATUS_OK)
            status = copy(staging.queue, device + b->first, staging.memory, (size_t)b->n);
    }
    staging_close(&staging);
    return status;
}

enum status mirror_bytes_fill(struct dev *dev, uint64_t seed, int from, int to, int64_t bytes, void *out)
{
    struct bytes b = {.seed = seed, .from = from, .to = to, .fill = true};
    if (!on_host(dev))
        return bytes_run(dev, &b, bytes, out, NULL, NULL);
    data_bytes_fill(seed, from, to, bytes, out);
    return STATUS_OK;
}

enum status mirror_bytes_verify(struct dev *dev, uint64_t seed, int from, int to, int64_t bytes, const void *in,
                                const char *where, bool *ok, char why[256])
{
    struct bytes b = {.seed = seed, .from = from, .to = to};
    int64_t wrong = 0, first = 0;
    if (on_host(dev)) {
        *ok = data_bytes_verify(seed, from, to, bytes, in, where, why);
        return STATUS_OK;
    }
    TRY(bytes_run(dev, &b, bytes, (char *)(uintptr_t)in, &wrong, &first));
    *ok = data_bytes_verdict(wrong, first, from, to, bytes, where, why);
    return STATUS_OK;
}
