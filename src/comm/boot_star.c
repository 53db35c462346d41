/* comm/boot_star.c -- the star of open connections: one loop that reads, writes and notices the end of the job. */
#include "comm/boot_star.h"
#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE_MS = 10, NAMED_RANKS = 8, VERDICT = 1 /* op of an abort that others take as it is */ };

/* What a peer sent, made safe by status_restore; a rank that gave up is named in front of its reason. */
static struct status_message read_message(const struct wire_frame *frame, int who)
{
    struct status_message message = {.code = STATUS_PEER, .rank = who};
    if (frame->bytes == sizeof message)
        memcpy(&message, frame->data, sizeof message);
    status_restore(&message);
    message = *status_last();
    if (frame->head.op != VERDICT) {
        char what[sizeof message.what];
        text_print(what, sizeof what, "rank %d gave up: %s", who, message.what);
        memcpy(message.what, what, sizeof what);
        if (message.rank < 0 || (message.code != STATUS_PEER && message.code != STATUS_TIMEOUT))
            message.rank = who; /* those two name the rank that others wait for */
        message.code = STATUS_PEER;
    }
    return message;
}

void star_name_ranks(const int *ranks, int n, char *buf, size_t size)
{
    struct text text = {0};
    text_add(&text, n == 1 ? "rank " : "ranks ");
    for (int i = 0; i < n && i < NAMED_RANKS; i++)
        text_add(&text, i ? ", %d" : "%d", ranks[i]);
    if (n > NAMED_RANKS)
        text_add(&text, " and %d more", n - NAMED_RANKS);
    text_print(buf, size, "%s", text_get(&text));
    text_free(&text);
}

int star_wait_ms(int64_t deadline_ns, int most)
{
    int64_t now = clock_ns();
    if (deadline_ns <= now)
        return 0;
    int64_t left_ms = (deadline_ns - now) / 1000000 + 1;
    return left_ms < most ? (int)left_ms : most;
}

int64_t star_patient(const struct boot *boot, int64_t deadline_ns)
{
    const int64_t slack_ns = STAR_SLACK_US * INT64_C(1000);
    return boot->rank == 0 || deadline_ns > INT64_MAX - slack_ns ? deadline_ns : deadline_ns + slack_ns;
}

enum status star_over(const struct boot *boot)
{
    if (!boot->over)
        return STATUS_OK;
    status_restore(&boot->why);
    return boot->why.code;
}

/* Send an abort to everybody but `except`. */
static void tell(struct boot *boot, const struct status_message *message, int who, bool verdict, int except)
{
    const struct wire_head head = {
        .type = WIRE_ABORT, .op = verdict ? VERDICT : 0, .rank = (uint32_t)who, .seq = boot->seq};
    for (int i = 0; i < boot->peers; i++) {
        struct star_peer *peer = &boot->peer[i];
        if (peer->wire.fd >= 0 && !peer->bye && peer->rank != except)
            wire_send(&peer->wire, &head, message, sizeof *message, NULL, 0);
    }
}

static void set_over(struct boot *boot, const struct status_message *message)
{
    boot->over = true;
    boot->why = *message;
}

enum status star_end(struct boot *boot, const struct status_message *message, int who, bool verdict)
{
    if (!boot->over) {
        set_over(boot, message);
        tell(boot, &boot->why, who, verdict, -1);
    }
    return star_over(boot);
}

enum status star_fail(struct boot *boot, enum status status, bool verdict)
{
    return status == STATUS_OK ? status : star_end(boot, status_last(), boot->rank, verdict);
}

/* An abort that arrived. Rank 0 passes it on as it came, with its sender's name on it. */
static void take_abort(struct boot *boot, const struct star_peer *from, const struct wire_frame *frame)
{
    int who = boot->rank == 0 ? from->rank : (int)frame->head.rank;
    const struct status_message message = read_message(frame, who);
    if (boot->over)
        return;
    set_over(boot, &message);
    if (boot->rank == 0)
        tell(boot, &boot->why, who, true, from->rank);
}

