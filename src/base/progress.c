/* base/progress.c -- one line: what runs, how far, time left. */
#include "base/progress.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum style { SILENT, REDRAW, LINES };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum style style = SILENT;
static int64_t every_ns; /* at most one line in this time */
static bool each;        /* but for progress_at */
static int64_t begun_ns, shown_ns;
static bool drawn; /* a redrawn line stands on the terminal now */
static char title[96];
static int total;

void progress_setup(enum progress_mode mode)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    pthread_mutex_lock(&lock);
    style = mode == PROGRESS_NONE ? SILENT : mode == PROGRESS_AUTO && terminal ? REDRAW : LINES;
    each = mode == PROGRESS_PLAIN;
    every_ns = style == REDRAW ? 100000000 : mode == PROGRESS_AUTO ? 10000000000 : 1000000000;
    pthread_mutex_unlock(&lock);
}

static void clear_line(void)
{
    if (drawn)
        fputs("\r\033[K", stderr);
    drawn = false;
}

void progress_clear(void)
{
    pthread_mutex_lock(&lock);
    clear_line();
    pthread_mutex_unlock(&lock);
}

void progress_begin(const char *what, int new_total)
{
    pthread_mutex_lock(&lock);
    text_print(title, sizeof title, "%s", what);
    text_clean(title);
    total = new_total;
    begun_ns = clock_ns();
    shown_ns = 0;
    pthread_mutex_unlock(&lock);
}

static int64_t estimate_us(int done)
{
    if (done <= 0 || total <= 0 || done > total)
        return -1;
    double spent_us = (double)(clock_ns() - begun_ns) / 1e3;
    return (int64_t)(spent_us / done * (total - done));
}

static void show(const char *line)
{
    struct winsize window = {0};
    int columns = 80;
    if (style == LINES) {
        fprintf(stderr, "sptune: %s\n", line);
        return;
    }
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 10)
        columns = window.ws_col;
    /* One column stays free: a full line would wrap and could not be redrawn. Never cut inside a character. */
    int bytes = (int)strnlen(line, (size_t)columns - 9);
    while (bytes > 0 && ((unsigned char)line[bytes] & 0xc0) == 0x80)
        bytes--;
    fprintf(stderr, "\rsptune: %.*s\033[K", bytes, line);
    fflush(stderr);
    drawn = true;
}

static void step(int done, const char *label, int64_t left_us, bool at)
{
    char line[256], left[UNITS_BUF], of[32] = "", remains[UNITS_BUF + 8] = "";
    pthread_mutex_lock(&lock);
    int64_t now = clock_ns();
    int64_t since = shown_ns || !at ? shown_ns : begun_ns;
    if (style == SILENT || (since && now - since < every_ns && !(at && each))) {
        pthread_mutex_unlock(&lock);
        return;
    }
    shown_ns = now;
    if (left_us < 0)
        left_us = estimate_us(done);
    if (total > 0)
        text_print(of, sizeof of, " of %d", total);
    if (left_us > 0)
        text_print(remains, sizeof remains, ", %s left", units_format_us((double)left_us, left));
    text_print(line, sizeof line, "%s %d%s%s%s%s", title, done, of, label && *label ? " " : "", label ? label : "",
               remains);
    text_clean(line);
    show(line);
    pthread_mutex_unlock(&lock);
}

void progress_step(int done, const char *label, int64_t left_us)
{
    step(done, label, left_us, false);
}

void progress_at(int done, const char *label)
{
    step(done, label, -1, true);
}

void progress_end(void)
{
    pthread_mutex_lock(&lock);
    clear_line();
    fflush(stderr);
    title[0] = '\0';
    total = 0;
    pthread_mutex_unlock(&lock);
}
