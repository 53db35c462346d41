/* cli/stamp.c -- documents carry their envelope; a picture gets it as metadata. */
#include "cli/stamp.h"

#include "base/version.h"

#include <stdlib.h>
#include <string.h>

static void add_escaped(struct text *out, char *word)
{
    text_clean(word);
    for (const char *c = word; *c != '\0'; c++) {
        if (*c == '&')
            text_add(out, "&amp;");
        else if (*c == '<')
            text_add(out, "&lt;");
        else if (*c == '>')
            text_add(out, "&gt;");
        else
            text_add_raw(out, c, 1);
    }
}

enum status stamp_svg(const struct cli *cli, char **bytes, size_t *len)
{
    enum { TAIL = 64 }; /* line ends may follow the end tag */
    static const char end[] = "</svg>";
    struct text out = {0};
    size_t tail = *len < TAIL ? *len : TAIL;
    char *at = memmem(*bytes + *len - tail, tail, end, sizeof end - 1);
    if (at == NULL)
        return STATUS_OK;
    char *command = strdup(cli->command != NULL ? cli->command : "");
    if (command == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a picture");
    text_add_raw(&out, *bytes, (size_t)(at - *bytes));
    text_add(&out, "<metadata>sptune %s | %s | machine %s | seed %llu | ", SPTUNE_VERSION, cli->started, cli->machine,
             (unsigned long long)cli->seed);
    add_escaped(&out, command);
    text_add(&out, "</metadata>\n");
    text_add_raw(&out, at, *len - (size_t)(at - *bytes));
    free(command);
    enum status status = text_status(&out);
    if (status != STATUS_OK) {
        text_free(&out);
        return status;
    }
    free(*bytes);
    *bytes = out.s;
    *len = out.len;
    return STATUS_OK;
}
