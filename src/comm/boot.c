/* comm/boot.c -- collectives over the star: every rank gives its part to rank 0, which answers all.
 *
 * A failure inside a collective ends the job for everybody: after a late or dead rank nothing that follows could match.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/boot_star.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum op { OP_ALLGATHER = 1, OP_ALLGATHERV, OP_BCAST, OP_BARRIER, OP_AGREE };

enum { POLL_EVERY_NS = 1000000, LEAVE_US = 1000 * 1000, LATE_US = 10 * 1000 * 1000 };

static const char *op_name(int op)
{
    static const char *const names[] = {"nothing",     "an allgather", "an allgatherv",
                                        "a broadcast", "a barrier",    "an agreement"};
    return op >= 0 && op <= OP_AGREE ? names[op] : "something unknown";
}

/* ---- open and close ---- */

static enum status create(const struct launch *launch, struct boot **out)
{
    struct boot *boot = calloc(1, sizeof *boot);
    if (!boot)
        return FAIL(STATUS_NOMEM, "out of memory for the bootstrap");
    boot->rank = launch->rank;
    boot->size = launch->size;
    boot->peers = launch->size == 1 ? 0 : launch->rank == 0 ? launch->size - 1 : 1;
    size_t room = boot->peers ? (size_t)boot->peers : 1;
    boot->peer = calloc(room, sizeof *boot->peer);
    boot->fds = calloc(room, sizeof *boot->fds);
    boot->late = calloc(room, sizeof *boot->late);
    if (!boot->peer || !boot->fds || !boot->late) {
        boot->peers = 0;
        boot_close(boot);
        return FAIL(STATUS_NOMEM, "out of memory for the bootstrap of %d ranks", launch->size);
    }
    for (int i = 0; i < boot->peers; i++) {
        boot->peer[i].rank = boot->rank == 0 ? i + 1 : 0;
        boot->peer[i].wire.fd = -1;
    }
    *out = boot;
    return STATUS_OK;
}

enum status boot_open(const struct launch *launch, int64_t deadline_ns, struct boot **out)
{
    struct boot *boot = NULL;
    enum status status;
    if (launch->size < 1 || launch->rank < 0 || launch->rank >= launch->size) {
        status = FAIL(STATUS_USAGE, "rank %d of %d does not exist", launch->rank, launch->size);
        goto out;
    }
    TRY_OUT(create(launch, &boot));
    if (boot->size == 1)
        status = STATUS_OK;
    else if (boot->rank == 0)
        status = boot_join_root(boot, launch, deadline_ns);
    else
        status = boot_join_rank(boot, launch, deadline_ns);
out:
    if (launch->listen_fd >= 0)
        close(launch->listen_fd);
    if (status != STATUS_OK) {
        struct status_message why = *status_last();
        boot_close(boot);
        status_restore(&why);
        return status;
    }
    *out = boot;
    return STATUS_OK;
}

/* Say goodbye, so that the end of the connection is not taken for a death. */
static void say_bye(struct boot *boot)
{
    const struct wire_head bye = {.type = WIRE_BYE, .rank = (uint32_t)boot->rank};
    for (int i = 0; i < boot->peers; i++)
        if (boot->peer[i].wire.fd >= 0 && !boot->over)
            wire_send(&boot->peer[i].wire, &bye, NULL, 0, NULL, 0);
}

void boot_close(struct boot *boot)
{
    if (!boot)
        return;
    struct status_message kept = *status_last();
    boot->idles = 0;
    say_bye(boot);
    star_flush(boot, clock_deadline(LEAVE_US));
    for (int i = 0; i < boot->peers; i++) {
        if (boot->peer[i].wire.fd >= 0)
            shutdown(boot->peer[i].wire.fd, SHUT_WR);
        wire_close(&boot->peer[i].wire);
    }
    free(boot->peer);
    free(boot->fds);
    free(boot->late);
    free(boot);
    status_restore(&kept);
}

int boot_rank(const struct boot *boot)
{
    return boot->rank;
}

