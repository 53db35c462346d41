/* bench/versions.c -- what a sample was measured with. */
#include "bench/bench.h"

#include "base/version.h"
#include "bench/spin.h"
#include "comm/transport.h"
#include "kernels/attention_cpu.h"
#include "kernels/gemm.h"

#include <stdlib.h>
#include <sys/utsname.h>

/* The environment is this process's, which all ranks of a fork share; so is the number of threads, which is of the ranks, not of the
 * machine, but makes another machine of it: samples on one thread are not samples on two. */
char *bench_versions(struct bench_env *env)
{
    struct utsname system;
    enum dev_kind dev = env != NULL ? dev_kind_of(env->dev) : DEV_CPU;
    json_t *versions = json_object(), *environment = json_object();
    char *text = NULL;
    if (versions == NULL || environment == NULL || uname(&system) != 0 || sample_environment(environment) != STATUS_OK)
        goto out;
    json_object_set_new(versions, "sptune", json_string(version_build()));
    for (int i = 0; transports[i] != NULL; i++)
        json_object_set_new(versions, transports[i]->name, json_string(transports[i]->version()));
    json_object_set_new(versions, "gemm", json_string(gemm_name(dev)));
    json_object_set_new(versions, "attention_isa", json_string(attention_cpu_isa_name()));
    if (env != NULL)
        json_object_set_new(versions, "threads", json_integer(dev_threads(env->dev)));
    json_object_set_new(versions, "kernel", json_string(system.release));
    json_object_set(versions, "environment", environment);
    text = json_dumps(versions, JSON_COMPACT | JSON_SORT_KEYS);
out:
    json_decref(versions);
    json_decref(environment);
    return text;
}
