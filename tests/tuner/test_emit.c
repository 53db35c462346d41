/* tuner/test_emit.c -- what is written, what is refused, and what an edited directory keeps. Accelerate's own reading
 * of the files is tests/accelerate. */
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/temp.h"
#include "tuner/emit.h"
#include "tuner/emit_quote.h"
#include "tuner/sample.h"

static const char *const accelerate[] = {"accelerate"};
static const char *const written[] = {"accelerate.yaml", "ds_config.json", "trainer_args.py",
                                      "train.py",        "launch.sh",      "launch.slurm"};

struct fixture {
    struct temp temp;
    struct recommendation rec;
    struct emit_context context;
};

static int open_fixture(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const struct sample_options options = {.model = "llama-3-8b",
                                           .seq = 131072,
                                           .world = 16,
                                           .sp = 8,
                                           .zero = 3,
                                           .per_host = 8,
                                           .class = "flash_attention_2",
                                           .dev = DEV_CUDA};
    assert_non_null(f);
    log_reset();
    log_setup(LOG_QUIET, false);
    temp_open(&f->temp);
    CHECK_OK(sample_recommendation(&options, &f->rec));
    f->context = (struct emit_context){.dir = f->temp.dir,
                                       .command = "sptune tune --model llama-3-8b",
                                       .envelope = {.command = "sptune tune --model llama-3-8b"}};
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    recommend_free(&f->rec);
    temp_close(&f->temp);
    free(f);
    return 0;
}

static char *content(struct fixture *f, const char *name)
{
    char *text = NULL;
    size_t len = 0;
    CHECK_OK(file_read(temp_path(&f->temp, name), 1 << 24, &text, &len));
    return text;
}

static void assert_says(struct fixture *f, const char *name, const char *word)
{
    char *text = content(f, name);
    if (strstr(text, word) == NULL)
        fail_msg("%s lacks \"%s\":\n%s", name, word, text);
    free(text);
}

static struct plan *chosen(struct fixture *f)
{
    return &f->rec.candidates[f->rec.chosen].plan;
}

static enum status emit(struct fixture *f)
{
    return emit_all(&f->rec, accelerate, 1, &f->context);
}

static void test_files_and_digests(void **state)
{
    struct fixture *f = *state;
    json_t *document = NULL;
    CHECK_OK(emit(f));
    assert_int_equal(f->rec.nfiles, CHECK_COUNT(written));
    assert_int_equal(temp_count(f->temp.dir), CHECK_COUNT(written) + 1);
    CHECK_OK(json_read(temp_path(&f->temp, "recommendation.json"), &document));
    json_t *files = json_object_get(document, "files");
    assert_int_equal(json_array_size(files), CHECK_COUNT(written));
    for (int i = 0; i < CHECK_COUNT(written); i++) {
        char *text = content(f, written[i]), hex[65];
        file_sha256(text, strlen(text), hex);
        json_t *row = json_array_get(files, (size_t)i);
        assert_string_equal(json_string_value(json_object_get(row, "path")), written[i]);
        assert_string_equal(json_string_value(json_object_get(row, "sha256")), hex);
        free(text);
    }
    json_decref(document);
    struct stat info;
    assert_int_equal(stat(temp_path(&f->temp, "launch.sh"), &info), 0);
    assert_true(info.st_mode & S_IXUSR);
    assert_int_equal(stat(temp_path(&f->temp, "accelerate.yaml"), &info), 0);
    assert_false(info.st_mode & S_IXUSR);
}

