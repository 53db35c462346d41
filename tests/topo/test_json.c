/* tests/topo/test_json.c -- the shape of sptune.topo/1. */
#include "topo/make.h"

#include "base/log.h"

static json_t *document(const char *machine)
{
    static const struct json_envelope envelope = {
        .command = "sptune topo", .started = "2026-11-29T18:30:00Z", .machine = "0123", .seed = 1};
    struct topo topo = make_topo(machine);
    json_t *root = topo_to_json(&topo, &envelope);
    assert_non_null(root);
    topo_free(&topo);
    return root;
}

static void check_text(const json_t *root, const char *key, const char *expected)
{
    char *text = json_dumps(json_object_get(root, key), JSON_COMPACT | JSON_ENCODE_ANY);
    assert_non_null(text);
    if (strcmp(text, expected) != 0)
        fail_msg("%s is %s, expected %s", key, text, expected);
    free(text);
}

static void test_document(void **state)
{
    (void)state;
    static const char *const keys[] = {"schema",  "version",     "command",       "started",     "seed",
                                       "machine", "warnings",    "source",        "fingerprint", "hosts",
                                       "numa",    "cores",       "gpus",          "links",       "nics",
                                       "islands", "rank_orders", "rank_order_sp", "rank_order"};
    json_t *root = document("synth:4xA6000,nvlink=4,pairs=0-2,1-3,nic=1x100G,numa=1,cpus=4,hostmem=1GiB");
    assert_int_equal(json_object_size(root), CHECK_COUNT(keys));
    for (int i = 0; i < CHECK_COUNT(keys); i++)
        if (!json_object_get(root, keys[i]))
            fail_msg("no %s", keys[i]);
    check_text(root, "schema", "\"sptune.topo/1\"");
    check_text(root, "islands", "[[0,2],[1,3]]");
    check_text(root, "rank_order", "[0,2,1,3]");
    check_text(root, "rank_order_sp", "2");
    check_text(root, "rank_orders",
               "[{\"sp\":1,\"link\":\"self\",\"order\":[0,1,2,3]},"
               "{\"sp\":2,\"link\":\"nvlink\",\"order\":[0,2,1,3]},"
               "{\"sp\":4,\"link\":\"node\",\"order\":[0,2,1,3]}]");
    check_text(root, "nics", "[{\"host\":0,\"name\":\"nic0\",\"busid\":\"0000:60:00.0\",\"numa\":0,\"GBps\":12.5}]");
    check_text(root, "numa", "[{\"host\":0,\"os_index\":0,\"memory_bytes\":1073741824,\"cpus\":\"0-3\"}]");
    check_text(root, "hosts",
               "[{\"name\":\"host0\",\"boot_id\":\"synth-0\",\"memory_bytes\":1073741824,\"memory_limit_bytes\":null,"
               "\"packages\":1,\"cores\":4,\"pus\":4,\"pus_allowed\":4,\"cpu_quota\":null,\"quota_version\":0,"
               "\"cpu_model\":\"\",\"l1d_bytes\":null,\"l2_bytes\":null,\"l3_bytes\":null,\"l3_count\":0}]");
    json_t *gpu = json_array_get(json_object_get(root, "gpus"), 1), *links = json_object_get(root, "links");
    check_text(gpu, "index", "1");
    check_text(gpu, "busid", "\"0000:11:00.0\"");
    check_text(gpu, "name", "\"A6000\"");
    check_text(gpu, "numa", "0");
    check_text(gpu, "memory_bytes", "51527024640");
    check_text(gpu, "uuid", "null");
    check_text(gpu, "nvlinks", "4");
    assert_int_equal(json_array_size(links), 6);
    json_t *pair = json_array_get(links, 1), *other = json_array_get(links, 0);
    check_text(pair, "a", "0");
    check_text(pair, "b", "2");
    check_text(pair, "class", "\"nvlink\"");
    check_text(pair, "count", "4");
    check_text(pair, "GBps", "48.0");
    check_text(pair, "from", "\"synth\"");
    check_text(other, "class", "\"node\"");
    check_text(other, "GBps", "null");
    json_decref(root);
}

/* Issue 2, as a script would look at it. */
static void test_rank_orders_differ(void **state)
{
    (void)state;
    json_t *switched = document("synth:8xH200,nvlink=18"),
           *pairs = document("synth:8xH200,nvlink=4,pairs=0-4,1-5,2-6,3-7");
    check_text(switched, "rank_order", "[0,1,2,3,4,5,6,7]");
    check_text(pairs, "rank_order", "[0,4,1,5,2,6,3,7]");
    check_text(switched, "islands", "[[0,1,2,3,4,5,6,7]]");
    json_decref(switched);
    json_decref(pairs);
}

static void test_without_gpus(void **state)
{
    (void)state;
    json_t *root = document("synth:2x4xcpu");
    check_text(root, "gpus", "[]");
    check_text(root, "links", "[]");
    check_text(root, "islands", "[]");
    check_text(root, "rank_order", "[]");
    check_text(root, "rank_order_sp", "1");
    assert_int_equal(json_array_size(json_object_get(root, "hosts")), 2);
    assert_int_equal(json_array_size(json_object_get(root, "cores")), 8);
    json_decref(root);
}

