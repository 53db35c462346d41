/* cli/test_interrupt.c -- SIGINT and SIGTERM: once ends with what is held, twice at once; another sptune that measures
 * here. */
#include "cli/run.h"

#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Many small cells, none of them slow, too many for a quiet machine to end before it is interrupted: 240 rows. */
#define ROWS  240
#define CELLS "bench collective --bytes 64..15360+64 --samples 10 --ranks 2 --budget 100s"
/* One iteration of the second row takes longer than any test. */
#define SLOW "bench attention --seq 64,256k --heads 8 --kv-heads 8 --samples 10 --ranks 2 --budget 100s"

static json_t *rows_of(const struct run *run, json_t **document)
{
    *document = run_json(run, "samples");
    return json_object_get(*document, "samples");
}

static bool finished(const char *ref)
{
    struct run run;
    run_do(&run, "results list --json");
    run_expect(&run, 0);
    json_t *document = run_json(&run, "runs"), *row;
    size_t at;
    bool done = false;
    json_array_foreach(json_object_get(document, "runs"), at,
                       row) if (strcmp(json_string_value(json_object_get(row, "name")), ref) == 0) done =
        json_is_true(json_object_get(row, "finished"));
    json_decref(document);
    run_free(&run);
    return done;
}

/* Rows so far are printed and kept; --resume measures the rest into the same run, whatever form of output it asks for.
 */
static void test_once(void **state)
{
    (void)state;
    static const struct {
        int sig, code;
        const char *name, *says;
    } ways[] = {{SIGINT, 130, "int", "interrupted"}, {SIGTERM, 143, "term", "terminated by SIGTERM"}};
    for (int i = 0; i < 2; i++) {
        struct run run;
        json_t *document;
        run_begin(&run, CELLS " --name %s --json --progress none -v --seed %d", ways[i].name, i);
        run_rank(&run, 1);
        run_sleep_ms(400);
        run_kill(&run, run.pid, ways[i].sig);
        run_end(&run);
        run_expect(&run, ways[i].code);
        run_says(run.err, ways[i].says);
        json_t *parsed = json_loads(run.out, 0, NULL);
        const char *schema = json_string_value(json_object_get(parsed, "schema"));
        size_t before = json_array_size(json_object_get(parsed, "samples"));
        assert_true(schema != NULL && strcmp(schema, before > 0 ? "sptune.samples/1" : "sptune.error/1") == 0);
        assert_true(before < ROWS);
        json_decref(parsed);
        run_free(&run);
        run_nothing_left();
        run_do(&run,
               "bench --resume collective --json --seed %d --bytes 64..15360+64 --ranks 2 --samples 10 --budget 1h",
               i);
        run_expect(&run, 0);
        assert_int_equal(json_array_size(rows_of(&run, &document)), ROWS);
        if (before > 0)
            assert_true(finished(ways[i].name));
        json_decref(document);
        run_free(&run);
    }
}

/* The rows that --jsonl has shown are in the store. */
static void test_rows_shown_are_kept(void **state)
{
    (void)state;
    struct run run;
    json_t *document;
    run_begin(&run, CELLS " --name shown --jsonl --progress none --seed 7");
    assert_true(run_wait(&run, 1, "\n", 3));
    run_kill(&run, run.pid, SIGINT);
    run_end(&run);
    run_expect(&run, 130);
    int shown = run_lines(run.out);
    run_free(&run);
    run_do(&run, "results show shown --json");
    run_expect(&run, 0);
    assert_true((int)json_array_size(rows_of(&run, &document)) >= shown);
    json_decref(document);
    run_free(&run);
    assert_false(finished("shown"));
}

/* `bench --jsonl | head -1`: once the reader has gone the rest is not measured. Nothing is said, the row that nobody read is kept, and
 * --resume measures what is left. */
static void test_reader_gone(void **state)
{
    (void)state;
    struct run run;
    json_t *document;
    int fds[2];
    char path[64];
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fds[1]);
    run_stdout = path;
    run_do(&run, CELLS " --name gone --jsonl --progress none -q --seed 8 --export csv=gone.csv");
    run_stdout = NULL;
    close(fds[1]);
    run_expect(&run, 141);
    run_says_not(run.err, "interrupted");
    run_says_not(run.err, "stdout");
    run_says(run.err, "oversubscribed"); /* the warning that every such run has, and no other line */
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
    run_nothing_left();
    assert_false(finished("gone"));
    run_do(&run, "results show gone --json");
    run_expect(&run, 0);
    assert_int_equal(json_array_size(rows_of(&run, &document)), 1);
    json_decref(document);
    run_free(&run);
    run_do(&run, "bench --resume collective --json --seed 8 --bytes 64..15360+64 --ranks 2 --samples 10 --budget 1h");
    run_expect(&run, 0);
    assert_int_equal(json_array_size(rows_of(&run, &document)), ROWS);
    assert_true(finished("gone"));
    json_decref(document);
    run_free(&run);
}

