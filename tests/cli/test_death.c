/* cli/test_death.c -- SIGKILL of a rank or of the supervisor at any moment: the others end, exit 4 names the rank,
 * nothing stays, what was measured is kept and --resume goes on. SPTUNE_SOAK=n makes n times as many runs.
 */
#include "base/rng.h"
#include "cli/run.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { SUPERVISOR = -1, RUNS = 12 };

static const char *const lines[] = {
    "bench layer --seq 64..4096+64 --heads 4 --kv-heads 2 --head-dim 32 --ranks 2 --budget 100s --progress none",
    "tune --heads 14 --kv-heads 2 --head-dim 64 --seq 8k --ranks 2 --oversubscribe --effort full --budget 100s "
    "--progress none",
    "check --ranks 2",
    "bench exchange --exchange direct --seq 64..4096+64 --heads 4 --kv-heads 1 --ranks 4 --budget 100s --progress none",
};

static void store_is_clean(void)
{
    struct run run;
    run_do(&run, "results list --json");
    if (run.code != 3) { /* 3: no store came into being */
        run_expect(&run, 0);
        json_decref(run_json(&run, "runs"));
    }
    run_free(&run);
}

static void check_document(const struct run *run, int victim)
{
    char rank[16];
    snprintf(rank, sizeof rank, "rank %d", victim);
    run_expect(run, 4);
    json_t *document = run_json(run, "error");
    assert_string_equal(json_string_value(json_object_get(document, "status")), "peer");
    assert_int_equal(json_integer_value(json_object_get(document, "rank")), victim);
    run_says(json_string_value(json_object_get(document, "what")), rank);
    run_says(run->err, rank);
    json_decref(document);
}

static void die(const char *line, int victim, int after_ms)
{
    struct run run;
    run_begin(&run, "%s --json", line);
    pid_t pid = victim == SUPERVISOR ? run.pid : run_rank(&run, victim);
    run_rank(&run, 1);
    run_sleep_ms(after_ms);
    run_kill(&run, pid, SIGKILL);
    run_end(&run);
    if (victim == SUPERVISOR)
        assert_int_equal(run.signal, SIGKILL);
    else
        check_document(&run, victim);
    run_free(&run);
    run_nothing_left();
    store_is_clean();
}

static void test_random_moments(void **state)
{
    (void)state;
    const char *soak = getenv("SPTUNE_SOAK");
    struct rng rng;
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < RUNS * (soak != NULL ? atoi(soak) : 1); i++) {
        int line = i % CHECK_COUNT(lines), victim = i / CHECK_COUNT(lines) % 3 - 1;
        die(lines[line], victim, (int)rng_below(&rng, line == 2 ? 300 : 900)); /* a check is over soon */
    }
}

/* Want of memory is the kernel's SIGKILL; other deaths have other causes. */
static void test_cause(void **state)
{
    (void)state;
    static const struct {
        int signal;
        const char *says;
    } ways[] = {{SIGKILL, "was killed by signal 9"}, {SIGSEGV, "was killed by signal 11"}};
    for (int i = 0; i < CHECK_COUNT(ways); i++)
        for (int victim = 0; victim <= 1; victim++) {
            struct run run;
            run_begin(&run, "%s --jsonl", lines[0]);
            assert_true(run_wait(&run, 1, "\n", 1));
            run_kill(&run, run_rank(&run, victim), ways[i].signal);
            run_end(&run);
            run_expect(&run, 4);
            run_says(run.err, ways[i].says);
            (ways[i].signal == SIGKILL ? run_says : run_says_not)(run.err, "out-of-memory");
            run_says(run.err, "--resume goes on");
            run_free(&run);
            run_nothing_left();
        }
}

/* No answer can come while a rank is stopped: Ctrl-C then ends the job at once. */
static void test_stopped(void **state)
{
    (void)state;
    for (int victim = 0; victim <= 1; victim++) {
        struct run run;
        run_begin(&run, "%s --jsonl", lines[0]);
        assert_true(run_wait(&run, 1, "\n", 1));
        kill(run_rank(&run, victim), SIGSTOP);
        run_kill(&run, run.pid, SIGINT);
        run_end(&run);
        run_expect(&run, 130);
        run_says(run.err, "stopped at once by SIGINT");
        run_free(&run);
        run_nothing_left();
    }
}

