/* tests/train/test_tensors_bad.c -- safetensors and indexes that lie: each is refused, and says which file and tensor. */
#include "train/tensors_test.h"

#define ONE(dtype, shape, offsets) "{\"a.b\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                                                                             \
    "{\"x\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":" first "},"                                             \
    "\"y\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":" second "}}"

static const char zeros[64];

/* Refused with `word`, naming the file and, where it is one tensor's fault, that. */
static void refused(const char *word, const char *tensor)
{
    struct tensors *tensors = NULL;
    CHECK_FAILS(STATUS_USAGE, word, tensors_open(temp_path(&temp, "bad.safetensors"), &tensors));
    assert_null(tensors);
    assert_non_null(strstr(status_last()->where, "bad.safetensors"));
    if (tensor && !strstr(status_last()->where, tensor) && !strstr(status_last()->what, tensor))
        fail_msg("'%s' (%s) does not name %s", status_last()->what, status_last()->where, tensor);
}

static void headers_that_lie(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *word, *tensor;
    } cases[] = {
        {"", 0, "does not begin with '{'", NULL},
        {" {}", 0, "does not begin with '{'", NULL},
        {"[]", 0, "does not begin with '{'", NULL},
        {"{\"a\":", 0, "not valid JSON", NULL},
        {"{\"a\\u0000b\":{}}", 0, "\\u0000", NULL},
        {"{\"__metadata__\":[]}", 0, "\"__metadata__\" is not an object", NULL},
        {"{\"__metadata__\":{\"k\":1}}", 0, "\"k\" of \"__metadata__\"", NULL},
        {"{\"a.b\":[]}", 0, "not an object", "a.b"},
        {"{\"a.b\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is not a string", "a.b"},
        {ONE("7", "[1]", "[0,4]"), 4, "\"dtype\" is not a string", "a.b"},
        {ONE("\"F32\"", "1", "[0,4]"), 4, "\"shape\" is not an array", "a.b"},
        {ONE("\"F32\"", "[\"1\"]", "[0,4]"), 4, "dimension 0", "a.b"},
        {ONE("\"F32\"", "[1.0]", "[0,4]"), 4, "dimension 0", "a.b"},
        {ONE("\"F32\"", "[-1]", "[0,4]"), 4, "negative", "a.b"},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions", "a.b"},
        {ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "too large", "a.b"},
        {ONE("\"F32\"", "[4611686018427387904]", "[0,4]"), 4, "too large", "a.b"},
        {ONE("\"F32\"", "[9223372036854775808]", "[0,4]"), 4, "number is too large", NULL},
        {ONE("\"F32\"", "[1]", "[0]"), 4, "not two integers", "a.b"},
        {ONE("\"F32\"", "[1]", "[0,4,8]"), 4, "not two integers", "a.b"},
        {ONE("\"F32\"", "[1]", "[0,\"4\"]"), 4, "not two integers", "a.b"},
        {ONE("\"F32\"", "[1]", "{}"), 4, "not two integers", "a.b"},
        {ONE("\"F32\"", "[1]", "[-4,0]"), 4, "data at [-4, 0) of 4 bytes", "a.b"},
        {ONE("\"F32\"", "[1]", "[4,0]"), 4, "data at [4, 0)", "a.b"},
        {ONE("\"F32\"", "[1]", "[0,4]"), 3, "data at [0, 4) of 3 bytes", "a.b"},
        {ONE("\"F32\"", "[2]", "[0,4]"), 4, "4 bytes for [2] of F32, which takes 8", "a.b"},
        {ONE("\"BF16\"", "[]", "[0,4]"), 4, "4 bytes for [] of BF16, which takes 2", "a.b"},
        {ONE("\"F4\"", "[3]", "[0,2]"), 2, "2 bytes for [3] of F4", "a.b"},
        {ONE("\"F32\"", "[1]", "[0,4]"), 9, "5 bytes after 'a.b' belong to no tensor", "a.b"},
        {ONE("\"F32\"", "[1]", "[1,5]"), 5, "1 bytes between 'the header' and 'a.b'", "a.b"},
        {"{}", 1, "1 bytes after 'the header'", NULL},
        {TWO("[0,4]", "[0,4]"), 4, "begins at byte 0, inside", "y"},
        {TWO("[0,4]", "[2,6]"), 6, "tensor 'y' begins at byte 2, inside 'x'", "y"},
        {TWO("[4,8]", "[1,5]"), 8, "1 bytes between 'the header' and 'y'", "y"},
        {TWO("[0,4]", "[6,10]"), 10, "2 bytes between 'x' and 'y' belong to no tensor", "y"},
        /* The same name twice: what the first was given belongs to nobody. */
        {"{\"x\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"x\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, "4 bytes between 'the header' and 'x'", "x"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        put_tensors("bad.safetensors", cases[i].header, zeros, cases[i].data);
        refused(cases[i].word, cases[i].tensor);
    }
}