int boot_size(const struct boot *boot)
{
    return boot->size;
}

enum status boot_idle_add(struct boot *boot, void (*progress)(void *arg), void *arg)
{
    if (boot->idles == BOOT_IDLE_MAX)
        return FAIL(STATUS_UNSUPPORTED, "more than %d transports at a time", BOOT_IDLE_MAX);
    boot->idle[boot->idles].progress = progress;
    boot->idle[boot->idles++].arg = arg;
    return STATUS_OK;
}

void boot_idle_remove(struct boot *boot, void *arg)
{
    for (int i = boot->idles - 1; i >= 0; i--)
        if (boot->idle[i].arg == arg)
            boot->idle[i] = boot->idle[--boot->idles];
}

/* ---- waiting ---- */

/* The frame that rank 0 or this rank waits for next from a peer has to belong to the same collective. */
static enum status check_frame(const struct boot *boot, const struct star_peer *peer, const struct wire_frame *frame,
                               int type, int op)
{
    const struct wire_head *head = &frame->head;
    if (head->type == type && head->op == op && head->seq == boot->seq)
        return STATUS_OK;
    return status_rank(FAIL(STATUS_MACHINE, "rank %d is in %s (number %u) while rank %d is in %s (number %u)",
                            peer->rank, op_name(head->op), head->seq, boot->rank, op_name(op), boot->seq),
                       peer->rank);
}

/* Peers in [first, last] that have no frame waiting, into boot->late; -1 when one of them has left for good. */
static int missing(struct boot *boot, int first, int last)
{
    int n = 0;
    for (int i = first; i <= last; i++) {
        struct star_peer *peer = &boot->peer[i];
        if (peer->wire.head)
            continue;
        if (peer->bye) {
            boot->late[0] = peer->rank;
            return -1;
        }
        boot->late[n++] = peer->rank;
    }
    return n;
}

/* Said by rank 0, long before its deadline: who looks on sees which rank to look at. */
static void say_late(const struct boot *boot, int n, int op, int64_t deadline_ns)
{
    char names[128];
    star_name_ranks(boot->late, n, names, sizeof names);
    log_warn("%s did not reach %s within %d s; waiting %d s more", names, op_name(op), LATE_US / 1000000,
             star_wait_ms(deadline_ns, INT_MAX) / 1000);
}

/* Until each peer in [first, last] has a frame waiting. */
static enum status wait_frames(struct boot *boot, int first, int last, int op, int64_t deadline_ns)
{
    int64_t late_ns = boot->rank == 0 && deadline_ns != INT64_MAX ? clock_deadline(LATE_US) : INT64_MAX;
    for (;;) {
        int n = missing(boot, first, last);
        if (n == 0)
            return STATUS_OK;
        if (n < 0)
            return status_rank(FAIL(STATUS_PEER, "rank %d left before %s", boot->late[0], op_name(op)), boot->late[0]);
        if (clock_passed(deadline_ns)) {
            char names[128];
            star_name_ranks(boot->late, n, names, sizeof names);
            return status_rank(FAIL(STATUS_TIMEOUT, "%s did not reach %s in time", names, op_name(op)), boot->late[0]);
        }
        if (clock_passed(late_ns)) {
            say_late(boot, n, op, deadline_ns);
            late_ns = INT64_MAX;
        }
        TRY(star_pump(boot, star_wait_ms(deadline_ns, 100)));
    }
}

static enum status next_frame(struct boot *boot, struct star_peer *peer, int type, int op, struct wire_frame **out)
{
    struct wire_frame *frame = wire_pop(&peer->wire);
    enum status status = check_frame(boot, peer, frame, type, op);
    if (status != STATUS_OK) {
        free(frame);
        return status;
    }
    *out = frame;
    return STATUS_OK;
}

