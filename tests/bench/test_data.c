/* bench/test_data.c -- data carry their origin, and comparing finds every element that is not where it belongs. */
#include "base/check.h"
#include "bench/data.h"

#include <math.h>

enum { BATCH = 2, SEQ = 3, HEADS = 4, DIM = 10, STRIDE = HEADS * DIM + 3 };

static struct data_side side_make(enum dtype dtype, void *base)
{
    return (struct data_side){.base = base, .dtype = dtype, .batch = BATCH, .seq = SEQ, .heads = HEADS, .dim = DIM,
                              .token_stride = STRIDE, .batch_first = 5, .position_first = 7, .head_first = 2};
}

/* The values, written plainly: rows of one version are compared with those of another, and stored results with new ones. */
static uint64_t plain_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t plain_hash(uint64_t key, uint64_t counter)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    return plain_mix(plain_mix(key + golden) ^ (counter + 1) * golden);
}

static float plain_lane(uint64_t seed, enum data_tensor tensor, int64_t batch, int64_t position, int head, int copy,
                        int lane)
{
    const uint64_t place[] = {(uint64_t)tensor, (uint64_t)batch, (uint64_t)position,
                              (uint64_t)head << 20 | (uint64_t)copy};
    uint64_t key = seed;
    for (int i = 0; i < CHECK_COUNT(place); i++)
        key = plain_hash(key, place[i]);
    uint64_t bits = plain_hash(key, (uint64_t)(lane - lane % 4)) >> lane % 4 * 16 & 0xffff;
    return ((float)bits - 32767.5f) * (1.7320508f / 32768.0f);
}

static float plain_rounded(enum dtype dtype, float value)
{
    float stored;
    dtype_set(dtype, &stored, 0, value);
    return dtype_get(dtype, &stored, 0);
}

enum { DIM_MAX = 4099, TOKENS = 2 }; /* more than a piece, and no multiple of anything */
static const int dims[] = {1, 3, 4, 10, 31, 32, 33, 80, 128, 4095, 4096, DIM_MAX};

static struct data_side two_heads(void *memory, enum dtype dtype, int dim)
{
    return (struct data_side){
        .base = memory, .dtype = dtype, .batch = 1, .seq = TOKENS, .heads = 2, .dim = dim, .token_stride = 2 * dim};
}

static void test_values(void **state)
{
    (void)state;
    static float row[DIM_MAX], memory[TOKENS * 2 * DIM_MAX];
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int d = 0; d < CHECK_COUNT(dims); d++) {
            struct data_side side = two_heads(memory, (enum dtype)dtype, dims[d]);
            side.batch_first = 3;
            side.position_first = 1 << 20;
            side.head_first = 5;
            side.copy = 1;
            data_fill(9, DATA_DV, &side);
            for (int r = 0; r < 2 * TOKENS; r++) {
                int64_t position = (1 << 20) + r / 2;
                data_row(9, DATA_DV, 3, position, 5 + r % 2, 1, side.dtype, dims[d], row);
                for (int i = 0; i < dims[d]; i++) {
                    float lane = plain_lane(9, DATA_DV, 3, position, 5 + r % 2, 1, i),
                          want = plain_rounded(side.dtype, lane);
                    float held = dtype_get(side.dtype, memory, (int64_t)r * dims[d] + i);
                    if (memcmp(&row[i], &want, sizeof want) != 0 || memcmp(&held, &want, sizeof want) != 0)
                        fail_msg("%s, row %d of %d lanes, lane %d: %a and %a, not %a", dtype_name(side.dtype), r,
                                 dims[d], i, (double)row[i], (double)held, (double)want);
                }
            }
        }
}

