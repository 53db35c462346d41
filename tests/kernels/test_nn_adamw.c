/* tests/kernels/test_nn_adamw.c -- five steps of AdamW against the same in double; sums. */
#include "kernels/nn_fixture.h"

static const struct nn_adamw options = {
    .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .grad_scale = 0.5f};

struct weight {
    double w, m, v;
};

/* Loshchilov and Hutter, algorithm 2, decay as PyTorch has it (lr * decay). */
static void step_of(struct weight *at, double grad, int64_t step)
{
    double b1 = (double)options.beta1, b2 = (double)options.beta2, lr = (double)options.lr;
    grad *= (double)options.grad_scale;
    at->m = b1 * at->m + (1 - b1) * grad;
    at->v = b2 * at->v + (1 - b2) * grad * grad;
    at->w -= lr * (double)options.decay * at->w;
    at->w -=
        lr * (at->m / (1 - pow(b1, (double)step))) / (sqrt(at->v / (1 - pow(b2, (double)step))) + (double)options.eps);
}

static void adamw_case(struct rng *rng, enum dtype dtype, int64_t n, bool in_place)
{
    float *master = nn_random(rng, DTYPE_FP32, n, 1), *m = nn_random(rng, DTYPE_FP32, n, 0),
          *v = nn_random(rng, DTYPE_FP32, n, 0);
    void *weight = in_place ? master : nn_blank(dtype, n);
    struct weight *right = calloc((size_t)n + 1, sizeof *right);
    for (int64_t i = 0; i < n; i++)
        right[i].w = (double)master[i];
    for (int64_t step = 1; step <= 5; step++) {
        struct nn_adamw at = options;
        float *grad = nn_random(rng, DTYPE_FP32, n, step == 3 ? 0 : pow(10, (double)step - 4));
        at.step = step;
        CHECK_OK(nn_adamw(n, &at, dtype, master, m, v, grad, weight, NULL));
        for (int64_t i = 0; i < n; i++) {
            step_of(&right[i], (double)grad[i], step);
            nn_near("m", DTYPE_FP32, m, i, right[i].m, (double)options.grad_scale * 10, 8);
            nn_near("v", DTYPE_FP32, v, i, right[i].v, 0, 8 * (double)step);
            nn_near("master", DTYPE_FP32, master, i, right[i].w, 0.1, 8 * (double)step);
            assert_true(dtype_get(dtype, weight, i) ==
                        (dtype_set(dtype, &grad[i], 0, master[i]), dtype_get(dtype, &grad[i], 0)));
        }
        free(grad);
    }
    free(master);
    free(m);
    free(v);
    free(right);
    if (!in_place)
        free(weight);
}

static void adamw_shapes(struct rng *rng, enum dtype dtype)
{
    static const int64_t lengths[] = {0, 1, 3, 7, 113, 1030};
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
        adamw_case(rng, dtype, lengths[i], false);
        if (dtype == DTYPE_FP32)
            adamw_case(rng, dtype, lengths[i], true);
    }
}

static void adamw_five_steps(void **state)
{
    (void)state;
    nn_everywhere(adamw_shapes);
    struct nn_adamw at = options;
    float x[4] = {0};
    CHECK_FAILS(STATUS_USAGE, "step 0", nn_adamw(1, &at, DTYPE_FP32, x, x + 1, x + 2, x + 3, x, NULL));
    at.step = 1;
    CHECK_FAILS(STATUS_USAGE, "bf16", nn_adamw(1, &at, DTYPE_BF16, x, x + 1, x + 2, x + 3, x, NULL));
    CHECK_OK(nn_adamw(1, &at, DTYPE_FP32, x, x + 1, x + 2, x + 3, x, NULL)); /* nothing moves: no 0 / 0 */
    assert_true(x[0] == 0 && x[1] == 0 && x[2] == 0);
}

static void sum_shapes(struct rng *rng, enum dtype dtype)
{
    static const int64_t lengths[] = {0, 1, 3, 7, 113, 16384, 16385, 50001};
    if (dtype != DTYPE_FP32)
        return;
    for (int l = 0; l < CHECK_COUNT(lengths); l++) {
        int64_t n = lengths[l];
        float *x = nn_random(rng, DTYPE_FP32, n, 1e25); /* squares leave fp32's range */
        void *scratch = malloc(nn_sum_scratch(n));
        double sum = 0, squares = 0, size = 0, got = NAN;
        for (int64_t i = 0; i < n; i++) {
            sum += (double)x[i];
            size += fabs((double)x[i]);
            squares += (double)x[i] * (double)x[i];
        }
        CHECK_OK(nn_sum(n, x, false, &got, scratch, NULL));
        assert_true(fabs(got - sum) <= 1e-13 * size);
        CHECK_OK(nn_sum(n, x, true, &got, scratch, NULL));
        assert_true(fabs(got - squares) <= 1e-13 * squares);
        free(x);
        free(scratch);
    }
}

static void sums(void **state)
{
    (void)state;
    nn_everywhere(sum_shapes);
    double out = 1;
    float x[1] = {1};
    CHECK_OK(nn_sum(0, NULL, true, &out, NULL, NULL));
    assert_true(out == 0);
    CHECK_FAILS(STATUS_USAGE, "missing", nn_sum(1, x, false, &out, NULL, NULL));
    CHECK_FAILS(STATUS_USAGE, "-1 elements", nn_sum(-1, x, false, &out, NULL, NULL));
}

enum { MANY = 200003 };

static void adamw_on(void *arg, void *out, struct dev_queue *queue)
{
    float *state = out;
    struct nn_adamw at = options;
    at.step = 3;
    CHECK_OK(nn_adamw(MANY, &at, DTYPE_FP32, state, state + MANY, state + 2 * MANY, arg, state, queue));
}

static void sum_on(void *arg, void *out, struct dev_queue *queue)
{
    void *scratch = malloc(nn_sum_scratch(MANY));
    CHECK_OK(nn_sum(MANY, arg, true, out, scratch, queue));
    free(scratch);
}

static void threads_change_no_bits(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3, 0);
    float *grad = nn_random(&rng, DTYPE_FP32, MANY, 1), *start = nn_random(&rng, DTYPE_FP32, 3 * MANY, 1);
    double zero = 0;
    for (int i = 2 * MANY; i < 3 * MANY; i++)
        start[i] = fabsf(start[i]);
    nn_same_on_threads(adamw_on, grad, start, 3 * MANY * sizeof *start);
    nn_same_on_threads(sum_on, grad, &zero, sizeof zero);
    free(grad);
    free(start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_five_steps),
        cmocka_unit_test(sums),
        cmocka_unit_test(threads_change_no_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
