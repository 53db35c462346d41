/* tests/comm/test_launch.c -- who am I; forked ranks and their supervisor. */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- detection ---- */

static const char *const names[] = {"SPTUNE_RANK", "SPTUNE_SIZE",       "SPTUNE_ROOT",      "SPTUNE_TOKEN",
                                    "SPTUNE_NODE", "SPTUNE_LOCAL_RANK", "SPTUNE_LOCAL_SIZE"};
#define TOKEN "0123456789abcdef0123456789abcdef"

static void set(const char *rank, const char *size, const char *root, const char *token)
{
    const char *const values[] = {rank, size, root, token, NULL, NULL, NULL};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unsetenv(names[i]);
        if (values[i])
            setenv(names[i], values[i], 1);
    }
}

static int clear(void **state)
{
    (void)state;
    set(NULL, NULL, NULL, NULL);
    return 0;
}

static void test_detect_nothing(void **state)
{
    (void)state;
    struct launch launch;
    bool found = true;
    assert_int_equal(launch_detect(&launch, &found), STATUS_OK);
    assert_false(found);
}

static void test_detect_environment(void **state)
{
    (void)state;
    struct launch launch;
    bool found = false;
    set("3", "4", "node7:4711", TOKEN);
    assert_int_equal(launch_detect(&launch, &found), STATUS_OK);
    assert_true(found);
    assert_int_equal(launch.rank, 3);
    assert_int_equal(launch.size, 4);
    assert_int_equal(launch.local_rank, 3);
    assert_int_equal(launch.local_size, 4);
    assert_int_equal(launch.listen_fd, -1);
    assert_false(launch.root_listening);
    assert_string_equal(launch.root, "node7:4711");
    assert_string_equal(launch.token, TOKEN);
    setenv("SPTUNE_LOCAL_RANK", "1", 1);
    setenv("SPTUNE_LOCAL_SIZE", "2", 1);
    setenv("SPTUNE_NODE", "b", 1);
    assert_int_equal(launch_detect(&launch, &found), STATUS_OK);
    assert_int_equal(launch.local_rank, 1);
    assert_int_equal(launch.local_size, 2);
    assert_string_equal(launch.node, "b");
}

static void test_detect_refuses(void **state)
{
    (void)state;
    char far[200];
    memset(far, 'a', sizeof far);
    memcpy(far + sizeof far - 3, ":1", 3);
    const struct {
        const char *rank, *size, *root, *token, *says;
    } bad[] = {
        {"0", "2", "a:1", NULL, "SPTUNE_TOKEN"},
        {NULL, "2", "a:1", TOKEN, "SPTUNE_RANK"},
        {"2", "2", "a:1", TOKEN, "too large"},
        {"-1", "2", "a:1", TOKEN, "-1"},
        {"0", "0", "a:1", TOKEN, "too small"},
        {"0", "1000000000000000000", "a:1", TOKEN, "too large"},
        {"0", "1000000000000000000000000000000", "a:1", TOKEN, ""},
        {"x", "2", "a:1", TOKEN, "x"},
        {"0", "2", "a:1", "short", "token"},
        {"0", "2", "a:1", "0123456789abcdef0123456789abcdeX", "token"},
        {"0", "2", "a:1", TOKEN "0", "token"},
        {"0", "2", far, TOKEN, "SPTUNE_ROOT"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct launch launch;
        bool found;
        set(bad[i].rank, bad[i].size, bad[i].root, bad[i].token);
        assert_int_equal(launch_detect(&launch, &found), STATUS_USAGE);
        assert_non_null(strstr(status_last()->what, bad[i].says));
    }
}

/* As mpirun (0) and srun (1) tell rank 1 of 2; 2: nobody. */
static void started(int by, const char *job, const char *local_size)
{
    static const char *const theirs[2][5] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
         "PMIX_NAMESPACE"},
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"}};
    const char *const values[5] = {"1", "2", "1", local_size, job};
    set(NULL, NULL, NULL, NULL);
    for (int who = 0; who < 2; who++)
        for (int i = 0; i < 5; i++) {
            unsetenv(theirs[who][i]);
            if (who == by && values[i] != NULL)
                setenv(theirs[who][i], values[i], 1);
        }
}