static enum status send_to(struct boot *boot, struct star_peer *peer, int type, int op, const void *first,
                           size_t first_bytes, const void *second, size_t second_bytes)
{
    if (peer->bye)
        return status_rank(FAIL(STATUS_PEER, "rank %d left before %s", peer->rank, op_name(op)), peer->rank);
    const struct wire_head head = {.type = type, .op = op, .seq = boot->seq, .rank = (uint32_t)boot->rank};
    return wire_send(&peer->wire, &head, first, first_bytes, second, second_bytes);
}

/* Start a collective; afterwards `finish` turns a failure into the end of the job. */
static enum status begin(struct boot *boot)
{
    TRY(star_over(boot));
    boot->seq++;
    return STATUS_OK;
}

static enum status finish(struct boot *boot, enum status status)
{
    bool others = status == STATUS_PEER || status == STATUS_TIMEOUT;
    return star_fail(boot, status, others && boot->rank == 0);
}

/* ---- collectives ---- */

/* Answers of rank 0 to everybody but `except`, written out before it goes on to other work. */
static enum status answer(struct boot *boot, int op, int except, const void *first, size_t first_bytes,
                          const void *second, size_t second_bytes, int64_t deadline_ns)
{
    for (int i = 0; i < boot->peers; i++)
        if (boot->peer[i].rank != except)
            TRY(send_to(boot, &boot->peer[i], WIRE_TAKE, op, first, first_bytes, second, second_bytes));
    return star_flush(boot, deadline_ns);
}

static enum status take(struct boot *boot, int op, int64_t deadline_ns, struct wire_frame **out)
{
    TRY(wait_frames(boot, 0, 0, op, star_patient(boot, deadline_ns)));
    return next_frame(boot, &boot->peer[0], WIRE_TAKE, op, out);
}

/* Rank 0: everybody's parts in rank order into *all, their sizes into sizes[]. fixed: every part has `bytes` bytes. */
static enum status gather(struct boot *boot, int op, const void *mine, size_t bytes, bool fixed, struct text *all,
                          uint64_t *sizes, int64_t deadline_ns)
{
    TRY(wait_frames(boot, 0, boot->peers - 1, op, deadline_ns));
    if (bytes)
        text_add_raw(all, mine, bytes);
    sizes[0] = bytes;
    for (int i = 0; i < boot->peers; i++) {
        struct star_peer *peer = &boot->peer[i];
        struct wire_frame *frame = NULL;
        TRY(next_frame(boot, peer, WIRE_GIVE, op, &frame));
        sizes[peer->rank] = frame->bytes;
        text_add_raw(all, frame->data, frame->bytes);
        free(frame);
        if (fixed && sizes[peer->rank] != bytes)
            return status_rank(FAIL(STATUS_MACHINE, "rank %d gave %zu bytes to %s of %zu", peer->rank,
                                    (size_t)sizes[peer->rank], op_name(op), bytes),
                               peer->rank);
    }
    return text_status(all);
}

/* *out: malloc'ed, `size` 64-bit sizes and then the parts; *out_bytes: all of it. */
static enum status exchange(struct boot *boot, int op, const void *mine, size_t bytes, bool fixed, char **out,
                            size_t *out_bytes, int64_t deadline_ns)
{
    size_t table = (size_t)boot->size * sizeof(uint64_t);
    struct text all = {0};
    struct wire_frame *frame = NULL;
    uint64_t *sizes = NULL;
    enum status status;
    TRY_OUT(mem_alloc(table, "bootstrap sizes", (void **)&sizes));
    if (boot->rank == 0) {
        TRY_OUT(gather(boot, op, mine, bytes, fixed, &all, sizes, deadline_ns));
        TRY_OUT(answer(boot, op, -1, sizes, table, all.s, all.len, deadline_ns));
    } else {
        TRY_OUT(send_to(boot, &boot->peer[0], WIRE_GIVE, op, mine, bytes, NULL, 0));
        TRY_OUT(take(boot, op, deadline_ns, &frame));
    }
    const char *parts = frame ? frame->data : NULL;
    size_t total = frame ? frame->bytes : table + all.len;
    void *joined = NULL;
    TRY_OUT(mem_alloc(total, "bootstrap data", &joined));
    if (frame) {
        memcpy(joined, parts, total);
    } else {
        memcpy(joined, sizes, table);
        if (all.len)
            memcpy((char *)joined + table, all.s, all.len);
    }
    *out = joined;
    *out_bytes = total;
out:
    text_free(&all);
    free(frame);
    free(sizes);
    return status;
}

