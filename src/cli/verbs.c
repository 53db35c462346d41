/* cli/verbs.c -- the verbs in one table, and the options they share. */
#include "cli/cli.h"

#include <string.h>

extern const struct verb verb_topo, verb_model, verb_check, verb_bench, verb_tune, verb_train, verb_explain, verb_results,
    verb_help;

const struct verb *const verbs[] = {
    &verb_topo, &verb_model, &verb_check, &verb_bench, &verb_tune, &verb_train, &verb_explain, &verb_results, &verb_help, NULL,
};

const struct opt cli_common[] = {
    {"json", 0, OPT_FLAG, NULL, "exactly one JSON document on stdout, also on failure"},
    {"quiet", 'q', OPT_FLAG, NULL, "warnings and errors only"},
    {"verbose", 'v', OPT_FLAG, NULL, "say more on stderr"},
    {"progress", 0, OPT_VALUE, "MODE", "auto, plain or none [auto]"},
    {"seed", 0, OPT_VALUE, "N", "seed of every random choice [1]"},
    {"help", 'h', OPT_FLAG, NULL, "this help"},
    {0},
};

const struct verb *verb_find(const char *name)
{
    for (int i = 0; verbs[i] != NULL; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}
