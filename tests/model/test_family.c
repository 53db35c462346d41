/* tests/model/test_family.c -- the table of families holds every family file, and its rows can be told apart. */
#include "model_test.h"

#include "model/family.h"

#include <dirent.h>
#include <stdlib.h>

#include "base/file.h"

static void every_family_file_is_in_the_table(void **state)
{
    (void)state;
    char *table = NULL;
    size_t len = 0;
    int files = 0;
    assert_int_equal(file_read("src/model/family.c", 1 << 20, &table, &len), STATUS_OK);
    const char *rows = strstr(table, "model_families[] = {");
    assert_non_null(rows);
    DIR *dir = opendir("src/model");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char noun[128];
        size_t name = strlen(entry->d_name);
        if (strncmp(entry->d_name, "family_", 7) != 0 || strcmp(entry->d_name + name - 2, ".c") != 0)
            continue;
        snprintf(noun, sizeof noun, "%.*s,", (int)(name - 2), entry->d_name);
        if (strstr(rows, noun) == NULL)
            fail_msg("%s is not in model_families", entry->d_name);
        files++;
    }
    closedir(dir);
    free(table);
    assert_true(files >= 8);
}

static void rows_are_whole_and_distinct(void **state)
{
    (void)state;
    int n = family_count();
    assert_true(n > 30);
    for (int i = 0; i < n; i++) {
        const struct model_family *row = family_at(i);
        assert_ptr_equal(family_find(row->type), row);
        assert_true((row->read != NULL) != (row->text_type != NULL));
        if (row->architecture != NULL)
            assert_ptr_equal(family_by_architecture(row->architecture), row);
        if (row->text_type != NULL) {
            assert_non_null(family_find(row->text_type));
            assert_non_null(family_find(row->text_type)->read);
        }
        assert_true(strlen(row->type) < sizeof((struct model *)NULL)->type);
    }
    assert_null(family_at(n));
    assert_null(family_find(""));
}

/* Every model_type reads the smallest file of its kind, and says nothing is missing that it does not use. */
static void every_type_reads_a_small_file(void **state)
{
    (void)state;
    for (int i = 0; i < family_count(); i++) {
        const struct model_family *row = family_at(i);
        char text[1024];
        snprintf(text, sizeof text,
                 "{'model_type':'%s','hidden_size':64,'num_hidden_layers':4,'num_attention_heads':8,"
                 "'num_key_value_heads':%d,'intermediate_size':128,'vocab_size':100%s%s%s}",
                 row->type, strcmp(row->type, "gpt2") == 0 ? 8 : 4,
                 row->reads != NULL && strncmp(row->type, "deep", 4) != 0 && row->type[0] != 'k'
                     ? ",'num_local_experts':8,'num_experts_per_tok':2,'moe_intermediate_size':32"
                     : "",
                 strcmp(row->type, "qwen2_moe") == 0 ? ",'shared_expert_intermediate_size':32" : "",
                 strncmp(row->type, "deep", 4) == 0 || row->type[0] == 'k'
                     ? ",'kv_lora_rank':16,'qk_nope_head_dim':8,'qk_rope_head_dim':4,'v_head_dim':8"
                     : "");
        if (strcmp(row->type, "qwen3_vl_moe") == 0)
            continue; /* a wrapper of what qwen3_vl_moe_text tests */
        struct model m = parse_ok(text);
        assert_int_equal(m.heads, 8);
        assert_true(m.params > 0 && m.params_layer > 0 && m.params_layer < m.params);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_file_is_in_the_table),
        cmocka_unit_test(rows_are_whole_and_distinct),
        cmocka_unit_test(every_type_reads_a_small_file),
    };
    log_setup(LOG_QUIET, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
