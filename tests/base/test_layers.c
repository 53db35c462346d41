/* tests/base/test_layers.c -- arrows only point down, and every source is in its room's list.
 *
 * Reads scripts/layers.txt and walks src/: a finding is an #include "room/..." that the table does not allow, a room
 * that the table does not know, or a .c or .cu file that its room's CMakeLists.txt does not name.
 */
#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"
#include "base/text.h"

#include <dirent.h>
#include <regex.h>

enum { READ_LIMIT = 1 << 22 };

struct scan {
    const char *src;
    char *layers;
    regex_t include;
    struct text findings;
    int n;
};

static char *read_text(const char *path)
{
    char *text = NULL;
    size_t len = 0;
    CHECK_OK(file_read(path, READ_LIMIT, &text, &len));
    return text;
}

#define FINDING(scan, ...) ((scan)->n++, text_add(&(scan)->findings, __VA_ARGS__))

/* Is `word` (of `len` bytes) one of the words between `from` and `to`? */
static bool has_word(const char *from, const char *to, const char *word, size_t len)
{
    static const char gaps[] = " \t\n()";
    while (from < to) {
        from += strspn(from, gaps);
        size_t n = strcspn(from, gaps);
        if (from < to && n == len && strncmp(from, word, len) == 0)
            return true;
        from += n;
        if (!n)
            break;
    }
    return false;
}

/* The line of a room: what stands behind "room:". */
static const char *find_room(const struct scan *scan, const char *room, size_t len)
{
    for (const char *line = scan->layers; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, room, len) == 0 && line[len] == ':')
            return line + len + 1;
    return NULL;
}

static void check_includes(struct scan *scan, const char *room, const char *path)
{
    char *text = read_text(path);
    const char *allowed = find_room(scan, room, strlen(room));
    regmatch_t match[2];
    for (const char *at = text; regexec(&scan->include, at, 2, match, 0) == 0; at += match[0].rm_eo) {
        const char *name = at + match[1].rm_so;
        size_t len = (size_t)(match[1].rm_eo - match[1].rm_so);
        if (len == strlen(room) && strncmp(name, room, len) == 0)
            continue;
        if (!find_room(scan, name, len))
            FINDING(scan, "%s includes \"%.*s/...\", which is no room\n", path, (int)len, name);
        else if (!has_word(allowed, allowed + strcspn(allowed, "\n"), name, len))
            FINDING(scan, "%s includes \"%.*s/...\": %s must not know it\n", path, (int)len, name, room);
    }
    free(text);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* `list` is the text of the room's CMakeLists.txt, `below` the directory inside the room with its slash. */
static void check_dir(struct scan *scan, const char *room, const char *list, const char *below)
{
    char dir[512], path[1024], name[512];
    snprintf(dir, sizeof dir, "%s/%s/%s", scan->src, room, below);
    DIR *stream = opendir(dir);
    assert_non_null(stream);
    for (const struct dirent *entry; (entry = readdir(stream));) {
        struct stat info;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s%s", dir, entry->d_name);
        snprintf(name, sizeof name, "%s%s", below, entry->d_name);
        if (stat(path, &info) != 0)
            continue; /* another editor's temporary file */
        if (S_ISDIR(info.st_mode)) {
            text_print(name + strlen(name), sizeof name - strlen(name), "/");
            check_dir(scan, room, list, name);
            continue;
        }
        bool source = ends_with(name, ".c") || ends_with(name, ".cu");
        if (source || ends_with(name, ".h") || ends_with(name, ".cuh"))
            check_includes(scan, room, path);
        if (source && !has_word(list, list + strlen(list), name, strlen(name)))
            FINDING(scan, "%s is not in the list of %s/CMakeLists.txt\n", path, room);
    }
    closedir(stream);
}

static void check_room(struct scan *scan, const char *room)
{
    char path[1024];
    if (!find_room(scan, room, strlen(room))) {
        FINDING(scan, "%s is not in layers.txt\n", room);
        return;
    }
    snprintf(path, sizeof path, "%s/%s/CMakeLists.txt", scan->src, room);
    char *list = file_exists(path) ? read_text(path) : strdup("");
    check_dir(scan, room, list, "");
    free(list);
}

/* Findings as lines; text_free releases. */
static int find_all(const char *src, const char *layers, struct text *out)
{
    struct scan scan = {.src = src, .layers = read_text(layers)};
    assert_int_equal(regcomp(&scan.include, "^[ \t]*#[ \t]*include[ \t]*\"([^\"/\n]*)/", REG_EXTENDED | REG_NEWLINE),
                     0);
    DIR *stream = opendir(src);
    assert_non_null(stream);
    for (const struct dirent *entry; (entry = readdir(stream));) {
        char path[1024];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", src, entry->d_name);
        if (entry->d_name[0] != '.' && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            check_room(&scan, entry->d_name);
    }
    closedir(stream);
    regfree(&scan.include);
    free(scan.layers);
    *out = scan.findings;
    return scan.n;
}

static void this_tree_is_clean(void **state)
{
    (void)state;
    struct text findings = {0};
    int n = find_all("src", "scripts/layers.txt", &findings);
    if (n)
        fputs(text_get(&findings), stderr); /* cmocka's own printing cuts at 1 KiB */
    text_free(&findings);
    assert_int_equal(n, 0);
}

static void sins_are_found(void **state)
{
    (void)state;
    struct temp temp;
    struct text findings = {0};
    char layers[256], src[256];
    temp_open(&temp);
    temp_put(&temp, "layers.txt", "# base: all\nbase:\ntopo: base\nsp: base topo\n");
    temp_put(&temp, "src/base/a.c",
             "#include \"base/a.h\"\n#include <sp/never.h>\n// #include \"sp/x.h\"\n#include \"generated.h\"\n");
    temp_put(&temp, "src/base/CMakeLists.txt", "sptune_room(base SOURCES a.c)\n");
    temp_put(&temp, "src/topo/up.h", "  # include \"sp/plan.h\"\n");
    temp_put(&temp, "src/topo/odd.c", "#include \"../base/a.h\"\n");
    temp_put(&temp, "src/topo/sub/forgotten.c", "#include \"base/a.h\"\n");
    temp_put(&temp, "src/topo/CMakeLists.txt", "sptune_room(topo SOURCES odd.c # sub/forgotten.cc\n)\n");
    temp_put(&temp, "src/stray/x.c", "");
    temp_put(&temp, "src/sp/fine.c", "#include \"topo/up.h\"\n#include \"base/a.h\"\n");
    temp_put(&temp, "src/sp/CMakeLists.txt", "sptune_room(sp\n  SOURCES\n    fine.c)\n");
    snprintf(layers, sizeof layers, "%s/layers.txt", temp.dir);
    snprintf(src, sizeof src, "%s/src", temp.dir);
    int n = find_all(src, layers, &findings);
    const char *text = text_get(&findings);
    assert_non_null(strstr(text, "up.h includes \"sp/...\": topo must not know it"));
    assert_non_null(strstr(text, "odd.c includes \"../...\", which is no room"));
    assert_non_null(strstr(text, "sub/forgotten.c is not in the list of topo/CMakeLists.txt"));
    assert_non_null(strstr(text, "stray is not in layers.txt"));
    assert_int_equal(n, 4);
    text_free(&findings);
    temp_close(&temp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_tree_is_clean),
        cmocka_unit_test(sins_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
