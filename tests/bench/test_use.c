/* bench/test_use.c -- reading and writing of buffers between iterations: nothing beyond them is touched, nothing in them changes, and all of
 * their memory is reached. */
#include "bench/use.h"

#include "base/check.h"

#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 64, BYTES = PAGES * PAGE };

/* A guard page behind it. */
static char *pages_open(void)
{
    char *pages = mmap(NULL, BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + BYTES, PAGE, PROT_NONE), 0);
    return pages;
}

static int pages_there(char *pages)
{
    unsigned char there[PAGES];
    int n = 0;
    assert_int_equal(mincore(pages, BYTES, there), 0);
    for (int i = 0; i < PAGES; i++)
        n += there[i] & 1;
    return n;
}

static void all_sizes(struct dev_queue *queue)
{
    static const int64_t sizes[] = {BYTES, BYTES - 1, 130000, 65536, 4097, 65, 64, 1, 0};
    for (int i = 0; i < CHECK_COUNT(sizes); i++) {
        char *pages = pages_open(), *at = pages + BYTES - sizes[i]; /* up to the guard, and begins inside a line */
        int reached = (int)((sizes[i] + PAGE - 1) / PAGE);
        use_write(queue, at, sizes[i]);
        assert_int_equal(pages_there(pages), reached);
        for (int64_t b = 0; b < BYTES; b++)
            pages[b] = (char)(b * 7 + b / 251);
        use_write(queue, at, sizes[i]);
        assert_int_equal(mprotect(pages, BYTES, PROT_READ), 0); /* reading does not write */
        use_read(queue, at, sizes[i]);
        for (int64_t b = 0; b < BYTES; b++)
            if (pages[b] != (char)(b * 7 + b / 251))
                fail_msg("byte %lld of %lld changed", (long long)b, (long long)sizes[i]);
        munmap(pages, BYTES + PAGE);
    }
}

static void test_use(void **state)
{
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL;
    (void)state;
    assert_int_equal(dev_open(DEV_CPU, 0, &dev), STATUS_OK);
    assert_int_equal(dev_queue_create(dev, &queue), STATUS_OK);
    for (int threads = 1; threads <= 3; threads++) {
        assert_int_equal(dev_threads_set(dev, threads), STATUS_OK);
        all_sizes(queue);
    }
    dev_queue_destroy(queue);
    dev_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
