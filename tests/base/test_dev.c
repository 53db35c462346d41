/* tests/base/test_dev.c -- the CPU as a device, and the clear no of a device that is not here. */
#include "base/check.h"
#include "base/dev.h"
#include "base/mem.h"
#include "base/table.h"

#if SPTUNE_CUDA
#include "base/dev_cuda.h"

static const char no_cuda[] = "CUDA driver";
#else
static const char no_cuda[] = "no support for cuda";
#endif

static void absent_and_wrong_devices(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    CHECK_FAILS(STATUS_ABSENT, no_cuda, dev_open(DEV_CUDA, 0, &dev));
    assert_true(strlen(status_last()->hint) > 0);
    CHECK_FAILS(STATUS_USAGE, "no cpu device 1", dev_open(DEV_CPU, 1, &dev));
    CHECK_FAILS(STATUS_USAGE, "-1", dev_open(DEV_CPU, -1, &dev));
    assert_null(dev);
    assert_string_equal(dev_kind_name(DEV_CPU), "cpu");
    assert_string_equal(dev_kind_name(DEV_CUDA), "cuda");
    assert_string_equal(dev_kind_name((enum dev_kind)9), "unknown");
}

static void memory_moves_through_a_queue(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL;
    unsigned char *a = NULL, *b = NULL, *host = NULL;
    int64_t free_bytes = 0, total_bytes = 0;
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    assert_int_equal(dev_kind_of(dev), DEV_CPU);
    CHECK_OK(dev_memory(dev, &free_bytes, &total_bytes));
    assert_true(free_bytes > 0 && free_bytes <= total_bytes);
    CHECK_OK(dev_queue_create(dev, &queue));
    CHECK_OK(dev_alloc(dev, 1000, "a", (void **)&a));
    CHECK_OK(dev_alloc(dev, 1000, "b", (void **)&b));
    assert_int_equal((uintptr_t)a % MEM_ALIGN, 0);
    assert_int_equal(a[999], 0);
    CHECK_OK(dev_fill(queue, a, 0x5a, 999));
    CHECK_OK(dev_copy(queue, b, a, 1000));
    CHECK_OK(dev_copy(queue, NULL, NULL, 0));
    CHECK_OK(dev_fill(queue, NULL, 0, 0));
    CHECK_OK(dev_sync(queue, INT64_MAX));
    assert_int_equal(b[998], 0x5a);
    assert_int_equal(b[999], 0);
    CHECK_FAILS(STATUS_NOMEM, "huge thing", dev_alloc(dev, SIZE_MAX / 2, "huge thing", (void **)&b));
    CHECK_FAILS(STATUS_NOMEM, "huge thing", dev_alloc_host(dev, SIZE_MAX / 2, "huge thing", (void **)&host));
    CHECK_OK(dev_alloc_host(dev, 1000, "of the host", (void **)&host));
    assert_int_equal(host[999], 0);
    CHECK_OK(dev_copy(queue, host, a, 1000));
    CHECK_OK(dev_sync(queue, INT64_MAX));
    assert_memory_equal(host, a, 1000);
    dev_free_host(dev, host);
    dev_free(dev, a);
    dev_free(dev, b);
    dev_queue_destroy(queue);
    dev_close(dev);
}

static void events_measure(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL;
    struct dev_event *from = NULL, *to = NULL;
    double us = -1;
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    CHECK_OK(dev_queue_create(dev, &queue));
    CHECK_OK(dev_event_create(dev, &from));
    CHECK_OK(dev_event_create(dev, &to));
    CHECK_OK(dev_event_record(from, queue));
    CHECK_FAILS(STATUS_USAGE, "before it was recorded", dev_event_us(from, to, &us));
    assert_true(us == -1);
    CHECK_OK(dev_event_wait(queue, from));
    CHECK_OK(dev_event_record(to, queue));
    CHECK_OK(dev_event_us(from, to, &us));
    assert_true(us >= 0);
    dev_event_destroy(to);
    dev_event_destroy(from);
    dev_queue_destroy(queue);
    dev_close(dev);
}

struct relay {
    struct dev_queue *queue;
    struct dev_event *mark;
    int from, to;
    enum status status;
};

static enum status relay(void *arg)
{
    struct relay *r = arg;
    TRY(dev_copy(r->queue, &r->to, &r->from, sizeof r->to)); /* at once: it is the queue's own job */
    TRY(dev_event_record(r->mark, r->queue));
    return r->status == STATUS_OK ? STATUS_OK : FAIL(r->status, "relay %d", r->to);
}

