/* fuzz/fuzz_samples.c -- a sample as JSON, and a key as the store's text: what is accepted survives there and back. */
#include "fuzz/fuzz.h"

#include "results/sample.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample sample;
    json_t *json = NULL;
    fuzz_quiet();
    if (size > 0 && data[0] == 's') { /* "subject=..." */
        read_key(data, size);
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
