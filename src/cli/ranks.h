/* cli/ranks.h -- start the ranks, put them to work, and end them.
 *
 * ranks_run forks n ranks (or joins the launcher around this process), binds them to CPUs from topo, opens bootstrap,
 * device and transport on each. Rank 0 runs `root`; the others wait in the serve loop: a table from mode to function,
 * told by rank 0 through ranks_tell. A failure on any rank ends the job with its message on rank 0; what rank 0 cannot
 * say any more this process says.
 */
#ifndef SPTUNE_CLI_RANKS_H
#define SPTUNE_CLI_RANKS_H

#include "bench/bench.h"
#include "cli/cli.h"
#include "topo/topo.h"

struct ranks {
    struct cli *cli;
    const struct topo *topo;
    struct bench_env env;
    struct boot *boot;
    bool shared; /* ranks of the job share a GPU */
};

struct ranks_options {
    int n;
    const char *device;    /* "auto" "cpu" "cuda" */
    enum dev_kind kind;    /* what that came to */
    int devices;           /* of that kind, on this host */
    bool oversubscribe;    /* ranks may share a GPU */
    const char *transport; /* a name from transports[], NULL: the usual one of the device */
    const char *carrier;   /* what it is narrowed to, NULL: to nothing */
    int64_t threads;       /* of each rank's kernels; 0: the rank's share of the CPUs */
    bool stores;           /* keeps what it measures: a wrong --store or --name is refused before anything starts */
    int64_t lock_us;       /* how long to wait for another sptune that measures here; < 0: this one does not measure */
    const char *answers; /* one SIGINT or SIGTERM lets rank 0 end by itself, with what it holds, after this ("this step");
                            NULL: it stops everything at once */
    const char *kept; /* what a rank's death leaves to the user, "" nothing: "--resume goes on" */
};

/* A mode of the serve loop. */
struct ranks_mode {
    const char *name;
    enum status (*run)(struct bench_env *env, const void *data, size_t bytes);
};
extern const struct ranks_mode ranks_modes[]; /* ends with a NULL name */

enum { RANKS_PER_CPU = 64 }; /* more than that on a usable CPU are a slip of the hand: nothing is forked */

typedef enum status (*ranks_root)(struct ranks *ranks, void *arg);
/* In the process that called it: STATUS_OK with cli->spoke and cli->exit_code set when rank 0 ended by itself (it has
 * printed everything), else what happened to the job. */
enum status ranks_run(struct cli *cli, const struct topo *topo, const struct ranks_options *options, ranks_root root,
                      void *arg);
enum status ranks_tell(void *ranks, const char *mode, const void *data, size_t bytes);
/* --device, --threads and --transport; of a verb that has it --oversubscribe. */
enum status ranks_options_read(struct cli *cli, struct ranks_options *out);
/* How many ranks: --ranks, else the launcher's, else `usual` where that is not 0, else the GPUs, else 2. The list form is of at least
 * one entry, to be freed. */
enum status ranks_count(struct cli *cli, const struct topo *topo, int64_t usual, int64_t *out);
enum status ranks_list(struct cli *cli, const struct topo *topo, int64_t **out, int *n);
/* The largest --ranks that is not refused here; 0 under a launcher, which says how many. */
int64_t ranks_most(const struct topo *topo, const struct ranks_options *options);

#endif