/* The table of sizes in front of the parts must add up to what came. */
static enum status check_parts(const struct boot *boot, const char *parts, size_t bytes, size_t *sizes)
{
    size_t table = (size_t)boot->size * sizeof(uint64_t), left = bytes - table;
    bool fits = bytes >= table;
    for (int r = 0; fits && r < boot->size; r++) {
        uint64_t part;
        memcpy(&part, parts + (size_t)r * sizeof part, sizeof part);
        fits = part <= left;
        left -= fits ? (size_t)part : 0;
        sizes[r] = (size_t)part;
    }
    return fits && left == 0 ? STATUS_OK : FAIL(STATUS_MACHINE, "rank 0 sent sizes that do not add up");
}

static enum status allgatherv(struct boot *boot, int op, const void *mine, size_t bytes, bool fixed, char **all,
                              size_t *sizes, int64_t deadline_ns)
{
    char *parts = NULL;
    size_t total = 0, table = (size_t)boot->size * sizeof(uint64_t);
    TRY(exchange(boot, op, mine, bytes, fixed, &parts, &total, deadline_ns));
    enum status status = check_parts(boot, parts, total, sizes);
    if (status != STATUS_OK) {
        free(parts);
        return status;
    }
    memmove(parts, parts + table, total - table);
    *all = parts;
    return STATUS_OK;
}

enum status boot_allgatherv(struct boot *boot, const void *mine, size_t bytes, char **all, size_t *sizes,
                            int64_t deadline_ns)
{
    TRY(begin(boot));
    return finish(boot, allgatherv(boot, OP_ALLGATHERV, mine, bytes, false, all, sizes, deadline_ns));
}

static enum status allgather(struct boot *boot, int op, const void *mine, size_t bytes, void *all, int64_t deadline_ns)
{
    char *parts = NULL;
    size_t *sizes = NULL;
    enum status status;
    TRY_OUT(mem_alloc((size_t)boot->size * sizeof *sizes, "bootstrap sizes", (void **)&sizes));
    TRY_OUT(allgatherv(boot, op, mine, bytes, true, &parts, sizes, deadline_ns));
    for (int r = 0; r < boot->size; r++)
        if (sizes[r] != bytes)
            TRY_OUT(
                FAIL(STATUS_MACHINE, "%s of %zu bytes here brought %zu of rank %d", op_name(op), bytes, sizes[r], r));
    if (bytes)
        memcpy(all, parts, (size_t)boot->size * bytes);
out:
    free(parts);
    free(sizes);
    return status;
}

enum status boot_allgather(struct boot *boot, const void *mine, size_t bytes, void *all, int64_t deadline_ns)
{
    TRY(begin(boot));
    return finish(boot, allgather(boot, OP_ALLGATHER, mine, bytes, all, deadline_ns));
}

enum status boot_barrier(struct boot *boot, int64_t deadline_ns)
{
    TRY(begin(boot));
    return finish(boot, allgather(boot, OP_BARRIER, NULL, 0, NULL, deadline_ns));
}

static enum status copy_out(const struct wire_frame *frame, void **data, size_t *bytes)
{
    TRY(mem_alloc(frame->bytes, "broadcast data", data));
    memcpy(*data, frame->data, frame->bytes);
    *bytes = frame->bytes;
    return STATUS_OK;
}

