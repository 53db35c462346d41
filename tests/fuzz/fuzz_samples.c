/* fuzz/fuzz_samples.c -- a sample as JSON, and a key as the store's text: what is accepted survives there and back. Files of samples:
 * lines, as `results predict` takes them, and documents, as `tune --samples` does.
 *
 * The first byte chooses: 's' of "subject=..." a key, 'l' lines, 'd' a document, anything else a sample.
 */
#include "fuzz/fuzz.h"

#include "cli/samples.h"
#include "results/sample.h"
#include "tuner/installed.h"

#include <sys/mman.h>
#include <unistd.h>

static void check_key(const struct sample_key *key)
{
    struct sample_key again;
    char *text = sample_key_text(key);
    FUZZ_MUST(text != NULL);
    FUZZ_MUST(sample_key_parse(text, &again) == STATUS_OK && sample_key_equal(key, &again));
    free(text);
}

static void check_sample(const struct sample *sample)
{
    struct sample again;
    struct sample_summary summary;
    FUZZ_MUST(sample->n >= 0 && (sample->n == 0 || sample->times_us != NULL));
    check_key(&sample->key);
    sample_summarize(sample, &summary);
    json_t *json = sample_to_json(sample);
    FUZZ_MUST(json != NULL);
    sample_init(&again);
    FUZZ_MUST(sample_from_json(json, "again", &again) == STATUS_OK);
    FUZZ_MUST(sample_key_equal(&sample->key, &again.key) && again.n == sample->n && again.outcome == sample->outcome);
    sample_free(&again);
    json_decref(json);
}

static void read_key(const uint8_t *data, size_t size)
{
    struct sample_key key;
    char *text = fuzz_text(data, size);
    enum status status = sample_key_parse(text, &key);
    if (status == STATUS_OK)
        check_key(&key);
    else
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    free(text);
}

/* ---- files, in memory ---- */

static int make_file(const uint8_t *data, size_t size, char path[64])
{
    int fd = memfd_create("samples", MFD_CLOEXEC);
    FUZZ_MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void read_lines(const char *path)
{
    struct samples samples = {0};
    enum status status = samples_read_lines(path, &samples);
    if (status != STATUS_OK)
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    for (int i = 0; i < samples.n; i++)
        check_sample(&samples.rows[i]);
    samples_free(&samples);
}

/* What was taken answers for a layer like that of the corpus, or says why not. */
static void ask_installed(const struct installed *installed)
{
    const struct problem problem = {.batch = 1,
                                    .seq = 100,
                                    .heads = 8,
                                    .kv_heads = 2,
                                    .head_dim = 128,
                                    .dtype = DTYPE_BF16,
                                    .causal = true,
                                    .direction = PROBLEM_BOTH,
                                    .world = 2};
    char value[64], from[224];
    FUZZ_MUST(installed->n > 0);
    for (int sp = 1; sp <= 2; sp++)
        for (int backward = 0; backward < 2; backward++) {
            const struct installed_ask ask = {
                .class = "sdpa", .problem = &problem, .sp = sp, .backward = backward, .dev = DEV_CPU, .machine = ""};
            struct installed_found found;
            if (!installed_has(installed, ask.class))
                continue;
            struct verdict verdict = installed_find(installed, &ask, &found);
            FUZZ_MUST(verdict_ok(&verdict) ? found.row != NULL && found.times > 0 : verdict.why[0] != '\0');
            installed_about(installed, ask.class, "", value, from);
            FUZZ_MUST(value[0] != '\0' && from[0] != '\0');
        }
}

static void read_document(const char *path)
{
    struct installed installed = {0};
    enum status status = installed_read(&path, 1, target_find("accelerate"), &installed);
    if (status == STATUS_OK)
        ask_installed(&installed);
    else
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    installed_free(&installed);
}

static void read_file(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = make_file(data + 1, size - 1, path);
    if (data[0] == 'l')
        read_lines(path);
    else
        read_document(path);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample sample;
    json_t *json = NULL;
    fuzz_quiet();
    if (size > 0 && data[0] == 's') { /* "subject=..." */
        read_key(data, size);
        return 0;
    }
    if (size > 0 && (data[0] == 'l' || data[0] == 'd')) {
        read_file(data, size);
        return 0;
    }
    enum status status = json_parse((const char *)data, size, "fuzz", &json);
    if (status == STATUS_OK) {
        sample_init(&sample);
        status = sample_from_json(json, "fuzz", &sample);
        if (status == STATUS_OK) {
            check_sample(&sample);
            sample_free(&sample);
        }
        json_decref(json);
    }
    if (status != STATUS_OK)
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    return 0;
}
