/* tests/topo/test_synth.c -- synth: text: what it builds, what it refuses and how it says so, and noise. */
#include "topo/make.h"

#include "base/rng.h"
#include "topo/synth.h"

struct good {
    const char *text;
    int hosts, gpus, cores, numas, nics; /* in all */
    enum topo_link_class first_pair;     /* link of devices 0 and 1 */
    int count;
};

static const struct good goods[] = {
    {"synth:1xH200", 1, 1, 16, 1, 0, 0, 0},
    {"synth:8xH200", 1, 8, 128, 2, 0, TOPO_LINK_NODE, 1},
    {"synth:2x8xH200,nvlink=18,nic=8x400G", 2, 16, 256, 4, 16, TOPO_LINK_NVSWITCH, 18},
    {"synth:2xA100,nvlink=12", 1, 2, 32, 1, 0, TOPO_LINK_NVSWITCH, 12},
    {"synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7", 1, 8, 128, 2, 0, TOPO_LINK_NODE, 1},
    {"synth:8xA6000,pairs=0-1,nvlink=4", 1, 8, 128, 2, 0, TOPO_LINK_NVLINK, 4},
    {"synth:2x2xA6000,nvlink=4,pairs=1-0,numa=2", 2, 4, 64, 4, 0, TOPO_LINK_NVLINK, 4},
    {"synth:2xL4,numa=2", 1, 2, 32, 2, 0, TOPO_LINK_SYS, 1},
    {"synth:3xL4", 1, 3, 48, 1, 0, TOPO_LINK_NODE, 1},
    {"synth:2x1xL4,nic=1x100G", 2, 2, 32, 2, 2, TOPO_LINK_NET, 1},
    {"synth:4xFuture9000,mem=256GiB", 1, 4, 64, 2, 0, TOPO_LINK_NODE, 1},
    {"synth:4xFuture9000,nvlink=24,mem=1TB", 1, 4, 64, 2, 0, TOPO_LINK_NVSWITCH, 24},
    {"synth:8x3090,mem=24GiB", 1, 8, 128, 2, 0, TOPO_LINK_NODE, 1},
    {"synth:2xRTX 3090", 1, 2, 32, 1, 0, TOPO_LINK_NODE, 1},
    {"synth:8xh100-80gb,nvlink=18", 1, 8, 128, 2, 0, TOPO_LINK_NVSWITCH, 18},
    {"synth:8xH200,nvlink=0", 1, 8, 128, 2, 0, TOPO_LINK_NODE, 1},
    {"synth:8xH200,numa=8,cpus=8", 1, 8, 8, 8, 0, TOPO_LINK_SYS, 1},
    {"synth:8xH200,numa=3,cpus=10", 1, 8, 10, 3, 0, TOPO_LINK_NODE, 1},
    {"synth:64xH200,nvlink=18", 1, 64, 1024, 2, 0, TOPO_LINK_NVSWITCH, 18},
    {"synth:128x8xH200,nvlink=18", 128, 1024, 16384, 256, 0, TOPO_LINK_NVSWITCH, 18},
    {"synth:1024x1xH200", 1024, 1024, 16384, 1024, 0, TOPO_LINK_NET, 1},
    {"synth:8xH200,hostmem=2TiB,nic=2x12.5G", 1, 8, 128, 2, 2, TOPO_LINK_NODE, 1},
    {"synth:4xcpu", 1, 0, 4, 1, 0, 0, 0},
    {"synth:2x64xcpu,numa=4,mem=512GiB,nic=1x25G", 2, 0, 128, 8, 2, 0, 0},
    {"synth:1xCPU", 1, 0, 1, 1, 0, 0, 0},
};

static void test_good(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_COUNT(goods); i++) {
        const struct good *good = &goods[i];
        struct topo topo = make_topo(good->text);
        if (topo.nhosts != good->hosts || topo.ngpus != good->gpus || topo.ncores != good->cores ||
            topo.nnumas != good->numas || topo.nnics != good->nics)
            fail_msg("%s: %d hosts %d GPUs %d cores %d NUMA nodes %d NICs", good->text, topo.nhosts, topo.ngpus,
                     topo.ncores, topo.nnumas, topo.nnics);
        if (topo.ngpus > 1 && (topo.links[1].link != good->first_pair || topo.links[1].count != good->count))
            fail_msg("%s: 0-1 %s x%d", good->text, topo_link_name(topo.links[1].link), topo.links[1].count);
        assert_string_equal(topo.source, good->text);
        assert_int_equal(strlen(topo.fingerprint), 32);
        topo_free(&topo);
    }
}

