/* comm/made_sums.h -- for tests: a transport, UCX, with sums that are its own and made up. They sum nothing but give a number: of the rank
 * that made the group's id, or of the job. */
#ifndef SPTUNE_TESTS_COMM_MADE_SUMS_H
#define SPTUNE_TESTS_COMM_MADE_SUMS_H

#include "comm/ranks.h"

enum made_failing { MADE_WELL, MADE_WITHOUT_ID, MADE_NOT };
enum { MADE_BY_JOB = 1, MADE_BY_RANK = 10 };

struct made { /* for a group */
    int size, rank, number;
};

struct made_seen { /* in this rank */
    struct boot *boot;
    enum made_failing failing;
    int ids, made, closed;
};
extern struct made_seen made_seen;

/* side_open with such sums. */
enum status made_sums_open(struct side *side, const struct launch *launch, enum made_failing failing);

#endif
