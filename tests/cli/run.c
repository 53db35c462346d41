/* cli/run.c -- the program as a process: start, wait, look at what it said and what it left. */
#include "cli/run.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

enum { ARGS_MAX = 64, COLUMNS = 80, GONE_WITHIN_S = 10 };

struct temp run_temp;
bool run_alone;
const char *run_stdout;

/* ---- the place ---- */

static bool put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    bool fine = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return fine;
}

static bool loopback_up(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    bool fine = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    request.ifr_flags |= IFF_UP;
    fine = fine && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    if (fd >= 0)
        close(fd);
    return fine;
}

static bool move_in(void)
{
    int flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET;
    char map[64];
    if (unshare(flags) != 0) {
        snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
        if (unshare(CLONE_NEWUSER | flags) != 0 || !put("/proc/self/setgroups", "deny") ||
            !put("/proc/self/uid_map", map))
            return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777") == 0 && loopback_up();
}

/* Half moved in would be worse than not at all: a child tries first. */
static bool can_move_in(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(move_in() ? 0 : 1);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run_place(void **state)
{
    (void)state;
    static const char *const unset[] = {"SPTUNE_RANK", "SPTUNE_SIZE",  "SPTUNE_ROOT", "SPTUNE_TOKEN",
                                        "HF_HOME",     "HF_HUB_CACHE", "NO_COLOR",    "OMPI_COMM_WORLD_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++)
        unsetenv(unset[i]);
    run_alone = can_move_in() && move_in();
    if (!run_alone)
        printf("no namespaces here: what stays in /dev/shm and in sockets is not looked at\n");
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what outlives a killed supervisor becomes ours */
    temp_open(&run_temp);
    setenv("HOME", run_temp.dir, 1);
    setenv("XDG_DATA_HOME", temp_path(&run_temp, "data"), 1);
    setenv("SPTUNE_STORE", temp_path(&run_temp, "store.db"), 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    return 0;
}

int run_place_one_cpu(void **state)
{
    cpu_set_t set;
    size_t cpu = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return -1;
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0 ? run_place(state) : -1;
}

int run_leave(void **state)
{
    (void)state;
    temp_close(&run_temp);
    return 0;
}

void run_env(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* ---- one run ---- */

/* In place: blanks separate, single quotes keep together. */
static int split(char *line, char **args)
{
    int n = 0;
    static char name[] = "sptune";
    args[n++] = name;
    for (char *at = line; *at != '\0';) {
        at += strspn(at, " ");
        if (*at == '\0')
            break;
        bool quoted = *at == '\'';
        at += quoted;
        assert_true(n < ARGS_MAX - 1);
        args[n++] = at;
        at += strcspn(at, quoted ? "'" : " ");
        if (*at != '\0')
            *at++ = '\0';
    }
    args[n] = NULL;
    return n;
}

static _Noreturn void become(char **args, int out, int err)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (run_stdout != NULL && run_stdout[0] != '\0')
        out = open(run_stdout, O_WRONLY);
    if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0 || chdir(run_temp.dir) != 0)
        _exit(126);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    if (run_stdout != NULL && run_stdout[0] == '\0')
        close(STDOUT_FILENO);
    execv(SPTUNE_PROGRAM, args);
    _exit(127);
}

void run_begin_v(struct run *run, const char *fmt, va_list list)
{
    char *line = NULL, *args[ARGS_MAX];
    *run = (struct run){.deadline_ns = clock_deadline(RUN_LIMIT_S * INT64_C(1000000))};
    assert_true(vasprintf(&line, fmt, list) >= 0);
    split(line, args);
    for (int i = 0; i < 2; i++)
        assert_non_null(run->files[i] = tmpfile());
    run->pid = fork();
    if (run->pid == 0)
        become(args, fileno(run->files[0]), fileno(run->files[1]));
    free(line);
    assert_true(run->pid > 0);
}

void run_begin(struct run *run, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    run_begin_v(run, fmt, list);
    va_end(list);
}

static char *read_all(FILE *file)
{
    char *text = NULL;
    size_t room = 0;
    rewind(file);
    if (getdelim(&text, &room, '\0', file) < 0) {
        free(text);
        text = strdup("");
    }
    fclose(file);
    return text;
}

bool run_ended(const struct run *run)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

void run_sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

bool run_wait(const struct run *run, int fd, const char *word, int times)
{
    static char text[1 << 18];
    for (bool last = false;;) {
        ssize_t n = pread(fileno(run->files[fd - 1]), text, sizeof text - 1, 0);
        int found = 0;
        text[n > 0 ? n : 0] = '\0';
        for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word))
            found++;
        if (found >= times || last)
            return found >= times;
        last = run_ended(run) || clock_passed(run->deadline_ns); /* look once more at what it wrote last */
        run_sleep_ms(2);
    }
}

void run_kill(struct run *run, pid_t pid, int sig)
{
    kill(pid, sig);
    int64_t soon = clock_deadline(RUN_KILLED_S * INT64_C(1000000));
    run->deadline_ns = soon < run->deadline_ns ? soon : run->deadline_ns;
}

void run_end(struct run *run)
{
    int status = 0;
    while (!run_ended(run) && !clock_passed(run->deadline_ns))
        run_sleep_ms(2);
    bool late = !run_ended(run);
    if (late)
        kill(run->pid, SIGKILL);
    while (waitpid(run->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    run->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    run->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    run->out = read_all(run->files[0]);
    run->err = read_all(run->files[1]);
    if (late)
        fail_msg("did not end in time:\n%.3000s%.3000s", run->out, run->err);
}

void run_free(struct run *run)
{
    free(run->out);
    free(run->err);
    run->out = run->err = NULL;
}

void run_do(struct run *run, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    run_begin_v(run, fmt, list);
    va_end(list);
    run_end(run);
}

/* ---- what it said ---- */

void run_expect(const struct run *run, int code)
{
    if (run->code != code)
        fail_msg("exit %d (signal %d), expected %d\nstdout: %.2000s\nstderr: %.2000s", run->code, run->signal, code,
                 run->out, run->err);
}

void run_says(const char *text, const char *word)
{
    if (strstr(text, word) == NULL)
        fail_msg("'%s' is not in:\n%.4000s", word, text);
}

void run_says_words(const char *text, const char *words)
{
    char *flat = strdup(text), *to = flat;
    assert_non_null(flat);
    for (const char *from = text; *from != '\0'; from++)
        if ((*from != ' ' && *from != '\n') || (to > flat && to[-1] != ' '))
            *to++ = *from == '\n' ? ' ' : *from;
    *to = '\0';
    run_says(flat, words);
    free(flat);
}

void run_says_not(const char *text, const char *word)
{
    if (strstr(text, word) != NULL)
        fail_msg("'%s' is in:\n%.4000s", word, text);
}

int run_lines(const char *text)
{
    int n = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        n++;
    return n;
}

json_t *run_json(const struct run *run, const char *noun)
{
    char schema[64];
    json_error_t error;
    json_t *root = json_loads(run->out, JSON_REJECT_DUPLICATES, &error); /* anything after the document is an error */
    if (root == NULL)
        fail_msg("not one JSON document (%s):\n%.4000s\nstderr: %.1000s", error.text, run->out, run->err);
    static const char *const keys[] = {"schema", "version", "command", "started", "seed", "machine", "warnings"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_non_null(json_object_get(root, keys[i]));
    snprintf(schema, sizeof schema, "sptune.%s/1", noun);
    assert_string_equal(json_string_value(json_object_get(root, "schema")), schema);
    return root;
}

void run_fits(const char *text, bool ascii)
{
    int column = 0;
    for (const char *at = text; *at != '\0'; at++) {
        unsigned char c = (unsigned char)*at;
        column = c == '\n' ? 0 : (c & 0xc0) != 0x80 ? column + 1 : column;
        if (column > COLUMNS || (ascii && c >= 0x80))
            fail_msg("%s in:\n%.4000s", column > COLUMNS ? "more than 80 columns" : "not ASCII", text);
    }
}

/* ---- processes ---- */

int run_lock(void)
{
    static const char name[] = "sptune-measures-here";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path + 1, name, sizeof name - 1);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + sizeof name), 0);
    return fd;
}

/* Children of a process in the order of their ids, which is the order of their birth. */
static int children(pid_t parent, pid_t *out, int max)
{
    int n = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc != NULL && (entry = readdir(proc)) != NULL;) {
        char path[300], line[512], *after;
        int above = 0;
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = fopen(path, "r");
        bool fine = file != NULL && fgets(line, sizeof line, file) != NULL && (after = strrchr(line, ')')) != NULL &&
                    sscanf(after, ") %*c %d", &above) == 1;
        if (file != NULL)
            fclose(file);
        if (fine && above == parent && n < max)
            out[n++] = atoi(entry->d_name);
    }
    if (proc != NULL)
        closedir(proc);
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && out[k] < out[k - 1]; k--) {
            pid_t swap = out[k];
            out[k] = out[k - 1];
            out[k - 1] = swap;
        }
    return n;
}

