/* tests/train/test_data.c -- which row is whose: shuffled, unique, shared by a group, the same after a restart. */
#include "train/data_test.h"

/* The first input of a row of counting tokens is where the row begins. */
static int64_t read_first(struct data *data, int64_t step, int micro, int group, int row)
{
    struct data_batch batch = {0};
    struct shard whole = share_of(data_padded(data, step), 1, 0);
    CHECK_OK(data_read(data, step, micro, group, &whole, &batch));
    int64_t first = batch.ids[row * batch.local];
    for (int64_t i = 0; i < batch.seq; i++) {
        assert_int_equal(batch.ids[row * batch.local + i], first + i);
        assert_int_equal(batch.labels[row * batch.local + i], first + i + 1);
        assert_int_equal(batch.positions[row * batch.local + i], i);
    }
    assert_int_equal(first, data_first(data, step, micro, group, row));
    data_batch_free(&batch);
    return first;
}

static void an_epoch_takes_every_window_once_in_an_order_of_its_own(void **state)
{
    (void)state;
    enum { WINDOWS = 60 };
    const int64_t seq = 5;
    int64_t order[2][WINDOWS];
    struct data *data = NULL;
    put_counting(WINDOWS * seq + 1);
    struct data_options o = options_of(DATA_U32, &seq);
    o.micro_batch = 2;
    o.accumulate = 3;
    o.groups = 2;
    o.epochs = 2;
    CHECK_OK(data_open(&o, &data));
    assert_int_equal(data_steps(data), 10);
    for (int epoch = 0; epoch < 2; epoch++) {
        bool seen[WINDOWS] = {false};
        int n = 0, in_place = 0;
        for (int64_t step = 5 * epoch; step < 5 * epoch + 5; step++)
            for (int micro = 0; micro < 3; micro++)
                for (int group = 0; group < 2; group++)
                    for (int row = 0; row < 2; row++) {
                        int64_t first = read_first(data, step, micro, group, row), window = first / seq;
                        assert_true(first % seq == 0 && window < WINDOWS && !seen[window]);
                        seen[window] = true;
                        in_place += window == n;
                        order[epoch][n++] = window;
                    }
        assert_int_equal(n, WINDOWS);
        assert_true(in_place < WINDOWS / 4);
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    data_close(data);
}

static void the_seed_is_the_order(void **state)
{
    (void)state;
    const int64_t seq = 3;
    struct data *a = NULL, *again = NULL, *other = NULL;
    int same = 0;
    put_counting(301);
    struct data_options o = options_of(DATA_U32, &seq);
    CHECK_OK(data_open(&o, &a));
    CHECK_OK(data_open(&o, &again));
    o.seed++;
    CHECK_OK(data_open(&o, &other));
    for (int64_t step = 99; step >= 0; step--) { /* backwards: nothing depends on what was read before */
        assert_int_equal(read_first(a, step, 0, 0, 0), data_first(again, step, 0, 0, 0));
        same += data_first(a, step, 0, 0, 0) == data_first(other, step, 0, 0, 0);
    }
    assert_true(same < 20);
    data_close(a);
    data_close(again);
    data_close(other);
}

/* Every order of three windows comes, and about equally often. */
static void orders_of_few_windows_are_all_there(void **state)
{
    (void)state;
    int count[27] = {0}, kinds = 0;
    const int64_t seq = 1;
    put_counting(4);
    struct data_options o = options_of(DATA_U32, &seq);
    o.epochs = 3000;
    struct data *data = NULL;
    CHECK_OK(data_open(&o, &data));
    for (int64_t epoch = 0; epoch < o.epochs; epoch++) {
        int64_t code = 0;
        for (int i = 0; i < 3; i++)
            code = 3 * code + data_first(data, 3 * epoch + i, 0, 0, 0);
        count[code]++;
    }
    for (int i = 0; i < 27; i++) {
        kinds += count[i] > 0;
        assert_true(count[i] == 0 || (count[i] > 400 && count[i] < 600));
    }
    assert_int_equal(kinds, 6);
    data_close(data);
}

/* W, P, accumulate: splits that see equally many rows per step see the same rows in the same steps. */
static void every_split_sees_the_same_rows_in_a_step(void **state)
{
    (void)state;
    static const struct {
        int world, sp, accumulate;
    } splits[] = {{1, 1, 8}, {2, 1, 4}, {2, 2, 8}, {4, 2, 4}, {8, 4, 4}, {8, 8, 8}, {8, 1, 1}};
    const int64_t seq = 4;
    put_counting(8 * 5 * seq + 1);
    for (int s = 0; s < CHECK_COUNT(splits); s++) {
        struct data *data = NULL;
        struct data_options o = options_of(DATA_U32, &seq);
        o.accumulate = splits[s].accumulate;
        o.groups = splits[s].world / splits[s].sp;
        CHECK_OK(data_open(&o, &data));
        assert_int_equal(data_steps(data), 5);
        struct data *whole = NULL;
        struct data_options unsharded = options_of(DATA_U32, &seq);
        unsharded.accumulate = 8;
        CHECK_OK(data_open(&unsharded, &whole));
        for (int64_t step = 0; step < 5; step++)
            for (int micro = 0; micro < o.accumulate; micro++)
                for (int group = 0; group < o.groups; group++)
                    assert_int_equal(data_first(data, step, micro, group, 0),
                                     data_first(whole, step, micro * o.groups + group, 0, 0));
        data_close(whole);
        data_close(data);
    }
}

/* What does not fill a step is left for another epoch, and all groups end together. */
static void data_end_for_all_groups_together(void **state)
{
    (void)state;
    const int64_t seq = 4;
    struct data *data = NULL;
    struct data_batch batch = {0};
    put_counting(11 * seq + 1); /* 11 windows, 4 per step */
    struct data_options o = options_of(DATA_U32, &seq);
    o.groups = 4;
    o.epochs = 3;
    CHECK_OK(data_open(&o, &data));
    assert_int_equal(data_steps(data), 6);
    struct shard whole = share_of(seq, 1, 0);
    for (int group = 0; group < 4; group++) {
        CHECK_OK(data_read(data, 5, 0, group, &whole, &batch));
        CHECK_FAILS(STATUS_NODATA, "step 6 is asked for, the data lasts for 6",
                    data_read(data, 6, 0, group, &whole, &batch));
    }
    CHECK_FAILS(STATUS_USAGE, "group 4 of 4", data_read(data, 0, 0, 4, &whole, &batch));
    CHECK_FAILS(STATUS_USAGE, "micro-step 1 of 1", data_read(data, 0, 1, 0, &whole, &batch));
    data_batch_free(&batch);
    data_close(data);
}

/* C09: world 4, sp 2: ranks 2 and 3 are places 0 and 1 of group 1, and read the two halves of its row, not of a row of their own. */
static void c09_places_are_inside_the_group(void **state)
{
    (void)state;
    const int64_t seq = 6;
    struct data *data = NULL;
    struct data_batch part = {0}, whole = {0};
    put_counting(4 * seq + 1);
    struct data_options o = options_of(DATA_U32, &seq);
    o.groups = 2;
    CHECK_OK(data_open(&o, &data));
    struct shard all = share_of(seq, 1, 0);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(data_group(rank, 2), rank / 2);
        assert_int_equal(data_index(rank, 2), rank & 1);
        struct shard half = share_of(seq, 2, data_index(rank, 2));
        CHECK_OK(data_read(data, 1, 0, data_group(rank, 2), &all, &whole)); /* what sp 1, dp 2 reads */
        CHECK_OK(data_read(data, 1, 0, data_group(rank, 2), &half, &part));
        assert_int_equal(part.local, 3);
        assert_int_equal(part.valid, 6); /* of the group */
        assert_memory_equal(part.ids, whole.ids + 3 * (rank & 1), 3 * sizeof(int32_t));
        assert_memory_equal(part.labels, whole.labels + 3 * (rank & 1), 3 * sizeof(int32_t));
        assert_memory_equal(part.positions, whole.positions + 3 * (rank & 1), 3 * sizeof(int32_t));
    }
    assert_int_not_equal(data_first(data, 1, 0, 0, 0), data_first(data, 1, 0, 1, 0));
    data_batch_free(&part);
    data_batch_free(&whole);
    data_close(data);
}