static enum status bcast(struct boot *boot, int root, void **data, size_t *bytes, int64_t deadline_ns)
{
    if (boot->rank == root && root == 0)
        return answer(boot, OP_BCAST, -1, *data, *bytes, NULL, 0, deadline_ns);
    if (boot->rank == root) {
        TRY(send_to(boot, &boot->peer[0], WIRE_GIVE, OP_BCAST, *data, *bytes, NULL, 0));
        return star_flush(boot, star_patient(boot, deadline_ns));
    }
    struct wire_frame *frame = NULL;
    enum status status;
    if (boot->rank == 0) {
        TRY(wait_frames(boot, root - 1, root - 1, OP_BCAST, deadline_ns));
        TRY(next_frame(boot, &boot->peer[root - 1], WIRE_GIVE, OP_BCAST, &frame));
        TRY_OUT(answer(boot, OP_BCAST, root, frame->data, frame->bytes, NULL, 0, deadline_ns));
    } else {
        TRY(take(boot, OP_BCAST, deadline_ns, &frame));
    }
    status = copy_out(frame, data, bytes);
out:
    free(frame);
    return status;
}

enum status boot_bcast(struct boot *boot, int root, void **data, size_t *bytes, int64_t deadline_ns)
{
    TRY(begin(boot));
    if (root < 0 || root >= boot->size)
        return finish(boot, FAIL(STATUS_USAGE, "a broadcast from rank %d of %d", root, boot->size));
    return finish(boot, bcast(boot, root, data, bytes, deadline_ns));
}

/* ---- agreement ---- */

/* The worst of n messages: the largest code that is not OK, the lowest rank among equals; -1 when all are fine. */
static int worst_of(const struct status_message *messages, int n)
{
    int worst = -1;
    for (int r = 0; r < n; r++)
        if (messages[r].code != STATUS_OK && (worst < 0 || messages[r].code > messages[worst].code))
            worst = r;
    return worst;
}

static bool all_alike(const struct status_message *messages, int n)
{
    for (int r = 1; r < n; r++)
        if (messages[r].code != messages[0].code || strcmp(messages[r].what, messages[0].what) != 0)
            return false;
    return true;
}

enum status boot_agree(struct boot *boot, enum status mine, int64_t deadline_ns)
{
    struct status_message *all = NULL;
    struct status_message message = {.code = mine, .rank = -1};
    if (mine != STATUS_OK && status_last()->code == mine)
        message = *status_last();
    else if (mine != STATUS_OK) /* no words of its own */
        text_print(message.what, sizeof message.what, "%s", status_text(mine));
    TRY(begin(boot));
    enum status status = mem_alloc((size_t)boot->size * sizeof *all, "agreement", (void **)&all);
    if (status == STATUS_OK)
        status = allgather(boot, OP_AGREE, &message, sizeof message, all, deadline_ns);
    status = finish(boot, status);
    int worst = status == STATUS_OK ? worst_of(all, boot->size) : -1;
    if (worst >= 0) {
        /* What all ranks found alike is nobody's in particular. */
        if (all[worst].rank < 0 && !all_alike(all, boot->size))
            all[worst].rank = worst;
        status_restore(&all[worst]);
        status = status_agreed(status_last()->code);
    }
    free(all);
    return status;
}

/* ---- not collective ---- */

enum status boot_poll(struct boot *boot)
{
    TRY(star_over(boot));
    int64_t now = clock_ns();
    if (now - boot->polled_ns < POLL_EVERY_NS)
        return STATUS_OK;
    boot->polled_ns = now;
    boot->polling = true;
    enum status status = star_pump(boot, 0);
    boot->polling = false;
    return status;
}

static void leave(struct boot *boot, const struct status_message *message, bool verdict)
{
    struct status_message copy = *message;
    if (copy.code == STATUS_OK)
        copy.code = STATUS_PEER;
    star_end(boot, &copy, boot->rank, verdict);
    star_flush(boot, clock_deadline(LEAVE_US));
    status_restore(&copy);
}

void boot_abort(struct boot *boot, const struct status_message *message)
{
    leave(boot, message, false);
}

void boot_end(struct boot *boot, const struct status_message *message)
{
    leave(boot, message, true);
}