static void test_detect_starters(void **state)
{
    (void)state;
    struct launch one, same, other;
    bool found = false;
    unsetenv("SLURM_STEP_ID");
    unsetenv("OMPI_MCA_orte_precondition_transports");
    for (int by = 0; by < 2; by++) {
        started(by, "4711", "2");
        assert_int_equal(launch_detect(&one, &found), STATUS_OK);
        assert_true(found);
        assert_true(one.rank == 1 && one.size == 2 && one.local_rank == 1 && one.local_size == 2);
        assert_true(strncmp(one.root, "127.0.0.1:", 10) == 0 && strlen(one.token) == 32 && one.listen_fd == -1);
        assert_non_null(strstr(one.rule, by == 0 ? "OMPI_COMM_WORLD_RANK=1" : "SLURM_PROCID=1"));
        setenv(by == 0 ? "OMPI_COMM_WORLD_RANK" : "SLURM_PROCID", "0", 1); /* all ranks of a job meet, */
        assert_int_equal(launch_detect(&same, &found), STATUS_OK);
        assert_true(strcmp(one.root, same.root) == 0 && strcmp(one.token, same.token) == 0);
        started(by, "4712", "2"); /* and two jobs do not */
        assert_int_equal(launch_detect(&other, &found), STATUS_OK);
        assert_true(strcmp(one.root, other.root) != 0 && strcmp(one.token, other.token) != 0);
        started(by, "4711", by == 0 ? "1" : "1(x2)");
        assert_int_equal(launch_detect(&one, &found), STATUS_USAGE);
        assert_non_null(strstr(status_last()->what, "several hosts"));
        setenv("SPTUNE_ROOT", "node7:4711", 1);
        setenv("SPTUNE_TOKEN", TOKEN, 1);
        assert_int_equal(launch_detect(&one, &found), STATUS_OK);
        assert_true(strcmp(one.root, "node7:4711") == 0 && strcmp(one.token, TOKEN) == 0);
        setenv("SPTUNE_SIZE", "3", 1); /* who names it himself means it */
        setenv("SPTUNE_RANK", "2", 1);
        assert_int_equal(launch_detect(&one, &found), STATUS_OK);
        assert_true(one.rank == 2 && one.size == 3);
        started(by, NULL, "2"); /* as in the batch script of a job */
        assert_int_equal(launch_detect(&one, &found), STATUS_OK);
        assert_false(found);
        started(by, "4711", "1"); /* a shell within a step */
        setenv(by == 0 ? "OMPI_COMM_WORLD_SIZE" : "SLURM_STEP_NUM_TASKS", "1", 1);
        assert_int_equal(launch_detect(&one, &found), STATUS_OK);
        assert_false(found);
    }
    started(2, NULL, NULL);
}

/* ---- ranks ---- */

static int return_rank(const struct launch *launch, void *arg)
{
    const int *codes = arg;
    RANK_CHECK(launch->size == 3 && launch->local_size == 3 && launch->local_rank == launch->rank);
    RANK_CHECK((launch->listen_fd >= 0) == (launch->rank == 0));
    RANK_CHECK(launch->root_listening && strncmp(launch->root, "127.0.0.1:", 10) == 0);
    RANK_CHECK(strlen(launch->token) == 32 && strcmp(launch->rule, "fork of 3 ranks") == 0);
    board->flag[launch->rank] = 1;
    /* From the last rank down, so that who ended first is known. */
    while (launch->rank + 1 < launch->size && !board->pid[launch->rank + 1])
        ranks_sleep_ms(1);
    if (launch->rank + 1 < launch->size)
        ranks_await_end(board->pid[launch->rank + 1]);
    return codes[launch->rank];
}

