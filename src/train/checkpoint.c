/* train/checkpoint.c -- shards gathered into files, and read out of them. */
#include "train/checkpoint.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/version.h"
#include "train/tensors.h"
#include "train/whole.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECKPOINT_SCHEMA "sptune.checkpoint/1"
enum { PIECE = 1 << 16 };

/* What a file holds of each parameter, one after the other. */
enum kind { MASTER, FIRST_MOMENT, SECOND_MOMENT };
static const char *const prefix[] = {"", "m.", "v."};

static float *part_of(const struct params_shard *shard, enum kind kind)
{
    return kind == MASTER ? shard->master : kind == FIRST_MOMENT ? shard->m : shard->v;
}

/* ---- writing ---- */

/* Units are gathered one at a time, in the order in which the file wants them. Before each all ranks agree to go on: so none waits for longer
 * than rank 0 writes a unit, or brings a file to its disk, and a failure ends the save for all. */
struct gathering {
    const struct layout *layout;
    struct params *params;
    struct comm *world;
    struct whole *whole; /* NULL: this rank has nothing to give */
    struct dev_queue *queue;
    int next;  /* kind * units + unit that is gathered next */
    bool over; /* ranks have agreed to end it */
};

static const char doing[] = "save a checkpoint";

/* One tensor of the file. */
struct wanted {
    struct gathering *gathering;
    const struct layout_tensor *tensor;
    int at; /* kind * units + unit */
    char name[LAYOUT_NAME + 4];
};

/* mine: how it went on this rank since the unit before. */
static enum status gather(struct gathering *g, enum status mine)
{
    int units = g->layout->units, at = g->next++;
    enum status status = comm_agree(g->world, mine, doing);
    g->over = status != STATUS_OK;
    if (g->over || g->whole == NULL)
        return status;
    struct params_shard shard = params_shard(g->params, at % units);
    return whole_gather(g->whole, at % units, part_of(&shard, (enum kind)(at / units)), g->queue);
}

static enum status fill(void *arg, int64_t first, int64_t count, float *out)
{
    const struct wanted *w = arg;
    while (w->gathering->next <= w->at)
        TRY(gather(w->gathering, STATUS_OK));
    whole_read(w->gathering->whole, w->tensor, first, count, out);
    return STATUS_OK;
}

static enum status write_file(const char *path, struct gathering *g, enum kind from, enum kind to)
{
    static const char *const metadata[][2] = {{"format", "pt"}};
    int kinds = (int)to - (int)from + 1, n = kinds * g->layout->tensors, i = 0;
    struct tensors_item *items = NULL;
    struct wanted *wanted = NULL;
    enum status status;
    TRY_OUT(mem_alloc((size_t)n * sizeof *items, "names of a checkpoint", (void **)&items));
    TRY_OUT(mem_alloc((size_t)n * sizeof *wanted, "names of a checkpoint", (void **)&wanted));
    for (int kind = (int)from; kind <= (int)to; kind++)
        for (int t = 0; t < g->layout->tensors; t++, i++) {
            const struct layout_tensor *tensor = &g->layout->tensor[t];
            wanted[i] = (struct wanted){.gathering = g, .tensor = tensor, .at = kind * g->layout->units + tensor->unit};
            text_print(wanted[i].name, sizeof wanted[i].name, "%s%s", prefix[kind], tensor->name);
            items[i] =
                (struct tensors_item){.name = wanted[i].name, .dtype = DTYPE_FP32, .fill = fill, .arg = &wanted[i]};
            items[i].dims = tensor->matrix ? 2 : 1;
            items[i].shape[0] = tensor->matrix ? tensor->whole_rows : tensor->whole_cols;
            items[i].shape[1] = tensor->whole_cols;
        }
    TRY_OUT(tensors_write(path, items, n, metadata, 1));
out:
    free(wanted);
    free(items);
    return status;
}

