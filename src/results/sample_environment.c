/* results/sample_environment.c -- the environment variables that may be recorded beside a sample, so that no secret is. */
#include "results/sample.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/text.h"

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* What decides how fast the machine is, by the programs that read it. */
static bool allowed(const char *name)
{
    static const char *const prefixes[] = {"NCCL_", "UCX_", "OMP_", "SPTUNE_"};
    static const char *const secrets[] = {"TOKEN", "SECRET", "PASS", "KEY", "CREDENTIAL", "AUTH"};
    if (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0)
        return true;
    if (strcmp(name, "SPTUNE_STORE") == 0)
        return false;
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        if (strcasestr(name, secrets[i]))
            return false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (starts_with(name, prefixes[i]))
            return true;
    return false;
}

static enum status add(json_t *object, const char *pair, const char *equals)
{
    char *name = strndup(pair, (size_t)(equals - pair)), *value = strdup(equals + 1);
    enum status status = STATUS_OK;
    if (name && value && allowed(name)) {
        text_clean(name);
        text_clean(value);
        if (json_object_set_new(object, name, json_string(value)) != 0)
            status = FAIL(STATUS_NOMEM, "no memory to record the environment");
    } else if (!name || !value) {
        status = FAIL(STATUS_NOMEM, "no memory to record the environment");
    }
    free(name);
    free(value);
    return status;
}

enum status sample_environment(json_t *object)
{
    for (char **pair = environ; pair && *pair; pair++) {
        const char *equals = strchr(*pair, '=');
        if (equals)
            TRY(add(object, *pair, equals));
    }
    return STATUS_OK;
}
