/* sp/problem_docs.c -- packed documents: from an option, and as offsets that a kernel takes.
 *
 * A file of documents holds one length in tokens per line; empty lines and lines that start with # are skipped.
 * Documents are laid into the row in order; when the file ends before the row does it starts again, and the document
 * that crosses the end of the row is cut there. Both are said in a warning, because the row then differs from the file.
 */
#include "sp/problem.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

static enum status too_many(int64_t docs, const char *option)
{
    return HINT(FAIL(STATUS_USAGE, "--docs %s makes %lld documents of one row", option, (long long)docs),
                "at most %d; longer documents, or a shorter row", PROBLEM_MAX_DOCS);
}

static enum status set_fixed(struct problem *problem, const char *option, const char *length)
{
    int64_t len;
    TRY(units_parse_count(length, "--docs fixed", 1, INT64_MAX, &len));
    int64_t docs = problem->seq / len + (problem->seq % len != 0);
    if (docs > PROBLEM_MAX_DOCS)
        return too_many(docs, option);
    for (int64_t i = 0; i < docs; i++)
        problem->doc_len[i] = i + 1 < docs ? len : problem->seq - len * (docs - 1);
    problem->docs = (int)docs;
    return STATUS_OK;
}

static char *trim(char *line)
{
    static const char blank[] = " \t\r";
    line += strspn(line, blank);
    size_t len = strlen(line);
    while (len > 0 && strchr(blank, line[len - 1]) != NULL)
        line[--len] = '\0';
    return line;
}

/* Cut `text` into lines; *out is malloc'ed lengths. */
static enum status parse_lengths(const char *path, char *text, int64_t **out, int64_t *out_n)
{
    void *lens = NULL;
    size_t cap = 0, n = 0;
    int line = 0;
    char *save = NULL;
    enum status status = STATUS_OK;
    for (char *at = text; at != NULL; at = save) {
        save = strchr(at, '\n');
        if (save != NULL)
            *save++ = '\0';
        line++;
        at = trim(at);
        if (*at == '\0' || *at == '#')
            continue;
        TRY_OUT(mem_grow(&lens, &cap, n + 1, sizeof(int64_t)));
        status = units_parse_count(at, "--docs", 0, INT64_MAX / 2, (int64_t *)lens + n);
        if (status != STATUS_OK) {
            status = WHERE(status, "%s, line %d", path, line);
            goto out;
        }
        n++;
    }
    *out = lens;
    *out_n = (int64_t)n;
    return STATUS_OK;
out:
    free(lens);
    return status;
}

static enum status fill_row(struct problem *problem, const char *path, const int64_t *lens, int64_t n)
{
    int64_t left = problem->seq, docs = 0, sum = 0;
    for (int64_t i = 0; i < n && sum <= problem->seq; i++)
        sum = lens[i] > INT64_MAX - sum ? INT64_MAX : sum + lens[i];
    if (sum == 0 && problem->seq > 0)
        return HINT(FAIL(STATUS_USAGE, "%s holds no document with a token", path), "one length in tokens per line");
    for (int64_t i = 0; left > 0 || (docs < n && sum == problem->seq); i = (i + 1) % n, docs++) {
        if (docs == PROBLEM_MAX_DOCS)
            return HINT(FAIL(STATUS_USAGE, "%s makes more than %d documents of one row of %lld tokens", path,
                             PROBLEM_MAX_DOCS, (long long)problem->seq),
                        "longer documents, or a shorter row");
        problem->doc_len[docs] = lens[i] < left ? lens[i] : left;
        left -= problem->doc_len[docs];
    }
    problem->docs = (int)docs;
    if (sum < problem->seq)
        log_warn("%s holds %lld tokens: repeated to fill a row of %lld", path, (long long)sum, (long long)problem->seq);
    if (sum > problem->seq)
        log_warn("%s holds more than the %lld tokens of a row: the rest is left out", path, (long long)problem->seq);
    return STATUS_OK;
}

static enum status set_file(struct problem *problem, const char *path)
{
    enum { LIMIT = 64 * 1024 * 1024 };
    char *text = NULL;
    size_t len = 0;
    int64_t *lens = NULL, n = 0;
    enum status status = STATUS_OK;
    TRY_OUT(file_read(path, LIMIT, &text, &len));
    if (memchr(text, '\0', len) != NULL) {
        status = HINT(FAIL(STATUS_USAGE, "%s is not a text file", path), "one length in tokens per line");
        goto out;
    }
    TRY_OUT(parse_lengths(path, text, &lens, &n));
    TRY_OUT(fill_row(problem, path, lens, n));
out:
    free(lens);
    free(text);
    return status;
}

enum status problem_set_docs(struct problem *problem, const char *docs)
{
    struct problem next = *problem;
    next.docs = 0;
    memset(next.doc_len, 0, sizeof next.doc_len);
    if (strncmp(docs, "fixed:", strlen("fixed:")) == 0)
        TRY(set_fixed(&next, docs, docs + strlen("fixed:")));
    else if (strcmp(docs, "none") != 0)
        TRY(set_file(&next, docs));
    *problem = next;
    return STATUS_OK;
}

enum status problem_offsets(const struct problem *problem, int64_t padded, int64_t **cu, int *out_docs)
{
    int64_t padding = padded - problem->seq;
    /* Without documents a causal mask already hides padding at the end from every real token; a full mask does not. */
    if (problem->docs == 0 && (problem->causal || padding == 0)) {
        *cu = NULL;
        *out_docs = 0;
        return STATUS_OK;
    }
    int per_row = (problem->docs > 0 ? problem->docs : 1) + (padding > 0);
    int64_t docs, bytes;
    TRY(mem_mul(problem->batch, per_row, "documents of a batch", &docs));
    if (docs > INT32_MAX - 1)
        return HINT(
            FAIL(STATUS_USAGE, "a batch of %lld rows holds %lld documents", (long long)problem->batch, (long long)docs),
            "use a smaller batch");
    TRY(mem_mul(docs + 1, (int64_t)sizeof(int64_t), "offsets of documents", &bytes));
    int64_t *offsets = malloc((size_t)bytes);
    if (offsets == NULL)
        return FAIL(STATUS_NOMEM, "no memory for the offsets of %lld documents", (long long)docs);
    int64_t at = 0, i = 0;
    offsets[i++] = 0;
    for (int64_t row = 0; row < problem->batch; row++) {
        for (int d = 0; d < problem->docs; d++)
            offsets[i++] = at += problem->doc_len[d];
        if (problem->docs == 0)
            offsets[i++] = at += problem->seq;
        if (padding > 0)
            offsets[i++] = at += padding;
    }
    *cu = offsets;
    *out_docs = (int)docs;
    return STATUS_OK;
}
