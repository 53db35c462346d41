/* comm/launch_env.c -- ranks that somebody else started: which one this is stands in the environment.
 *
 * By hand or by a script:
 *     SPTUNE_RANK   this rank, 0 .. size - 1
 *     SPTUNE_SIZE   how many ranks the job has
 *     SPTUNE_ROOT   host:port ([v6]:port) where rank 0 listens, reachable from every rank
 *     SPTUNE_TOKEN  32 hex digits, the same for all ranks and for nobody else
 *     SPTUNE_LOCAL_RANK, SPTUNE_LOCAL_SIZE  among the ranks of this host; without both, all ranks are on one host
 *     SPTUNE_NODE   a name that tells hosts apart, optional
 *
 * By Open MPI's mpirun or Slurm's srun, which have names of their own for the first two. A job on one host meets at a port, with a token, made of
 * what its launcher tells all its ranks and no other job. That keeps jobs apart; a secret from other users of the host is SPTUNE_TOKEN
 * alone. Of ranks on several hosts SPTUNE_ROOT and SPTUNE_TOKEN are asked for. One process alone is no job: shells run so, too.
 */
#include "comm/launch_env.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKEN_DIGITS = 32, PORT_FIRST = 20000, PORTS = 12000 }; /* below the ports of outgoing connections */

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

/* The batch script of a Slurm job has SLURM_PROCID as well, but not the step's variables; mpirun within such a job leaves both to be seen. */
static const struct starter {
    const char *name, *rank, *size, *local_rank;
    const char *local_size; /* of Slurm a list of all hosts, as 2(x3),1: all are on one where the first has all */
    const char *job[2];     /* the same in all ranks, and in no other job here; the second may be missing */
} starters[] = {
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

static const struct starter *starter_around(void)
{
    for (size_t i = 0; i < sizeof starters / sizeof starters[0]; i++) {
        const struct starter *s = &starters[i];
        if (value_of(s->rank) && value_of(s->size) && value_of(s->local_rank) && value_of(s->local_size) &&
            value_of(s->job[0]) && strcmp(value_of(s->size), "1") != 0)
            return s;
    }
    return NULL;
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

static enum status read_first(const char *name, int64_t max, int *out)
{
    char first[24];
    int64_t value;
    const char *text = value_of(name);
    text_print(first, sizeof first, "%.*s", (int)strcspn(text, "(,"), text);
    TRY(units_parse_count(first, name, 1, max, &value));
    *out = (int)value;
    return STATUS_OK;
}

/* Where the ranks of one host meet, and by which token. */
static void meet(const struct starter *s, struct launch *out)
{
    char job[512], hex[65];
    const char *more = value_of(s->job[1]);
    text_print(job, sizeof job, "%s %s %s %lld", s->name, value_of(s->job[0]), more ? more : "", (long long)getuid());
    file_sha256(job, strlen(job), hex);
    memcpy(out->token, hex, TOKEN_DIGITS);
    hex[TOKEN_DIGITS + 8] = '\0';
    text_print(out->root, sizeof out->root, "127.0.0.1:%lu",
               PORT_FIRST + strtoul(hex + TOKEN_DIGITS, NULL, 16) % PORTS);
}

static enum status detect_starter(const struct starter *s, struct launch *out)
{
    struct launch launch = {.listen_fd = -1};
    TRY(read_int(s->size, 1, LAUNCH_RANKS_MAX, &launch.size));
    TRY(read_int(s->rank, 0, launch.size - 1, &launch.rank));
    TRY(read_first(s->local_size, launch.size, &launch.local_size));
    TRY(read_int(s->local_rank, 0, launch.size - 1, &launch.local_rank));
    bool root = value_of("SPTUNE_ROOT") != NULL, token = value_of("SPTUNE_TOKEN") != NULL;
    if (launch.local_size < launch.size && !(root && token))
        return HINT(
            FAIL(STATUS_USAGE, "the ranks that %s started are on several hosts; where they meet is not known", s->name),
            "SPTUNE_ROOT=host:port of rank 0's host, and SPTUNE_TOKEN, on every rank");
    meet(s, &launch);
    if (root)
        TRY(read_text("SPTUNE_ROOT", launch.root, sizeof launch.root));
    if (token)
        TRY(read_token(&launch));
    text_print(launch.rule, sizeof launch.rule, "%s=%d %s=%d", s->rank, launch.rank, s->size, launch.size);
    *out = launch;
    return STATUS_OK;
}

static enum status detect(struct launch *out, bool *found)
{
    const struct starter *starter = starter_around();
    if (starter != NULL && !value_of("SPTUNE_RANK") && !value_of("SPTUNE_SIZE")) {
        *found = true;
        return detect_starter(starter, out);
    }
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
