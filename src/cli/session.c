/* cli/session.c -- store, run and lock of a measuring verb. */
#include "cli/session.h"

#include "base/clock.h"
#include "base/log.h"

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
    while (bind(fd, (const struct sockaddr *)&address, len) != 0) {
        if (errno != EADDRINUSE || clock_passed(deadline)) {
            enum status status = errno == EADDRINUSE || said
                ? HINT(FAIL(STATUS_BUSY, "another sptune is measuring on this machine"),
                       "wait for it, or give a longer --budget; two at once would spoil both")
                : FAIL(STATUS_MACHINE, "cannot take the measuring lock: %s", strerror(errno));
            close(fd);
            return status;
        }
        if (!said)
            log_info("waiting: another sptune is measuring on this machine");
        said = true;
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    }
    *out_fd = fd;
    return STATUS_OK;
}

void session_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}
