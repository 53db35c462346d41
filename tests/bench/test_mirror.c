/* tests/bench/test_mirror.c -- device buffers through copies, on a device whose memory the host cannot read. */
#include "base/check.h"
#include "bench/mirror.h"
#include "bench/odd_device.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS = 4 };

int __wrap_team_spare(int most);
int __wrap_team_spare(int most)
{
    return THREADS < most ? THREADS : most;
}

static void threads_are_for_devices(void **state)
{
    (void)state;
    struct dev *cpu = NULL;
    CHECK_OK(dev_open(DEV_CPU, 0, &cpu));
    assert_int_equal(mirror_threads(odd_device()), THREADS);
    assert_int_equal(mirror_threads(cpu), 1);
    dev_close(cpu);
}

static void whole_mirrors(void **state)
{
    struct dev *odd = odd_device();
    (void)state;
    struct mirror mirror = {0};
    char *device = NULL, data[100] = "forty-two";
    CHECK_OK(dev_alloc(odd, sizeof data, "a buffer", (void **)&device));
    CHECK_OK(mirror_open(odd, device, sizeof data, &mirror));
    memcpy(mirror.host, data, sizeof data);
    CHECK_OK(mirror_store(&mirror));
    assert_int_equal(device[0], 'f' ^ ODD_TURNED);
    device[0] = 'F' ^ ODD_TURNED;
    CHECK_OK(mirror_load(&mirror));
    assert_string_equal(mirror.host, "Forty-two");
    mirror_close(&mirror);
    dev_free(odd, device);
    CHECK_OK(mirror_of_host(odd, data, sizeof data, &mirror));
    device = mirror.device;
    assert_ptr_not_equal(device, data);
    assert_int_equal(device[1], 'o' ^ ODD_TURNED);
    device[1] = 'a' ^ ODD_TURNED;
    CHECK_OK(mirror_load(&mirror));
    assert_string_equal(data, "farty-two");
    mirror_close(&mirror);
}

/* Larger than a piece, and than what one thread does; gaps between tokens must stay. */
static void sides_in_pieces(void **state)
{
    struct dev *odd = odd_device();
    (void)state;
    enum { BATCH = 2, SEQ = 9001, HEADS = 3, DIM = 200, GAP = 7, STRIDE = HEADS * DIM + GAP };
    const size_t bytes = (size_t)BATCH * SEQ * STRIDE * 4;
    char *device = NULL;
    struct data_errors errors;
    assert_true(bytes > 40 << 20);
    CHECK_OK(dev_alloc(odd, bytes, "a buffer", (void **)&device));
    memset(device, 0x11 ^ ODD_TURNED, bytes);
    struct data_side side = {.base = device,
                             .dtype = DTYPE_FP32,
                             .batch = BATCH,
                             .seq = SEQ,
                             .heads = HEADS,
                             .dim = DIM,
                             .token_stride = STRIDE,
                             .batch_first = 5,
                             .position_first = 1000,
                             .head_first = 2};
    CHECK_OK(mirror_data_fill(odd, 3, DATA_K, &side));
    CHECK_OK(mirror_data_compare(odd, 3, DATA_K, &side, 1, &errors));
    assert_int_equal(errors.wrong, 0);
    assert_int_equal(errors.elements, (int64_t)BATCH * SEQ * HEADS * DIM);
    CHECK_OK(mirror_data_compare(odd, 3, DATA_V, &side, 1, &errors));
    assert_in_range(errors.wrong, errors.elements - errors.elements / 10000,
                    errors.elements); /* one in 2^16 is equal by chance */
    char *host = malloc(bytes);       /* what the device has, against the whole side made at once */
    assert_non_null(host);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (char)(device[i] ^ ODD_TURNED);
    for (size_t t = 0; t < BATCH * SEQ; t++)
        for (size_t i = 0; i < GAP * 4; i++)
            assert_int_equal(host[(t * STRIDE + HEADS * DIM) * 4 + i], 0x11);
    struct data_side there = side;
    there.base = host;
    data_compare(3, DATA_K, &there, 1, &errors);
    assert_int_equal(errors.wrong, 0);
    const int64_t at = ((int64_t)SEQ + 8000) * STRIDE + DIM + 17; /* batch 1, token 8000, head 1, lane 17 */
    device[at * 4 + 2] ^= 1;
    CHECK_OK(mirror_data_compare(odd, 3, DATA_K, &side, 1, &errors));
    assert_int_equal(errors.wrong, 1);
    assert_int_equal(errors.batch, 6);
    assert_int_equal(errors.position, 9000);
    assert_int_equal(errors.head, 3);
    assert_int_equal(errors.lane, 17);
    free(host);
    dev_free(odd, device);
}

