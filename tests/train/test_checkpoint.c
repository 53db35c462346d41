/* tests/train/test_checkpoint.c -- what saving takes: units whole again from pieces, the memory for it, and how long ranks wait; what reading one
 * leaves out. Linked with --wrap of dev_alloc, comm_agree, file_put and params_init. */
#include "train/trainer_test.h"

#include "base/temp.h"
#include "comm/ranks.h"
#include "train/checkpoint.h"
#include "train/trainer.h"
#include "train/whole.h"

static const char toy[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":512,\"tie_word_embeddings\":true}";
/* The embedding and the layer, 4.6 M elements each, are more than is gathered at a time. */
static const char large[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":320,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":4500,\"vocab_size\":14400,\"tie_word_embeddings\":true}";

static struct {
    int64_t bytes; /* of the device, asked for while `counts` */
    bool counts;
} taken;

enum status __real_dev_alloc(struct dev *dev, size_t bytes, const char *what, void **out);
enum status __wrap_dev_alloc(struct dev *dev, size_t bytes, const char *what, void **out);

enum status __wrap_dev_alloc(struct dev *dev, size_t bytes, const char *what, void **out)
{
    taken.bytes += taken.counts ? (int64_t)bytes : 0;
    return __real_dev_alloc(dev, bytes, what, out);
}

/* What was written since ranks last agreed, and the most that ever was; written fails behind `room` bytes. */
static struct {
    int64_t since, most, all, room;
    int agreed;
} written = {.room = INT64_MAX};

enum status __real_comm_agree(struct comm *comm, enum status mine, const char *doing);
enum status __wrap_comm_agree(struct comm *comm, enum status mine, const char *doing);
enum status __real_file_put(struct file_sink *sink, const void *bytes, size_t len);
enum status __wrap_file_put(struct file_sink *sink, const void *bytes, size_t len);

enum status __wrap_comm_agree(struct comm *comm, enum status mine, const char *doing)
{
    written.most = written.since > written.most ? written.since : written.most;
    written.since = 0;
    written.agreed++;
    return __real_comm_agree(comm, mine, doing);
}

enum status __wrap_file_put(struct file_sink *sink, const void *bytes, size_t len)
{
    written.since += (int64_t)len;
    written.all += (int64_t)len;
    return written.all > written.room ? FAIL(STATUS_IO, "no room on this disk") : __real_file_put(sink, bytes, len);
}

static int drawn; /* times that weights were */

enum status __real_params_init(struct params *params, uint64_t seed, struct dev_queue *queue);
enum status __wrap_params_init(struct params *params, uint64_t seed, struct dev_queue *queue);

enum status __wrap_params_init(struct params *params, uint64_t seed, struct dev_queue *queue)
{
    drawn++;
    return __real_params_init(params, seed, queue);
}

static const struct way {
    int sp, shard, replicate, tp, zero;
    bool cut; /* by split_gather */
} ways[] = {{1, 4, 1, 1, 3, false}, {2, 2, 1, 1, 1, true},  {1, 2, 2, 1, 2, false}, {1, 2, 1, 2, 3, false},
            {4, 1, 1, 1, 0, false}, {2, 1, 1, 2, 0, false}, {1, 1, 4, 1, 3, false}};

/* One split of a model's parameters, drawn. */
struct split {
    struct model model;
    struct plan plan;
    struct layout layout;
    struct groups groups;
    struct params *params;
};

static enum status split_open(struct side *side, struct comm *world, const char *config, const struct way *way,
                              bool offload, struct split *s)
{
    memset(s, 0, sizeof *s);
    TRY(model_parse(config, strlen(config), "test", &s->model));
    plan_default(&s->plan);
    s->plan.method = way->cut ? PLAN_METHOD_SPLIT_GATHER : PLAN_METHOD_ULYSSES;
    s->plan.sp = way->sp;
    s->plan.dp_shard = way->shard;
    s->plan.dp_replicate = way->replicate;
    s->plan.tp = way->tp;
    s->plan.zero_stage = way->zero;
    int cut = plan_ways(&s->plan);
    TRY(layout_create_cut(&s->model, DTYPE_BF16, cut, comm_rank(world) % cut, &s->layout));
    TRY(groups_create(world, &s->plan, side->dev, &s->groups));
    TRY(params_create(&s->layout, way->zero, offload, &s->groups, false, side->dev, &s->params));
    return params_init(s->params, 5, side->queue);
}

static void split_close(struct split *s)
{
    params_destroy(s->params);
    groups_destroy(&s->groups);
    layout_free(&s->layout);
}

/* ---- units whole again ---- */

static enum status same_units(struct side *side, const struct split *s, struct whole *whole, const struct split *alone,
                              struct whole *right, bool *same)
{
    static float got[1 << 16], want[1 << 16];
    enum { N = sizeof got / sizeof *got };
    for (int u = 0; u < s->layout.units; u++) {
        const struct layout_unit *unit = &s->layout.unit[u];
        TRY(whole_gather(whole, u, params_shard(s->params, u).master, side->queue));
        if (right == NULL)
            continue;
        TRY(whole_gather(right, u, params_shard(alone->params, u).master, side->queue));
        for (int t = unit->first; t < unit->first + unit->n; t++) {
            const struct layout_tensor *tensor = &s->layout.tensor[t];
            int64_t all = tensor->whole_rows * tensor->whole_cols;
            for (int64_t at = 0; at < all; at += N) {
                int64_t n = all - at < N ? all - at : N;
                whole_read(whole, tensor, at, n, got);
                whole_read(right, &alone->layout.tensor[t], at, n, want);
                *same = *same && memcmp(got, want, (size_t)n * sizeof *got) == 0;
            }
        }
    }
    return STATUS_OK;
}

/* Every rank of a job of several shard groups, as in a comparison; rank 0 keeps. */
static int rank_whole(const struct launch *launch, void *arg)
{
    static const struct way one = {1, 1, 1, 1, 0, false};
    struct side side;
    struct comm *self = NULL;
    struct split alone;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank, 0, &self));
    if (launch->rank == 0)
        RANK_TRY(split_open(&side, self, large, &one, false, &alone));
    for (int w = 0; w < CHECK_COUNT(ways); w++) {
        struct split s;
        struct whole *whole = NULL, *right = NULL;
        bool same = true, offload = w % 2 == 0;
        int64_t bytes, host_bytes;
        RANK_TRY(split_open(&side, side.comm, large, &ways[w], offload, &s));
        taken.bytes = 0;
        taken.counts = true;
        RANK_TRY(whole_create(&s.layout, s.params, &s.groups, side.dev, launch->rank == 0, &whole));
        taken.counts = false;
        whole_need(&s.layout, ways[w].zero > 0, offload, &s.groups, launch->rank == 0, &bytes, &host_bytes);
        RANK_CHECK(bytes == taken.bytes && bytes <= 3 * (16 << 20) && (host_bytes > 0) == (launch->rank == 0));
        RANK_CHECK(bytes > 0 || s.layout.ways == 1);
        if (launch->rank == 0)
            RANK_TRY(whole_create(&alone.layout, alone.params, &alone.groups, side.dev, true, &right));
        RANK_TRY(same_units(&side, &s, whole, &alone, right, &same));
        if (!same)
            fprintf(stderr, "way %d: a unit is not what it was drawn as\n", w);
        RANK_CHECK(same);
        whole_destroy(right);
        whole_destroy(whole);
        split_close(&s);
    }
    if (launch->rank == 0)
        split_close(&alone);
    comm_close(self);
    side_close(&side);
    return 0;
}

