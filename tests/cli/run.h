/* cli/run.h -- for tests: run the built program as a process, in a place of its own.
 *
 * run_place moves this test into its own mount, IPC and network namespace where that is allowed (root, or user
 * namespaces): its own /dev/shm, System V segments, sockets and measuring lock, so that what is left behind can be
 * counted and no other sptune of the machine interferes. Every run has its own HOME, store and working directory under
 * a temporary one. A run that takes longer than RUN_LIMIT_S is killed, and fails the test.
 */
#ifndef SPTUNE_TESTS_CLI_RUN_H
#define SPTUNE_TESTS_CLI_RUN_H

#include "base/check.h"
#include "base/temp.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { RUN_LIMIT_S = 120, RUN_KILLED_S = 10 };

struct run {
    pid_t pid;
    int code; /* exit code; -1 when a signal ended it */
    int signal;
    char *out, *err; /* stdout and stderr, owned until the next run_end or run_free */
    FILE *files[2];
    int64_t deadline_ns;
};

extern struct temp run_temp;   /* the directory of this test program */
extern bool run_alone;         /* in namespaces of its own */
extern const char *run_stdout; /* where stdout of the runs that follow goes; NULL: to run.out, "": it is closed */
int run_place(void **state);   /* cmocka group set-up and tear-down */
int run_leave(void **state);

/* As run_place, on one CPU: 2 ranks are then oversubscribed, so that rows are marked and never judged by the state of
 * CPUs that other programs use too, and the outcome does not depend on the machine's mood. */
int run_place_one_cpu(void **state);

/* Set or (NULL) unset a variable of the runs that follow. */
void run_env(const char *name, const char *value);
/* The command line as printf makes it, split at blanks; '' is an empty argument, quotes keep blanks together. */
void run_begin(struct run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void run_begin_v(struct run *run, const char *fmt, va_list args);
void run_end(struct run *run);         /* waits; fills code, signal, out, err */
bool run_ended(const struct run *run); /* has it? (without reaping) */
/* Until `word` was written to stdout (1) or stderr (2) `times` times; false when the run ended without. */
bool run_wait(const struct run *run, int fd, const char *word, int times);
void run_kill(struct run *run, pid_t pid, int sig); /* from then on the run has RUN_KILLED_S to end */
void run_free(struct run *run);
void run_do(struct run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* begin and end */

/* Checks that print the whole output when they fail. */
void run_expect(const struct run *run, int code);
void run_says(const char *text, const char *word);
void run_says_words(const char *text, const char *words); /* wherever its lines are broken */
void run_says_not(const char *text, const char *word);
int run_lines(const char *text);
/* stdout is one JSON document of this schema ("model" for sptune.model/1); a new reference. */
json_t *run_json(const struct run *run, const char *noun);
/* No line is longer than 80 columns, and (ascii) no byte is beyond ASCII. */
void run_fits(const char *text, bool ascii);

/* Take the measuring lock, as another sptune that measures; close the descriptor to give it back. */
int run_lock(void);

/* Rank processes of a run of two or more: pid of rank r, waiting until it is there. */
pid_t run_rank(const struct run *run, int rank);
void run_sleep_ms(int ms);
/* Every process of the run has gone (they are this test's to reap), and in its own namespaces no shared memory and no
 * listening or connected socket stays. */
void run_nothing_left(void);
#endif
