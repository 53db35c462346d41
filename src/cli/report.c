/* cli/report.c -- the one place that prints: what a command answers, and how it failed. */
#include "cli/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum log_level report_log_level(const struct cli *cli)
{
    if (opt_given(&cli->opts, "quiet"))
        return LOG_QUIET;
    return opt_given(&cli->opts, "verbose") ? LOG_VERBOSE : LOG_NORMAL;
}

/* One write, so that lines of several processes never mix. */
static void print_line(const struct status_message *m, bool verbose)
{
    struct text line = {0};
    text_add(&line, "sptune: %s%s%s", m->where, m->where[0] != '\0' ? ": " : "",
             m->what[0] != '\0' ? m->what : status_text(m->code));
    if (m->hint[0] != '\0')
        text_add(&line, "; %s", m->hint);
    if (verbose)
        text_add(&line, " [%s, %s]", status_name(m->code), m->source);
    text_add(&line, "\n");
    fputs(text_get(&line), stderr);
    text_free(&line);
}

void report_end(struct cli *cli, enum status status)
{
    enum { EXIT_MACHINE = 4 };
    if (status == STATUS_OK)
        return;
    struct status_message message = *status_last();
    message.code = status;
    if (cli->silent && status_exit_code(status) != EXIT_MACHINE)
        return; /* wrong usage is wrong on rank 0 too */
    if (status == STATUS_UNREAD) { /* `sptune ... | head`: as quiet as a program that SIGPIPE ends */
        atomic_store(&cli->said->failure, true);
        return;
    }
    progress_clear();
    print_line(&message, opt_given(&cli->opts, "verbose"));
    atomic_store(&cli->said->failure, true);
    if (!cli->json || cli->silent || atomic_load(&cli->said->document))
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
    char *out = NULL;
    struct text text = {0};
    if (document == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a JSON document");
    enum status status = json_format(document, true, &out);
    json_decref(document);
    TRY(status);
    text_add(&text, "%s\n", out);
    free(out);
    status = text_status(&text);
    if (status == STATUS_OK) {
        atomic_store(&cli->said->document, true);
        status = cli_print(text_get(&text));
    }
    text_free(&text);
    return status;
}

enum status cli_stream(const char *text)
{
    size_t len = strlen(text);
    if (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0)
        return STATUS_OK;
    if (errno == EPIPE)
        return FAIL(STATUS_UNREAD, "nobody reads stdout any more");
    return FAIL(STATUS_IO, "cannot write to stdout: %s", strerror(errno));
}

enum status cli_print(const char *text)
{
    enum status status = cli_stream(text);
    if (status != STATUS_UNREAD)
        return status;
    status_clear();
    return STATUS_OK;
}

enum status cli_print_text(struct cli *cli, const char *noun, const char *text)
{
    if (!cli->json)
        return cli_print(text);
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = json_document(noun, &envelope);
    if (document != NULL)
        json_object_set_new(document, "text", json_string(text));
    return cli_print_json(cli, document);
}

static enum status print_items(struct cli *cli, const struct cli_item *items, int n)
{
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = json_document("list", &envelope), *all = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(all, json_pack("{s:s s:s}", "name", items[i].name, "about", items[i].about));
    if (document != NULL)
        json_object_set_new(document, "items", all);
    return cli_print_json(cli, document);
}

enum status cli_print_list(struct cli *cli, const struct cli_item *items, int n)
{
    struct text out = {0};
    int width = 0;
    if (cli->json)
        return print_items(cli, items, n);
    for (int i = 0; i < n; i++)
        width = (int)strlen(items[i].name) > width ? (int)strlen(items[i].name) : width;
    for (int i = 0; i < n; i++) {
        text_add(&out, "%-*s ", width, items[i].name);
        opt_wrap(&out, items[i].about, width + 1, width + 1);
    }
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}