static void test_twice(void **state)
{
    (void)state;
    static const int sigs[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        struct run run;
        run_begin(&run, SLOW " --json --progress plain");
        assert_true(run_wait(&run, 2, "attention 1 of 2", 1));
        run_sleep_ms(300);
        run_kill(&run, run.pid, sigs[i]);
        assert_true(run_wait(&run, 2, "interrupted: ends after this measurement; again stops at once", 1));
        run_sleep_ms(300);
        bool still = !run_ended(&run);
        run_kill(&run, run.pid, sigs[i]);
        run_end(&run);
        run_expect(&run, 128 + sigs[i]);
        json_t *document = run_json(&run, "error");
        assert_string_equal(json_string_value(json_object_get(document, "status")),
                            i == 0 ? "interrupted" : "terminated");
        if (still)
            run_says(run.err, "stopped at once");
        json_decref(document);
        run_free(&run);
        run_nothing_left();
    }
}

/* At any moment of the start, too: never another exit code, never two documents, nothing left. */
static void test_early(void **state)
{
    (void)state;
    static const char *const lines[] = {CELLS, "check --ranks 2",
                                        "tune --heads 4 --seq 1k --ranks 2 --oversubscribe --effort estimate"};
    for (int i = 0; i < 12; i++) {
        struct run run;
        run_begin(&run, "%s --json --progress none", lines[i % 3]);
        run_sleep_ms(4 + 17 * i);
        run_kill(&run, run.pid, SIGINT);
        run_end(&run);
        if (run.signal != SIGINT) { /* before main began, nobody was there to answer */
            run_expect(&run, 130);
            json_error_t error;
            json_t *document = json_loads(run.out, 0, &error);
            if (document == NULL)
                fail_msg("%s after %d ms: %s: '%s' %s", lines[i % 3], 4 + 17 * i, error.text, run.out, run.err);
            json_decref(document);
        }
        run_free(&run);
        run_nothing_left();
    }
}

/* ---- another sptune ---- */

/* As a measuring sptune does. */
static int hold_lock(void)
{
    static const char name[] = "sptune-measures-here";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, sizeof name - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    while (bind(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof name)) !=
           0)
        run_sleep_ms(50); /* without a namespace of its own: the machine's */
    return fd;
}

static void test_busy(void **state)
{
    (void)state;
    static const char *const lines[] = {"bench gemm --m 16 --n 16 --k 16 --ranks 2 --budget 300ms",
                                        "tune --heads 4 --seq 1k --ranks 2 --oversubscribe --budget 300ms"};
    int lock = hold_lock();
    for (int i = 0; i < 2; i++) {
        struct run run;
        run_do(&run, "%s", lines[i]);
        run_expect(&run, 3);
        run_says(run.err, "waiting: another sptune is measuring");
        run_says(run.err, "give a longer --budget");
        assert_string_equal(run.out, "");
        run_free(&run);
        run_do(&run, "%s --json", lines[i]);
        run_expect(&run, 3);
        json_t *document = run_json(&run, "error");
        assert_string_equal(json_string_value(json_object_get(document, "status")), "busy");
        json_decref(document);
        run_free(&run);
    }
    struct run run;
    run_do(&run, "bench gemm --m 0 --budget 100s"); /* wrong input is said at once */
    run_expect(&run, 2);
    run_free(&run);
    close(lock);
}

static void test_waits_its_turn(void **state)
{
    (void)state;
    struct run run;
    int lock = hold_lock();
    run_begin(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 10 --budget 60s");
    assert_true(run_wait(&run, 2, "waiting: another sptune", 1));
    close(lock);
    run_end(&run);
    run_expect(&run, 0);
    run_free(&run);
}

static void test_interrupted_while_waiting(void **state)
{
    (void)state;
    struct run run;
    int lock = hold_lock();
    run_begin(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --budget 60s --json");
    assert_true(run_wait(&run, 2, "waiting: another sptune", 1));
    run_kill(&run, run.pid, SIGTERM);
    run_end(&run);
    run_expect(&run, 143);
    json_decref(run_json(&run, "error"));
    run_free(&run);
    close(lock);
}

static void test_two_at_once(void **state)
{
    (void)state;
    struct run first, second;
    run_begin(&first, SLOW " --progress none");
    run_rank(&first, 1);
    run_do(&second, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --budget 200ms");
    run_expect(&second, 3);
    run_free(&second);
    run_kill(&first, first.pid, SIGKILL);
    run_end(&first);
    run_free(&first);
    run_nothing_left(); /* the lock neither */
    run_do(&second, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 10");
    run_expect(&second, 0);
    run_free(&second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_rows_shown_are_kept),
        cmocka_unit_test(test_reader_gone),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_waits_its_turn),
        cmocka_unit_test(test_interrupted_while_waiting),
        cmocka_unit_test(test_two_at_once),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
