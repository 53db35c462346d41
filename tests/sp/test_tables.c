/* sp/test_tables.c -- every exchange and every target that a file of src/sp defines is a row of its table. */
#include "sp/sp_test.h"

#include "base/file.h"
#include "sp/exchange.h"
#include "sp/target.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

/* Definitions `const struct <kind> <kind>_name = {` in the files of the room; each is looked for in the table's source.
 */
static int definitions(const char *kind, const char *table)
{
    char head[64], path[512], *rows = NULL;
    size_t len;
    int n = 0;
    DIR *dir = opendir("src/sp");
    assert_non_null(dir);
    snprintf(head, sizeof head, "\nconst struct %s %s_", kind, kind);
    CHECK_OK(file_read(table, 1 << 20, &rows, &len));
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char *text = NULL;
        size_t dot = strlen(entry->d_name);
        if (dot < 2 || strcmp(entry->d_name + dot - 2, ".c") != 0)
            continue;
        snprintf(path, sizeof path, "src/sp/%s", entry->d_name);
        CHECK_OK(file_read(path, 1 << 20, &text, &len));
        for (const char *at = text; (at = strstr(at, head)) != NULL; n++) {
            char row[96];
            at += strlen("\nconst struct ") + strlen(kind) + 1;
            snprintf(row, sizeof row, "    &%.*s,\n", (int)strcspn(at, " "), at);
            if (strstr(rows, row) == NULL)
                fail_msg("%s defines %.*s, which is not in %s", path, (int)strcspn(at, " "), at, table);
        }
        free(text);
    }
    closedir(dir);
    free(rows);
    return n;
}

static void every_exchange_is_a_row(void **state)
{
    (void)state;
    int rows = 0;
    while (exchanges[rows] != NULL)
        rows++;
    assert_int_equal(definitions("exchange", "src/sp/exchange.c"), rows);
}

static void every_target_is_a_row(void **state)
{
    (void)state;
    int rows = 0;
    while (targets[rows] != NULL)
        rows++;
    assert_int_equal(definitions("target", "src/sp/target.c"), rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_exchange_is_a_row),
        cmocka_unit_test(every_target_is_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
