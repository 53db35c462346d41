/* comm/launch_env.c -- ranks started by hand or by a script: everything is in the environment.
 *
 *     SPTUNE_RANK   this rank, 0 .. size - 1
 *     SPTUNE_SIZE   how many ranks the job has
 *     SPTUNE_ROOT   host:port ([v6]:port) where rank 0 listens, reachable from every rank
 *     SPTUNE_TOKEN  32 hex digits, the same for all ranks and for nobody else
 *     SPTUNE_LOCAL_RANK, SPTUNE_LOCAL_SIZE  among the ranks of this host; without both, all ranks are on one host
 *     SPTUNE_NODE   a name that tells hosts apart, optional
 */
#include "comm/launch_env.h"
#include "base/text.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_DIGITS = 32 };

static const char *const required[] = {"SPTUNE_RANK", "SPTUNE_SIZE", "SPTUNE_ROOT", "SPTUNE_TOKEN"};

static const char *value_of(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* All of them or none: half an environment is a mistake, not another launcher. */
static enum status around(bool *found)
{
    const char *present = NULL, *missing = NULL;
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (value_of(required[i]))
            present = required[i];
        else
            missing = required[i];
    }
    if (present && missing)
        return HINT(FAIL(STATUS_USAGE, "%s is set but %s is not", present, missing),
                    "set SPTUNE_RANK, SPTUNE_SIZE, SPTUNE_ROOT and SPTUNE_TOKEN, or none of them");
    *found = present != NULL;
    return STATUS_OK;
}

static enum status read_int(const char *name, int64_t min, int64_t max, int *out)
{
    int64_t value;
    TRY(units_parse_count(value_of(name), name, min, max, &value));
    *out = (int)value;
    return STATUS_OK;
}

static enum status read_token(struct launch *out)
{
    const char *token = value_of("SPTUNE_TOKEN");
    if (strlen(token) != TOKEN_DIGITS || strspn(token, "0123456789abcdef") != TOKEN_DIGITS)
        return HINT(FAIL(STATUS_USAGE, "SPTUNE_TOKEN is not a token"),
                    "32 hex digits in lower case, for instance from: openssl rand -hex 16");
    memcpy(out->token, token, TOKEN_DIGITS + 1);
    return STATUS_OK;
}

static enum status read_text(const char *name, char *buf, size_t size)
{
    const char *value = value_of(name);
    if (!text_print(buf, size, "%s", value ? value : ""))
        return FAIL(STATUS_USAGE, "%s is longer than %zu characters", name, size - 1);
    return STATUS_OK;
}

static enum status read_local(struct launch *out)
{
    out->local_rank = out->rank;
    out->local_size = out->size;
    bool rank = value_of("SPTUNE_LOCAL_RANK") != NULL, size = value_of("SPTUNE_LOCAL_SIZE") != NULL;
    if (rank != size)
        return FAIL(STATUS_USAGE, "SPTUNE_LOCAL_RANK and SPTUNE_LOCAL_SIZE belong together; only one is set");
    if (!rank)
        return STATUS_OK;
    TRY(read_int("SPTUNE_LOCAL_SIZE", 1, out->size, &out->local_size));
    return read_int("SPTUNE_LOCAL_RANK", 0, out->local_size - 1, &out->local_rank);
}

static enum status detect(struct launch *out, bool *found)
{
    TRY(around(found));
    if (!*found)
        return STATUS_OK;
    struct launch launch = {.listen_fd = -1};
    TRY(read_int("SPTUNE_SIZE", 1, LAUNCH_RANKS_MAX, &launch.size));
    TRY(read_int("SPTUNE_RANK", 0, launch.size - 1, &launch.rank));
    TRY(read_local(&launch));
    TRY(read_text("SPTUNE_ROOT", launch.root, sizeof launch.root));
    TRY(read_text("SPTUNE_NODE", launch.node, sizeof launch.node));
    TRY(read_token(&launch));
    text_print(launch.rule, sizeof launch.rule, "SPTUNE_RANK=%d SPTUNE_SIZE=%d", launch.rank, launch.size);
    *out = launch;
    return STATUS_OK;
}

const struct launcher launcher_env = {.name = "environment", .detect = detect};