static const struct {
    const char *text;
    const char *what; /* part of the message */
    const char *hint; /* part of the hint */
    int at;           /* character, counted from 1; 0 where no place can be named */
} bads[] = {
    {"synth:", "how many", "synth:2x8xH200", 7},
    {"synth:H200", "how many", "synth:2x8xH200", 7},
    {"synth:xH200", "how many", "synth:", 7},
    {"synth:-8xH200", "how many", "synth:", 7},
    {"synth: 8xH200", "how many", "synth:", 7},
    {"synth:8", "how many", "synth:", 7},
    {"synth:8x", "how many", "synth:", 7},
    {"synth:8x,nvlink=18", "how many", "synth:", 7},
    {"synth:0xH200", "a count must be from 1", "synth:", 7},
    {"synth:2x0xH200", "a count must be from 1", "synth:", 9},
    {"synth:1000000000000000000xH200", "a count must be from 1", "synth:", 7},
    {"synth:1000000000000000000000000000000x8xH200", "a count must be from 1", "synth:", 7},
    {"synth:2000x1xH200", "2000 hosts are too many", "1024", 7},
    {"synth:1x65xH200", "65 GPUs on one host", "64", 9},
    {"synth:65xH200", "65 GPUs on one host", "64", 7},
    {"synth:100x16xH200", "1600 GPUs in all", "1024", 7},
    {"synth:5000xcpu", "5000 cores on one host", "4096", 7},
    {"synth:1000x4000xcpu", "too many", "262144", 7},
    {"synth:8xH\x01", "cannot be part of a name", "synth:8xH200", 10},
    {"synth:8xH200;nvlink=18", "cannot be part of a name", "synth:", 13},
    {"synth:8x\xff\xfe", "cannot be part of a name", "synth:", 9},
    {"synth:8xAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "too long", "synth:", 9},
    {"synth:8xFuture", "memory of a 'Future' is not known", "mem=80GiB", 15},
    {"synth:8xFuture,nvlink=18", "memory of a 'Future' is not known", "mem=80GiB", 25},
    {"synth:8xH200,", "is no option", "nvlink=", 14},
    {"synth:8xH200,,nvlink=18", "is no option", "nvlink=", 14},
    {"synth:8xH200,nvlinks=18", "'nvlinks' is no option", "did you mean nvlink=?", 14},
    {"synth:8xH200,pair=0-1", "'pair' is no option", "did you mean pairs=?", 14},
    {"synth:8xH200,NVLINK=18", "is no option", "nvlink", 14},
    {"synth:8xH200,speed=9", "'speed' is no option", "options are nvlink=", 14},
    {"synth:8xH200,nvlink", "nvlink needs a value", "key=value", 20},
    {"synth:8xH200,nvlink,numa=2", "nvlink needs a value", "key=value", 20},
    {"synth:8xH200,nvlink=", "must be a whole number", "nvlink=18", 21},
    {"synth:8xH200,nvlink=-1", "must be a whole number", "nvlink=18", 21},
    {"synth:8xH200,nvlink=1.5", "goes on", "nvlink=18", 22},
    {"synth:8xH200,nvlink=18x", "goes on", "nvlink=18", 23},
    {"synth:8xH200,nvlink=65", "from 0 to 64", "nvlink=18", 21},
    {"synth:8xH200,nvlink=1000000000000000000000000000000", "from 0 to 64", "nvlink=18", 21},
    {"synth:8xH200,nvlink=18,nvlink=18", "given twice", "once", 24},
    {"synth:8xH200,pairs=0-1", "pairs without nvlink", "nvlink=4", 14},
    {"synth:8xH200,nvlink=0,pairs=0-1", "pairs without nvlink", "nvlink=4", 23},
    {"synth:8xH200,nvlink=4,pairs=", "must be a whole number", "pairs=0-4", 29},
    {"synth:8xH200,nvlink=4,pairs=0", "needs '-'", "pairs=0-4", 30},
    {"synth:8xH200,nvlink=4,pairs=0-", "must be a whole number", "pairs=0-4", 31},
    {"synth:8xH200,nvlink=4,pairs=0-8", "GPU 8 of a pair does not exist", "0 to 7", 29},
    {"synth:8xH200,nvlink=4,pairs=9-0", "GPU 9 of a pair does not exist", "0 to 7", 29},
    {"synth:8xH200,nvlink=4,pairs=0-99", "from 0 to 63", "pairs=0-4", 31},
    {"synth:8xH200,nvlink=4,pairs=3-3", "cannot be linked with itself", "pairs=", 29},
    {"synth:8xH200,nvlink=4,pairs=0-1,1-0", "given twice", "once", 33},
    {"synth:8xH200,nvlink=4,pairs=0-1;1-2", "goes on", "pairs=", 32},
    {"synth:8xH200,nvlink=4,pairs=0-1,", "is no option", "nvlink=", 33},
    {"synth:8xH200,mem=141", "is not an amount of memory", "GiB", 18},
    {"synth:8xH200,mem=", "missing", "GiB", 18},
    {"synth:8xH200,mem=0GiB", "more than nothing", "141GiB", 18},
    {"synth:8xH200,mem=-1GiB", "negative", "GiB", 18},
    {"synth:8xH200,mem=1000000000000000000000000000000GiB", "too large", "GiB", 18},
    {"synth:8xH200,mem=11111111111111111111111111111111111111111111111111111111111111111GiB", "too long", "141GiB", 18},
    {"synth:8xH200,numa=0", "from 1 to 64", "numa=2", 19},
    {"synth:8xH200,numa=65", "from 1 to 64", "numa=2", 19},
    {"synth:8xH200,cpus=0", "from 1 to 4096", "cpus=128", 19},
    {"synth:8xH200,cpus=1e3", "goes on", "cpus=128", 20},
    {"synth:8xH200,cpus=1", "2 NUMA nodes with 1 cores", "numa=1", 14},
    {"synth:4xcpu,numa=5", "5 NUMA nodes with 4 cores", "numa=4", 13},
    {"synth:8xH200,nic=400G", "needs 'x'", "nic=8x400G", 21},
    {"synth:8xH200,nic=0x400G", "from 1 to 64", "nic=8x400G", 18},
    {"synth:8xH200,nic=8x", "a network rate", "nic=8x400G", 20},
    {"synth:8xH200,nic=8x400", "a network rate", "nic=8x400G", 20},
    {"synth:8xH200,nic=8xG", "a network rate", "nic=8x400G", 20},
    {"synth:8xH200,nic=8x4e2G", "a network rate", "nic=8x400G", 20},
    {"synth:8xH200,nic=8x-1G", "a network rate", "nic=8x400G", 20},
    {"synth:8xH200,nic=8x0G", "out of range", "", 20},
    {"synth:8xH200,nic=8x1000000000000000000G", "out of range", "", 20},
    {"synth:8xH200,nic=8xinfG", "a network rate", "nic=8x400G", 20},
    {"synth:4xcpu,nvlink=2", "nvlink needs GPUs", "mem= numa= nic=", 13},
    {"synth:4xcpu,cpus=2", "cpus needs GPUs", "mem= numa= nic=", 13},
    {"synth:8xcpu x", "memory of a 'cpu x' is not known", "mem=", 14},
};

static void test_bad(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_COUNT(bads); i++) {
        struct topo topo = {0};
        char place[32];
        status_clear();
        enum status status = topo_open(bads[i].text, &topo);
        const struct status_message *last = status_last();
        snprintf(place, sizeof place, "character %d ", bads[i].at);
        if (status != STATUS_USAGE || !strstr(last->what, bads[i].what) || !strstr(last->hint, bads[i].hint) ||
            !strstr(last->where, place))
            fail_msg("%s: %s '%s' where '%s' hint '%s', expected '%s' at %d with hint '%s'", bads[i].text,
                     status_name(status), last->what, last->where, last->hint, bads[i].what, bads[i].at, bads[i].hint);
        assert_null(topo.hosts);
    }
}