static void test_keys(void **state)
{
    struct fixture *f = *state;
    CHECK_OK(emit(f));
    assert_says(f, "accelerate.yaml", "parallelism_config_sp_size: 8\n");
    assert_says(f, "accelerate.yaml", "parallelism_config_dp_shard_size: 2\n");
    assert_says(f, "accelerate.yaml", "parallelism_config_sp_attn_implementation: flash_attention_2\n");
    assert_says(f, "accelerate.yaml", "num_machines: 2\n");
    assert_says(f, "ds_config.json", "\"seq_parallel_communication_data_type\": \"fp32\"");
    assert_says(f, "train.py", "\"attention\": \"flash_attention_2\"");
    assert_says(f, "launch.slurm", "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n");
    for (int i = 0; i < CHECK_COUNT(written); i++)
        if (strcmp(written[i], "ds_config.json") != 0) /* JSON has no comments */
            assert_says(f, written[i], "# from sptune tune --model llama-3-8b\n");
    char *yaml = content(f, "accelerate.yaml");
    assert_null(strstr(yaml, "\nmixed_precision")); /* refused beside deepspeed_config_file */
    assert_null(strstr(yaml, "\n  zero_stage"));
    free(yaml);
}

/* launch.sh asks for a GPU before a launcher does, with one line, and train.py tells the plan's device by --cpu. */
static void test_plans_for_cpus(void **state)
{
    struct fixture *f = *state;
    CHECK_OK(emit(f));
    assert_says(f, "accelerate.yaml", "use_cpu: false\n");
    assert_says(f, "launch.sh", "no GPU is visible here");
    assert_says(f, "launch.sh", " train.py \"$@\"\n");
    f->rec.request.dev = DEV_CPU; /* what stands in for the planned GPUs is not what the job runs on */
    CHECK_OK(emit(f));
    assert_says(f, "accelerate.yaml", "use_cpu: false\n");
    assert_says(f, "launch.slurm", "#SBATCH --gpus-per-node=8\n");
    f->rec.request.planned = DEV_CPU;
    CHECK_OK(emit(f));
    assert_says(f, "accelerate.yaml", "use_cpu: true\n");
    assert_says(f, "launch.sh", " train.py --cpu \"$@\"\n");
    assert_says(f, "launch.sh", "(apt install g++ python3-dev)");
    assert_says(f, "launch.slurm", "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --exclusive\n");
    char *launch = content(f, "launch.sh");
    assert_null(strstr(launch, "GPU"));
    free(launch);
}

static void test_no_split_needs_no_parallelism(void **state)
{
    struct fixture *f = *state;
    chosen(f)->sp = 1;
    chosen(f)->dp_shard = 16;
    CHECK_OK(emit(f));
    char *yaml = content(f, "accelerate.yaml"), *json = content(f, "ds_config.json");
    assert_null(strstr(yaml, "parallelism_config"));
    assert_null(strstr(json, "seq_parallel"));
    free(yaml);
    free(json);
}

/* dp_replicate instead of dp_shard is the same run: the ban of dp_shard 1 is for tp and cp alone (C29). */
static void test_replicas_are_accepted(void **state)
{
    struct fixture *f = *state;
    chosen(f)->dp_shard = 1;
    chosen(f)->dp_replicate = 2;
    CHECK_OK(emit(f));
    assert_says(f, "accelerate.yaml", "parallelism_config_dp_replicate_size: 2\n");
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    const struct recommend_candidate good = f->rec.candidates[0];
    struct recommend_candidate *c = &f->rec.candidates[0];
    struct problem *p = &f->rec.request.problem;
    c->plan.zero_stage = 0; /* C32 */
    CHECK_FAILS(STATUS_USAGE, "ZeRO stage 0", emit(f));
    *c = good;
    c->plan.dp_shard = 1; /* C29: the product is not the processes */
    CHECK_FAILS(STATUS_USAGE, "is not the 16 processes", emit(f));
    *c = good;
    c->plan.tp = 2;
    CHECK_FAILS(STATUS_USAGE, "tp 2", emit(f));
    *c = good;
    strcpy(c->attention_class, "eager"); /* C31 */
    CHECK_FAILS(STATUS_USAGE, "flash_attention_2'", emit(f));
    strcpy(c->attention_class, "sdpa"); /* C31 with packed documents */
    p->docs = 2;
    p->doc_len[0] = p->doc_len[1] = p->seq / 2;
    CHECK_FAILS(STATUS_USAGE, "attends across", emit(f));
    strcpy(c->attention_class, "flash_attention_2");
    c->plan.micro_batch = 2;
    CHECK_FAILS(STATUS_USAGE, "batches of one", emit(f));
    p->docs = 0;
    *c = good;
    c->plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
    CHECK_FAILS(STATUS_USAGE, "checkpoint offload", emit(f));
    *c = good;
    c->plan.order_n = 16;
    CHECK_FAILS(STATUS_USAGE, "does not name every device once", emit(f));
    *c = good;
    f->rec.chosen = -1;
    CHECK_FAILS(STATUS_USAGE, "no plan", emit(f));
    assert_int_equal(temp_count(f->temp.dir), 0); /* and nothing was written */
    assert_int_equal(f->rec.nfiles, 0);
}