static void units_larger_than_a_piece_are_gathered_whole(void **state)
{
    (void)state;
    ranks_pass(4, rank_whole, NULL);
}

/* ---- saves ---- */

/* Ranks run it with a directory, in which it leaves these checkpoints and nothing else. */
static void pass_saving(int ranks, int (*run)(const struct launch *launch, void *arg), const int *steps, int n)
{
    struct temp temp;
    temp_open(&temp);
    ranks_pass(ranks, run, temp.dir);
    for (int i = 0; i < n; i++)
        checkpoint_remove(temp.dir, steps[i]);
    assert_int_equal(temp_count(temp.dir), 0);
    temp_close(&temp);
}

/* What is counted before a run is what its saves take, and ranks that have nothing to give take nothing. */
static int rank_takes(const struct launch *launch, void *arg)
{
    struct side side;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int w = 0; w < CHECK_COUNT(ways); w++) {
        struct split s;
        int64_t bytes, host_bytes;
        RANK_TRY(split_open(&side, side.comm, toy, &ways[w], w % 2 == 0, &s));
        taken.bytes = 0;
        taken.counts = true;
        RANK_TRY(checkpoint_save(arg, w, &s.layout, s.params, &s.groups, &s.plan, 5, side.dev, side.queue));
        taken.counts = false;
        checkpoint_need(&s.layout, ways[w].zero, w % 2 == 0, &s.groups, &bytes, &host_bytes);
        RANK_CHECK(bytes == taken.bytes && (host_bytes > 0) == (launch->rank == 0));
        RANK_CHECK(bytes == 0 || launch->rank < launch->size / ways[w].replicate);
        split_close(&s);
    }
    side_close(&side);
    return 0;
}

