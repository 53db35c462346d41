/* base/log.c -- lines on stderr; warnings are kept, once each. */
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1024, WARNINGS_MAX = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level level = LOG_NORMAL;
static bool speaking = true;
static char *warnings[WARNINGS_MAX];
static int warning_count;

void log_setup(enum log_level new_level, bool new_speaking)
{
    pthread_mutex_lock(&lock);
    level = new_level;
    speaking = new_speaking;
    pthread_mutex_unlock(&lock);
}

static void print_line(const char *kind, const char *line)
{
    progress_clear();
    fprintf(stderr, "sptune: %s%s\n", kind, line);
}

static void say(enum log_level at, const char *fmt, va_list args)
{
    char line[LINE_MAX_BYTES];
    vsnprintf(line, sizeof line, fmt, args);
    text_clean(line);
    pthread_mutex_lock(&lock);
    if (speaking && level >= at)
        print_line("", line);
    pthread_mutex_unlock(&lock);
}

void log_info(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(LOG_NORMAL, fmt, args);
    va_end(args);
}

void log_verbose(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(LOG_VERBOSE, fmt, args);
    va_end(args);
}

/* True when the text is new and was kept. The last place says that more would follow. */
static bool keep(const char *line)
{
    for (int i = 0; i < warning_count; i++)
        if (strcmp(warnings[i], line) == 0)
            return false;
    if (warning_count == WARNINGS_MAX)
        return false;
    char *copy =
        strdup(warning_count == WARNINGS_MAX - 1 ? "more than 255 different warnings; the rest is not shown" : line);
    if (!copy)
        return false;
    warnings[warning_count++] = copy;
    return true;
}

void log_warn(const char *fmt, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    text_clean(line);
    pthread_mutex_lock(&lock);
    if (keep(line) && speaking)
        print_line("warning: ", warnings[warning_count - 1]);
    pthread_mutex_unlock(&lock);
}

int log_warning_count(void)
{
    pthread_mutex_lock(&lock);
    int count = warning_count;
    pthread_mutex_unlock(&lock);
    return count;
}

const char *log_warning(int index)
{
    pthread_mutex_lock(&lock);
    const char *text = index >= 0 && index < warning_count ? warnings[index] : "";
    pthread_mutex_unlock(&lock);
    return text;
}

void log_reset(void)
{
    pthread_mutex_lock(&lock);
    while (warning_count > 0)
        free(warnings[--warning_count]);
    level = LOG_NORMAL;
    speaking = true;
    pthread_mutex_unlock(&lock);
}
