/* cli/ranks_device.h -- which devices the ranks of a command get, found out before any rank is there. */
#ifndef SPTUNE_CLI_RANKS_DEVICE_H
#define SPTUNE_CLI_RANKS_DEVICE_H

#include "cli/ranks.h"

/* The kind that --device asks for; auto: CUDA when build and driver answer, else the CPU. *out_devices: how many of it a process here
 * could open. STATUS_ABSENT when what is asked for by name is not here; STATUS_UNSUPPORTED for a driver that is here and fails. */
enum status ranks_device(struct cli *cli, const char **out_word, enum dev_kind *out, int *out_devices);
/* STATUS_USAGE, naming both numbers, when there are fewer GPUs than ranks. */
enum status ranks_check_devices(const struct ranks_options *options);
/* CPU lists of n ranks on devices of `kind`: those near rank r's GPU where that is known, else as topo_cpu_slots shares them out. Free
 * with topo_free_slots. */
enum status ranks_cpus(const struct topo *topo, enum dev_kind kind, int n, char ***out);

#endif
