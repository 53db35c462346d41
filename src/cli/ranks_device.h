/* cli/ranks_device.h -- which devices the ranks of a command get, found out before any rank is there. */
#ifndef SPTUNE_CLI_RANKS_DEVICE_H
#define SPTUNE_CLI_RANKS_DEVICE_H

#include "cli/ranks.h"
#include "comm/boot.h"

struct ranks_devices {
    const char *word;      /* "auto" "cpu" "cuda", as asked */
    enum dev_kind kind;    /* what that came to */
    int n;                 /* how many of it a process here could open */
    int64_t memory_bytes;  /* of the smallest of these; 0: they have none of their own */
};

/* What --device asks for; auto: CUDA when build and driver answer, else the CPU. STATUS_ABSENT when what is asked for by name is not
 * here; STATUS_UNSUPPORTED for a driver that is here and fails. */
enum status ranks_device(struct cli *cli, struct ranks_devices *out);
/* Before a fork. STATUS_USAGE, naming both numbers, when there are fewer GPUs than ranks; STATUS_UNSUPPORTED for several ranks on a GPU
 * in MIG mode, STATUS_BUSY for several of which one would share its GPU with another process. Oversubscribed ranks need fewer GPUs, but whole
 * ones that are theirs. */
enum status ranks_check_devices(const struct topo *topo, const struct ranks_options *options);
/* The CUDA index that this rank opens: its place on the host, or the one GPU that a launcher shows it; oversubscribed, GPUs go round. */
int ranks_device_index(const struct ranks_options *options, const struct launch *launch);
/* Of ranks with their devices open: the same refusals, and STATUS_USAGE naming two ranks on one GPU; or, with `shared`, whether two are, and no
 * refusal but of MIG mode: other processes may be other ranks. Collective. */
enum status ranks_check_places(struct boot *boot, const struct topo *topo, const struct dev *dev, bool *shared,
                               int64_t deadline_ns);
/* CPU lists of the ranks: on GPUs those near rank r's, "" (bound to none) where nobody knows them; on CPUs as topo_cpu_slots shares them
 * out. Free with topo_free_slots. */
enum status ranks_cpus(const struct topo *topo, const struct ranks_options *options, char ***out);

#endif
