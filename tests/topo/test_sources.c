/* tests/topo/test_sources.c -- the table of sources: complete, and clear about what is none of them. */
#include "topo/make.h"

#include <dirent.h>

/* Every source_*.c has its row. */
static void test_table_is_complete(void **state)
{
    (void)state;
    int files = 0, rows = 0;
    DIR *dir = opendir("src/topo");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char name[64];
        int row = 0;
        if (sscanf(entry->d_name, "source_%63[a-z0-9_].c", name) != 1 || !strstr(entry->d_name, ".c"))
            continue;
        while (topo_sources[row] && strcmp(topo_sources[row]->name, name) != 0)
            row++;
        if (!topo_sources[row])
            fail_msg("src/topo/%s has no row in topo_sources", entry->d_name);
        files++;
    }
    closedir(dir);
    while (topo_sources[rows]) {
        assert_true(topo_sources[rows]->accepts && topo_sources[rows]->read);
        rows++;
    }
    assert_int_equal(rows, files);
}

static void test_no_source(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what, *hint;
    } rows[] = {
        {"loacl", "'loacl' is no source", "did you mean local?"},
        {"Local", "'Local' is no source", "did you mean local?"},
        {"synt:8xH200", "'synt:8xH200' is no source", "did you mean synth:?"},
        {"machine.xml", "'machine.xml' is no source", "use local for this machine"},
        {"-", "'-' is no source", "use local for this machine"},
        {"\x1b[2J", "'?[2J' is no source", "use local"}, /* no control character reaches a terminal */
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct topo topo = {0};
        CHECK_FAILS(STATUS_USAGE, rows[i].what, topo_open(rows[i].text, &topo));
        if (!strstr(status_last()->hint, rows[i].hint))
            fail_msg("%s: hint '%s', expected '%s'", rows[i].text, status_last()->hint, rows[i].hint);
        assert_null(topo.hosts);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const char *const names[TOPO_LINK_COUNT] = {"self", "nvswitch", "nvlink", "pix", "pxb",
                                                       "phb",  "node",     "sys",    "net"};
    for (int i = 0; i < TOPO_LINK_COUNT; i++)
        assert_string_equal(topo_link_name((enum topo_link_class)i), names[i]);
    assert_string_equal(topo_link_name(TOPO_LINK_COUNT), "unknown");
    assert_string_equal(topo_link_name((enum topo_link_class) - 1), "unknown");
}

static void test_release(void **state)
{
    (void)state;
    struct topo topo = {0};
    topo_free(NULL);
    topo_free(&topo);
    topo = make_topo("synth:2xL4");
    topo_free(&topo);
    topo_free(&topo);
    assert_null(topo.gpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_complete),
        cmocka_unit_test(test_no_source),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
