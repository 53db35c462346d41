/* cli/samples.c -- lists of samples: collect, show, export. */
#include "cli/samples.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/place.h"
#include "cli/stamp.h"
#include "results/export.h"

#include <stdlib.h>
#include <string.h>

enum status samples_add(struct samples *samples, const struct sample *sample)
{
    TRY(mem_grow((void **)&samples->rows, &samples->cap, (size_t)samples->n + 1, sizeof *samples->rows));
    TRY(sample_copy(sample, &samples->rows[samples->n]));
    samples->n++;
    return STATUS_OK;
}

void samples_free(struct samples *samples)
{
    for (int i = 0; i < samples->n; i++)
        sample_free(&samples->rows[i]);
    free(samples->rows);
    *samples = (struct samples){0};
}

/* A row that --resume measured again, since it was waived or had too few samples, is there once: as it was last. */
static enum status add(void *arg, int64_t run, const struct sample *sample)
{
    struct samples *samples = arg;
    struct sample copy;
    (void)run;
    for (int i = 0; i < samples->n; i++) {
        struct sample *row = &samples->rows[i];
        bool again = row->outcome == SAMPLE_WAIVED || (row->outcome == SAMPLE_OK && sample->outcome == SAMPLE_OK);
        if (!again || !sample_key_equal(&row->key, &sample->key))
            continue;
        TRY(sample_copy(sample, &copy));
        sample_free(row);
        *row = copy;
        return STATUS_OK;
    }
    return samples_add(samples, sample);
}

enum status samples_of_run(struct store *store, int64_t run, struct samples *out)
{
    enum status status = store_each(store, run, add, out);
    if (status != STATUS_OK)
        samples_free(out);
    return status;
}

static enum status read_line(const char *text, size_t len, const char *path, int line, struct samples *out)
{
    json_t *row = NULL;
    struct sample sample;
    const char *schema = "";
    char where[512];
    TRY(json_parse_line(text, len, path, line, &row));
    text_print(where, sizeof where, "%s, line %d", path, line);
    enum status status = json_str(row, "schema", where, "", &schema);
    if (status == STATUS_OK && strcmp(schema, "sptune.sample/1") != 0)
        status = HINT(WHERE(FAIL(STATUS_USAGE, "this is no sptune.sample/1"), "%s", where),
                      "bench --jsonl, or results export @last --export jsonl=FILE, writes such rows");
    if (status == STATUS_OK)
        status = sample_from_json(row, where, &sample);
    json_decref(row);
    TRY(status);
    status = samples_add(out, &sample);
    sample_free(&sample);
    return status;
}

enum status samples_read_lines(const char *path, struct samples *out)
{
    enum { LIMIT = 64 << 20 };
    char *bytes = NULL;
    size_t len = 0;
    int line = 1;
    TRY(file_read(path, LIMIT, &bytes, &len));
    enum status status = STATUS_OK;
    for (char *at = bytes, *end; at < bytes + len && status == STATUS_OK; at = end + 1, line++) {
        end = memchr(at, '\n', (size_t)(bytes + len - at));
        end = end != NULL ? end : bytes + len;
        if (at + strspn(at, " \t\r") < end)
            status = read_line(at, (size_t)(end - at), path, line, out);
    }
    free(bytes);
    return status;
}

static enum status split(const char *text, const struct export **format, const char **path)
{
    const char *eq = strchr(text, '=');
    char name[32];
    text_print(name, sizeof name, "%.*s", eq != NULL ? (int)(eq - text) : (int)strlen(text), text);
    *format = export_find(name);
    *path = eq != NULL ? eq + 1 : "";
    const char *names[16];
    size_t n = 0;
    for (; n < 16 && exports[n] != NULL; n++)
        names[n] = exports[n]->name;
    if (*format == NULL)
        return opt_unknown("--export FORMAT=FILE", name, names, n);
    if (**path == '\0')
        return HINT(FAIL(STATUS_USAGE, "--export %s names no file", name), "write --export %s=FILE", name);
    return STATUS_OK;
}

static enum status list_formats(struct cli *cli)
{
    enum { ITEMS = 32 };
    struct cli_item items[ITEMS];
    int n = 0;
    for (; n < ITEMS && exports[n] != NULL; n++)
        items[n] = (struct cli_item){exports[n]->name, exports[n]->about};
    return cli_print_list(cli, items, n);
}

enum status samples_check_exports(struct cli *cli, bool *listed)
{
    const char *values[OPT_MANY_MAX];
    int n = opt_values(&cli->opts, "export", values);
    *listed = false;
    for (int i = 0; i < n; i++) {
        const struct export *format;
        const char *path;
        if (strcmp(values[i], "list") == 0) {
            *listed = true;
            return list_formats(cli);
        }
        TRY(split(values[i], &format, &path));
        TRY(place_check_file(path, "--export"));
        for (int k = 0; k < i; k++)
            if (place_same_file(strchr(values[k], '=') + 1, path))
                return HINT(WHERE(FAIL(STATUS_USAGE, "%s and %s name one file", values[k], values[i]), "--export"),
                            "the second would replace the first: give each a file of its own");
    }
    return STATUS_OK;
}

static enum status export_one(struct cli *cli, const struct samples *samples, const char *value, const char *title)
{
    const struct export *format;
    const char *path;
    TRY(split(value, &format, &path));
    struct export_context context = {.envelope = cli_envelope(cli), .title = title};
    char *bytes = NULL;
    size_t len = 0;
    TRY(format->render(samples->rows, samples->n, &context, &bytes, &len));
    enum status status = strcmp(format->name, "svg") == 0 ? stamp_svg(cli, &bytes, &len) : STATUS_OK;
    if (status == STATUS_OK)
        status = file_write(path, bytes, len);
    free(bytes);
    if (status == STATUS_OK)
        log_info("wrote %s", path);
    return status;
}

static enum status show_rows(struct cli *cli, const struct samples *samples)
{
    struct export_context context = {.envelope = cli_envelope(cli)};
    char *out = NULL;
    size_t len = 0;
    if (cli->json) {
        TRY(export_find("json")->render(samples->rows, samples->n, &context, &out, &len));
        atomic_store(&cli->said->document, true);
    } else {
        TRY(export_table(samples->rows, samples->n, &out));
    }
    enum status status = cli_print(out);
    free(out);
    return status;
}

enum status samples_export(struct cli *cli, const struct samples *samples, const char *title)
{
    const char *values[OPT_MANY_MAX];
    int n = opt_values(&cli->opts, "export", values);
    for (int i = 0; i < n; i++)
        TRY(export_one(cli, samples, values[i], title));
    return STATUS_OK;
}

enum status samples_show(struct cli *cli, const struct samples *samples, const char *title)
{
    if (!cli->jsonl)
        TRY(show_rows(cli, samples));
    return samples_export(cli, samples, title);
}
