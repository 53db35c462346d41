/* tuner/parts_build.h -- what the files that list parts share. For parts*.c and predict.c. */
#ifndef SPTUNE_TUNER_PARTS_BUILD_H
#define SPTUNE_TUNER_PARTS_BUILD_H

#include "tuner/parts.h"

/* Relative 95 % uncertainty of taking a time from another size (docs/models.md, "Times"). */
#define SLACK_PART     0.03 /* some heads of a layer: linear but for caches */
#define SLACK_LENGTH   0.08 /* another length, fewer rows or columns, where the kernel is already busy */
#define SLACK_RATE     0.35 /* the rate of a small shape */
#define SLACK_RANKS    0.35 /* an exchange or a gather among more ranks than are here */
#define SLACK_EXCHANGE 0.30 /* an exchange of another size */
#define SLACK_GUESS    0.80 /* traffic between ranks, when one rank is all there is */

enum parts_slack {
    PARTS_SLACK_NONE,
    PARTS_SLACK_ATTENTION,
    PARTS_SLACK_GEMM,
    PARTS_SLACK_EXCHANGE,
    PARTS_SLACK_ZERO,
    PARTS_SLACK_OPTIMIZER
};

struct parts_build {
    const struct request *request;
    const struct plan *plan;
    bool coarse;
    struct parts *out;
};

/* A case on the ranks that are here, every one of them busy, sp groups of `sp`; only what belongs to every subject is
 * set. */
struct part parts_base(const struct parts_build *build, const char *subject, const char *op, int sp);
/* Makes the key and appends. */
enum status parts_append(const struct parts_build *build, struct part *part);
/* Layers with and without the window, as two kinds; a window as long as the row is none. Returns how many there are. */
struct parts_kind {
    int64_t window;
    int layers;
};
int parts_kinds(const struct request *request, struct parts_kind out[2]);
/* Attention of layers of this kind, of a plan that parts_is_installed and that parts_installed_check admits. */
enum status parts_installed(const struct parts_build *build, const struct parts_kind *kind);
/* Bytes that arrive at a rank by calls of a collective, timed by all ranks that are here. */
struct parts_traffic {
    const char *op;
    double arriving;
    int64_t call; /* bytes of one call, as a sample's; 0: unknown */
    int group;    /* ranks that it is among */
    enum price_part part;
};
enum status parts_collective(const struct parts_build *build, const struct parts_traffic *traffic);
/* Products of the linear layers and of the loss; norms, activations and the like; ZeRO and the optimizer. */
enum status parts_linear(const struct parts_build *build);
enum status parts_elementwise(const struct parts_build *build);
enum status parts_states(const struct parts_build *build);

#endif