/* Any bit of the last lane of the last row, a NaN there. */
static void test_bits_are_checked(void **state)
{
    (void)state;
    static uint32_t memory[TOKENS * 2 * DIM_MAX];
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int d = 0; d < CHECK_COUNT(dims); d++) {
            struct data_side side = two_heads(memory, (enum dtype)dtype, dims[d]);
            int bytes = dtype_bytes(side.dtype);
            int64_t last = (int64_t)TOKENS * 2 * dims[d] - 1;
            unsigned char *at = (unsigned char *)memory + last * bytes;
            struct data_errors errors;
            data_fill(1, DATA_Q, &side);
            for (int bit = 0; bit <= 8 * bytes; bit++) {
                float held = dtype_get(side.dtype, memory, last), wrong = NAN;
                if (bit < 8 * bytes) {
                    at[bit / 8] = (unsigned char)(at[bit / 8] ^ 1u << bit % 8);
                    wrong = dtype_get(side.dtype, memory, last);
                } else
                    dtype_set(side.dtype, memory, last, wrong);
                data_compare(1, DATA_Q, &side, 1, &errors);
                assert_int_equal(errors.wrong, 1);
                assert_int_equal(errors.position, TOKENS - 1);
                assert_int_equal(errors.head, 1);
                assert_int_equal(errors.lane, dims[d] - 1);
                assert_true(errors.want == held && (errors.got == wrong || (isnan(errors.got) && isnan(wrong))));
                dtype_set(side.dtype, memory, last, held);
            }
            data_compare(1, DATA_Q, &side, 1, &errors);
            assert_int_equal(errors.wrong, 0);
        }
}

static void test_every_element_is_checked(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        uint32_t memory[BATCH * SEQ * STRIDE] = {0};
        struct data_side side = side_make((enum dtype)dtype, memory);
        struct data_errors errors;
        char why[256];
        data_fill(1, DATA_Q, &side);
        data_compare(1, DATA_Q, &side, 1, &errors);
        assert_int_equal(errors.wrong, 0);
        assert_int_equal(errors.elements, BATCH * SEQ * HEADS * DIM);
        for (int64_t row = 0; row < BATCH * SEQ; row++)
            for (int64_t lane = 0; lane < HEADS * DIM; lane++) {
                float held = dtype_get(side.dtype, memory, row * STRIDE + lane);
                dtype_set(side.dtype, memory, row * STRIDE + lane, -held);
                data_compare(1, DATA_Q, &side, 1, &errors);
                assert_int_equal(errors.wrong, 1);
                assert_int_equal(errors.batch, 5 + row / SEQ);
                assert_int_equal(errors.position, 7 + row % SEQ);
                assert_int_equal(errors.head, 2 + lane / DIM);
                assert_int_equal(errors.lane, lane % DIM);
                dtype_set(side.dtype, memory, row * STRIDE + lane, held);
            }
        assert_true(data_verdict(&(struct data_errors){0}, DATA_Q, "", why));
    }
}

/* Elements of another tensor, batch item, position, head, copy or seed are not taken for the right ones. */
static void test_origins_differ(void **state)
{
    (void)state;
    float memory[BATCH * SEQ * STRIDE] = {0};
    struct data_errors errors;
    struct data_side right = side_make(DTYPE_FP32, memory);
    for (int other = 0; other < 6; other++) {
        struct data_side wrong = right;
        wrong.batch_first += other == 0;
        wrong.position_first += other == 1;
        wrong.head_first += other == 2;
        wrong.copy += other == 3;
        data_fill(other == 4 ? 2 : 1, other == 5 ? DATA_K : DATA_Q, &wrong);
        data_compare(1, DATA_Q, &right, 1, &errors);
        assert_int_equal(errors.wrong, errors.elements);
    }
}

static void test_spread(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float row[N];
    double sum = 0, squares = 0;
    data_row(3, DATA_V, 0, 0, 0, 0, DTYPE_FP32, N, row);
    for (int i = 0; i < N; i++) {
        assert_true(row[i] != 0 && fabsf(row[i]) <= DATA_MAX);
        sum += (double)row[i];
        squares += (double)row[i] * (double)row[i];
    }
    assert_true(fabs(sum / N) < 0.06 && fabs(squares / N - 1) < 0.06); /* 4 sigma */
}

