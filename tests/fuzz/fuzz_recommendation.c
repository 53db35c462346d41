/* fuzz/fuzz_recommendation.c -- a stored recommendation that `explain` is asked about: nothing in it is trusted.
 *
 * The first line is the question: "term NAME", "why SP", "what CHANGE", or anything else for the whole answer. The rest
 * is the document.
 */
#include "fuzz/fuzz.h"

#include "tuner/explain.h"

static void read_question(const char *line, struct explain_options *out)
{
    *out = (struct explain_options){0};
    if (strncmp(line, "term ", 5) == 0)
        out->term = line + 5;
    else if (strncmp(line, "why ", 4) == 0)
        out->why_not = line + 4;
    else if (strncmp(line, "what ", 5) == 0)
        out->what_if = line + 5;
}

static void check_refusal(enum status status)
{
    FUZZ_MUST(status == STATUS_USAGE || status == STATUS_UNSUPPORTED || status == STATUS_NODATA ||
              status == STATUS_CHECK || status == STATUS_NOMEM);
    FUZZ_MUST(status_last()->code == status && status_last()->what[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct explain_options options;
    json_t *document = NULL;
    char *text = NULL;
    fuzz_quiet();
    char *line = fuzz_line(&data, &size);
    read_question(line, &options);
    enum status status = json_parse((const char *)data, size, "fuzz", &document);
    if (status == STATUS_OK) {
        status = explain_run(document, &options, &text);
        if (status == STATUS_OK)
            FUZZ_MUST(text != NULL && text[0] != '\0');
        else
            check_refusal(status);
        free(text);
        json_decref(explain_to_json(document, &options));
        json_decref(document);
    } else {
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    }
    free(line);
    return 0;
}
