/* comm/boot_star.h -- inside the bootstrap: the open connections, how the job ends, how to wait. Not for other rooms.
 */
#ifndef SPTUNE_COMM_BOOT_STAR_H
#define SPTUNE_COMM_BOOT_STAR_H

#include "comm/boot.h"
#include "comm/boot_wire.h"

#include <poll.h>

struct star_peer {
    int rank;
    struct wire wire; /* fd -1: none yet, or ended */
    bool bye;         /* it said so: an end is no death */
};

struct boot {
    int rank, size;
    int peers; /* rank 0: size - 1, sorted by rank; others: 1, which is rank 0 */
    struct star_peer *peer;
    struct pollfd *fds;
    int *late;    /* room for the ranks that a message names */
    uint32_t seq; /* of the collective under way */
    bool over;
    struct status_message why;
    int64_t polled_ns;
    bool polling; /* inside boot_poll: no time for idle work */
    int idles;
    struct {
        void (*progress)(void *arg);
        void *arg;
    } idle[BOOT_IDLE_MAX];
};

enum { STAR_SLACK_US = 1000 * 1000 }; /* how long others wait past their own deadline for rank 0's verdict */

/* Look at every connection for at most timeout_ms, read, write, and see whether the job is over. */
enum status star_pump(struct boot *boot, int timeout_ms);
/* The job is over because of `message`: remembered, and told to everybody. `verdict`: others take it as it is, else
 * they hear that rank `who` gave up. Returns the status. */
enum status star_end(struct boot *boot, const struct status_message *message, int who, bool verdict);
/* star_end with this thread's last message. */
enum status star_fail(struct boot *boot, enum status status, bool verdict);
/* The status that ended the job, its message restored; STATUS_OK while it goes on. */
enum status star_over(const struct boot *boot);
/* Take an abort that is waiting in a connection's queue, if one is: then the job is over. Returns star_over. */
enum status star_take_abort(struct boot *boot);
/* Others wait a little longer than rank 0, whose verdict names who is late. */
int64_t star_patient(const struct boot *boot, int64_t deadline_ns);
/* Until everything queued has left, or the deadline: STATUS_TIMEOUT naming ranks that do not read. */
enum status star_flush(struct boot *boot, int64_t deadline_ns);
/* Milliseconds to poll, at most `most`, not past the deadline. */
int star_wait_ms(int64_t deadline_ns, int most);
/* "rank 3", "ranks 1, 2, 5 and 4 more" into buf, from n ranks. */
void star_name_ranks(const int *ranks, int n, char *buf, size_t size);

/* Who may join: fills boot->peer, within the deadline. */
enum status boot_join_root(struct boot *boot, const struct launch *launch, int64_t deadline_ns);
enum status boot_join_rank(struct boot *boot, const struct launch *launch, int64_t deadline_ns);

#endif
