/* results/store.h -- one SQLite file with every sample, committed as it is measured.
 *
 * WAL on local disks, rollback journal on network file systems (statfs; said once). Only rank 0 opens it, and no handle outlives a
 * fork. Reading never creates a file: a missing or empty store is STATUS_NODATA. A newer schema, a foreign or damaged file, a file or
 * directory that may not be read or written: STATUS_USAGE. A full disk is STATUS_IO, another writer that holds the store for longer than
 * 10 s STATUS_BUSY; nothing is half-written. Path: --store, else SPTUNE_STORE, else <data dir>/results.db.
 *
 * A run is one command. A REF names a run: a number, a name (the newest run of that name), @last, @last~1 (the one before).
 *
 *     TRY(store_open(path, STORE_WRITE, &store));
 *     TRY(store_run_begin(store, "bench", command, NULL, machine, seed, &run));
 *     TRY(store_put(store, run, &sample));   // committed: a kill right after it loses nothing
 *     TRY(store_run_end(store, run));
 *     store_close(store);
 */
#ifndef SPTUNE_RESULTS_STORE_H
#define SPTUNE_RESULTS_STORE_H

#include "base/json.h"
#include "base/status.h"
#include "results/sample.h"

#include <stdbool.h>
#include <stdint.h>

struct store;

enum store_mode { STORE_READ, STORE_WRITE };

struct store_run {
    int64_t id;
    char name[64];      /* "" unless given with --name */
    char started[32];
    char verb[16];
    char machine[33];
    int64_t seed;
    int samples, failed, waived;
    bool finished;      /* false: it still runs, was ended, or its budget left rows out: bench --resume goes on */
    char *command;      /* owned by the run: store_run_free */
};
void store_run_free(struct store_run *run);

enum status store_path(const char *option, char *buf, size_t size);
enum status store_open(const char *path, enum store_mode mode, struct store **out);
void store_close(struct store *store);

enum status store_check_name(const char *name); /* can a run be called so? "" means without a name */
enum status store_run_begin(struct store *store, const char *verb, const char *command, const char *name, const char *machine,
                            int64_t seed, int64_t *out_run); /* name NULL or "": none */
enum status store_run_end(struct store *store, int64_t run);
enum status store_put(struct store *store, int64_t run, const struct sample *sample); /* durable when it returns */

/* Newest ok sample with this key on this machine; versions NULL: any, else only an exact match (as JSON, not as text). NODATA when
 * none. When only the versions differ, *differs (malloc'ed; NULL otherwise, and the argument may be NULL) says how:
 * "ucx 1.13.1 -> 1.15.0, NCCL_ALGO Ring -> unset". run < 0: any run. */
enum status store_find(struct store *store, const struct sample_key *key, const char *machine, const char *versions,
                       int64_t run, struct sample *out, char **differs);
/* Of the versions of two samples: "ucx 1.13.1 -> 1.15.0, threads 1 -> 2"; free(); NULL or "" when there is none. */
enum status store_differences(const char *was, const char *is, char **out);
typedef enum status (*store_visit)(void *arg, int64_t run, const struct sample *sample);
/* In the order measured; run < 0: all. The sample is borrowed for the call; a status that is not OK ends the walk and is passed on. */
enum status store_each(struct store *store, int64_t run, store_visit visit, void *arg);

enum status store_resolve(struct store *store, const char *ref, struct store_run *out); /* STATUS_USAGE, nearest named */
enum status store_runs(struct store *store, struct store_run **out, int *out_n); /* newest first; free each and the array */
enum status store_forget(struct store *store, int64_t run);

/* Documents (recommendations) by kind, newest last, and small remembered facts ("checked:<build>:<machine>:<what>"). */
enum status store_put_document(struct store *store, int64_t run, const char *kind, const json_t *document);
/* Newest of that run, run < 0: of any. STATUS_NODATA when there is none. */
enum status store_document(struct store *store, int64_t run, const char *kind, json_t **out);
enum status store_remember(struct store *store, const char *fact, const char *value);
bool store_recall(struct store *store, const char *fact, char *buf, size_t size);

#endif