/* Rows whose tokens are two ranges of the sequence: each is where the shard says, and what is wrong is named by its place in the whole. */
static void tokens_of_a_shard(void **state)
{
    struct dev *odd = odd_device();
    (void)state;
    enum { BATCH = 2, HEADS = 2, DIM = 8, ROW = HEADS * DIM };
    struct shard shard;
    struct data_errors errors;
    char *device = NULL;
    shard_get(3, 24, 3, 1, &shard); /* tokens 4 to 7, 16 to 19 */
    const size_t bytes = (size_t)(BATCH * shard.local * ROW) * 4;
    CHECK_OK(dev_alloc(odd, bytes, "a buffer", (void **)&device));
    struct data_side side = {.base = device,
                             .dtype = DTYPE_FP32,
                             .batch = BATCH,
                             .seq = shard.local,
                             .heads = HEADS,
                             .dim = DIM,
                             .token_stride = ROW,
                             .batch_first = 3};
    CHECK_OK(mirror_shard_fill(odd, 3, DATA_Q, &side, &shard));
    CHECK_OK(mirror_shard_compare(odd, 3, DATA_Q, &side, &shard, 1, &errors));
    assert_int_equal(errors.wrong, 0);
    assert_int_equal(errors.elements, BATCH * shard.local * ROW);
    for (int64_t t = 0; t < BATCH * shard.local; t++) {
        float want[DIM], got;
        data_row(3, DATA_Q, 3 + t / shard.local, shard_position(&shard, t % shard.local), 1, 0, DTYPE_FP32, DIM, want);
        for (int i = 0; i < DIM; i++) {
            char value[4];
            for (int b = 0; b < 4; b++)
                value[b] = (char)(device[(t * ROW + DIM + i) * 4 + b] ^ ODD_TURNED);
            memcpy(&got, value, 4);
            assert_true(got == want[i]);
        }
    }
    device[((shard.local + 5) * ROW + 3) * 4 + 2] ^= 1; /* batch 1, the sixth token here */
    CHECK_OK(mirror_shard_compare(odd, 3, DATA_Q, &side, &shard, 1, &errors));
    assert_int_equal(errors.wrong, 1);
    assert_int_equal(errors.batch, 4);
    assert_int_equal(errors.position, 17);
    assert_int_equal(errors.lane, 3);
    dev_free(odd, device);
}

static char *turned_at(char *device, int64_t element, enum dtype dtype, float *out)
{
    char bytes[4], *at = device + element * dtype_bytes(dtype);
    for (int i = 0; i < dtype_bytes(dtype); i++)
        bytes[i] = (char)(at[i] ^ ODD_TURNED);
    *out = dtype_get(dtype, bytes, 0);
    return at;
}

