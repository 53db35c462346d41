/* tests/comm/ranks.c -- the runner behind ranks.h. */
#include "ranks.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NAMES_MAX = 256, NAME_MAX_BYTES = 64 };

struct names {
    int n;
    char name[NAMES_MAX][NAME_MAX_BYTES];
};

struct board *board;

struct wrapped {
    launch_rank_main rank_main;
    void *arg;
};

void ranks_sleep_ms(int ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

int ranks_sleep_forever(void)
{
    while (pause() < 0)
        continue;
    return 0;
}

static bool has_ended(int pid)
{
    char path[64], line[256] = "";
    text_print(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    bool ended = !file || !fgets(line, sizeof line, file) || strstr(line, ") Z ") || strstr(line, ") X ");
    if (file)
        fclose(file);
    return ended;
}

void ranks_await_end(int pid)
{
    while (!has_ended(pid))
        ranks_sleep_ms(1);
}

static int count_files(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static bool is_ours(const char *name)
{
    return strncmp(name, "ucx_shm_posix", 13) == 0;
}

static struct names list_segments(void)
{
    struct names names = {.n = 0};
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *entry; dir && names.n < NAMES_MAX && (entry = readdir(dir));)
        if (is_ours(entry->d_name))
            text_print(names.name[names.n++], NAME_MAX_BYTES, "%s", entry->d_name);
    if (dir)
        closedir(dir);
    return names;
}

/* Other jobs of this machine have files there for a moment; ours would stay. */
static const char *left_in_shm(const struct names *before)
{
    static struct names now;
    now = list_segments();
    for (int i = 0; i < now.n; i++) {
        bool known = false;
        for (int j = 0; j < before->n; j++)
            known = known || strcmp(now.name[i], before->name[j]) == 0;
        if (!known)
            return now.name[i];
    }
    return NULL;
}

static bool is_rank(int pid)
{
    for (int r = 0; r < RANKS_MAX; r++)
        if (pid > 0 && board->pid[r] == pid)
            return true;
    return false;
}

/* Segments whose creator was one of our ranks: process ids come again, so old ones do not count. */
static int left_in_sysv(time_t since)
{
    int n = 0, creator;
    long long changed;
    char line[512];
    FILE *file = fopen("/proc/sysvipc/shm", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%*d %*d %*o %*u %d %*d %*u %*u %*u %*u %*u %*d %*d %lld", &creator, &changed) == 2 &&
            changed >= since && is_rank(creator))
            n++;
    if (file)
        fclose(file);
    return n;
}

static int left_processes(void)
{
    int n = 0;
    for (int r = 0; r < RANKS_MAX; r++)
        if (board->pid[r] > 0 && !(kill(board->pid[r], 0) < 0 && errno == ESRCH))
            n++;
    return n;
}

static int wrapper(const struct launch *launch, void *arg)
{
    const struct wrapped *wrapped = arg;
    board->pid[launch->rank] = getpid();
    return wrapped->rank_main(launch, wrapped->arg);
}

void ranks_fresh_board(void)
{
    if (!board) {
        void *page = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(page != MAP_FAILED);
        board = page;
    }
    memset(board, 0, sizeof *board);
}

struct launch_report ranks_run(int n, launch_rank_main rank_main, void *arg)
{
    struct wrapped wrapped = {.rank_main = rank_main, .arg = arg};
    struct launch_report report;
    ranks_fresh_board();
    struct names before = list_segments();
    int files = count_files();
    time_t since = time(NULL);
    enum status status = launch_fork(n, NULL, wrapper, &wrapped, &report);
    if (status != STATUS_OK)
        print_error("launch_fork: %s\n", status_last()->what);
    assert_int_equal(status, STATUS_OK);
    assert_false(board->failed);
    assert_int_equal(count_files(), files);
    assert_int_equal(left_processes(), 0);
    assert_int_equal(left_in_sysv(since), 0);
    const char *left = left_in_shm(&before);
    for (int i = 0; left && i < 40; i++, left = left_in_shm(&before))
        ranks_sleep_ms(50);
    if (left)
        fail_msg("left in /dev/shm: %s", left);
    return report;
}

void ranks_pass(int n, launch_rank_main rank_main, void *arg)
{
    struct launch_report report = ranks_run(n, rank_main, arg);
    assert_int_equal(report.failed_rank, -1);
    assert_int_equal(report.exit_code, 0);
    assert_true(report.root_spoke);
}

/* How many ranks a GPU takes. */
static int on_a_gpu(void)
{
    const char *text = getenv("SPTUNE_TEST_RANKS_PER_GPU");
    return text != NULL ? atoi(text) : 1;
}

enum status ranks_open_gpu(const struct launch *launch, struct dev **out)
{
    int n = 0;
    TRY(dev_count(DEV_CUDA, &n));
    return dev_open(DEV_CUDA, launch->local_rank % n, out);
}

static enum status look(void *boot)
{
    return boot_poll(boot);
}

void ranks_watch(struct dev *gpu, struct boot *boot)
{
    dev_watch(gpu, look, boot);
}

int ranks_gpus(int most)
{
    int state = 0, n = 0;
    pid_t child = fork();
    if (child == 0) {
        if (dev_count(DEV_CUDA, &n) != STATUS_OK)
            printf("skipped: %s\n", status_last()->what);
        fflush(stdout);
        n *= on_a_gpu();
        _exit(n < most ? n : most);
    }
    return child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state) ? WEXITSTATUS(state) : 0;
}

int ranks_note(const struct launch *launch, enum status status)
{
    board->code[launch->rank] = status;
    board->rank[launch->rank] = status == STATUS_OK ? -1 : status_last()->rank;
    text_print(board->what[launch->rank], sizeof board->what[0], "%s", status == STATUS_OK ? "" : status_last()->what);
    board->noted[launch->rank] = 1;
    return status_exit_code(status);
}

void ranks_await_notes(const struct launch *launch)
{
    for (int r = 0; r < launch->size; r++)
        while (r != launch->rank && !board->noted[r])
            ranks_sleep_ms(1);
}

void ranks_die_after(int64_t us)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    const struct itimerspec when = {.it_value = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 + 1}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0)
        abort();
}

enum status side_open(struct side *side, const struct launch *launch, const char *prefer)
{
    return side_open_over(side, launch, "ucx", prefer);
}

enum status side_open_over(struct side *side, const struct launch *launch, const char *transport, const char *prefer)
{
    *side = (struct side){.boot = NULL};
    TRY(boot_open(launch, clock_deadline(BOOT_DEADLINE_US), &side->boot));
    TRY(dev_open(DEV_CPU, 0, &side->dev));
    TRY(dev_queue_create(side->dev, &side->queue));
    return comm_open(side->boot, side->dev, transport, prefer, &side->comm);
}

void side_close(struct side *side)
{
    comm_close(side->comm);
    dev_queue_destroy(side->queue);
    dev_close(side->dev);
    boot_close(side->boot);
}