static json_t *config_of(const struct model *m)
{
    static const struct {
        const char *type, *architecture;
    } known[] = {{"llama", "LlamaForCausalLM"},
                 {"mistral", "MistralForCausalLM"},
                 {"qwen2", "Qwen2ForCausalLM"},
                 {"qwen3", "Qwen3ForCausalLM"}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, m->type) == 0)
            json_object_set_new(o, "architectures", json_pack("[s]", known[i].architecture));
    json_object_set_new(o, "model_type", json_string(m->type));
    json_object_set_new(o, "num_hidden_layers", json_integer(m->layers));
    json_object_set_new(o, "hidden_size", json_integer(m->hidden));
    json_object_set_new(o, "num_attention_heads", json_integer(m->heads));
    json_object_set_new(o, "num_key_value_heads", json_integer(m->kv_heads));
    json_object_set_new(o, "head_dim", json_integer(m->head_dim));
    json_object_set_new(o, "intermediate_size", json_integer(m->ffn));
    json_object_set_new(o, "vocab_size", json_integer(m->vocab));
    json_object_set_new(o, "max_position_embeddings", json_integer(m->max_positions));
    json_object_set_new(o, "rms_norm_eps", json_real(m->norm_eps));
    json_object_set_new(o, "tie_word_embeddings", json_boolean(m->tied));
    json_object_set_new(o, "hidden_act", json_string("silu"));
    json_object_set_new(o, "attention_dropout", json_real(m->dropout));
    json_object_set_new(o, "rope_theta", json_real(m->rope.theta));
    if (m->rope.original > 0)
        json_object_set_new(o, "rope_scaling",
                            json_pack("{s:s s:f s:f s:f s:I}", "rope_type", "llama3", "factor", m->rope.factor,
                                      "low_freq_factor", m->rope.low, "high_freq_factor", m->rope.high,
                                      "original_max_position_embeddings", (json_int_t)m->rope.original));
    else if (m->rope.factor != 1)
        json_object_set_new(o, "rope_scaling", json_pack("{s:s s:f}", "rope_type", "linear", "factor", m->rope.factor));
    if (m->window > 0) {
        json_object_set_new(o, "sliding_window", json_integer(m->window));
        if (strncmp(m->type, "qwen", 4) == 0) {
            json_object_set_new(o, "use_sliding_window", json_true());
            json_object_set_new(o, "max_window_layers", json_integer(0));
        }
    } else {
        json_object_set_new(o, "sliding_window", json_null());
    }
    json_object_set_new(o, "torch_dtype", json_string("float32"));
    return o;
}

static json_t *state_of(int64_t step, const struct plan *plan, uint64_t seed)
{
    char text[PLAN_TEXT];
    return json_pack("{s:s s:s s:I s:I s:s}", "schema", CHECKPOINT_SCHEMA, "version", SPTUNE_VERSION, "step",
                     (json_int_t)step, "seed", (json_int_t)seed, "plan", plan_text(plan, text));
}

static enum status put_json(const char *dir, const char *name, json_t *document)
{
    char path[PATH_MAX];
    text_print(path, sizeof path, "%s/%s", dir, name);
    enum status status = document != NULL ? json_write(path, document) : FAIL(STATUS_NOMEM, "no memory for %s", name);
    json_decref(document);
    return status;
}

/* Rank 0: files of a directory that is not the checkpoint's yet. */
static enum status write_all(const char *dir, int64_t step, struct gathering *g, const struct plan *plan, uint64_t seed)
{
    char path[PATH_MAX];
    TRY(file_make_dirs(dir));
    text_print(path, sizeof path, "%s/model.safetensors", dir);
    TRY(write_file(path, g, MASTER, MASTER));
    text_print(path, sizeof path, "%s/optimizer.safetensors", dir);
    TRY(write_file(path, g, FIRST_MOMENT, SECOND_MOMENT));
    TRY(put_json(dir, "config.json", config_of(&g->layout->model)));
    return put_json(dir, "train.json", state_of(step, plan, seed));
}

#define UNFINISHED ".unfinished"

/* A directory of ours and the files in it, half a one that a killed run had no time to remove among them. */
static void remove_all(const char *dir)
{
    char path[PATH_MAX];
    DIR *entries = opendir(dir);
    for (struct dirent *e = entries != NULL ? readdir(entries) : NULL; e != NULL; e = readdir(entries))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            text_print(path, sizeof path, "%s/%s", dir, e->d_name))
            unlink(path);
    if (entries != NULL)
        closedir(entries);
    rmdir(dir);
}