/* A short range before one of several pieces, through the same staging: the last lane of each range is right, and is checked. */
static void ranges_of_any_length(void **state)
{
    struct dev *odd = odd_device();
    (void)state;
    enum { HEADS = 5, DIM = 256, ROW = HEADS * DIM, SHORT = 3, LONG = 14001 };
    const struct shard shard = {
        .n = 2, .range = {{.first = 10, .count = SHORT}, {.first = 1000, .count = LONG}}, .local = SHORT + LONG};
    const int64_t ends[] = {SHORT - 1, SHORT, SHORT + LONG - 1};
    const size_t bytes = (size_t)(shard.local * ROW) * 2;
    struct data_errors errors;
    char *device = NULL;
    CHECK_OK(dev_alloc(odd, bytes, "a buffer", (void **)&device));
    struct data_side side = {.base = device,
                             .dtype = DTYPE_BF16,
                             .batch = 1,
                             .seq = shard.local,
                             .heads = HEADS,
                             .dim = DIM,
                             .token_stride = ROW};
    CHECK_OK(mirror_shard_fill(odd, 3, DATA_Q, &side, &shard));
    CHECK_OK(mirror_shard_compare(odd, 3, DATA_Q, &side, &shard, 1, &errors));
    assert_int_equal(errors.wrong, 0);
    assert_int_equal(errors.elements, shard.local * ROW);
    for (int i = CHECK_COUNT(ends) - 1; i >= 0; i--) { /* each the first of what is wrong */
        float want[DIM], got;
        char *at = turned_at(device, (ends[i] + 1) * ROW - 1, DTYPE_BF16, &got);
        int64_t position = shard_position(&shard, ends[i]);
        data_row(3, DATA_Q, 0, position, HEADS - 1, 0, DTYPE_BF16, DIM, want);
        assert_true(got == want[DIM - 1]);
        *at ^= 1;
        CHECK_OK(mirror_shard_compare(odd, 3, DATA_Q, &side, &shard, 1, &errors));
        assert_int_equal(errors.wrong, CHECK_COUNT(ends) - i);
        assert_int_equal(errors.elements, shard.local * ROW);
        assert_int_equal(errors.batch, 0);
        assert_int_equal(errors.position, position);
        assert_int_equal(errors.head, HEADS - 1);
        assert_int_equal(errors.lane, DIM - 1);
        assert_true(errors.want == got);
    }
    dev_free(odd, device);
}

static void bytes_in_pieces(void **state)
{
    struct dev *odd = odd_device();
    (void)state;
    const int64_t bytes = (33 << 20) + 13;
    char *device = NULL, *host = malloc((size_t)bytes), why[256] = "";
    bool ok = false;
    assert_non_null(host);
    CHECK_OK(dev_alloc(odd, (size_t)bytes, "a buffer", (void **)&device));
    CHECK_OK(mirror_bytes_fill(odd, 9, 1, 2, bytes, device));
    data_bytes_fill(9, 1, 2, bytes, host);
    for (int64_t i = 0; i < bytes; i++)
        if ((char)(device[i] ^ ODD_TURNED) != host[i])
            fail_msg("byte %lld", (long long)i);
    CHECK_OK(mirror_bytes_verify(odd, 9, 1, 2, bytes, device, "", &ok, why));
    assert_true(ok);
    device[bytes - 1] ^= 4;
    device[(32 << 20) + 3] ^= 4;
    CHECK_OK(mirror_bytes_verify(odd, 9, 1, 2, bytes, device, "", &ok, why));
    assert_false(ok);
    assert_string_equal(why, "2 of 34603021 bytes from rank 1 for rank 2 are wrong, first at byte 33554435");
    free(host);
    dev_free(odd, device);
}

static void on_the_cpu_nothing_is_copied(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    struct mirror mirror = {0};
    char data[8] = "same";
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    CHECK_OK(mirror_open(dev, data, sizeof data, &mirror));
    assert_ptr_equal(mirror.host, data);
    CHECK_OK(mirror_load(&mirror));
    CHECK_OK(mirror_store(&mirror));
    mirror_close(&mirror);
    CHECK_OK(mirror_of_host(dev, data, sizeof data, &mirror));
    assert_ptr_equal(mirror.device, data);
    mirror_close(&mirror);
    dev_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_for_devices),
        cmocka_unit_test(whole_mirrors),
        cmocka_unit_test(sides_in_pieces),
        cmocka_unit_test(tokens_of_a_shard),
        cmocka_unit_test(ranges_of_any_length),
        cmocka_unit_test(bytes_in_pieces),
        cmocka_unit_test(on_the_cpu_nothing_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
