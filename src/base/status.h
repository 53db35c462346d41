/* base/status.h -- one error list, one message per thread, one place that prints it.
 *
 * The first function that knows what went wrong calls FAIL with the cause and the values; callers pass the status on
 * with TRY; main prints it once (or `sptune.error/1` under --json). A message has three parts: what went wrong (FAIL),
 * where (WHERE: file, line, option, rank), and what would be right (HINT).
 *
 *     if (p < 1)
 *         return HINT(FAIL(STATUS_USAGE, "sp_size %d is not positive", p), "use 1 or more");
 *     TRY(file_read(path, limit, &text));
 *
 * STATUS_UNSUPPORTED is a reason to waive a candidate, not a failure of the program; see verdict.h for rule codes.
 */
#ifndef SPTUNE_BASE_STATUS_H
#define SPTUNE_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* name, exit code, text. The exit codes are the contract of `sptune help exit`. */
#define STATUS_LIST(X)                                                                   \
    X(OK, 0, "done")                                                                     \
    X(CHECK, 1, "a check failed")                                                        \
    X(NOFIT, 1, "nothing fits in memory")                                                \
    X(USAGE, 2, "wrong usage or input")                                                  \
    X(ABSENT, 2, "hardware or library asked for by name is absent")                      \
    X(UNSUPPORTED, 2, "not supported")                                                   \
    X(NODATA, 3, "not enough or not comparable data")                                    \
    X(BUSY, 3, "another measuring sptune holds this machine")                            \
    X(MACHINE, 4, "the machine failed underneath")                                       \
    X(PEER, 4, "a rank ended")                                                           \
    X(TIMEOUT, 4, "a deadline passed")                                                   \
    X(IO, 4, "reading or writing failed")                                                \
    X(NOMEM, 4, "out of memory")                                                         \
    X(INTERRUPTED, 130, "interrupted")                                                   \
    X(UNREAD, 141, "nobody reads stdout any more")                                       \
    X(TERMINATED, 143, "terminated")

enum status {
#define STATUS_ENUM(name, exit_code, text) STATUS_##name,
    STATUS_LIST(STATUS_ENUM)
#undef STATUS_ENUM
        STATUS_COUNT
};

/* The message of this thread's last failure; every string is "" when it does not apply. Valid until the next FAIL. */
struct status_message {
    enum status code;
    char what[512];
    char where[256];
    char hint[384];
    char source[64]; /* file:line of the FAIL */
    int rank;        /* rank that failed, -1 when ranks do not apply */
    int agreed;      /* not 0: all ranks of the job have this failure, or found the same */
};

#if defined(__GNUC__)
#define STATUS_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define STATUS_PRINTF(a, b)
#endif

/* Never gives STATUS_OK: a failure without a code is STATUS_MACHINE. */
enum status status_set(enum status code, const char *file, int line, const char *fmt, ...) STATUS_PRINTF(4, 5);
enum status status_where(enum status code, const char *fmt, ...) STATUS_PRINTF(2, 3);
enum status status_hint(enum status code, const char *fmt, ...) STATUS_PRINTF(2, 3);
/* Name the rank that failed (a peer, or this one). */
enum status status_rank(enum status code, int rank);
/* All ranks of the job have this failure: nobody has to be told. */
enum status status_agreed(enum status code);

const struct status_message *status_last(void);
/* Replace this thread's message, for instance by one that came from another rank. */
void status_restore(const struct status_message *message);
void status_clear(void);

const char *status_name(enum status code); /* "usage" */
const char *status_text(enum status code);
int status_exit_code(enum status code);

/* Tells the compiler what status_set promises, so that it knows which outputs are set. */
static inline enum status status_never_ok(enum status code)
{
#if defined(__GNUC__)
    if (code == STATUS_OK)
        __builtin_unreachable();
#endif
    return code;
}

#define FAIL(code, ...) status_never_ok(status_set((code), __FILE__, __LINE__, __VA_ARGS__))
#define WHERE(expr, ...) status_where((expr), __VA_ARGS__)
#define HINT(expr, ...) status_hint((expr), __VA_ARGS__)
#define TRY(expr)                                                                        \
    do {                                                                                 \
        enum status try_status_ = (expr);                                                \
        if (try_status_ != STATUS_OK)                                                    \
            return try_status_;                                                          \
    } while (0)
/* As TRY, for functions with one `out:` label that releases in reverse; `status` is the local variable. */
#define TRY_OUT(expr)                                                                    \
    do {                                                                                 \
        status = (expr);                                                                 \
        if (status != STATUS_OK)                                                         \
            goto out;                                                                    \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
