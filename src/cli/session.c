/* cli/session.c -- store, run and lock of a measuring verb. */
#include "cli/session.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/apart.h"
#include "cli/place.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum status session_open(struct ranks *ranks, const char *verb, int64_t run, struct bench_session *out)
{
    struct cli *cli = ranks->cli;
    char path[512];
    *out = (struct bench_session){.env = &ranks->env, .tell = ranks_tell, .tell_arg = ranks, .run = run};
    out->versions = bench_versions(&ranks->env);
    enum status status = out->versions != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for the versions");
    if (status == STATUS_OK)
        status = store_path(opt_value(&cli->opts, "store"), path, sizeof path);
    if (status == STATUS_OK)
        status = store_open(path, STORE_WRITE, &out->store);
    if (status == STATUS_OK && run <= 0) {
        const char *name = opt_value(&cli->opts, "name");
        status = store_run_begin(out->store, verb, cli->command, name != NULL ? name : "", ranks->env.machine,
                                 (int64_t)cli->seed, &out->run);
    }
    if (status != STATUS_OK)
        session_close(out);
    return status;
}

void session_close(struct bench_session *session)
{
    store_close(session->store);
    free(session->versions);
    session->store = NULL;
    session->versions = NULL;
}

static enum status check(void *arg, void *out)
{
    (void)out;
    return session_check(arg);
}

enum status session_check_apart(struct cli *cli)
{
    enum { ANSWER_MS = 60 * 1000 }; /* a writer may hold the store for 10 s */
    char nothing;
    enum status status = apart_ask(check, cli, &nothing, 0, ANSWER_MS);
    if (status == STATUS_TIMEOUT)
        return HINT(FAIL(STATUS_TIMEOUT, "the store was not opened within %d s", ANSWER_MS / 1000),
                    "name another file with --store; a network file system may not lock");
    return status;
}

enum status session_check(struct cli *cli)
{
    char path[512];
    struct store *store = NULL;
    const char *name = opt_value(&cli->opts, "name");
    if (name != NULL)
        TRY(store_check_name(name));
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    enum status status = store_open(path, STORE_READ, &store);
    store_close(store);
    if (status == STATUS_OK && access(path, W_OK) != 0)
        status = HINT(WHERE(FAIL(STATUS_USAGE, "cannot open the store for writing: %s", strerror(errno)), "%s", path),
                      "name another file with --store");
    if (status == STATUS_OK)
        return place_check_file(path, "--store");
    if (status != STATUS_NODATA)
        return status;
    status_clear();
    return place_check_new_file(path, "--store");
}

static bool is_work(const struct opt *opt)
{
    static const char *const besides[] = {"json",   "jsonl",  "quiet",  "verbose", "progress",
                                          "export", "resume", "budget", "store",   "name"};
    for (size_t i = 0; i < sizeof besides / sizeof besides[0]; i++)
        if (strcmp(besides[i], opt->name) == 0)
            return false;
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The fact under which a run is remembered: a digest, because facts are short, of the work in any order of options. */
static enum status work_of(const struct cli *cli, char fact[80])
{
    char *words[OPT_MANY_MAX] = {NULL}, hex[65];
    int n = 0;
    struct text all = {0};
    text_add(&all, "%s", cli->verb->name);
    for (int i = 0; i < cli->opts.nargs; i++)
        text_add(&all, "\n%s", cli->opts.args[i]);
    for (int i = 0; i < cli->opts.n; i++) {
        struct text word = {0};
        if (!is_work(cli->opts.given[i].opt))
            continue;
        text_add(&word, "\n--%s=%s", cli->opts.given[i].opt->name, cli->opts.given[i].value);
        all.failed = all.failed || word.failed;
        if (!word.failed)
            words[n++] = word.s;
    }
    qsort(words, (size_t)n, sizeof *words, by_text);
    for (int i = 0; i < n; i++) {
        text_add(&all, "%s", words[i]);
        free(words[i]);
    }
    enum status status = text_status(&all);
    file_sha256(text_get(&all), all.len, hex);
    text_print(fact, 80, "resume:%s", hex);
    text_free(&all);
    return status;
}

enum status session_remember(struct cli *cli, struct bench_session *session)
{
    char fact[80], run[24];
    TRY(work_of(cli, fact));
    text_print(run, sizeof run, "%lld", (long long)session->run);
    return store_remember(session->store, fact, run);
}

static enum status find_resumable(struct store *store, const char *fact, int64_t *out_run)
{
    char number[24];
    struct store_run run;
    if (!store_recall(store, fact, number, sizeof number))
        return STATUS_OK;
    enum status status = store_resolve(store, number, &run);
    if (status == STATUS_USAGE || status == STATUS_NODATA) {
        status_clear(); /* forgotten since */
        return STATUS_OK;
    }
    TRY(status);
    *out_run = run.finished ? 0 : run.id;
    store_run_free(&run);
    return STATUS_OK;
}

enum status session_resumable(struct cli *cli, int64_t *out_run)
{
    char path[512], fact[80];
    struct store *store = NULL;
    *out_run = 0;
    TRY(work_of(cli, fact));
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    enum status status = store_open(path, STORE_READ, &store);
    if (status == STATUS_NODATA) {
        status_clear();
        return STATUS_OK;
    }
    TRY(status);
    status = find_resumable(store, fact, out_run);
    store_close(store);
    return status;
}

enum status session_lock(int64_t wait_us, int *out_fd)
{
    static const char name[] = "sptune-measures-here";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, sizeof name - 1); /* a leading NUL: abstract, no file */
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return FAIL(STATUS_MACHINE, "cannot make the measuring lock: %s", strerror(errno));
    int64_t deadline = clock_deadline(wait_us);
    bool said = false;
    enum status status = interrupt_status();
    while (status == STATUS_OK && bind(fd, (const struct sockaddr *)&address, len) != 0) {
        if (errno != EADDRINUSE)
            status = FAIL(STATUS_MACHINE, "cannot take the measuring lock: %s", strerror(errno));
        else if (clock_passed(deadline))
            status = HINT(FAIL(STATUS_BUSY, "another sptune is measuring on this machine"),
                          "wait for it, or give a longer --budget; two at once would spoil both");
        else if (!said)
            log_info("waiting: another sptune is measuring on this machine");
        said = true;
        if (status == STATUS_OK)
            nanosleep(&(struct timespec){.tv_nsec = 100000000L}, NULL);
        if (status == STATUS_OK)
            status = interrupt_status();
    }
    if (status != STATUS_OK)
        close(fd);
    else
        *out_fd = fd;
    return status;
}

void session_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}