/* step-N and `end`: which step; -1: another name. */
static int64_t step_of(const char *name, const char *end)
{
    char *after;
    if (strncmp(name, "step-", 5) != 0 || !isdigit((unsigned char)name[5]))
        return -1;
    long long step = strtoll(name + 5, &after, 10);
    return strcmp(after, end) == 0 ? step : -1;
}

/* What earlier runs were killed in, whichever steps those were. */
static void remove_unfinished(const char *dir)
{
    char path[PATH_MAX];
    DIR *entries = opendir(dir);
    for (struct dirent *e = entries != NULL ? readdir(entries) : NULL; e != NULL; e = readdir(entries))
        if (step_of(e->d_name, UNFINISHED) >= 0 && text_print(path, sizeof path, "%s/%s", dir, e->d_name))
            remove_all(path);
    if (entries != NULL)
        closedir(entries);
}

static enum status publish(const char *unfinished, const char *dir)
{
    if (rename(unfinished, dir) != 0)
        return FAIL(STATUS_IO, "%s: cannot become %s: %s", unfinished, dir, strerror(errno));
    return STATUS_OK;
}

/* Rank 0's shard group has all there is to write. */
static bool joins(const struct groups *groups)
{
    return comm_job_rank(groups->shard, 0) == comm_job_rank(groups->world, 0);
}

void checkpoint_need(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                     int64_t *out_bytes, int64_t *out_host_bytes)
{
    *out_bytes = *out_host_bytes = 0;
    if (joins(groups))
        whole_need(layout, zero_stage > 0, offload, groups, comm_rank(groups->world) == 0, out_bytes, out_host_bytes);
}

enum status checkpoint_save(const char *dir, int64_t step, const struct layout *layout, struct params *params,
                            struct groups *groups, const struct plan *plan, uint64_t seed, struct dev *dev,
                            struct dev_queue *queue)
{
    bool writes = comm_rank(groups->world) == 0;
    struct gathering g = {.layout = layout, .params = params, .world = groups->world, .queue = queue};
    char unfinished[PATH_MAX], whole[PATH_MAX];
    text_print(unfinished, sizeof unfinished, "%s/step-%lld" UNFINISHED, dir, (long long)step);
    text_print(whole, sizeof whole, "%s/step-%lld", dir, (long long)step);
    int64_t was = groups_deadline(groups, GROUPS_PATIENCE_US); /* one rank writes, on whatever disk */
    enum status status = joins(groups) ? whole_create(layout, params, groups, dev, writes, &g.whole) : STATUS_OK;
    status = comm_agree(groups->world, status, "make room for a checkpoint");
    g.over = status != STATUS_OK;
    if (status == STATUS_OK && writes) {
        remove_unfinished(dir);
        status = write_all(unfinished, step, &g, plan, seed);
    }
    while (!writes && status == STATUS_OK && g.next < 3 * layout->units)
        status = gather(&g, status);
    if (writes && status == STATUS_OK)
        status = publish(unfinished, whole);
    if (writes && status != STATUS_OK)
        remove_all(unfinished);
    whole_destroy(g.whole);
    if (!g.over)
        status = comm_agree(groups->world, status, doing);
    groups_deadline(groups, was);
    return status;
}

/* ---- reading ---- */

enum status checkpoint_last(const char *dir, char *out, size_t size, int64_t *step)
{
    DIR *entries = opendir(dir);
    *step = -1;
    if (entries == NULL)
        return errno == ENOENT ? STATUS_OK : FAIL(STATUS_USAGE, "%s: %s", dir, strerror(errno));
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        int64_t n = step_of(entry->d_name, "");
        if (n <= *step)
            continue;
        *step = n;
        text_print(out, size, "%s/%s", dir, entry->d_name);
    }
    closedir(entries);
    return STATUS_OK;
}

