/* cli/tune_options.h -- the options of `tune` as one table, and the request of each cell made from them. */
#ifndef SPTUNE_CLI_TUNE_OPTIONS_H
#define SPTUNE_CLI_TUNE_OPTIONS_H

#include "cli/ranks_device.h"
#include "tuner/installed.h"
#include "tuner/request.h"

enum { TUNE_EMITS = 8, TUNE_SAMPLES = 16 };

struct tune_order {
    int ranks;
    int world, nodes, gpus_per_node; /* 0: not given */
    struct ranks_devices devices;
    enum request_effort effort;
    int64_t budget_us;
    const struct target *target;
    const char *out_dir;
    const char *emit[TUNE_EMITS];
    int nemit;
    char *emit_storage;
    struct installed installed; /* rows of --samples */
    struct model model; /* when --model */
    bool from_heads;
    int64_t *seq, *heads, *kv_heads; /* owned lists */
    int nseq, nheads, nkv;
    int64_t head_dim;
    int ncells; /* nseq * nheads */
    char (*cell_name)[64];
};

extern const struct opt tune_options[];

enum status tune_list_plugins(struct cli *cli, bool *listed); /* --target list and its like */
enum status tune_read(struct cli *cli, const struct topo *topo, struct tune_order *out);
void tune_free(struct tune_order *order);
enum status tune_request(struct cli *cli, const struct tune_order *order, int cell, const struct topo *topo,
                         struct request *out);

#endif