/* An island of 3 among 4 GPUs: the order is for the next smaller group size that makes whole groups. */
static void test_odd_island(void **state)
{
    (void)state;
    json_t *root = document("synth:4xA6000,nvlink=2,pairs=0-1,1-2,0-2");
    check_text(root, "islands", "[[0,1,2],[3]]");
    check_text(root, "rank_order_sp", "2");
    json_decref(root);
}

static void test_this_machine(void **state)
{
    (void)state;
    json_t *root = document("local");
    json_t *host = json_array_get(json_object_get(root, "hosts"), 0);
    assert_true(json_integer_value(json_object_get(host, "pus")) >= 1);
    assert_int_equal(strlen(json_string_value(json_object_get(root, "fingerprint"))), 32);
    json_decref(root);
}

/* Warnings of the topology follow those of the log, each once. */
static void test_warnings(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:8xH200");
    assert_int_equal(topo.nwarnings, 1);
    CHECK_OK(topo_warn(&topo, "odd \xff bytes"));
    log_setup(LOG_QUIET, false);
    log_warn("%s", topo.warnings[0]);
    json_t *root = topo_to_json(&topo, NULL);
    log_reset();
    json_t *warnings = json_object_get(root, "warnings");
    assert_int_equal(json_array_size(warnings), 2);
    assert_string_equal(json_string_value(json_array_get(warnings, 0)), topo.warnings[0]);
    assert_string_equal(json_string_value(json_array_get(warnings, 1)), "odd ? bytes");
    json_decref(root);
    topo_free(&topo);
}

/* Bytes that are no UTF-8 in a name do not cost the document. */
static void test_odd_names(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:1xL4");
    strcpy(topo.gpus[0].name, "G\xff\xfe"
                              "U\"\\");
    strcpy(topo.hosts[0].name, "h\x01");
    json_t *root = topo_to_json(&topo, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(root, "gpus"), 0), "name")),
                        "G??U\"\\");
    json_decref(root);
    topo_free(&topo);
}

/* Fields of the structure that the document must carry, so that it can be read back: change each, look for a change. */
static void test_everything_is_there(void **state)
{
    (void)state;
    struct topo topo = make_topo("synth:2x2xA6000,nvlink=4,nic=1x100G");
    json_t *before = topo_to_json(&topo, NULL);
#define SHOWS(field, value)                                                                                            \
    do {                                                                                                               \
        topo.field = (value);                                                                                          \
        json_t *after = topo_to_json(&topo, NULL);                                                                     \
        if (json_equal(before, after))                                                                                 \
            fail_msg("%s is not in the document", #field);                                                             \
        json_decref(before);                                                                                           \
        before = after;                                                                                                \
    } while (0)
    SHOWS(hosts[1].name[0], 'X');
    SHOWS(hosts[1].boot_id[0], 'X');
    SHOWS(hosts[1].memory_bytes, 12345);
    SHOWS(hosts[1].memory_limit_bytes, 12345);
    SHOWS(hosts[1].packages, 77);
    SHOWS(hosts[1].cores, 77);
    SHOWS(hosts[1].pus, 77);
    SHOWS(hosts[1].pus_allowed, 77);
    SHOWS(hosts[1].cpu_quota, 7.5);
    SHOWS(hosts[1].quota_version, 2);
    SHOWS(hosts[1].l1d_bytes, 77);
    SHOWS(hosts[1].l2_bytes, 77);
    SHOWS(hosts[1].l3_bytes, 77);
    SHOWS(hosts[1].l3_count, 77);
    SHOWS(hosts[1].cpu_model[0], 'X');
    SHOWS(numas[1].host, 0);
    SHOWS(numas[1].os_index, 77);
    SHOWS(numas[1].memory_bytes, 77);
    SHOWS(numas[1].cpus[0], '7');
    SHOWS(cores[1].host, 1);
    SHOWS(cores[1].numa, 1);
    SHOWS(cores[1].package, 7);
    SHOWS(cores[1].l3, 7);
    SHOWS(cores[1].pus, 7);
    SHOWS(cores[1].cpus[0], '7');
    SHOWS(gpus[1].host, 1);
    SHOWS(gpus[1].numa, 1);
    SHOWS(gpus[1].busid[0], 'X');
    SHOWS(gpus[1].name[0], 'X');
    SHOWS(gpus[1].uuid[0], 'X');
    SHOWS(gpus[1].memory_bytes, 77);
    SHOWS(gpus[1].nvlinks, 7);
    SHOWS(gpus[1].driver, false);
    SHOWS(nics[1].host, 0);
    SHOWS(nics[1].numa, 0);
    SHOWS(nics[1].name[0], 'X');
    SHOWS(nics[1].busid[0], 'X');
    SHOWS(nics[1].GBps, 7.5);
    SHOWS(links[1].link, TOPO_LINK_NVLINK);
    SHOWS(links[1].count, 7);
    SHOWS(links[1].GBps, 7.5);
    SHOWS(links[1].from, "made");
    SHOWS(fingerprint[0], 'X');
    SHOWS(source[0], 'X');
#undef SHOWS
    json_decref(before);
    topo_free(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_document),     cmocka_unit_test(test_rank_orders_differ),
        cmocka_unit_test(test_without_gpus), cmocka_unit_test(test_odd_island),
        cmocka_unit_test(test_this_machine), cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_odd_names),    cmocka_unit_test(test_everything_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