/* Before its ranks a command has at times one other child, which it asks something (cli/apart.h); never two. */
pid_t run_rank(const struct run *run, int rank)
{
    pid_t ranks[64], before = 0;
    for (;;) {
        int n = children(run->pid, ranks, 64);
        if (n > 1 && n > rank && ranks[rank] == before)
            return before;
        before = n > 1 && n > rank ? ranks[rank] : 0;
        if (run_ended(run) || clock_passed(run->deadline_ns))
            fail_msg("rank %d never came", rank);
        run_sleep_ms(1);
    }
}

static int connections(const char *path)
{
    char line[512];
    int n = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned state = 0;
        enum { ESTABLISHED = 1, LISTENING = 10 };
        if (sscanf(line, " %*d: %*s %*s %x", &state) == 1 && (state == ESTABLISHED || state == LISTENING))
            n++;
    }
    if (file != NULL)
        fclose(file);
    return n;
}

static int lines_with(const char *path, const char *word, int header)
{
    char line[512];
    int n = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        n += strstr(line, word) != NULL;
    if (file != NULL)
        fclose(file);
    return n - header;
}

static void processes_and_sockets_gone(void)
{
    int64_t deadline_ns = clock_deadline(GONE_WITHIN_S * INT64_C(1000000));
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 || errno == EINTR) {
        if (pid == 0 && clock_passed(deadline_ns))
            fail_msg("processes stay");
        if (pid == 0)
            run_sleep_ms(5);
    }
    if (!run_alone)
        return;
    int tcp = connections("/proc/self/net/tcp") + connections("/proc/self/net/tcp6");
    int locks = lines_with("/proc/self/net/unix", "sptune", 0);
    if (tcp != 0 || locks != 0)
        fail_msg("%d connections, %d locks stay", tcp, locks);
}

void run_nothing_left(void)
{
    processes_and_sockets_gone();
    if (!run_alone)
        return;
    int shm = temp_count("/dev/shm"), sysv = lines_with("/proc/sysvipc/shm", "", 1);
    if (shm > 0 || sysv > 0)
        fail_msg("%d files in /dev/shm, %d System V segments stay", shm, sysv);
}
