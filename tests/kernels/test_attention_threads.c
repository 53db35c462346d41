/* tests/kernels/test_attention_threads.c -- the same bits on any number of threads, whatever is cut, masked, packed or shared. */
#include "kernels/attention_cpu.h"
#include "kernels/attention_fixture.h"

#include <stdlib.h>

static const int counts[] = {1, 2, 3, 5};

struct machine {
    struct dev *dev;
    struct dev_queue *queue;
};

static struct machine machine_open(void)
{
    struct machine machine = {0};
    CHECK_OK(dev_open(DEV_CPU, 0, &machine.dev));
    CHECK_OK(dev_queue_create(machine.dev, &machine.queue));
    return machine;
}

static void machine_close(struct machine *machine)
{
    fixture_on(NULL);
    attention_cpu_use(-1);
    dev_queue_destroy(machine->queue);
    dev_close(machine->dev);
}

/* fp32 dK and dV that start from something are added to in the same order, too. */
static struct outputs *run(const struct attention *kernel, const struct inputs *in, bool add)
{
    struct outputs *out = outputs_create(&in->shape, add);
    size_t keys = (size_t)(in->shape.batch * in->shape.seq_k);
    for (size_t i = 0; add && i < keys * (size_t)in->shape.k_stride; i++)
        ((float *)out->dk)[i] = (float)(i % 17) * 0.25f;
    for (size_t i = 0; add && i < keys * (size_t)in->shape.v_stride; i++)
        ((float *)out->dv)[i] = (float)(i % 13) * 0.5f;
    out->dkv_accumulate = add;
    CHECK_OK(fixture_forward(kernel, in, out, 0xff));
    CHECK_OK(fixture_backward(kernel, in, out, 0xff));
    return out;
}

/* By one instruction set after the other: what is shared does not depend on it. */
static void same_on_all(struct machine *machine, const struct attention_shape *shape, bool add, const char *label)
{
    static int next;
    const struct attention *cpu = attention_find("cpu");
    struct inputs *in = inputs_create(shape, 11, 1.0);
    int isa = attention_cpu_isa(next) != NULL ? next : 0;
    next = isa + 1;
    assert_true(attention_flops(shape, false) > 8e6); /* else the caller computes alone */
    attention_cpu_use(isa);
    fixture_on(NULL);
    struct outputs *alone = run(cpu, in, add);
    fixture_no_nan(alone, true, label);
    fixture_on(machine->queue);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        CHECK_OK(dev_threads_set(machine->dev, counts[i]));
        struct outputs *shared = run(cpu, in, add);
        fixture_same(alone, shared, true, label);
        outputs_destroy(shared);
    }
    outputs_destroy(alone);
    inputs_destroy(in);
}

static void one_long_head(void **state)
{
    (void)state;
    struct machine machine = machine_open();
    struct attention_shape shape = fixture_shape(1, 611, 611, 1, 1, 32, DTYPE_FP32);
    same_on_all(&machine, &shape, false, "one head");
    shape.causal = ATTENTION_TOP_LEFT;
    same_on_all(&machine, &shape, false, "one head, causal");
    shape.window = 130;
    same_on_all(&machine, &shape, false, "one head, causal, window");
    shape.causal = ATTENTION_FULL;
    same_on_all(&machine, &shape, false, "one head, window");
    machine_close(&machine);
}

static void unequal_lengths(void **state)
{
    (void)state;
    struct machine machine = machine_open();
    struct attention_shape shape = fixture_shape(1, 301, 1203, 2, 1, 40, DTYPE_BF16);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    same_on_all(&machine, &shape, false, "more keys, bottom-right");
    shape.window = 97; /* the first keys are seen by nobody */
    same_on_all(&machine, &shape, false, "more keys, bottom-right, window");
    shape.causal = ATTENTION_TOP_LEFT; /* nor the last ones */
    shape.window = 0;
    same_on_all(&machine, &shape, false, "more keys, top-left");
    shape = fixture_shape(1, 1203, 301, 2, 1, 40, DTYPE_BF16);
    shape.causal = ATTENTION_BOTTOM_RIGHT; /* the first queries see nothing */
    same_on_all(&machine, &shape, false, "more queries, bottom-right");
    machine_close(&machine);
}

static void heads_that_share_keys(void **state)
{
    (void)state;
    struct machine machine = machine_open();
    struct attention_shape shape = fixture_shape(2, 197, 197, 12, 3, 40, DTYPE_BF16);
    shape.head_dim_v = 24;
    attention_shape_fill(&shape);
    shape.causal = ATTENTION_TOP_LEFT;
    same_on_all(&machine, &shape, false, "groups of 4");
    shape.group = 5; /* 12 heads from the middle of a group of 5: 3, 5, 4 */
    shape.group_first = 2;
    same_on_all(&machine, &shape, true, "groups cut, added to");
    machine_close(&machine);
}

/* More blocks of queries than are packed at a time: 5 heads of 22 blocks for one kv head. */
static void several_chunks(void **state)
{
    (void)state;
    struct machine machine = machine_open();
    struct attention_shape shape = fixture_shape(1, 2101, 50, 5, 1, 16, DTYPE_FP32);
    same_on_all(&machine, &shape, true, "several chunks");
    machine_close(&machine);
}

static void packed_documents(void **state)
{
    (void)state;
    static const int64_t cu[] = {3, 3, 100, 101, 480, 480, 640, 655, 1100, 1190};
    struct machine machine = machine_open();
    struct attention_shape shape = fixture_shape(1, 1200, 1200, 4, 2, 32, DTYPE_BF16);
    shape.docs = sizeof cu / sizeof cu[0] - 1;
    shape.cu_q = shape.cu_k = cu;
    same_on_all(&machine, &shape, false, "documents");
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    same_on_all(&machine, &shape, false, "documents, causal");
    machine_close(&machine);
}

/* More threads take scratch of their own, not another copy of the keys, where one head keeps them busy. */
static void workspace_of_many_threads(void **state)
{
    (void)state;
    const struct attention *cpu = attention_find("cpu");
    struct attention_shape shape = fixture_shape(1, 1 << 17, 1 << 17, 32, 8, 128, DTYPE_BF16);
    for (int isa = 0; attention_cpu_isa(isa) != NULL; isa++) {
        attention_cpu_use(isa);
        for (int backward = 0; backward < 2; backward++) {
            size_t one = cpu->workspace_bytes(&shape, backward, 1), many = cpu->workspace_bytes(&shape, backward, 64);
            assert_true(many >= one && many - one <= 64 * (size_t)(128 << 10));
        }
    }
    attention_cpu_use(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_head),         cmocka_unit_test(unequal_lengths),
        cmocka_unit_test(heads_that_share_keys), cmocka_unit_test(several_chunks),
        cmocka_unit_test(packed_documents),      cmocka_unit_test(workspace_of_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