static void test_unknown_name(void **state)
{
    struct fixture *f = *state;
    const char *const names[] = {"accelerate", "axolotl"};
    CHECK_FAILS(STATUS_USAGE, "axolotl", emit_all(&f->rec, names, 2, &f->context));
    assert_int_equal(temp_count(f->temp.dir), 0);
    assert_non_null(emit_find("accelerate"));
    assert_null(emit_find("axolotl"));
    assert_null(emit_find(NULL));
}

static void test_edited_files_stay(void **state)
{
    struct fixture *f = *state;
    CHECK_OK(emit(f));
    CHECK_OK(emit(f)); /* unedited: replaced without a word */
    temp_put(&f->temp, "train.py", "print('mine')\n");
    char *before = content(f, "accelerate.yaml");
    chosen(f)->accumulate = 4;
    CHECK_FAILS(STATUS_USAGE, "train.py was edited", emit(f));
    assert_string_equal(strstr(status_last()->where, "train.py"), "train.py");
    char *after = content(f, "accelerate.yaml");
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_says(f, "train.py", "mine");
    f->context.force = true;
    CHECK_OK(emit(f));
    assert_says(f, "train.py", "\"accumulate\": 4");
    f->context.force = false;
    CHECK_OK(emit(f));
}

static void test_foreign_files_stay(void **state)
{
    struct fixture *f = *state;
    temp_put(&f->temp, "train.py", "print('mine')\n");
    CHECK_FAILS(STATUS_USAGE, "train.py is there", emit(f));
    assert_int_equal(temp_count(f->temp.dir), 1);
    unlink(temp_path(&f->temp, "train.py"));
    temp_put(&f->temp, "recommendation.json", "{\"schema\": \"somebody/1\"}");
    CHECK_FAILS(STATUS_USAGE, "not written by sptune", emit(f));
    temp_put(&f->temp, "recommendation.json", "{\"schema\": ");
    CHECK_FAILS(STATUS_USAGE, "JSON", emit(f));
    assert_non_null(strstr(status_last()->hint, "--force"));
    assert_int_equal(temp_count(f->temp.dir), 1);
    f->context.force = true;
    CHECK_OK(emit(f));
    f->context.force = false;
    CHECK_OK(emit(f));
}

static void test_something_else_in_the_place(void **state)
{
    struct fixture *f = *state;
    temp_put(&f->temp, "launch.sh/inside", "x");
    f->context.force = true; /* force does not remove directories */
    CHECK_FAILS(STATUS_USAGE, "something else", emit(f));
    assert_int_equal(temp_count(f->temp.dir), 1);
    f->context.dir = temp_path(&f->temp, "launch.sh/inside");
    CHECK_FAILS(STATUS_USAGE, "directory", emit(f));
}

