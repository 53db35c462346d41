/* tests/base/test_version.c -- the hash of the sources: stable, sensitive, and written only when it changes. */
#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"
#include "base/version.h"

static void the_build_has_a_hash(void **state)
{
    (void)state;
    assert_int_equal(strlen(version_build()), 12);
    assert_int_equal(strspn(version_build(), "0123456789abcdef"), 12);
}

static struct temp temp;

static void make_hash(char **out)
{
    char command[2048];
    size_t len;
    snprintf(command, sizeof command, "'%s' -DSRC='%s/src' -DOUT='%s/hash.h' -P src/base/version_hash.cmake",
             CMAKE_PROGRAM, temp.dir, temp.dir);
    assert_int_equal(system(command), 0);
    CHECK_OK(file_read(temp_path(&temp, "hash.h"), 1000, out, &len));
}

static void equal_sources_equal_hash(void **state)
{
    (void)state;
    char *first = NULL, *again = NULL, *changed = NULL, *renamed = NULL, *other = NULL, *script = NULL;
    struct stat before, after;
    temp_open(&temp);
    temp_put(&temp, "src/a/x.c", "int x; /* ; [ */\n");
    temp_put(&temp, "src/a/x.h", "");
    make_hash(&first);
    assert_int_equal(stat(temp_path(&temp, "hash.h"), &before), 0);
    make_hash(&again);
    assert_int_equal(stat(temp_path(&temp, "hash.h"), &after), 0);
    assert_string_equal(first, again);
    assert_true(before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
    temp_put(&temp, "src/a/notes.txt", "not a source");
    make_hash(&other);
    assert_string_equal(first, other);
    temp_put(&temp, "src/a/x.c", "int y;\n");
    make_hash(&changed);
    assert_string_not_equal(first, changed);
    temp_put(&temp, "src/a/k.cu", "");
    make_hash(&renamed);
    assert_string_not_equal(changed, renamed);
    temp_put(&temp, "src/a/script.py", ""); /* templates become part of the program */
    make_hash(&script);
    assert_string_not_equal(renamed, script);
    temp_close(&temp);
    free(first);
    free(again);
    free(other);
    free(changed);
    free(renamed);
    free(script);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_build_has_a_hash),
        cmocka_unit_test(equal_sources_equal_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
