/* results/export_gnuplot.c -- run gnuplot on a script and collect the picture.
 *
 * The script goes in through a file without a name, the picture comes back through a pipe, complaints through another such
 * file. gnuplot reads no start-up files (-d). It is killed when it takes longer than DEADLINE_US.
 */
#include "results/export_private.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_US = 60 * 1000 * 1000, CHUNK = 1 << 16 };

static enum status add_terminal(struct text *script, const char *terminal, int width, int height)
{
    text_add(script, "set encoding utf8\n");
    if (strcmp(terminal, "svg") == 0)
        text_add(script, "set terminal svg size %d,%d font 'sans-serif,13' background '#ffffff'\n", width, height);
    else if (strcmp(terminal, "png") == 0)
        text_add(script,
                 "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) set terminal pngcairo size %d,%d font 'sans,11' "
                 "background '#ffffff'; else set terminal png size %d,%d\n",
                 width, height, width, height);
    else
        return HINT(FAIL(STATUS_USAGE, "no picture of kind '%s'", terminal), "svg or png");
    return STATUS_OK;
}

/* A file without a name that holds the text, at its beginning: in memory, for no directory need be writable. */
static enum status nameless_file(const struct text *text, int *out_fd)
{
    int made = memfd_create("sptune-gnuplot", MFD_CLOEXEC);
    int fd = made >= 0 ? fcntl(made, F_DUPFD_CLOEXEC, 3) : -1; /* 0 to 2 may be closed here, and become gnuplot's own */
    size_t done = 0;
    if (made >= 0)
        close(made);
    while (fd >= 0 && done < text->len) {
        ssize_t put = write(fd, text_get(text) + done, text->len - done);
        if (put < 0 && errno != EINTR)
            break;
        done += put > 0 ? (size_t)put : 0;
    }
    if (fd < 0 || done < text->len) {
        enum status status = FAIL(STATUS_IO, "cannot write a script for gnuplot: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    lseek(fd, 0, SEEK_SET);
    *out_fd = fd;
    return STATUS_OK;
}

static enum status start(int in, int out, int complaints, pid_t *out_pid)
{
    extern char **environ;
    char *const argv[] = {"gnuplot", "-d", "-", NULL};
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code == 0) {
        posix_spawn_file_actions_adddup2(&actions, in, 0);
        posix_spawn_file_actions_adddup2(&actions, out, 1);
        posix_spawn_file_actions_adddup2(&actions, complaints, 2);
        code = posix_spawnp(out_pid, "gnuplot", &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    if (code == ENOENT || code == EACCES)
        return HINT(FAIL(STATUS_ABSENT, "gnuplot is not installed, it draws the pictures"),
                    "install gnuplot-nox, or export csv or json");
    return code ? FAIL(STATUS_IO, "cannot start gnuplot: %s", strerror(code)) : STATUS_OK;
}

static enum status collect(int fd, struct text *picture)
{
    char *chunk = malloc(CHUNK);
    if (!chunk)
        return FAIL(STATUS_NOMEM, "no memory for a picture");
    int64_t deadline = clock_deadline(DEADLINE_US);
    enum status status = STATUS_OK;
    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = poll(&wait, 1, 1000);
        if (clock_passed(deadline)) {
            status = FAIL(STATUS_TIMEOUT, "gnuplot has not finished within %d s", DEADLINE_US / 1000000);
            break;
        }
        if (ready <= 0)
            continue;
        ssize_t got = read(fd, chunk, CHUNK);
        if (got == 0)
            break;
        if (got > 0)
            text_add_raw(picture, chunk, (size_t)got);
        else if (errno != EINTR) {
            status = FAIL(STATUS_IO, "cannot read from gnuplot: %s", strerror(errno));
            break;
        }
    }
    free(chunk);
    return status;
}

/* The line of gnuplot's complaint that says most: the one after its arrow, else the first. */
static enum status complain(int fd, int code)
{
    char text[1024] = "";
    lseek(fd, 0, SEEK_SET);
    ssize_t got = read(fd, text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    char *line = strstr(text, "line ");
    line = line ? line : text + strspn(text, "\n ");
    line[strcspn(line, "\n")] = '\0';
    text_clean(line);
    return WIFSIGNALED(code) ? FAIL(STATUS_IO, "gnuplot was ended by signal %d", WTERMSIG(code))
                             : FAIL(STATUS_IO, "gnuplot failed: %s", *line ? line : "it does not say why");
}

static enum status finish(pid_t pid, int complaints, enum status status)
{
    int code = 0;
    if (status != STATUS_OK)
        kill(pid, SIGKILL);
    while (waitpid(pid, &code, 0) < 0 && errno == EINTR)
        ;
    return status == STATUS_OK && code != 0 ? complain(complaints, code) : status;
}

static enum status run(const struct text *script, struct text *picture)
{
    struct text nothing = {0};
    int in = -1, complaints = -1, pipes[2] = {-1, -1};
    pid_t pid = 0;
    enum status status = STATUS_OK;
    TRY_OUT(nameless_file(script, &in));
    TRY_OUT(nameless_file(&nothing, &complaints));
    if (pipe2(pipes, O_CLOEXEC) != 0)
        TRY_OUT(FAIL(STATUS_IO, "cannot make a pipe for gnuplot: %s", strerror(errno)));
    TRY_OUT(start(in, pipes[1], complaints, &pid));
    close(pipes[1]);
    pipes[1] = -1;
    status = finish(pid, complaints, collect(pipes[0], picture));
    if (status == STATUS_OK && picture->len == 0)
        status = FAIL(STATUS_IO, "gnuplot drew nothing");
out:
    for (int i = 0; i < 2; i++)
        if (pipes[i] >= 0)
            close(pipes[i]);
    if (in >= 0)
        close(in);
    if (complaints >= 0)
        close(complaints);
    return status;
}

enum status export_gnuplot_sized(const char *script, const char *terminal, int width, int height, char **out,
                                 size_t *out_len)
{
    struct text whole = {0}, picture = {0};
    enum status status = add_terminal(&whole, terminal, width, height);
    text_add(&whole, "%s", script);
    if (status == STATUS_OK)
        status = text_status(&whole);
    if (status == STATUS_OK)
        status = run(&whole, &picture);
    text_free(&whole);
    if (status == STATUS_OK)
        return export_finish(&picture, out, out_len);
    text_free(&picture);
    return status;
}

enum status export_gnuplot(const char *script, const char *terminal, char **out, size_t *out_len)
{
    return export_gnuplot_sized(script, terminal, 960, 600, out, out_len);
}