/* What a torn record says about files must not be believed, and not crash. */
static void test_odd_records(void **state)
{
    struct fixture *f = *state;
    static const char *const files[] = {
        "null", "7", "{}", "[null, 3, {\"path\": 4}, {\"path\": \"none.py\"}]",
        "[{\"path\": \"../victim\", \"sha256\": \"00\"}, {\"path\": \"\", \"sha256\": \"\"}]"};
    for (int i = 0; i < CHECK_COUNT(files); i++) {
        char text[256];
        text_print(text, sizeof text, "{\"schema\": \"sptune.recommendation/1\", \"files\": %s}", files[i]);
        temp_put(&f->temp, "recommendation.json", text);
        CHECK_OK(emit(f));
    }
}

static void test_stale_files_go(void **state)
{
    struct fixture *f = *state;
    CHECK_OK(emit(f));
    temp_put(&f->temp, "launch.sh", "mine\n");
    CHECK_OK(emit_all(&f->rec, NULL, 0, &f->context)); /* as for a plan that does not fit */
    assert_int_equal(f->rec.nfiles, 0);
    assert_int_equal(temp_count(f->temp.dir), 2); /* the document, and the edited file */
    assert_says(f, "launch.sh", "mine");
    assert_int_equal(log_warning_count(), 1);
}