static enum status read_state(const json_t *state, const char *path, int64_t *step, int64_t *seed)
{
    const char *schema;
    json_t *there;
    TRY(json_str(state, "schema", path, "", &schema));
    if (strcmp(schema, CHECKPOINT_SCHEMA) != 0)
        return WHERE(FAIL(STATUS_USAGE, "its schema is '%s'; right would be " CHECKPOINT_SCHEMA, schema), "%s", path);
    TRY(json_need(state, "step", path, &there));
    TRY(json_need(state, "seed", path, &there));
    TRY(json_int(state, "step", path, 0, step));
    return json_int(state, "seed", path, 0, seed);
}

enum status checkpoint_seed(const char *dir, int64_t step, uint64_t *out)
{
    char path[PATH_MAX];
    json_t *state = NULL;
    int64_t written = -1, seed = 0;
    text_print(path, sizeof path, "%s/train.json", dir);
    TRY(json_read(path, &state));
    enum status status = read_state(state, path, &written, &seed);
    json_decref(state);
    TRY(status);
    if (written != step)
        return HINT(WHERE(FAIL(STATUS_USAGE, "it is of step %lld, its directory of step %lld", (long long)written,
                               (long long)step),
                          "%s", path),
                    "the directory's name as it was saved, step-%lld", (long long)written);
    *out = (uint64_t)seed;
    return STATUS_OK;
}

/* Elements [from, from + n) of what is here of a tensor. */
static enum status read_piece(const struct tensors *file, const struct tensors_entry *entry,
                              const struct layout *layout, const struct layout_tensor *tensor, int64_t from, int64_t n,
                              float *out)
{
    for (int64_t done = 0; done < n;) {
        int64_t whole, run = layout_run(layout, tensor, from + done, n - done, &whole);
        TRY(tensors_read(file, entry, whole, run, DTYPE_FP32, out + done));
        done += run;
    }
    return STATUS_OK;
}

static enum status load_tensor(const struct tensors *file, enum kind kind, const struct layout *layout,
                               const struct layout_tensor *tensor, struct params *params, float *piece,
                               struct dev_queue *queue)
{
    struct params_shard shard = params_shard(params, tensor->unit);
    const struct tensors_entry *entry;
    const int64_t shape[2] = {tensor->matrix ? tensor->whole_rows : tensor->whole_cols, tensor->whole_cols};
    int64_t from, at, n = params_part(params, tensor, &from, &at);
    char name[LAYOUT_NAME + 4];
    text_print(name, sizeof name, "%s%s", prefix[kind], tensor->name);
    TRY(tensors_need(file, name, tensor->matrix ? 2 : 1, shape, &entry));
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t some = n - done < PIECE ? n - done : PIECE;
        TRY(read_piece(file, entry, layout, tensor, from + done, some, piece));
        float *to = part_of(&shard, kind) + at + done;
        TRY(dev_copy_now(queue, to, piece, (size_t)some * sizeof *piece, INT64_MAX));
    }
    return STATUS_OK;
}

static enum status load_file(const char *path, enum kind first, enum kind last, const struct layout *layout,
                             struct params *params, struct dev_queue *queue)
{
    struct tensors *file = NULL;
    float *piece = NULL;
    enum status status;
    TRY_OUT(tensors_open(path, &file));
    TRY_OUT(mem_alloc(PIECE * sizeof *piece, "a piece of a checkpoint", (void **)&piece));
    for (int kind = (int)first; kind <= (int)last; kind++)
        for (int t = 0; t < layout->tensors; t++)
            TRY_OUT(load_tensor(file, (enum kind)kind, layout, &layout->tensor[t], params, piece, queue));
out:
    free(piece);
    tensors_close(file);
    return status;
}

enum status checkpoint_load(const char *dir, bool state, const struct layout *layout, struct params *params,
                            struct dev_queue *queue)
{
    char path[PATH_MAX];
    TRY(load_file(dir, MASTER, MASTER, layout, params, queue));
    if (!state)
        return STATUS_OK;
    text_print(path, sizeof path, "%s/optimizer.safetensors", dir);
    return load_file(path, FIRST_MOMENT, SECOND_MOMENT, layout, params, queue);
}