static void test_sums_of_copies(void **state)
{
    (void)state;
    enum { COPIES = 3, LANES = 81, POSITIONS = 40 };
    static uint32_t memory[POSITIONS * LANES];
    struct data_errors errors;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct data_side side = {.base = memory,
                                 .dtype = (enum dtype)dtype,
                                 .batch = 1,
                                 .seq = POSITIONS,
                                 .heads = 1,
                                 .dim = LANES,
                                 .token_stride = LANES};
        for (int64_t i = 0; i < POSITIONS * LANES; i++) {
            float sum = 0;
            for (int c = 0; c < COPIES; c++)
                sum += plain_rounded(side.dtype, plain_lane(1, DATA_DK, 0, i / LANES, 0, c, (int)(i % LANES)));
            dtype_set(side.dtype, memory, i, sum);
        }
        data_compare(1, DATA_DK, &side, COPIES, &errors);
        assert_int_equal(errors.wrong, 0);
        data_compare(1, DATA_DK, &side, COPIES - 1, &errors);
        assert_in_range(errors.wrong, errors.elements * 9 / 10, errors.elements); /* bf16 has few sums */
        assert_int_equal(errors.elements, POSITIONS * LANES);
    }
}

/* Two copies may add up to 0: then -0 is wrong. */
static void test_sign_of_zero(void **state)
{
    (void)state;
    enum { LANES = 128 };
    float lanes[LANES];
    struct data_side side = {
        .base = lanes, .dtype = DTYPE_BF16, .batch = 1, .seq = 1, .heads = 1, .dim = LANES, .token_stride = LANES};
    struct data_errors errors;
    int zeros = 0;
    for (; side.position_first < 100; side.position_first++)
        for (int i = 0; i < LANES; i++) {
            float sum = 0;
            for (int c = 0; c < 2; c++)
                sum += plain_rounded(side.dtype, plain_lane(1, DATA_DK, 0, side.position_first, 0, c, i));
            if (sum != 0)
                continue;
            for (int l = 0; l < LANES; l++) {
                float other = plain_rounded(side.dtype, plain_lane(1, DATA_DK, 0, side.position_first, 0, 0, l));
                other += plain_rounded(side.dtype, plain_lane(1, DATA_DK, 0, side.position_first, 0, 1, l));
                dtype_set(side.dtype, lanes, l, other);
            }
            data_compare(1, DATA_DK, &side, 2, &errors);
            assert_int_equal(errors.wrong, 0);
            dtype_set(side.dtype, lanes, i, -0.0f);
            data_compare(1, DATA_DK, &side, 2, &errors);
            assert_int_equal(errors.wrong, 1);
            assert_int_equal(errors.lane, i);
            assert_true(signbit(errors.got) && !signbit(errors.want));
            zeros++;
        }
    assert_true(zeros > 0);
}

static void test_bytes(void **state)
{
    (void)state;
    char memory[29], why[256];
    for (int64_t n = 0; n <= (int64_t)sizeof memory; n++) {
        data_bytes_fill(1, 2, 3, n, memory);
        assert_true(data_bytes_verify(1, 2, 3, n, memory, "", why));
        for (int64_t i = 0; i < n; i++) {
            memory[i] = (char)(memory[i] ^ 1);
            assert_false(data_bytes_verify(1, 2, 3, n, memory, "", why));
            assert_non_null(strstr(why, "1 of"));
            memory[i] = (char)(memory[i] ^ 1);
        }
    }
    data_bytes_fill(1, 2, 3, 29, memory);
    assert_false(data_bytes_verify(1, 3, 2, 29, memory, "", why));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_bits_are_checked),
        cmocka_unit_test(test_every_element_is_checked),
        cmocka_unit_test(test_origins_differ),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_sums_of_copies),
        cmocka_unit_test(test_sign_of_zero),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