static void test_a_link_stays_a_link(void **state)
{
    struct fixture *f = *state;
    struct stat info;
    temp_put(&f->temp, "elsewhere/real.yaml", "old: 1\n");
    assert_int_equal(symlink("elsewhere/real.yaml", temp_path(&f->temp, "accelerate.yaml")), 0);
    f->context.force = true;
    CHECK_OK(emit(f));
    assert_int_equal(lstat(temp_path(&f->temp, "accelerate.yaml"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_says(f, "elsewhere/real.yaml", "distributed_type: DEEPSPEED");
}

static void test_odd_names(void **state)
{
    struct fixture *f = *state;
    char dir[256];
    text_print(dir, sizeof dir, "%s/a b'c\"$(touch x)\n\xff", f->temp.dir);
    f->context.dir = dir;
    f->context.command = "sptune tune\nimport os\r\xe2\x80\xa8key: 1 \xff \x1b[31m";
    strcpy(f->rec.request.model.name, "o'clock\"\n#SBATCH --x\\ $(touch y) \xff");
    CHECK_OK(emit(f));
    char path[512], *text = NULL;
    size_t len = 0;
    for (int i = 0; i < CHECK_COUNT(written); i++) {
        text_print(path, sizeof path, "%s/%s", dir, written[i]);
        CHECK_OK(file_read(path, 1 << 24, &text, &len));
        assert_null(strstr(text, "\nimport os\r"));
        assert_null(strstr(text, "\n#SBATCH --x"));
        for (const char *c = text; *c != '\0'; c++)
            assert_true(*c == '\n' || (*c >= ' ' && *c <= '~'));
        free(text);
    }
    text_print(path, sizeof path, "%s/recommendation.json", dir);
    json_t *document = NULL;
    CHECK_OK(json_read(path, &document));
    json_decref(document);
}

static void test_quotes(void **state)
{
    (void)state;
    struct text text = {0};
    quote_shell(&text, "plain-1.5/x");
    quote_shell(&text, "");
    quote_shell(&text, "a'b $x");
    assert_string_equal(text_get(&text), "plain-1.5/x'''a'\\''b $x'");
    text_free(&text);
    quote_python(&text, "a\"\\\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xe2\x82\xed\xa0\x80\xc0\x80");
    assert_string_equal(
        text_get(&text),
        "\"a\\\"\\\\\\x0a\\xe9\\u20ac\\U0001f600\\udcff\\udce2\\udc82\\udced\\udca0\\udc80\\udcc0\\udc80\"");
    text_free(&text);
    quote_comment(&text,
                  "a\r\n\xc2\x85"
                  "b\xe2\x80\xa8",
                  20);
    quote_comment(&text, "abcdef", 3);
    assert_string_equal(text_get(&text), "a???b?abc...");
    text_free(&text);
}

static void test_next(void **state)
{
    struct fixture *f = *state;
    char next[256];
    emit_next(&f->rec, "sptune-out", next, sizeof next);
    assert_string_equal(next, ""); /* nothing was emitted */
    CHECK_OK(emit(f));
    emit_next(&f->rec, "sptune-out", next, sizeof next);
    assert_string_equal(next, "cd sptune-out && sbatch launch.slurm");
    f->rec.request.ranks_per_host = 16;
    emit_next(&f->rec, "-a b", next, sizeof next);
    assert_string_equal(next, "cd -- '-a b' && ./launch.sh");
    emit_next(&f->rec, "sptune-out", next, 20);
    assert_string_equal(next, "");
}

/* The hosts are those of the request. */
static void test_hosts(void **state)
{
    struct fixture *f = *state;
    const int per_host[][2] = {{8, 2}, {4, 4}, {16, 1}, {1, 16}};
    for (int i = 0; i < CHECK_COUNT(per_host); i++) {
        char line[32];
        f->rec.request.ranks_per_host = per_host[i][0];
        CHECK_OK(emit(f));
        text_print(line, sizeof line, "num_machines: %d\n", per_host[i][1]);
        assert_says(f, "accelerate.yaml", line);
    }
}

/* In time that grows with the hosts, not with their square. */
static void test_many_hosts(void **state)
{
    struct fixture *f = *state;
    struct plan *plan = chosen(f);
    f->rec.request.ranks_per_host = 1;
    plan->dp_shard *= 1 << 16;
    f->rec.request.world *= 1 << 16;
    CHECK_OK(emit(f));
    assert_says(f, "launch.slurm", "machine_ranks=(0 1 2 ");
    assert_says(f, "launch.slurm", " 1048575)");
}

static void test_rank_order(void **state)
{
    struct fixture *f = *state;
    struct plan *plan = chosen(f);
    plan->order_n = 16;
    for (int r = 0; r < 16; r++) /* hosts swapped, odd and even devices of each apart */
        plan->order[r] = (int16_t)((r < 8 ? 8 : 0) + (r % 8 < 4 ? 2 * (r % 4) : 2 * (r % 4) + 1));
    CHECK_OK(emit(f));
    assert_says(f, "launch.sh", "\"0 2 4 6 1 3 5 7\"");
    assert_says(f, "launch.slurm", "machine_ranks=(1 0)");
    for (int r = 0; r < 16; r++) /* every second rank on the other host: no launcher per host does this */
        plan->order[r] = (int16_t)(r % 2 * 8 + r / 2);
    CHECK_OK(emit(f));
    assert_says(f, "launch.sh", "#   rank 1: host 1 device 0\n");
    assert_int_equal(log_warning_count(), 1);
}

/* A write that cannot be: the staging place is taken. Nothing of the earlier answer is touched. */
static void test_failed_write(void **state)
{
    struct fixture *f = *state;
    CHECK_OK(emit(f));
    char *before = content(f, "train.py");
    temp_put(&f->temp, ".sptune-emit", "in the way");
    chosen(f)->accumulate = 4;
    assert_int_not_equal(emit(f), STATUS_OK);
    char *after = content(f, "train.py");
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(f->rec.nfiles, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(test_files_and_digests),
        TEST(test_keys),
        TEST(test_plans_for_cpus),
        TEST(test_no_split_needs_no_parallelism),
        TEST(test_replicas_are_accepted),
        TEST(test_refusals),
        TEST(test_unknown_name),
        TEST(test_edited_files_stay),
        TEST(test_foreign_files_stay),
        TEST(test_something_else_in_the_place),
        TEST(test_odd_records),
        TEST(test_stale_files_go),
        TEST(test_a_link_stays_a_link),
        TEST(test_odd_names),
        TEST(test_quotes),
        TEST(test_next),
        TEST(test_hosts),
        TEST(test_many_hosts),
        TEST(test_rank_order),
        TEST(test_failed_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