static void test_fork_codes(void **state)
{
    (void)state;
    static const struct {
        int codes[3], exit_code, failed;
    } cases[] = {
        {{0, 0, 0}, 0, -1}, {{2, 2, 2}, 2, -1}, /* agreed */
        {{3, 0, 0}, 3, 2},                      /* rank 2 left first, unlike rank 0 */
        {{0, 0, 7}, 7, 2},                      /* rank 0 does not know */
        {{0, 5, 7}, 7, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int codes[3];
        memcpy(codes, cases[i].codes, sizeof codes);
        struct launch_report report = ranks_run(3, return_rank, codes);
        assert_int_equal(report.exit_code, cases[i].exit_code);
        assert_int_equal(report.failed_rank, cases[i].failed);
        assert_int_equal(report.signal, 0);
        assert_true(report.root_spoke);
        for (int r = 0; r < 3; r++)
            assert_int_equal(board->flag[r], 1);
    }
}

static int tokens_differ(const struct launch *launch, void *arg)
{
    memcpy(arg, launch->token, sizeof launch->token);
    return 0;
}

static void test_fork_tokens(void **state)
{
    (void)state;
    char *seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);
    ranks_pass(1, tokens_differ, seen);
    ranks_pass(1, tokens_differ, seen + 64);
    assert_memory_not_equal(seen, seen + 64, 32);
    munmap(seen, 4096);
}

static int signal_self(const struct launch *launch, void *arg)
{
    if (launch->rank == *(const int *)arg)
        raise(SIGKILL);
    ranks_sleep_ms(50);
    return launch->rank == 0 ? 4 : 0;
}

static void test_fork_signal(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++) {
        struct launch_report report = ranks_run(3, signal_self, &victim);
        assert_int_equal(report.exit_code, 4);
        assert_int_equal(report.failed_rank, victim);
        assert_int_equal(report.signal, SIGKILL);
        assert_int_equal(report.root_spoke, victim != 0);
    }
}

static int leave_early(const struct launch *launch, void *arg)
{
    (void)arg;
    if (launch->rank == 1)
        exit(0); /* without returning: nobody was told */
    ranks_sleep_ms(50);
    return 0;
}

static void test_fork_early_exit(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(2, leave_early, NULL);
    assert_int_equal(report.failed_rank, 1);
    assert_int_equal(report.signal, 0);
    assert_int_equal(report.exit_code, 4);
    assert_true(report.root_spoke);
}

/* A rank that does not end is killed after the grace period, together with what it started. */
static int hang(const struct launch *launch, void *arg)
{
    (void)arg;
    if (launch->rank == 1)
        return 3;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGTERM, SIG_IGN);
        _exit(ranks_sleep_forever());
    }
    board->pid[RANKS_MAX - 1] = child;
    return ranks_sleep_forever();
}

static void test_fork_grace(void **state)
{
    (void)state;
    int64_t start_ns = clock_ns();
    struct launch_report report = ranks_run(2, hang, NULL);
    assert_true(board->pid[RANKS_MAX - 1] > 0); /* ranks_run has seen that it is gone */
    assert_true(clock_ns() - start_ns > LAUNCH_GRACE_US * INT64_C(1000));
    assert_int_equal(report.failed_rank, 1);
    assert_int_equal(report.signal, 0);
    assert_int_equal(report.exit_code, 4);
    assert_false(report.root_spoke);
}

/* Killed between making a segment and marking it for removal. A segment and a file that somebody uses stay. */
static int leave_segments(const struct launch *launch, void *arg)
{
    const int *ids = arg;
    char path[64];
    (void)launch;
    RANK_CHECK(shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0);
    RANK_CHECK(shmat(ids[0], NULL, 0) != (void *)-1);
    snprintf(path, sizeof path, "/dev/shm/ucx_shm_posix_%d", getpid());
    RANK_CHECK(open(path, O_CREAT | O_EXCL | O_RDWR, 0600) >= 0);
    raise(SIGKILL);
    return 0;
}

