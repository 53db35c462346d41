/* tests/topo/test_svg.c -- the picture is well-formed XML and shows every device, whatever the names. */
#include "topo/make.h"

#include "base/text.h"
#include "topo/svg.h"

#include <ctype.h>

enum { DEPTH_MAX = 32, NAME_MAX_LEN = 32 };

/* Enough of XML for what we write: elements, attributes, entities, characters. */
struct xml_check {
    const char *at;
    char names[DEPTH_MAX][NAME_MAX_LEN];
    int depth, elements;
    const char *problem;
};

static bool is_entity(const char *at)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (int i = 0; i < CHECK_COUNT(entities); i++)
        if (strncmp(at, entities[i], strlen(entities[i])) == 0)
            return true;
    return false;
}

static void read_word(struct xml_check *check, char name[NAME_MAX_LEN])
{
    size_t n = 0;
    while (isalnum((unsigned char)*check->at) || *check->at == '-' || *check->at == ':') {
        if (n + 1 < NAME_MAX_LEN)
            name[n++] = *check->at;
        check->at++;
    }
    name[n] = '\0';
    if (n == 0)
        check->problem = "a name is missing";
}

static void read_attributes(struct xml_check *check)
{
    char names[16][NAME_MAX_LEN];
    int n = 0;
    while (!check->problem && *check->at == ' ') {
        check->at++;
        read_word(check, names[n]);
        for (int i = 0; i < n; i++)
            if (strcmp(names[i], names[n]) == 0)
                check->problem = "an attribute twice";
        n = n < 15 ? n + 1 : n;
        if (strncmp(check->at, "=\"", 2) != 0)
            check->problem = "an attribute without a quoted value";
        for (check->at += 2; !check->problem && *check->at != '"'; check->at++)
            if (!*check->at || *check->at == '<' || (*check->at == '&' && !is_entity(check->at)))
                check->problem = "a value that does not end, or holds < or &";
        check->at += !check->problem;
    }
}

static void read_tag(struct xml_check *check)
{
    char name[NAME_MAX_LEN] = "";
    bool closes = check->at[1] == '/';
    check->at += closes ? 2 : 1;
    read_word(check, name);
    if (closes) {
        if (check->depth == 0 || strcmp(check->names[check->depth - 1], name) != 0)
            check->problem = "an element is closed that is not open";
        check->depth--;
    } else {
        read_attributes(check);
        check->elements++;
        if (!check->problem && check->at[0] == '/')
            check->at++;
        else if (check->depth < DEPTH_MAX)
            memcpy(check->names[check->depth++], name, sizeof name);
        else
            check->problem = "too deep";
    }
    if (!check->problem && *check->at != '>')
        check->problem = "a tag does not end";
    check->at += !check->problem;
}

static const char *find_problem(const char *svg, int *out_elements)
{
    static const char head[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    struct xml_check check = {.at = svg + strlen(head)};
    char *clean = strdup(svg);
    for (char *at = clean; (at = strpbrk(at, "\n"));)
        *at = ' ';
    char *cleaned = strdup(clean);
    text_clean(cleaned);
    if (strncmp(svg, head, strlen(head)) != 0)
        check.problem = "no declaration";
    else if (strcmp(clean, cleaned) != 0)
        check.problem = "control characters or no UTF-8";
    free(clean);
    free(cleaned);
    while (!check.problem && *check.at) {
        if (*check.at == '<')
            read_tag(&check);
        else if (*check.at == '&' && !is_entity(check.at))
            check.problem = "a bare &";
        else if (check.depth == 0 && !isspace((unsigned char)*check.at))
            check.problem = "text outside";
        else
            check.at++;
    }
    if (!check.problem && (check.depth || !check.elements))
        check.problem = "elements stay open";
    *out_elements = check.elements;
    return check.problem;
}

static char *draw(const struct topo *topo, const char *what)
{
    char *svg = NULL;
    int elements = 0;
    CHECK_OK(topo_to_svg(topo, &svg));
    const char *problem = find_problem(svg, &elements);
    if (problem)
        fail_msg("%s: %s in\n%.2000s", what, problem, svg);
    assert_true(elements > 8);
    return svg;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

/* The checker itself finds what it is for. */
static void test_checker(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "<svg>",          "<svg></g>", "<svg a=\"1\" a=\"2\"/>", "<svg a=1/>",      "<svg>a & b</svg>",
        "<svg a=\"<\"/>", "<svg/>x",   "<svg>\x01</svg>",        "<svg>\xff</svg>", "",
    };
    char document[256];
    int elements;
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        snprintf(document, sizeof document, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n%s", bad[i]);
        if (!find_problem(document, &elements))
            fail_msg("no problem found in %s", bad[i]);
    }
    snprintf(document, sizeof document,
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg a=\"&lt;\"><g>&amp;</g></svg>\n");
    assert_null(find_problem(document, &elements));
}

static void test_machines(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int gpus, nics, cores, switches, arcs; /* shapes */
    } rows[] = {
        {"synth:1xL4", 1, 0, 0, 0, 0},
        {"synth:8xH200,nvlink=18,nic=8x400G", 8, 8, 0, 1, 0},
        {"synth:2x8xH200,nvlink=18,nic=8x400G", 16, 16, 0, 2, 0},
        {"synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7", 8, 0, 0, 0, 4},
        {"synth:128x8xH200,nvlink=18,nic=4x400G", 8, 4, 0, 1, 0}, /* equal hosts once */
        {"synth:16xcpu,numa=2,nic=1x10G", 0, 1, 16, 0, 0},
        {"synth:2x16xcpu", 0, 0, 32, 0, 0},
        {"synth:64xH200,nvlink=18,numa=8", 64, 0, 0, 1, 0},
        {"synth:4096xcpu,numa=64", 0, 0, 4096, 0, 0},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct topo topo = make_topo(rows[i].text);
        char *svg = draw(&topo, rows[i].text);
        int legend = topo.ngpus ? 0 : 1; /* the legend shows a core, allowed and not */
        int gpus = count(svg, "<rect class=\"gpu ") - 1 + legend, nics = count(svg, "<rect class=\"nic\"") - 1;
        int cores = count(svg, "<rect class=\"core\"") - legend, switches = count(svg, ">NVLink switches<");
        int arcs = count(svg, "<path ");
        if (gpus != rows[i].gpus || nics != rows[i].nics || cores != rows[i].cores || switches != rows[i].switches ||
            arcs != rows[i].arcs)
            fail_msg("%s: %d GPUs %d NICs %d cores %d switches %d arcs", rows[i].text, gpus, nics, cores, switches,
                     arcs);
        assert_non_null(strstr(svg, topo.fingerprint));
        free(svg);
        topo_free(&topo);
    }
}