/* Ten seconds: only in the soak. */
static void test_stopped_is_named(void **state)
{
    (void)state;
    if (getenv("SPTUNE_SOAK") == NULL) {
        printf("skipped without SPTUNE_SOAK: it takes 10 s\n");
        skip();
    }
    for (int victim = 0; victim <= 1; victim++) {
        struct run run;
        char says[32];
        run_begin(&run, "%s --jsonl", lines[0]);
        assert_true(run_wait(&run, 1, "\n", 1));
        pid_t pid = run_rank(&run, victim);
        kill(pid, SIGSTOP);
        snprintf(says, sizeof says, "rank %d is stopped", victim);
        assert_true(run_wait(&run, 2, says, 1));
        kill(pid, SIGCONT);
        run_kill(&run, run.pid, SIGINT); /* it goes on, and answers */
        run_end(&run);
        run_expect(&run, 130);
        run_says(run.err, "with --resume goes on");
        run_free(&run);
        run_nothing_left();
    }
}

/* At every limit of processes: done, or one clear line. Root has no limit, so it is somebody else who runs. */
static void run_with_few_processes(void)
{
    int refused = 0, code = -1;
    for (rlim_t limit = 3; limit <= 16 && code != 0; limit++) {
        struct rlimit few = {limit, 16};
        struct run run;
        assert_int_equal(setrlimit(RLIMIT_NPROC, &few), 0);
        run_do(&run, "bench layer --seq 64 --heads 4 --kv-heads 4 --head-dim 16 --samples 10 --ranks 2 -q --store n.db");
        code = run.code;
        if (code != 0) {
            run_expect(&run, 4);
            run_says(run.err, "the limit of processes is reached");
            assert_int_equal(run_lines(run.err), 1);
            refused++;
        }
        run_free(&run);
    }
    assert_int_equal(code, 0);
    assert_true(refused >= 2); /* a rank, then a thread of one */
}

static void test_few_processes(void **state)
{
    (void)state;
    enum { NOBODY = 65534, CANNOT = 77 };
    if (geteuid() != 0) {
        printf("skipped: how many processes this user has already is not known\n");
        skip();
    }
    chmod(run_temp.dir, 0777);
    run_env("OPENBLAS_NUM_THREADS", "1"); /* it starts its threads, and ends the process, before main */
    pid_t pid = fork();
    if (pid == 0) {
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0 ||
            access(SPTUNE_PROGRAM, X_OK) != 0)
            _exit(CANNOT);
        run_with_few_processes();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    run_env("OPENBLAS_NUM_THREADS", NULL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT) {
        printf("skipped: the program lies where nobody else may look\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    run_nothing_left();
}

/* Rows shown before the kill are kept, and the same command goes on from there. */
static void test_resume(void **state)
{
    (void)state;
    enum { ROWS = 12 };
    for (int victim = SUPERVISOR; victim <= 1; victim++) {
        static const char cells[] =
            "bench gemm --m 16 --n 16 --k 8..96+8 --samples 10 --ranks 2 --budget 1h --progress none"; /* no row is cut */
        struct run run;
        run_begin(&run, "%s --seed %d --jsonl", cells, victim + 5);
        assert_true(run_wait(&run, 1, "\n", 2));
        run_kill(&run, victim == SUPERVISOR ? run.pid : run_rank(&run, victim), SIGKILL);
        run_end(&run);
        int shown = run_lines(run.out);
        assert_in_range(shown, 2, ROWS - 1);
        run_free(&run);
        run_nothing_left(); /* killed while measuring, all segments have lost their names long ago */
        run_do(&run, "results show --json");
        run_expect(&run, 0);
        json_t *document = run_json(&run, "samples");
        assert_true((int)json_array_size(json_object_get(document, "samples")) >= shown);
        json_decref(document);
        run_free(&run);
        run_do(&run, "%s --seed %d --resume --json", cells, victim + 5);
        run_expect(&run, 0);
        run_says_not(run.err, "nothing to resume");
        document = run_json(&run, "samples");
        assert_int_equal(json_array_size(json_object_get(document, "samples")), ROWS);
        json_decref(document);
        run_free(&run);
    }
    struct run run;
    run_do(&run, "results list --json");
    json_t *document = run_json(&run, "runs"), *row;
    size_t at;
    int whole = 0;
    json_array_foreach(json_object_get(document, "runs"), at, row) whole +=
        json_integer_value(json_object_get(row, "samples")) == ROWS && json_is_true(json_object_get(row, "finished"));
    assert_int_equal(whole, 3); /* resumed into the run that was killed, not into a new one */
    json_decref(document);
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_moments),
        cmocka_unit_test(test_cause),
        cmocka_unit_test(test_few_processes),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_stopped_is_named),
        cmocka_unit_test(test_resume),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
