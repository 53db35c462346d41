/* tests/base/table.h -- is every plug-in that a file of a room defines a row of the room's table?
 *
 * Nothing registers itself, so only a test can see a file that was forgotten:
 *
 *     table_holds("src/sp", "exchange", "exchange", "src/sp/exchange.c", rows);
 */
#ifndef SPTUNE_TESTS_BASE_TABLE_H
#define SPTUNE_TESTS_BASE_TABLE_H

#include "base/check.h"
#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

/* Each definition `const struct KIND PREFIX_name = {` in a .c file of `room` is `&PREFIX_name,` in the file `table`,
 * and there are as many as the table has rows (rows < 0: not counted). */
static inline void table_holds(const char *room, const char *kind, const char *prefix, const char *table, int rows)
{
    char head[96], path[512], *text = NULL, *listed = NULL;
    size_t len;
    int defined = 0;
    DIR *dir = opendir(room);
    assert_non_null(dir);
    int skip = snprintf(head, sizeof head, "\nconst struct %s ", kind);
    snprintf(head + skip, sizeof head - (size_t)skip, "%s_", prefix);
    CHECK_OK(file_read(table, 1 << 20, &listed, &len));
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t end = strlen(entry->d_name);
        if (end < 2 || strcmp(entry->d_name + end - 2, ".c") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%.200s", room, entry->d_name);
        CHECK_OK(file_read(path, 1 << 20, &text, &len));
        for (const char *at = text; (at = strstr(at, head)) != NULL; defined++) {
            char row[96];
            at += skip;
            snprintf(row, sizeof row, "&%.*s,", (int)strcspn(at, " "), at);
            if (strstr(listed, row) == NULL)
                fail_msg("%s defines %.*s, which is not in %s", path, (int)strcspn(at, " "), at, table);
        }
        free(text);
    }
    closedir(dir);
    free(listed);
    assert_true(defined > 0);
    if (rows >= 0)
        assert_int_equal(defined, rows);
}

#endif