static void test_this_machine(void **state)
{
    (void)state;
    struct topo topo = make_topo("local");
    char *svg = draw(&topo, "local");
    if (topo.ngpus == 0)
        assert_int_equal(count(svg, "<rect class=\"core\"") + count(svg, "<rect class=\"core off\"") - 2, topo.ncores);
    free(svg);
    topo_free(&topo);
}

/* Names are data: markup in them is text, and what XML cannot hold is replaced. */
static void test_hostile_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "</text><script>&\"'",
        "\x01\x02\x1b[2J",
        "\xff\xfe\xc3",
        "\xef\xbf\xbe\xef\xbf\xbf",
        "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac",
        "]]>",
        "&amp;",
        ""};
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        struct topo topo = make_topo("synth:2xL4,nic=1x1G");
        snprintf(topo.source, sizeof topo.source, "%s", names[i]);
        snprintf(topo.hosts[0].name, sizeof topo.hosts[0].name, "%s", names[i]);
        snprintf(topo.hosts[0].cpu_model, sizeof topo.hosts[0].cpu_model, "%s", names[i]);
        snprintf(topo.gpus[0].name, sizeof topo.gpus[0].name, "%s", names[i]);
        snprintf(topo.gpus[0].busid, sizeof topo.gpus[0].busid, "%.15s", names[i]);
        snprintf(topo.nics[0].name, sizeof topo.nics[0].name, "%.31s", names[i]);
        snprintf(topo.numas[0].cpus, sizeof topo.numas[0].cpus, "%s", names[i]);
        snprintf(topo.warnings ? topo.warnings[0] : topo.source, 200, "%s", names[i]);
        char *svg = draw(&topo, names[i]);
        assert_null(strstr(svg, "<script"));
        assert_null(strstr(svg, "\xef\xbf\xbe"));
        free(svg);
        topo_free(&topo);
    }
}

/* Devices and NICs of unknown node, a GPU that lost its links, a CPU that may not be used. */
static void test_odd_machines(void **state)
{
    (void)state;
    static const int numa[4] = {0, 0, 1, 1};
    struct topo topo = make_gpus(4, numa);
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < a; b++)
            make_link(&topo, a, b, TOPO_LINK_NVSWITCH, 18);
    topo.gpus[3].numa = -1;
    CHECK_OK(topo_finish(&topo));
    char *svg = draw(&topo, "lost links");
    assert_int_equal(count(svg, "<line class=\"nvlink"), 3);
    assert_non_null(strstr(svg, "NUMA node not known"));
    assert_non_null(strstr(svg, "GPU 3 (0000:13:00.0, made) has no NVLink"));
    free(svg);
    topo_free(&topo);

    topo = make_topo("synth:4xcpu,nic=1x1G");
    topo.cores[2].cpus[0] = '\0';
    topo.cores[3].numa = -1;
    topo.nics[0].numa = -1;
    svg = draw(&topo, "odd CPUs");
    assert_int_equal(count(svg, "<rect class=\"core off\""), 2); /* the other is the legend's */
    free(svg);
    topo_free(&topo);
}

/* Text is cut between characters, never inside one. */
static void test_cut(void **state)
{
    (void)state;
    for (int room = 7; room < 120; room += 7) {
        struct svg svg = {0};
        char *out = NULL;
        int elements;
        svg_box(&svg, "a", 0, 0, 1, 1);
        svg_text(&svg, "a", 0, 0, room, "x\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80zzzz\xf0\x9f\x98\x80 and more of it");
        CHECK_OK(svg_finish(&svg, "", "t", "d", &out));
        const char *problem = find_problem(out, &elements);
        if (problem)
            fail_msg("room %d: %s in %s", room, problem, out);
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checker),       cmocka_unit_test(test_machines),     cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_hostile_names), cmocka_unit_test(test_odd_machines), cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
