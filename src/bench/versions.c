/* bench/versions.c -- what a sample was measured with. */
#include "bench/bench.h"

#include "base/version.h"
#include "bench/spin.h"
#include "comm/transport.h"
#include "kernels/attention.h"
#include "kernels/attention_cpu.h"
#include "kernels/gemm.h"
#include "topo/gpu_watch.h"

#include <stdlib.h>
#include <sys/utsname.h>

/* Of the driver and of what kernels load: another one makes other samples. */
static void add_libraries(const struct bench_env *env, json_t *versions)
{
    char driver[80];
    struct gpu_watch *watch = gpu_watch_open(dev_place(env->dev));
    gpu_watch_driver(watch, driver, sizeof driver);
    gpu_watch_close(watch);
    if (driver[0] != '\0')
        json_object_set_new(versions, "driver", json_string(driver));
    for (int i = 0; attentions[i] != NULL; i++)
        if (attentions[i]->version != NULL && attentions[i]->dev == dev_kind_of(env->dev))
            json_object_set_new(versions, attentions[i]->name, json_string(attentions[i]->version()));
}

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
    if (env != NULL && dev != DEV_CPU)
        add_libraries(env, versions);
    json_object_set_new(versions, "kernel", json_string(system.release));
    json_object_set(versions, "environment", environment);
    text = json_dumps(versions, JSON_COMPACT | JSON_SORT_KEYS);
out:
    json_decref(versions);
    json_decref(environment);
    return text;
}