static void test_fork_sweeps(void **state)
{
    (void)state;
    static const char used[] = "/dev/shm/ucx_shm_posix_in_use";
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600), fd = open(used, O_CREAT | O_RDWR, 0600);
    struct shmid_ds about;
    assert_true(id >= 0 && fd >= 0);
    struct launch_report report = ranks_run(2, leave_segments, &id); /* sees that nothing is left */
    assert_int_equal(report.signal, SIGKILL);
    assert_int_equal(shmctl(id, IPC_STAT, &about), 0);
    assert_int_equal(access(used, F_OK), 0);
    shmctl(id, IPC_RMID, NULL);
    unlink(used);
    close(fd);
}

/* As leave_segments, but it is the supervisor that is killed: then its keeper sweeps up. */
static int hold_segments(const struct launch *launch, void *arg)
{
    char path[64];
    (void)arg;
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    snprintf(path, sizeof path, "/dev/shm/ucx_shm_posix_%d", getpid());
    RANK_CHECK(id >= 0 && open(path, O_CREAT | O_EXCL | O_RDWR, 0600) >= 0);
    board->flag[launch->rank] = id + 1;
    board->pid[launch->rank] = getpid();
    return ranks_sleep_forever();
}

static bool segments_stay(void)
{
    bool stay = false;
    for (int r = 0; r < 2; r++) {
        char path[64];
        struct shmid_ds about;
        snprintf(path, sizeof path, "/dev/shm/ucx_shm_posix_%d", board->pid[r]);
        stay = stay || access(path, F_OK) == 0 || shmctl(board->flag[r] - 1, IPC_STAT, &about) == 0;
    }
    return stay;
}

static void test_fork_supervisor_killed_sweeps(void **state)
{
    (void)state;
    ranks_fresh_board();
    pid_t supervisor = fork();
    if (supervisor == 0) {
        struct launch_report report;
        launch_fork(2, NULL, hold_segments, NULL, &report);
        _exit(0);
    }
    while (!board->pid[0] || !board->pid[1])
        ranks_sleep_ms(1);
    ranks_sleep_ms(50); /* a kill before there is a keeper is nobody's to sweep up after */
    assert_true(segments_stay());
    kill(supervisor, SIGKILL);
    waitpid(supervisor, NULL, 0);
    int64_t deadline_ns = clock_deadline(10 * INT64_C(1000000));
    while (segments_stay() && !clock_passed(deadline_ns))
        ranks_sleep_ms(5);
    assert_false(segments_stay());
}

/* ---- what ranks inherit ---- */

static int say(const struct launch *launch, void *arg)
{
    (void)arg;
    printf("rank %d\n", launch->rank);
    return 0;
}