static void lengths_that_lie(void **state)
{
    (void)state;
    struct tensors *tensors = NULL;
    CHECK_OK(file_write(temp_path(&temp, "bad.safetensors"), "", 0));
    refused("0 bytes, a safetensors file begins with a header", NULL);
    CHECK_OK(file_write(temp_path(&temp, "bad.safetensors"), zeros, 7));
    refused("7 bytes", NULL);
    put_raw("bad.safetensors", 3, "{}", zeros, 0);
    refused("a header of 3 bytes in a file of 10", NULL);
    put_raw("bad.safetensors", 100000001, "{}", zeros, 0);
    refused("a header of 100000001 bytes, 100000000 are the most", NULL);
    put_raw("bad.safetensors", UINT64_MAX, "{}", zeros, 0);
    refused("a header of 18446744073709551615 bytes", NULL);
    put_raw("bad.safetensors", UINT64_C(1) << 63, "{}", zeros, 0);
    refused("a header of 9223372036854775808 bytes", NULL);
    put_tensors("bad.safetensors", "{}", zeros, 0); /* a file without tensors is one */
    CHECK_OK(tensors_open(temp_path(&temp, "bad.safetensors"), &tensors));
    assert_int_equal(tensors_count(tensors), 0);
    assert_null(tensors_find(tensors, "a"));
    const struct tensors_entry *entry = NULL;
    CHECK_FAILS(STATUS_USAGE, "missing among 0", tensors_need(tensors, "a", 0, NULL, &entry));
    tensors_close(tensors);
}

