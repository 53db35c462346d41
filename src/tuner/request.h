/* tuner/request.h -- what somebody asked: model, lengths, machine, limits, what to search. A plain value; echoed in the
 * answer.
 *
 * Every field that the user left open carries the target's default and is listed as an assumption.
 */
#ifndef SPTUNE_TUNER_REQUEST_H
#define SPTUNE_TUNER_REQUEST_H

#include "model/model.h"
#include "sp/plan.h"
#include "sp/problem.h"
#include "sp/target.h"
#include "topo/topo.h"

enum request_effort { REQUEST_ESTIMATE, REQUEST_QUICK, REQUEST_NORMAL, REQUEST_FULL };
enum request_objective { REQUEST_TOKENS_PER_GPU, REQUEST_STEP_TIME };
enum { REQUEST_ASSUMPTIONS = 24, REQUEST_WORLD = 1 << 20 /* the largest job */ };

struct request_assumption {
    char name[32], value[64], from[224]; /* "loss", "plain", "default of accelerate" */
};

struct installed;

struct request {
    struct model model;
    const struct target *target;
    const struct topo *topo; /* borrowed; of the machine measured */
    enum dev_kind dev;      /* what is measured */
    int64_t dev_memory_bytes; /* of the smallest of these devices, as their driver says; 0: they have none of their own */
    enum dev_kind planned;  /* what the job will run on: device_memory_bytes is one's, and holds its context */
    struct problem problem; /* of one (heads, seq) cell: dtype, docs, world = W */
    bool sp_fixed;          /* --sp with one value: S % P != 0 is refused */
    int ranks;              /* processes measured here */
    int world;              /* processes of the job = nodes * ranks_per_host; these three 0: open */
    int nodes;              /* hosts of the job */
    int ranks_per_host;     /* processes on each; as asked, GPUs of a host: perhaps more than the job has processes */
    int nmicro;
    int64_t micro_batch[PLAN_LIST_MAX];     /* none: 1 */
    char classes[PLAN_LIST_MAX][PLAN_NAME]; /* --attention: the target's classes to consider; none: all it has */
    int nclasses;
    const struct installed *installed; /* borrowed; attention timed as it is installed, NULL: none (installed.h) */
    int64_t global_batch_tokens; /* 0: not fixed */
    int64_t device_memory_bytes; /* limit of one device (rank) of the planned machine; what it came from: */
    char device_memory_from[48]; /* "--device-memory", "GPU 0", "available memory / 2 ranks" */
    int64_t host_memory_bytes;   /* of one host, 0: unknown */
    double use_memory;           /* share of free memory that measuring may take */
    struct plan_space space;
    enum request_objective objective;
    enum request_effort effort;
    int64_t budget_us;
    bool oversubscribe, replay;
    bool overlap;       /* these ranks can compute and exchange at once: chunks are searched where the target has them */
    bool method_open;   /* nobody named methods: the target says which are searched */
    bool exchange_open; /* nobody named exchanges: those of the target are searched */
    char no_direct[224]; /* why exchange direct does not work between these ranks; "": it does, or nobody asked them */
    uint64_t seed;
    int nassumptions;
    struct request_assumption assumptions[REQUEST_ASSUMPTIONS];
};

void request_init(struct request *out); /* everything open */
/* Fill what is open with the target's own defaults and this machine's limits, listing each as an assumption.
 * Contradictions, a world that ranks cannot stand for or that does not fill its hosts, searched values the target does
 * not know: STATUS_USAGE. */
enum status request_complete(struct request *request);
/* These ranks cannot run exchange direct: where it was a default, packed takes its place. Of a completed request. */
void request_without_direct(struct request *request, const char *why);
/* The same question to another runtime: its own exchange, kernels and defaults. What was fixed and it does not execute
 * is open again. Of a completed request; its assumptions are no longer told. */
enum status request_retarget(struct request *request, const struct target *target);
/* Of a completed request: what the ranks at hand can do (see the field). */
void request_with_overlap(struct request *request);
/* What has to be said of speeds that one kind of device gave and another kind is planned with; NULL where it is one. */
const char *request_speed_note(enum dev_kind measured, enum dev_kind planned);
void request_assume(struct request *request, const char *name, const char *value, const char *from);

#endif
