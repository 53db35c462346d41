/* tests/model/test_load.c -- what a word on the command line means: file, directory, shipped name, cached hub id; and
 * the document that shows what was understood. */
#include "model_test.h"

#include "base/file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":"
    "8,\"num_key_value_heads\":4,\"intermediate_size\":128,\"vocab_size\":100}";
static char root[64];

static const char *at(const char *below)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, below);
    return path;
}

static void put(const char *below, const char *text)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s", at(below));
    *strrchr(dir, '/') = '\0';
    assert_int_equal(file_make_dirs(dir), STATUS_OK);
    assert_int_equal(file_write(at(below), text, strlen(text)), STATUS_OK);
}

/* An empty home, so that nothing on this machine is found. */
static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/sptune-test-model-XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    return setenv("HOME", root, 1);
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static struct model load_ok(const char *word)
{
    struct model model;
    if (model_load(word, &model) != STATUS_OK)
        fail_msg("%s: %s (%s)", word, status_last()->what, status_last()->where);
    return model;
}

static void load_refused(const char *word, const char *what)
{
    struct model model;
    assert_int_equal(model_load(word, &model), STATUS_USAGE);
    if (strstr(status_last()->what, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", status_last()->what, what);
    assert_true(status_last()->hint[0] != '\0');
}

static void files_and_directories(void **state)
{
    (void)state;
    put("tiny/config.json", config);
    put("other.json", config);
    assert_string_equal(load_ok(at("tiny/config.json")).name, "tiny");
    assert_string_equal(load_ok(at("tiny")).name, "tiny");
    assert_string_equal(load_ok(at("tiny/")).name, "tiny");
    assert_string_equal(load_ok(at("other.json")).name, "other");
    assert_int_equal(chdir(at("tiny")), 0);
    assert_string_equal(load_ok(".").name, "tiny");
    assert_string_equal(load_ok("config.json").name, "tiny");
}

static void directories_without_a_config(void **state)
{
    (void)state;
    assert_int_equal(mkdir(at("empty"), 0755), 0);
    load_refused(at("empty"), "no config.json");
    assert_non_null(strstr(status_last()->where, "empty"));
    put("lora/adapter_config.json", "{}");
    load_refused(at("lora"), "no config.json");
    assert_non_null(strstr(status_last()->hint, "base model"));
    /* A folder that bears a shipped name by chance does not hide it. */
    assert_int_equal(mkdir(at("gpt2"), 0755), 0);
    assert_int_equal(chdir(root), 0);
    assert_string_equal(load_ok("gpt2").type, "gpt2");
    load_refused("./gpt2", "no config.json");
}

static void shipped_names(void **state)
{
    (void)state;
    assert_int_equal(load_ok("llama-3-8b").params, 8030261248);
    assert_string_equal(load_ok("Qwen2-7B").name, "qwen2-7b");
    load_refused("lama-3-8b", "lama-3-8b");
    assert_non_null(strstr(status_last()->hint, "did you mean llama-3-8b"));
    load_refused("meta-llama/Meta-Llama-3-8B-Instruct", "Meta-Llama-3-8B-Instruct");
    assert_non_null(strstr(status_last()->hint, "did you mean llama-3-8b"));
    load_refused("Qwen/Qwen2.5-14B", "Qwen2.5-14B");
    assert_non_null(strstr(status_last()->hint, "did you mean qwen2.5-14b"));
    load_refused("", "no model");
    load_refused("no/such/path/config.json", "no/such/path");
}

static void put_hub(const char *cache, const char *revision, const char *ref)
{
    char path[256];
    snprintf(path, sizeof path, "%s/models--org--name/snapshots/%s/config.json", cache, revision);
    put(path, config);
    snprintf(path, sizeof path, "%s/models--org--name/refs/main", cache);
    if (ref != NULL)
        put(path, ref);
}

static void hub_ids_in_the_cache(void **state)
{
    (void)state;
    load_refused("org/name", "org/name");
    assert_non_null(strstr(status_last()->where, ".cache/huggingface/hub"));
    put_hub(".cache/huggingface/hub", "0123abcd", "0123abcd\n");
    assert_string_equal(load_ok("org/name").name, "org/name");
    assert_string_equal(load_ok(at(".cache/huggingface/hub/models--org--name/snapshots/0123abcd")).name, "org/name");
    setenv("HF_HOME", at("hfhome"), 1);
    put_hub("hfhome/hub", "ffff", NULL); /* no refs/main, one snapshot */
    assert_int_equal(load_ok("org/name").heads, 8);
    put_hub("hfhome/hub", "eeee", NULL);
    load_refused("org/name", "neither refs/main nor a single snapshot");
    setenv("HF_HUB_CACHE", at("cache"), 1);
    put_hub("cache", "aaaa", "bbbb"); /* the revision that main names was never fetched */
    load_refused("org/name", "no config.json");
    put_hub("cache", "aaaa", "../../../etc"); /* not followed; the one snapshot is meant */
    assert_int_equal(load_ok("org/name").layers, 2);
    setenv("HF_HUB_CACHE", "/none/1", 1); /* every variable at once: the home's cache is looked at last */
    setenv("HUGGINGFACE_HUB_CACHE", "/none/2", 1);
    setenv("HF_HOME", "/none/3", 1);
    setenv("XDG_CACHE_HOME", "/none/4", 1);
    assert_int_equal(load_ok("org/name").layers, 2);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    load_refused("org/other", "org/other");
    load_refused("../org", "../org");
    load_refused("a/b/c", "a/b/c");
}

static void broken_files(void **state)
{
    (void)state;
    put("broken/config.json", "{\n \"model_type\": llama}\n");
    struct model model;
    assert_int_equal(model_load(at("broken"), &model), STATUS_USAGE);
    assert_non_null(strstr(status_last()->where, "line 2 column"));
    char name[512];
    snprintf(name, sizeof name, "%s", at("odd\x1b[2J\xff"));
    assert_int_equal(mkdir(name, 0755), 0);
    strcat(name, "/config.json");
    assert_int_equal(file_write(name, config, strlen(config)), STATUS_OK);
    assert_string_equal(load_ok(name).name, "odd?[2J?");
}

static json_t *document(const char *word, int world)
{
    struct model model = load_ok(word);
    json_t *root_json =
        model_to_json(&model, world, &(struct json_envelope){.command = "t", .started = "s", .machine = ""});
    assert_non_null(root_json);
    return root_json;
}

static void the_document(void **state)
{
    (void)state;
    json_t *doc = document("qwen2-7b", 8);
    assert_string_equal(json_string_value(json_object_get(doc, "schema")), "sptune.model/1");
    assert_string_equal(json_string_value(json_object_get(doc, "name")), "qwen2-7b");
    static const struct {
        const char *key;
        int64_t value;
    } want[] = {{"layers", 28},    {"hidden", 3584},       {"heads", 28},
                {"kv_heads", 4},   {"head_dim", 128},      {"ffn", 18944},
                {"vocab", 152064}, {"params", 7615616512}, {"params_layer", 233057792}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_int_equal(json_integer_value(json_object_get(doc, want[i].key)), want[i].value);
    json_t *sp = json_object_get(doc, "sp");
    assert_int_equal(json_array_size(sp), 8);
    for (size_t i = 0; i < 8; i++) {
        json_t *row = json_array_get(sp, i);
        bool ok = i == 0 || i == 1 || i == 3;
        assert_int_equal(json_integer_value(json_object_get(row, "size")), i + 1);
        assert_int_equal(json_is_true(json_object_get(row, "ok")), ok);
        assert_int_equal(json_is_null(json_object_get(row, "why")), ok);
        assert_int_equal(json_is_integer(json_object_get(row, "kv_copies")), ok);
        assert_true(json_is_array(json_object_get(row, "nearest")));
    }
    json_t *eight = json_array_get(sp, 7);
    assert_string_equal(json_string_value(json_object_get(eight, "rule")), "heads_not_divisible");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(eight, "nearest"), 0)), 4);
    json_decref(doc);
}

static void documents_of_any_world(void **state)
{
    (void)state;
    json_t *doc = document("smollm2-135m", 0);
    assert_int_equal(json_array_size(json_object_get(doc, "sp")), 9);
    json_decref(doc);
    doc = document("smollm2-135m", 2000000000);
    assert_int_equal(json_array_size(json_object_get(doc, "sp")), 1024);
    json_decref(doc);
    struct model model;
    assert_int_equal(model_from_heads(16384, 16384, 64, &model), STATUS_OK);
    doc = model_to_json(&model, 65536, NULL);
    assert_int_equal(json_array_size(json_object_get(doc, "sp")), 1024 + 4); /* 2048, 4096, 8192, 16384 */
    json_decref(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_directories),  cmocka_unit_test(directories_without_a_config),
        cmocka_unit_test(shipped_names),          cmocka_unit_test(hub_ids_in_the_cache),
        cmocka_unit_test(broken_files),           cmocka_unit_test(the_document),
        cmocka_unit_test(documents_of_any_world),
    };
    log_setup(LOG_QUIET, false);
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