static void long_names_and_deep_headers(void **state)
{
    (void)state;
    char header[2048] = "{\"", deep[256] = "{\"a\":";
    memset(header + 2, 'n', TENSORS_NAME_MAX + 1);
    strcat(header, "\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    put_tensors("bad.safetensors", header, zeros, 0);
    refused("a name of 513 bytes", "nnnn");
    memset(deep + strlen(deep), '[', 100);
    put_tensors("bad.safetensors", deep, zeros, 0);
    refused("nested deeper", NULL);
}

static void every_cut_of_a_file_is_refused(void **state)
{
    (void)state;
    char *bytes = NULL;
    size_t len = 0;
    put_tensors("bad.safetensors", TWO("[0,4]", "[4,8]"), zeros, 8);
    CHECK_OK(file_read(temp_path(&temp, "bad.safetensors"), 4096, &bytes, &len));
    for (size_t cut = 0; cut < len; cut++) {
        CHECK_OK(file_write(temp_path(&temp, "bad.safetensors"), bytes, cut));
        refused("", NULL);
    }
    free(bytes);
}

static void a_file_cut_while_it_is_open_is_io(void **state)
{
    (void)state;
    char out[8];
    put_tensors("cut.safetensors", TWO("[0,4]", "[4,8]"), zeros, 8);
    struct tensors *tensors = open_tensors("cut.safetensors");
    assert_int_equal(truncate(temp_path(&temp, "cut.safetensors"), 40), 0);
    CHECK_FAILS(STATUS_IO, "nothing from byte", tensors_read(tensors, tensors_at(tensors, 1), 0, 2, DTYPE_FP16, out));
    assert_non_null(strstr(status_last()->where, "'y'"));
    CHECK_FAILS(STATUS_IO, "nothing from byte", tensors_read(tensors, tensors_at(tensors, 1), 0, 2, DTYPE_FP32, out));
    tensors_close(tensors);
}

/* ---- shards ---- */

static const unsigned char one_two[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};

static void put_shards(void)
{
    CHECK_OK(file_make_dirs(temp_path(&temp, "m")));
    put_tensors("m/s1.safetensors", TWO("[0,4]", "[4,8]"), zeros, 8);
    put_tensors("m/s2.safetensors",
                "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                "\"x\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[8,8]}}",
                one_two, sizeof one_two);
}

static void an_index_joins_shards(void **state)
{
    (void)state;
    float two[2];
    temp_put(&temp, "m/model.safetensors.index.json",
             "{\"metadata\":{\"total_size\":16},"
             "\"weight_map\":{\"y\":\"s1.safetensors\",\"w\":\"s2.safetensors\",\"x\":\"s1.safetensors\"}}");
    put_shards();
    for (int by_directory = 0; by_directory < 2; by_directory++) {
        struct tensors *tensors = open_tensors(by_directory ? "m" : "m/model.safetensors.index.json");
        assert_int_equal(tensors_count(tensors), 3); /* the x of s2 is not the one that the map names */
        assert_string_equal(tensors_at(tensors, 1)->name, "x");
        assert_string_equal(tensors_at(tensors, 1)->type, "F16");
        assert_string_equal(tensors_path(tensors, tensors_find(tensors, "w")), temp_path(&temp, "m/s2.safetensors"));
        CHECK_OK(tensors_read(tensors, tensors_find(tensors, "w"), 0, 2, DTYPE_FP32, two));
        assert_true(two[0] == 1 && two[1] == 2);
        const struct tensors_entry *entry = NULL;
        CHECK_FAILS(STATUS_USAGE, "tensor 'z' of shape [] is missing among 3",
                    tensors_need(tensors, "z", 0, NULL, &entry));
        assert_non_null(strstr(status_last()->where, "other shards"));
        tensors_close(tensors);
    }
    put_tensors("m/model.safetensors", "{}", zeros, 0); /* one whole file goes before shards, as in transformers */
    struct tensors *whole = open_tensors("m");
    assert_int_equal(tensors_count(whole), 0);
    tensors_close(whole);
}

static void indexes_that_lie(void **state)
{
    (void)state;
    static const struct {
        const char *index, *word, *where;
    } cases[] = {
        {"", "no JSON", NULL},
        {"[]", "weight_map", NULL},
        {"{}", "\"weight_map\" is missing", NULL},
        {"{\"weight_map\":[]}", "\"weight_map\" is not an object", NULL},
        {"{\"weight_map\":{\"w\":1}}", "the file of tensor 'w' is not a string", NULL},
        {"{\"weight_map\":{\"w\":\"s3.safetensors\"}}", "No such file", "tensor 'w'"},
        {"{\"weight_map\":{\"w\":\"../m/s2.safetensors\"}}", "is not the name of a file beside the index",
         "tensor 'w'"},
        {"{\"weight_map\":{\"w\":\"/etc/passwd\"}}", "is not the name of a file beside the index", "tensor 'w'"},
        {"{\"weight_map\":{\"w\":\"..\"}}", "is not the name of a file beside the index", "tensor 'w'"},
        {"{\"weight_map\":{\"w\":\"\"}}", "is not the name of a file beside the index", "tensor 'w'"},
        {"{\"weight_map\":{\"w\":\"s2.safetensors\",\"v\":\"s2.safetensors\"}}",
         "tensor 'v' is not in 's2.safetensors'", NULL},
        {"{\"weight_map\":{\"w\":\"model.safetensors.index.json\"}}", "a header of", "tensor 'w'"},
    };
    put_shards();
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        struct tensors *tensors = NULL;
        temp_put(&temp, "m/model.safetensors.index.json", cases[i].index);
        CHECK_FAILS(STATUS_USAGE, cases[i].word,
                    tensors_open(temp_path(&temp, "m/model.safetensors.index.json"), &tensors));
        assert_null(tensors);
        assert_non_null(strstr(status_last()->where, "model.safetensors.index.json"));
        if (cases[i].where)
            assert_non_null(strstr(status_last()->where, cases[i].where));
    }
}

static void paths_that_lead_nowhere(void **state)
{
    (void)state;
    struct tensors *tensors = NULL;
    CHECK_FAILS(STATUS_USAGE, "No such file", tensors_open(temp_path(&temp, "none.safetensors"), &tensors));
    CHECK_FAILS(STATUS_USAGE, "No such file", tensors_open(temp_path(&temp, "none.json"), &tensors));
    CHECK_FAILS(STATUS_USAGE, "neither model.safetensors nor", tensors_open(temp.dir, &tensors));
    assert_null(tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(headers_that_lie),
        IN_TEMP(lengths_that_lie),
        IN_TEMP(long_names_and_deep_headers),
        IN_TEMP(every_cut_of_a_file_is_refused),
        IN_TEMP(a_file_cut_while_it_is_open_is_io),
        IN_TEMP(an_index_joins_shards),
        IN_TEMP(indexes_that_lie),
        IN_TEMP(paths_that_lead_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