static void test_too_long(void **state)
{
    (void)state;
    struct topo topo = {0};
    size_t len = 100000;
    char *text = malloc(len + 1);
    assert_non_null(text);
    memset(text, '1', len);
    memcpy(text, "synth:", 6);
    text[len] = '\0';
    CHECK_FAILS(STATUS_USAGE, "100000 characters", topo_open(text, &topo));
    free(text);
}

/* The longest text that can be meant: every pair of 64 GPUs. */
static void test_all_pairs(void **state)
{
    (void)state;
    char *text = calloc(1, SYNTH_TEXT_MAX);
    assert_non_null(text);
    int len = snprintf(text, SYNTH_TEXT_MAX, "synth:64xA100,nvlink=1,pairs=");
    for (int a = 0; a < 64; a++)
        for (int b = 0; b < a; b++)
            len += snprintf(text + len, (size_t)(SYNTH_TEXT_MAX - len), "%s%d-%d", a == 1 ? "" : ",", a, b);
    struct topo topo = make_topo(text);
    assert_int_equal(topo.gpus[63].nvlinks, 63);
    assert_int_equal(topo.links[64 * 64 - 2].link, TOPO_LINK_NVLINK);
    assert_true(strlen(topo.source) < sizeof topo.source);
    assert_non_null(strstr(topo.source, "..."));
    topo_free(&topo);
    free(text);
}

