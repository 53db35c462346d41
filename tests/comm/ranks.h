/* tests/comm/ranks.h -- run forked ranks from a cmocka test, and see that nothing of them stays.
 *
 * cmocka's assertions jump back to its runner, which in a rank would run the remaining tests there. Ranks use RANK_TRY
 * and RANK_CHECK: they say what failed, note it on the board, and return RANK_FAILED.
 */
#ifndef SPTUNE_TESTS_COMM_RANKS_H
#define SPTUNE_TESTS_COMM_RANKS_H

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { RANK_FAILED = 99, RANKS_MAX = 16 };

#define RANK_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                  \
            board->failed = 1;                                                                                         \
            return RANK_FAILED;                                                                                        \
        }                                                                                                              \
    } while (0)

#define RANK_TRY(expr)                                                                                                 \
    do {                                                                                                               \
        if ((expr) != STATUS_OK) {                                                                                     \
            const struct status_message *message_ = status_last();                                                     \
            fprintf(stderr, "%s:%d: %s: %s (%s, %s)\n", __FILE__, __LINE__, #expr, message_->what, message_->hint,     \
                    message_->source);                                                                                 \
            board->failed = 1;                                                                                         \
            return RANK_FAILED;                                                                                        \
        }                                                                                                              \
    } while (0)

/* What ranks leave for the test to look at: one page shared by all. */
struct board {
    atomic_int pid[RANKS_MAX];
    atomic_int code[RANKS_MAX]; /* enum status that ended the rank's work */
    atomic_int rank[RANKS_MAX]; /* rank named by its message */
    char what[RANKS_MAX][256];
    atomic_int noted[RANKS_MAX];
    atomic_int flag[RANKS_MAX]; /* for the test's own use */
    atomic_int failed;          /* a check in some rank did */
};
extern struct board *board;

void ranks_fresh_board(void); /* for tests that do without ranks_run */

/* launch_fork, then: no check in a rank failed, no process of it, no open file here, no segment in /dev/shm or System V
 * memory is left. Fails the test otherwise. */
struct launch_report ranks_run(int n, launch_rank_main rank_main, void *arg);
/* The same, and every rank has returned 0. */
void ranks_pass(int n, launch_rank_main rank_main, void *arg);
/* Ranks that GPUs of this machine take, at most `most`: one each, or as many as SPTUNE_TEST_RANKS_PER_GPU says. Asked by a child: a
 * process that has asked could give its ranks none. None: says why. */
int ranks_gpus(int most);
/* The GPU of this rank: they go round. */
enum status ranks_open_gpu(const struct launch *launch, struct dev **out);
/* Waits for it look whether the job has ended, as in `sptune`. */
void ranks_watch(struct dev *gpu, struct boot *boot);
/* Note on the board how this rank's work ended; returns the exit code of the status. */
int ranks_note(const struct launch *launch, enum status status);
/* Until every rank of the job but this one has noted how its work ended. */
void ranks_await_notes(const struct launch *launch);
/* SIGKILL to this process after `us`, wherever it is then. */
void ranks_die_after(int64_t us);
void ranks_sleep_ms(int ms);
int ranks_sleep_forever(void);
/* Until the process has ended; a zombie has. */
void ranks_await_end(int pid);

struct side { /* everything one rank opens */
    struct boot *boot;
    struct dev *dev;
    struct dev_queue *queue;
    struct comm *comm;
};
enum status side_open(struct side *side, const struct launch *launch, const char *prefer); /* over UCX */
enum status side_open_over(struct side *side, const struct launch *launch, const char *transport, const char *prefer);
void side_close(struct side *side);

#endif
