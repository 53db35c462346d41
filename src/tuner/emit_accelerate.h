/* tuner/emit_accelerate.h -- what the files for Accelerate with DeepSpeed have in common: facts of the answer, one
 * writer per file. */
#ifndef SPTUNE_TUNER_EMIT_ACCELERATE_H
#define SPTUNE_TUNER_EMIT_ACCELERATE_H

#include "base/text.h"
#include "tuner/recommend.h"

struct accelerate_facts {
    const struct recommendation *recommendation;
    const struct plan *plan;
    const struct problem *problem;
    const struct model *model;
    const char *command;
    const char *class; /* sp_attn_implementation and attn_implementation, always the same */
    int world, hosts, per_host;
    int64_t padded;     /* tokens of one padded sequence */
    bool cpu;           /* planned for CPUs: no GPU is asked for */
    bool order;         /* ranks sit on devices other than their own number */
    bool order_by_host; /* and each host's ranks stay on one host, so that a launcher per host can do it */
};

/* STATUS_USAGE where the plan is not one that Accelerate runs: emit nothing rather than something else. */
enum status accelerate_facts_fill(const struct recommendation *recommendation, const char *command,
                                  struct accelerate_facts *out);
/* Index among hosts whose devices the ranks of block `host` use. */
int accelerate_host_of(const struct accelerate_facts *facts, int host);

/* "# ..." lines: who wrote this, from what, for which plan. */
void accelerate_provenance(const struct accelerate_facts *facts, struct text *out);
enum status accelerate_yaml(const struct accelerate_facts *facts, struct text *out);
enum status accelerate_deepspeed(const struct accelerate_facts *facts, struct text *out);
enum status accelerate_trainer_args(const struct accelerate_facts *facts, struct text *out);
enum status accelerate_launch(const struct accelerate_facts *facts, struct text *out);
enum status accelerate_slurm(const struct accelerate_facts *facts, struct text *out);
enum status accelerate_train(const struct accelerate_facts *facts, struct text *out);

#endif