static void take_end(struct boot *boot, struct star_peer *peer, enum wire_end end)
{
    wire_hang_up(&peer->wire);
    if (peer->bye || boot->over)
        return;
    enum status status;
    if (end == WIRE_NOMEM)
        status = FAIL(STATUS_NOMEM, "out of memory for a message from rank %d", peer->rank);
    else if (end == WIRE_GARBLED)
        status = status_rank(FAIL(STATUS_PEER, "rank %d sent something that is not a message", peer->rank), peer->rank);
    else
        status = status_rank(FAIL(STATUS_PEER, "rank %d ended", peer->rank), peer->rank);
    star_end(boot, status_last(), status == STATUS_PEER ? peer->rank : boot->rank, status == STATUS_PEER);
}

/* Aborts and goodbyes overtake what waits for a collective. */
static void sift(struct boot *boot, struct star_peer *peer)
{
    struct wire_frame *frame = wire_find(&peer->wire, WIRE_ABORT);
    if (frame)
        take_abort(boot, peer, frame);
    free(frame);
    frame = wire_find(&peer->wire, WIRE_BYE);
    peer->bye = peer->bye || frame;
    free(frame);
}

enum status star_take_abort(struct boot *boot)
{
    for (int i = 0; i < boot->peers; i++)
        sift(boot, &boot->peer[i]);
    return star_over(boot);
}

static void look_at(struct boot *boot, struct star_peer *peer, short events)
{
    enum wire_end end = WIRE_OPEN;
    if (events & POLLOUT)
        wire_write(&peer->wire);
    if (events & (POLLIN | POLLHUP | POLLERR))
        end = wire_read(&peer->wire);
    sift(boot, peer);
    if (end != WIRE_OPEN)
        take_end(boot, peer, end);
}

/* Ask for what each connection can do now; a full queue reads on once its frames are taken. */
static void ask(const struct boot *boot)
{
    for (int i = 0; i < boot->peers; i++) {
        const struct wire *wire = &boot->peer[i].wire;
        boot->fds[i] = (struct pollfd){.fd = wire->fd};
        if (!wire_full(wire))
            boot->fds[i].events |= POLLIN;
        if (wire_unsent(wire))
            boot->fds[i].events |= POLLOUT;
    }
}

enum status star_pump(struct boot *boot, int timeout_ms)
{
    for (int i = 0; i < boot->idles && !boot->polling; i++) {
        boot->idle[i].progress(boot->idle[i].arg);
        timeout_ms = timeout_ms < IDLE_MS ? timeout_ms : IDLE_MS;
    }
    ask(boot);
    int ready = poll(boot->fds, (nfds_t)boot->peers, timeout_ms);
    if (ready < 0 && errno != EINTR)
        return FAIL(STATUS_MACHINE, "the bootstrap connections cannot be watched: %s", strerror(errno));
    for (int i = 0; ready > 0 && i < boot->peers; i++)
        if (boot->fds[i].revents)
            look_at(boot, &boot->peer[i], boot->fds[i].revents);
    return star_over(boot);
}

/* Ranks that do not take what is sent to them, into boot->late. */
static int unsent(struct boot *boot)
{
    int n = 0;
    for (int i = 0; i < boot->peers; i++)
        if (boot->peer[i].wire.fd >= 0 && wire_unsent(&boot->peer[i].wire))
            boot->late[n++] = boot->peer[i].rank;
    return n;
}

enum status star_flush(struct boot *boot, int64_t deadline_ns)
{
    for (int n; (n = unsent(boot)) > 0;) {
        if (clock_passed(deadline_ns)) {
            char names[128];
            star_name_ranks(boot->late, n, names, sizeof names);
            return status_rank(FAIL(STATUS_TIMEOUT, "%s did not read from the bootstrap in time", names),
                               boot->late[0]);
        }
        star_pump(boot, star_wait_ms(deadline_ns, 100));
    }
    return STATUS_OK;
}
