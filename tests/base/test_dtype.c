/* tests/base/test_dtype.c -- every 16-bit value there and back, rounding to nearest even, special values. */
#include "base/check.h"
#include "base/dtype.h"

#include <math.h>

static void every_value_survives(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float bf16 = dtype_from_bf16((uint16_t)bits), fp16 = dtype_from_fp16((uint16_t)bits);
        if (isnan(bf16))
            assert_true(isnan(dtype_from_bf16(dtype_to_bf16(bf16))));
        else
            assert_int_equal(dtype_to_bf16(bf16), bits);
        if (isnan(fp16))
            assert_true(isnan(dtype_from_fp16(dtype_to_fp16(fp16))));
        else
            assert_int_equal(dtype_to_fp16(fp16), bits);
    }
}

/* Between every two neighbours: below the middle goes down, above it up, the middle to the even one. */
static void fp16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        float lo = dtype_from_fp16((uint16_t)bits), hi = dtype_from_fp16((uint16_t)(bits + 1)), middle = (lo + hi) / 2;
        assert_int_equal(dtype_to_fp16(middle), bits + (bits & 1));
        assert_int_equal(dtype_to_fp16(nextafterf(middle, 0)), bits);
        assert_int_equal(dtype_to_fp16(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(dtype_to_fp16(-middle), 0x8000 | (bits + (bits & 1)));
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f7f; bits += 7) {
        float lo = dtype_from_bf16((uint16_t)bits), hi = dtype_from_bf16((uint16_t)(bits + 1));
        float middle = lo + (hi - lo) / 2;
        assert_int_equal(dtype_to_bf16(middle), bits + (bits & 1));
        assert_int_equal(dtype_to_bf16(nextafterf(middle, 0)), bits);
        assert_int_equal(dtype_to_bf16(nextafterf(middle, INFINITY)), bits + 1);
    }
}

static void special_values(void **state)
{
    (void)state;
    assert_true(dtype_from_fp16(0x7c00) == INFINITY);
    assert_true(dtype_from_fp16(0xfc00) == -INFINITY);
    assert_true(dtype_from_fp16(0x0001) == 0x1p-24f);
    assert_true(dtype_from_fp16(0x3c00) == 1.0f);
    assert_true(dtype_from_fp16(0x7bff) == 65504.0f);
    assert_int_equal(dtype_to_fp16(65519.996f), 0x7bff);
    assert_int_equal(dtype_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(dtype_to_fp16(1e38f), 0x7c00);
    assert_int_equal(dtype_to_fp16(-INFINITY), 0xfc00);
    assert_int_equal(dtype_to_fp16(-0.0f), 0x8000);
    assert_int_equal(dtype_to_fp16(1e-30f), 0);
    assert_int_equal(dtype_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(dtype_to_bf16(3.4e38f), 0x7f80);
    assert_true(isnan(dtype_from_bf16(dtype_to_bf16(NAN))));
}

static void arrays_and_single_elements(void **state)
{
    (void)state;
    static const float values[] = {0, 1, -2, 0.5f, 256, -1e-3f, 65504};
    enum { N = CHECK_COUNT(values) };
    for (int d = 0; d < DTYPE_COUNT; d++) {
        enum dtype dtype = (enum dtype)d;
        float storage[N], back[N];
        dtype_store(dtype, values, storage, N);
        dtype_load(dtype, storage, back, N);
        for (int i = 0; i < N; i++) {
            assert_true(fabsf(back[i] - values[i]) <= fabsf(values[i]) / 256);
            assert_true(dtype_get(dtype, storage, i) == back[i]);
        }
        dtype_set(dtype, storage, 3, 8);
        assert_true(dtype_get(dtype, storage, 3) == 8 && dtype_get(dtype, storage, 2) == back[2] &&
                    dtype_get(dtype, storage, 4) == back[4]);
        dtype_load(dtype, NULL, NULL, 0);
        dtype_store(dtype, NULL, NULL, -1);
    }
}

static void names(void **state)
{
    (void)state;
    enum dtype out = DTYPE_COUNT;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        CHECK_OK(dtype_parse(dtype_name((enum dtype)d), "--dtype", &out));
        assert_int_equal(out, d);
    }
    CHECK_OK(dtype_parse("bfloat16", "torch_dtype", &out));
    assert_int_equal(out, DTYPE_BF16);
    CHECK_FAILS(STATUS_USAGE, "'fp8'", dtype_parse("fp8", "--dtype", &out));
    assert_string_equal(status_last()->where, "--dtype");
    CHECK_FAILS(STATUS_USAGE, "''", dtype_parse(NULL, "--dtype", &out));
    assert_int_equal(out, DTYPE_BF16);
    assert_string_equal(dtype_name(DTYPE_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_survives),        cmocka_unit_test(fp16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even), cmocka_unit_test(special_values),
        cmocka_unit_test(arrays_and_single_elements),  cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
