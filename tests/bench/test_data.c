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
    enum { COPIES = 3 };
    float memory[SEQ * DIM], part[DIM];
    struct data_side side = {.base = memory, .dtype = DTYPE_FP32, .batch = 1, .seq = SEQ, .heads = 1, .dim = DIM,
                             .token_stride = DIM};
    struct data_errors errors;
    for (int t = 0; t < SEQ; t++)
        for (int c = 0; c < COPIES; c++) {
            data_row(1, DATA_DK, 0, t, 0, c, DTYPE_FP32, DIM, part);
            for (int i = 0; i < DIM; i++)
                memory[t * DIM + i] = c == 0 ? part[i] : memory[t * DIM + i] + part[i];
        }
    data_compare(1, DATA_DK, &side, COPIES, &errors);
    assert_int_equal(errors.wrong, 0);
    data_compare(1, DATA_DK, &side, COPIES - 1, &errors);
    assert_int_equal(errors.wrong, errors.elements);
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
        cmocka_unit_test(test_every_element_is_checked),
        cmocka_unit_test(test_origins_differ),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_sums_of_copies),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
