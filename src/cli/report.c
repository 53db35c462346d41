/* cli/report.c -- the one place that prints a failure. */
#include "cli/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum log_level report_log_level(const struct cli *cli)
{
    if (opt_given(&cli->opts, "quiet"))
        return LOG_QUIET;
    return opt_given(&cli->opts, "verbose") ? LOG_VERBOSE : LOG_NORMAL;
}

static void print_line(const struct status_message *m, bool verbose)
{
    fprintf(stderr, "sptune: ");
    if (m->where[0] != '\0')
        fprintf(stderr, "%s: ", m->where);
    fprintf(stderr, "%s", m->what[0] != '\0' ? m->what : status_text(m->code));
    if (m->hint[0] != '\0')
        fprintf(stderr, "; %s", m->hint);
    if (verbose)
        fprintf(stderr, " [%s, %s]", status_name(m->code), m->source);
    fputc('\n', stderr);
}

void report_end(struct cli *cli, enum status status)
{
    if (status == STATUS_OK)
        return;
    struct status_message message = *status_last();
    message.code = status;
    print_line(&message, opt_given(&cli->opts, "verbose"));
    if (!cli->json || cli->printed)
        return;
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = json_error(&envelope, &message);
    if (document != NULL)
        (void)cli_print_json(cli, document);
}

struct json_envelope cli_envelope(const struct cli *cli)
{
    return (struct json_envelope){
        .command = cli->command, .started = cli->started, .machine = cli->machine, .seed = (int64_t)cli->seed};
}

enum status cli_print_json(struct cli *cli, json_t *document)
{
    if (document == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a JSON document");
    cli->printed = true;
    enum status status = json_print(document);
    json_decref(document);
    return status;
}

enum status cli_print(const char *text)
{
    size_t len = strlen(text);
    if (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0)
        return STATUS_OK;
    if (errno == EPIPE)
        return STATUS_OK; /* `sptune ... | head` is no failure */
    return FAIL(STATUS_IO, "cannot write to stdout: %s", strerror(errno));
}