static void a_queue_beside_keeps_its_order_and_its_failures(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL, *beside = NULL;
    struct dev_event *mark = NULL, *done = NULL;
    double us = -1;
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    CHECK_OK(dev_queue_create(dev, &queue));
    CHECK_OK(dev_queue_create_beside(dev, &beside));
    CHECK_OK(dev_event_create(dev, &mark));
    CHECK_OK(dev_event_create(dev, &done));
    struct relay first = {beside, mark, 7, 0, STATUS_OK}, second = {beside, mark, 8, 0, STATUS_PEER};
    CHECK_OK(dev_call(beside, relay, &first));
    CHECK_OK(dev_event_record(done, beside));
    CHECK_OK(dev_event_wait(queue, done));
    assert_int_equal(first.to, 7);
    CHECK_OK(dev_event_us(mark, done, &us));
    assert_true(us >= 0);
    CHECK_OK(dev_call(beside, relay, &second));
    CHECK_OK(dev_event_record(done, beside));
    CHECK_FAILS(STATUS_PEER, "relay 8", dev_event_wait(queue, done));
    CHECK_OK(dev_sync(beside, INT64_MAX)); /* told once */
    CHECK_OK(dev_copy(beside, &first.to, &second.to, sizeof first.to));
    assert_int_equal(first.to, 8);
    second.from = 10;
    CHECK_OK(dev_call(beside, relay, &second));
    CHECK_FAILS(STATUS_NOFIT, "the first", dev_queue_drain(beside, FAIL(STATUS_NOFIT, "the first")));
    assert_int_equal(second.to, 10); /* its failure is not what is told */
    first.queue = queue;
    first.from = 9;
    CHECK_OK(dev_call(queue, relay, &first)); /* an ordinary queue: by the caller, at once */
    assert_int_equal(first.to, 9);
    dev_event_destroy(done);
    dev_event_destroy(mark);
    dev_queue_destroy(beside);
    dev_queue_destroy(queue);
    dev_close(dev);
}

static void every_kind_is_a_row(void **state)
{
    (void)state;
    table_holds("src/base", "dev_ops", "dev", "src/base/dev.c", -1);
}

static void nothing_may_be_released(void **state)
{
    (void)state;
    dev_event_destroy(NULL);
    dev_queue_destroy(NULL);
    dev_free(NULL, NULL);
    dev_free_host(NULL, NULL);
    dev_close(NULL);
}

static void a_room_counts_and_frees_what_it_gave(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    unsigned char *piece[20] = {NULL}, *none = NULL;
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    for (int host = 0; host < 2; host++) {
        struct dev_room room = {.dev = dev, .host = host == 1};
        for (int again = 0; again < 2; again++) {
            for (int i = 0; i < 20; i++) {
                CHECK_OK(dev_room_take(&room, 100 * i, "a piece", &piece[i]));
                memset(piece[i], i, (size_t)(100 * i));
            }
            assert_int_equal(piece[19][1899], 19);
            assert_int_equal(room.bytes, 19000);
            CHECK_FAILS(STATUS_NOMEM, "huge thing", dev_room_take(&room, INT64_MAX / 2, "huge thing", &none));
            dev_room_free(&room);
            assert_true(room.bytes == 0 && room.dev == dev && room.host == (host == 1));
        }
    }
    struct dev_room counted = {.dev = dev, .counts = true};
    CHECK_OK(dev_room_take(&counted, INT64_MAX / 2, "huge thing", &none));
    assert_true(counted.bytes == INT64_MAX / 2 && none == NULL);
    dev_room_free(&counted);
    dev_close(dev);
}

#if SPTUNE_CUDA
/* A kernel that gave up says for whom, whatever call hears of it, until nobody watches any more. */
static void a_late_rank_is_the_reason(void **state)
{
    (void)state;
    volatile int32_t none = -1, three = -1;
    struct dev_cuda_late first = {.rank = &none}, second = {.rank = &three}, never = {.rank = &three};
    dev_cuda_late_watch(&first);
    dev_cuda_late_watch(&second);
    dev_cuda_late_forget(&never);
    CHECK_FAILS(STATUS_MACHINE, "a try failed on GPU", dev_cuda_status(cudaErrorLaunchFailure, "a try"));
    CHECK_OK(dev_cuda_status(cudaSuccess, "a try"));
    CHECK_OK(dev_cuda_late_status());
    three = 3;
    CHECK_OK(dev_cuda_status(cudaSuccess, "a try"));
    CHECK_FAILS(STATUS_TIMEOUT, "rank 3 of the group", dev_cuda_late_status());
    CHECK_FAILS(STATUS_TIMEOUT, "rank 3 of the group", dev_cuda_status(cudaErrorLaunchFailure, "a try"));
    dev_cuda_late_forget(&second);
    CHECK_FAILS(STATUS_MACHINE, "a try failed on GPU", dev_cuda_status(cudaErrorLaunchFailure, "a try"));
    dev_cuda_late_forget(&first);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_and_wrong_devices),
        cmocka_unit_test(memory_moves_through_a_queue),
        cmocka_unit_test(a_room_counts_and_frees_what_it_gave),
        cmocka_unit_test(events_measure),
        cmocka_unit_test(every_kind_is_a_row),
        cmocka_unit_test(nothing_may_be_released),
        cmocka_unit_test(a_queue_beside_keeps_its_order_and_its_failures),
#if SPTUNE_CUDA
        cmocka_unit_test(a_late_rank_is_the_reason),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