static void test_facts(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:2x8xH200,nvlink=18,nic=8x400G,hostmem=2TiB,numa=2,cpus=96");
    assert_string_equal(topo.gpus[9].name, "H200");
    assert_int_equal(topo.gpus[9].memory_bytes, INT64_C(143771) << 20);
    assert_int_equal(topo.gpus[9].host, 1);
    assert_int_equal(topo.gpus[9].numa, 2);
    assert_int_equal(topo.gpus[15].numa, 3);
    assert_int_equal(topo.gpus[0].nvlinks, 18);
    assert_true(topo.links[1].GBps > 370.7 && topo.links[1].GBps < 370.9); /* 18 x 20.6 */
    assert_true(topo.links[8].link == TOPO_LINK_NET && topo.links[8].GBps >= 50.0 && topo.links[8].GBps <= 50.0);
    assert_true(topo.nics[0].GBps >= 50.0 && topo.nics[0].GBps <= 50.0); /* 400 Gbit/s */
    assert_int_equal(topo.nics[4].numa, 1);
    assert_int_equal(topo.hosts[1].memory_bytes, INT64_C(2) << 40);
    assert_int_equal(topo.numas[3].memory_bytes, INT64_C(1) << 40);
    assert_string_equal(topo.numas[0].cpus, "0-47");
    assert_string_equal(topo.numas[3].cpus, "48-95");
    assert_string_equal(topo.cores[95].cpus, "95");
    assert_int_equal(topo.nwarnings, 0);
    topo_free(&topo);

    topo = make_topo("synth:8xA100-40GB,nvlink=12,mem=39.4GiB");
    assert_int_equal(topo.gpus[0].memory_bytes, (int64_t)(39.4 * (1 << 30)));
    assert_true(topo.links[1].GBps >= 240.0 && topo.links[1].GBps <= 240.0);
    topo_free(&topo);

    topo = make_topo("synth:4xFuture,mem=1GiB,nvlink=4");
    assert_true(topo.links[1].GBps < 0); /* unknown, not guessed */
    topo_free(&topo);
}

/* What is odd is said, and only then. */
static void test_warnings(void **state)
{
    (void)state;
    static const struct {
        const char *text, *warning;
    } rows[] = {
        {"synth:8xH200", "joined by PCIe alone"},
        {"synth:8xL4,nvlink=4", "a real L4 has 0"},
        {"synth:8xH200,nvlink=20", "a real H200 has 18"},
        {"synth:4xA6000,nvlink=4,pairs=0-1,0-2", "has 8 NVLinks; a real A6000 has 4"},
        {"synth:8xH200,nvlink=0", NULL},
        {"synth:1xH200", NULL},
        {"synth:8xL4", NULL},
        {"synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7", NULL},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct topo topo = make_topo(rows[i].text);
        if (!rows[i].warning && topo.nwarnings)
            fail_msg("%s: unexpected warning '%s'", rows[i].text, topo.warnings[0]);
        if (rows[i].warning && (topo.nwarnings == 0 || !strstr(topo.warnings[0], rows[i].warning)))
            fail_msg("%s: no warning '%s'", rows[i].text, rows[i].warning);
        topo_free(&topo);
    }
}

/* Any bytes: a status, never a crash; what is accepted can be used. */
static void feed(const char *text)
{
    struct topo topo = {0};
    if (topo_open(text, &topo) != STATUS_OK)
        return;
    int order[SYNTH_GPUS_MAX];
    if (topo.ngpus)
        CHECK_OK(topo_rank_order(&topo, topo.ngpus, 1, order));
    topo_free(&topo);
}

static void test_noise(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < 60000; i++) {
        char text[96] = "synth:";
        int len = 6 + (int)rng_below(&rng, 80);
        for (int k = 6; k < len; k++)
            text[k] = (char)(1 + rng_below(&rng, 255));
        feed(text);
    }
}

/* Noise that looks like the real thing goes deeper: pieces of good text in random order, a byte changed now and then.
 */
static void test_pieces(void **state)
{
    (void)state;
    static const char *const pieces[] = {"2x",     "8x",       "0x",   "99999999999999999999x",
                                         "H200",   "cpu",      "L4",   "3090",
                                         ",",      ",",        ",",    "nvlink=",
                                         "pairs=", "mem=",     "nic=", "numa=",
                                         "cpus=",  "hostmem=", "18",   "4",
                                         "0-1",    "1-2",      "7-3",  "-",
                                         "GiB",    "8x400G",   "G",    ".",
                                         "=",      "x"};
    struct rng rng;
    rng_seed(&rng, 2, 0);
    for (int i = 0; i < 60000; i++) {
        char text[256] = "synth:";
        int n = (int)rng_below(&rng, 14);
        for (int k = 0; k < n; k++)
            strcat(text, pieces[rng_below(&rng, CHECK_COUNT(pieces))]);
        if (rng_below(&rng, 4) == 0 && strlen(text) > 6)
            text[6 + rng_below(&rng, (int64_t)strlen(text) - 6)] = (char)(1 + rng_below(&rng, 255));
        feed(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_bad),    cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_all_pairs), cmocka_unit_test(test_facts),  cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_noise),     cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