static void a_save_takes_what_is_counted(void **state)
{
    int steps[CHECK_COUNT(ways)];
    (void)state;
    for (int w = 0; w < CHECK_COUNT(ways); w++)
        steps[w] = w;
    pass_saving(4, rank_takes, steps, CHECK_COUNT(ways));
}

static int64_t unit_bytes(const struct layout *layout, int unit)
{
    int64_t elems = 0;
    for (int t = layout->unit[unit].first; t < layout->unit[unit].first + layout->unit[unit].n; t++)
        elems += layout->tensor[t].whole_rows * layout->tensor[t].whole_cols;
    return elems * (int64_t)sizeof(float);
}

/* Rank 0 writes, the three copies of its shard wait: never for more than a unit and what is around it. What fails it fails all. */
static int rank_waits(const struct launch *launch, void *arg)
{
    enum { AROUND = 16 << 10 /* a file's header */ };
    struct side side;
    struct split s;
    int64_t unit = 0;
    int n, agreed[RANKS_MAX] = {0};
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(split_open(&side, side.comm, toy, &(struct way){1, 1, 4, 1, 2, false}, false, &s));
    for (int u = 0; u < s.layout.units; u++)
        unit = unit_bytes(&s.layout, u) > unit ? unit_bytes(&s.layout, u) : unit;
    for (n = 0; n < 3; n++) {
        memset(&written, 0, sizeof written);
        written.room = n == 1 ? 5 * unit : INT64_MAX; /* the second save fails within the optimizer's file */
        enum status status = checkpoint_save(arg, n, &s.layout, s.params, &s.groups, &s.plan, 5, side.dev, side.queue);
        agreed[n] = written.agreed;
        RANK_CHECK(status == (n == 1 ? STATUS_IO : STATUS_OK));
        RANK_CHECK(n != 1 || strstr(status_last()->what, "no room on this disk") != NULL);
        RANK_CHECK(written.most <= unit + AROUND && (launch->rank > 0 || written.all > 5 * unit));
    }
    RANK_CHECK(agreed[0] == agreed[2] && agreed[1] < agreed[0] && agreed[0] >= 3 * s.layout.units);
    status_clear();
    split_close(&s);
    side_close(&side);
    return 0;
}

static void no_rank_waits_for_more_than_a_unit(void **state)
{
    (void)state;
    pass_saving(4, rank_waits, (const int[]){0, 2}, 2);
}

/* ---- what is read ---- */

static int opened(struct side *side, const struct trainer_options *o, bool verify, int *out)
{
    struct trainer *trainer = NULL;
    struct trainer_verdict verdict;
    drawn = 0;
    RANK_TRY(trainer_create(o, side->comm, side->dev, &trainer));
    if (verify)
        RANK_TRY(trainer_verify(trainer, &verdict));
    else if (!o->resume)
        RANK_TRY(trainer_save(trainer, 3));
    RANK_CHECK(!verify || (verdict.worst <= verdict.allowed && verdict.loss > 1));
    trainer_destroy(trainer);
    *out = drawn;
    return 0;
}

static int rank_draws(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer_options o;
    int fresh = 0, resumed = 0, from = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    memset(&o, 0, sizeof o);
    RANK_TRY(model_parse(toy, strlen(toy), "test", &o.model));
    plan_default(&o.plan);
    o.plan.dp_shard = launch->size;
    o.plan.zero_stage = 2;
    o.dtype = DTYPE_FP32;
    snprintf(o.data, sizeof o.data, "%s", text_path);
    snprintf(o.save, sizeof o.save, "%s", (const char *)arg);
    o.n_seqs = 1;
    o.seqs[0] = 32;
    o.epochs = 1;
    o.lr = 1e-3;
    o.seed = 3;
    int failed = opened(&side, &o, false, &fresh);
    o.resume = true;
    failed = failed ? failed : opened(&side, &o, false, &resumed);
    o.resume = false;
    o.save[0] = '\0';
    snprintf(o.from, sizeof o.from, "%s/step-3", (const char *)arg);
    failed = failed ? failed : opened(&side, &o, true, &from); /* under the plan, and whole on rank 0 */
    RANK_CHECK(failed || (fresh == 1 && resumed == 0 && from == 0));
    side_close(&side);
    return failed;
}

static void weights_that_are_read_are_not_drawn(void **state)
{
    (void)state;
    pass_saving(2, rank_draws, (const int[]){3}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_larger_than_a_piece_are_gathered_whole),
        cmocka_unit_test(a_save_takes_what_is_counted),
        cmocka_unit_test(no_rank_waits_for_more_than_a_unit),
        cmocka_unit_test(weights_that_are_read_are_not_drawn),
    };
    return cmocka_run_group_tests(tests, text_make, text_remove);
}