static void lengths_vary_by_step_and_alike_on_every_rank(void **state)
{
    (void)state;
    static const int64_t seqs[] = {8, 12, 20};
    struct data *data = NULL, *peer = NULL;
    struct data_batch batch = {0};
    int drawn[21] = {0}, shifted = 0;
    put_counting(90 * 20 + 1);
    struct data_options o = options_of(DATA_U32, seqs);
    o.n_seqs = 3;
    o.pad_to = 8;
    CHECK_OK(data_open(&o, &data));
    CHECK_OK(data_open(&o, &peer));
    assert_int_equal(data_steps(data), 90); /* windows are as long as the longest row */
    for (int64_t step = 0; step < 90; step++) {
        int64_t seq = data_seq(data, step), padded = data_padded(data, step), first = data_first(data, step, 0, 0, 0);
        assert_int_equal(seq, data_seq(peer, step));
        assert_true(seq == 8 || seq == 12 || seq == 20);
        assert_int_equal(padded, (seq + 7) / 8 * 8);
        drawn[seq]++;
        assert_int_equal(first / 20, (first + seq - 1) / 20); /* inside its window */
        shifted += first % 20 != 0;
        struct shard whole = share_of(padded, 1, 0);
        CHECK_OK(data_read(data, step, 0, 0, &whole, &batch));
        assert_int_equal(batch.seq, seq);
        assert_int_equal(batch.padded, padded);
        assert_int_equal(batch.ids[seq - 1], first + seq - 1);
        assert_int_equal(batch.valid, seq);
    }
    assert_true(drawn[8] > 15 && drawn[12] > 15 && drawn[20] > 15 && shifted > 30);
    data_batch_free(&batch);
    data_close(data);
    data_close(peer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(an_epoch_takes_every_window_once_in_an_order_of_its_own),
        IN_TEMP(the_seed_is_the_order),
        IN_TEMP(orders_of_few_windows_are_all_there),
        IN_TEMP(every_split_sees_the_same_rows_in_a_step),
        IN_TEMP(data_end_for_all_groups_together),
        IN_TEMP(c09_places_are_inside_the_group),
        IN_TEMP(lengths_vary_by_step_and_alike_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