/* What the parent had buffered comes out once. */
static void test_fork_output(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    int kept = dup(STDOUT_FILENO);
    assert_true(file && kept >= 0);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    printf("before\n");
    ranks_pass(3, say, NULL);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    char text[256] = "";
    rewind(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    assert_string_equal(text, strstr(text, "before"));
    assert_null(strstr(text + 1, "before"));
    for (int r = 0; r < 3; r++) {
        char line[16];
        snprintf(line, sizeof line, "rank %d\n", r);
        assert_non_null(strstr(text, line));
    }
    assert_int_equal(n, strlen("before\n") + 3 * strlen("rank 0\n"));
}

static int last_cpu(const cpu_set_t *set)
{
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
        if (CPU_ISSET((size_t)cpu, set))
            return cpu;
    return -1;
}

static int is_bound(const struct launch *launch, void *arg)
{
    cpu_set_t set, all = *(const cpu_set_t *)arg;
    RANK_CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    if (launch->rank == 1)
        RANK_CHECK(CPU_EQUAL(&set, &all));
    else
        RANK_CHECK(CPU_COUNT(&set) == 1 && CPU_ISSET((size_t)last_cpu(&all), &set));
    return 0;
}

static void test_fork_binding(void **state)
{
    (void)state;
    cpu_set_t before, after;
    char last[32], range[64], empty[] = "";
    struct launch_report report;
    sched_getaffinity(0, sizeof before, &before);
    snprintf(last, sizeof last, "%d", last_cpu(&before));
    snprintf(range, sizeof range, "%d-%d", last_cpu(&before), last_cpu(&before));
    char *cpus[] = {last, NULL, range};
    assert_int_equal(launch_fork(3, cpus, is_bound, &before, &report), STATUS_OK);
    assert_int_equal(report.exit_code, 0);
    char *second_empty[] = {last, empty};
    assert_int_equal(launch_fork(2, second_empty, is_bound, &before, &report), STATUS_OK);
    assert_int_equal(report.exit_code, 0);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
}

static int must_not_run(const struct launch *launch, void *arg)
{
    *(atomic_int *)arg = launch->rank == 1;
    return ranks_sleep_forever();
}

/* The second rank cannot be bound: the first one, already running, is taken away again. */
static void test_fork_binding_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"x",  "1-", "3-1", "0,,1", "0-", ",", " 0", "16383", "99999999999999999999",
                                      "-1", "0;1"};
    atomic_int *ran = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(ran != MAP_FAILED);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct launch_report report = {.exit_code = 77};
        char list[32];
        snprintf(list, sizeof list, "%s", bad[i]);
        char *cpus[] = {NULL, list};
        assert_int_equal(launch_fork(2, cpus, must_not_run, ran, &report), STATUS_USAGE);
        assert_string_equal(status_last()->where, "rank 1");
        assert_int_equal(report.exit_code, 77);
        assert_int_equal(*ran, 0);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
    }
    munmap(ran, 4096);
}

static void test_fork_sizes_refused(void **state)
{
    (void)state;
    struct launch_report report;
    static const int sizes[] = {0, -1, LAUNCH_RANKS_MAX + 1, 2147483647};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_int_equal(launch_fork(sizes[i], NULL, must_not_run, NULL, &report), STATUS_USAGE);
}

static int end_at_once(const struct launch *launch, void *arg)
{
    (void)launch;
    (void)arg;
    return 0;
}

/* A network namespace of its own: its loopback interface is down. Ranks that could not join are not started. */
static void test_fork_no_loopback(void **state)
{
    (void)state;
    enum { CANNOT = 1, STARTED, UNNAMED, ALONE_REFUSED };
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct launch_report report;
        if (unshare(CLONE_NEWNET) != 0)
            _exit(CANNOT);
        if (launch_fork(2, NULL, end_at_once, NULL, &report) != STATUS_MACHINE)
            _exit(STARTED);
        if (strstr(status_last()->what, "127.0.0.1") == NULL || strstr(status_last()->hint, "loopback") == NULL)
            _exit(UNNAMED);
        _exit(launch_fork(1, NULL, end_at_once, NULL, &report) == STATUS_OK ? 0 : ALONE_REFUSED);
    }
    int code;
    assert_true(pid > 0 && waitpid(pid, &code, 0) == pid && WIFEXITED(code));
    if (WEXITSTATUS(code) == CANNOT) {
        print_message("no network namespace may be made here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(code), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_detect_nothing, clear, clear),
        cmocka_unit_test_setup_teardown(test_detect_environment, clear, clear),
        cmocka_unit_test_setup_teardown(test_detect_refuses, clear, clear),
        cmocka_unit_test_setup_teardown(test_detect_starters, clear, clear),
        cmocka_unit_test(test_fork_codes),
        cmocka_unit_test(test_fork_tokens),
        cmocka_unit_test(test_fork_signal),
        cmocka_unit_test(test_fork_early_exit),
        cmocka_unit_test(test_fork_grace),
        cmocka_unit_test(test_fork_sweeps),
        cmocka_unit_test(test_fork_supervisor_killed_sweeps),
        cmocka_unit_test(test_fork_output),
        cmocka_unit_test(test_fork_binding),
        cmocka_unit_test(test_fork_binding_refused),
        cmocka_unit_test(test_fork_sizes_refused),
        cmocka_unit_test(test_fork_no_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
