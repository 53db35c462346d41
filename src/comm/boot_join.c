/* comm/boot_join.c -- who may join: ranks with the job's token, and nobody else.
 *
 * Rank 0 answers any number of strangers without ever waiting for one: all sockets are nonblocking, a newcomer has
 * HELLO_US to say a hello of HELLO_BYTES that begins with our magic and carries the token, and at most PENDING of them
 * are kept, the oldest making room. A rank that was turned away in such a crowd comes again until its deadline.
 *
 * A hello is a frame header (rank of the sender) and: token, 32 bytes; size of the job, 4 bytes in network order.
 */
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"
#include "comm/boot_star.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    TOKEN = 32,
    HELLO_BYTES = WIRE_HEADER + TOKEN + 4,
    HELLO_US = 5 * 1000 * 1000,
    PENDING = 256,
    ACCEPT_BURST = 64,
    RETRY_MS = 50,
    POLL_MS = 100,
};

struct pending { /* connected, not yet believed */
    int fd;
    int64_t deadline_ns;
    size_t got;
    unsigned char hello[HELLO_BYTES];
};

struct door {
    struct boot *boot;
    const char *token;
    int listen_fd;
    int joined;
    int count;
    struct pending pending[PENDING]; /* oldest first */
    struct pollfd fds[PENDING + 1];
};

/* ---- addresses ---- */

/* The resolver would take a number modulo 2^16. */
static bool is_port(const char *text)
{
    int64_t port;
    return text[0] && strspn(text, "0123456789") == strlen(text) &&
           units_parse_count(text, "port", 1, 65535, &port) == STATUS_OK;
}

/* host:port or [v6]:port */
static enum status split_root(const char *root, char *host, size_t size, const char **port)
{
    const char *colon = strrchr(root, ':');
    size_t len = colon ? (size_t)(colon - root) : 0;
    if (len > 2 && root[0] == '[' && root[len - 1] == ']') {
        root++;
        len -= 2;
    }
    if (!colon || len == 0 || len >= size || !is_port(colon + 1))
        return HINT(FAIL(STATUS_USAGE, "'%s' is not where rank 0 listens", root), "host:port, as in node7:4711");
    memcpy(host, root, len);
    host[len] = '\0';
    *port = colon + 1;
    return STATUS_OK;
}

static enum status resolve(const char *root, struct addrinfo **out)
{
    char host[128];
    const char *port = NULL;
    TRY(split_root(root, host, sizeof host, &port));
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int error = getaddrinfo(host, port, &wanted, out);
    if (error)
        return HINT(FAIL(STATUS_USAGE, "'%s', where rank 0 listens, has no address: %s", root, gai_strerror(error)),
                    "host:port, as in node7:4711");
    return STATUS_OK;
}

static enum status listen_at(const char *root, int *out)
{
    struct addrinfo *address;
    TRY(resolve(root, &address));
    const int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool fine = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
    int error = errno;
    freeaddrinfo(address);
    if (fine) {
        *out = fd;
        return STATUS_OK;
    }
    if (fd >= 0)
        close(fd);
    return HINT(FAIL(STATUS_MACHINE, "rank 0 cannot listen at %s: %s", root, strerror(error)),
                "an address of rank 0's host and a free port");
}

/* ---- rank 0 ---- */

static void drop(struct door *door, int i)
{
    if (door->pending[i].fd >= 0)
        close(door->pending[i].fd);
    door->count--;
    memmove(&door->pending[i], &door->pending[i + 1], (size_t)(door->count - i) * sizeof door->pending[0]);
}

static void refuse(int fd, enum wire_refusal why)
{
    const struct wire_head head = {.type = WIRE_REFUSE, .op = (int)why};
    unsigned char raw[WIRE_HEADER];
    wire_pack(&head, raw);
    send(fd, raw, sizeof raw, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Every byte is looked at, whatever the first ones are: time tells nothing about the token. */
static bool token_equal(const unsigned char *given, const char *token)
{
    unsigned differ = 0;
    for (int i = 0; i < TOKEN; i++)
        differ |= (unsigned)(given[i] ^ (unsigned char)token[i]);
    return differ == 0;
}

/* A complete hello. The connection becomes a rank's, or is answered and dropped. */
static void judge_hello(struct door *door, struct pending *p)
{
    struct boot *boot = door->boot;
    struct wire_head head;
    uint32_t size;
    wire_unpack(p->hello, &head);
    memcpy(&size, p->hello + WIRE_HEADER + TOKEN, sizeof size);
    if (!token_equal(p->hello + WIRE_HEADER, door->token))
        refuse(p->fd, WIRE_BAD_TOKEN);
    else if (head.version != WIRE_VERSION)
        refuse(p->fd, WIRE_BAD_VERSION);
    else if (ntohl(size) != (uint32_t)boot->size)
        refuse(p->fd, WIRE_BAD_SIZE);
    else if (head.rank < 1 || head.rank >= (uint32_t)boot->size || boot->peer[head.rank - 1].wire.fd >= 0)
        refuse(p->fd, WIRE_BAD_RANK);
    else {
        wire_open(&boot->peer[head.rank - 1].wire, p->fd);
        p->fd = -1;
        door->joined++;
    }
}

/* False when the newcomer is done with, one way or the other. */
static bool listen_to(struct door *door, struct pending *p)
{
    ssize_t n = recv(p->fd, p->hello + p->got, HELLO_BYTES - p->got, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    p->got += (size_t)n;
    struct wire_head head;
    if (p->got >= WIRE_HEADER &&
        (!wire_unpack(p->hello, &head) || head.type != WIRE_HELLO || head.bytes != HELLO_BYTES - WIRE_HEADER))
        return false;
    if (p->got < HELLO_BYTES)
        return true;
    judge_hello(door, p);
    return false;
}

static void accept_some(struct door *door)
{
    for (int i = 0; i < ACCEPT_BURST; i++) {
        int fd = accept4(door->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && door->count > 0) {
            drop(door, 0);
            continue;
        }
        if (fd < 0)
            return;
        if (door->count == PENDING)
            drop(door, 0);
        struct pending *p = &door->pending[door->count++];
        *p = (struct pending){.fd = fd, .deadline_ns = clock_deadline(HELLO_US)};
        if (!listen_to(door, p))
            drop(door, door->count - 1);
    }
}

static void look_at_pending(struct door *door)
{
    for (int i = door->count - 1; i >= 0; i--)
        if ((door->fds[i].revents && !listen_to(door, &door->pending[i])) || clock_passed(door->pending[i].deadline_ns))
            drop(door, i);
}

/* One round: newcomers for at most timeout_ms, then the ranks that have joined. */
static enum status attend(struct door *door, int timeout_ms)
{
    for (int i = 0; i < door->count; i++)
        door->fds[i] = (struct pollfd){.fd = door->pending[i].fd, .events = POLLIN};
    door->fds[door->count] = (struct pollfd){.fd = door->listen_fd, .events = POLLIN};
    int n = door->count;
    poll(door->fds, (nfds_t)n + 1, timeout_ms);
    bool newcomers = door->fds[n].revents != 0;
    look_at_pending(door);
    if (newcomers)
        accept_some(door);
    return star_pump(door->boot, 0);
}

static enum status name_absent(struct boot *boot)
{
    int n = 0;
    for (int i = 0; i < boot->peers; i++)
        if (boot->peer[i].wire.fd < 0)
            boot->late[n++] = boot->peer[i].rank;
    char names[128];
    star_name_ranks(boot->late, n, names, sizeof names);
    return status_rank(FAIL(STATUS_TIMEOUT, "%s did not join in time", names), boot->late[0]);
}

/* A rank that has joined may give up while others are awaited. */
static enum status check_joined(const struct boot *boot)
{
    for (int i = 0; i < boot->peers; i++)
        if (boot->peer[i].bye)
            return status_rank(FAIL(STATUS_PEER, "rank %d left before the job was open", i + 1), i + 1);
    return STATUS_OK;
}

static enum status welcome(struct boot *boot, int64_t deadline_ns)
{
    const struct wire_head head = {.type = WIRE_WELCOME};
    for (int i = 0; i < boot->peers; i++)
        TRY(wire_send(&boot->peer[i].wire, &head, NULL, 0, NULL, 0));
    return star_flush(boot, deadline_ns);
}

static enum status let_in(struct door *door, int64_t deadline_ns)
{
    while (door->joined < door->boot->peers) {
        if (clock_passed(deadline_ns))
            return name_absent(door->boot);
        TRY(attend(door, star_wait_ms(deadline_ns, POLL_MS)));
        TRY(check_joined(door->boot));
    }
    return welcome(door->boot, deadline_ns);
}

enum status boot_join_root(struct boot *boot, const struct launch *launch, int64_t deadline_ns)
{
    struct door *door = calloc(1, sizeof *door);
    if (!door)
        return FAIL(STATUS_NOMEM, "out of memory for ranks that join");
    *door = (struct door){.boot = boot, .token = launch->token, .listen_fd = launch->listen_fd};
    enum status status = STATUS_OK;
    if (door->listen_fd < 0)
        status = listen_at(launch->root, &door->listen_fd);
    if (status == STATUS_OK)
        status = star_fail(boot, let_in(door, deadline_ns), true);
    while (door->count > 0)
        drop(door, door->count - 1);
    if (launch->listen_fd < 0 && door->listen_fd >= 0)
        close(door->listen_fd);
    free(door);
    return status;
}

/* ---- the others ---- */

static void pause_ms(int ms)
{
    const struct timespec time = {.tv_nsec = ms * 1000000L};
    nanosleep(&time, NULL);
}

/* One attempt. *error: 0 when connected. */
static int try_connect(const struct addrinfo *address, int64_t deadline_ns, int *error)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        *error = errno;
        return -1;
    }
    *error = connect(fd, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    while (*error == EINPROGRESS || *error == EINTR) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        socklen_t len = sizeof *error;
        int n = poll(&ready, 1, star_wait_ms(deadline_ns, POLL_MS));
        if (n > 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &len);
        else if (clock_passed(deadline_ns))
            *error = ETIMEDOUT;
    }
    if (*error) {
        close(fd);
        return -1;
    }
    return fd;
}

static enum status connect_root(const struct launch *launch, const struct addrinfo *addresses, int64_t deadline_ns,
                                int *out)
{
    for (;;) {
        int error = 0;
        for (const struct addrinfo *a = addresses; a; a = a->ai_next) {
            *out = try_connect(a, deadline_ns, &error);
            if (*out >= 0)
                return STATUS_OK;
        }
        if (launch->root_listening && error == ECONNREFUSED)
            return status_rank(FAIL(STATUS_PEER, "rank 0 ended before rank %d joined", launch->rank), 0);
        if (clock_passed(deadline_ns))
            return status_rank(
                HINT(FAIL(STATUS_TIMEOUT, "rank 0 cannot be reached at %s: %s", launch->root, strerror(error)),
                     "start rank 0 too, and name an address of its host that this one can reach"),
                0);
        pause_ms(RETRY_MS);
    }
}

static enum status say_hello(struct boot *boot, const struct launch *launch)
{
    const struct wire_head head = {.type = WIRE_HELLO, .rank = (uint32_t)boot->rank};
    const uint32_t size = htonl((uint32_t)boot->size);
    return wire_send(&boot->peer[0].wire, &head, launch->token, TOKEN, &size, sizeof size);
}

static enum status explain_refusal(const struct launch *launch, int why)
{
    switch (why) {
    case WIRE_BAD_TOKEN:
        return HINT(
            FAIL(STATUS_USAGE, "rank 0 at %s refused rank %d: the token is another job's", launch->root, launch->rank),
            "give every rank of one job the same token, and every job its own port");
    case WIRE_BAD_VERSION:
        return FAIL(STATUS_USAGE, "rank 0 at %s is another version of this program", launch->root);
    case WIRE_BAD_SIZE:
        return FAIL(STATUS_USAGE, "rank 0 at %s runs a job of another size than %d", launch->root, launch->size);
    case WIRE_BAD_RANK:
        return FAIL(STATUS_USAGE, "the job at %s has no free place for a rank %d", launch->root, launch->rank);
    default:
        return FAIL(STATUS_PEER, "rank 0 at %s refused rank %d", launch->root, launch->rank);
    }
}

/* Until rank 0 says who we are. *again: the connection was lost before that, which a crowd of strangers can cause. */
static enum status await_welcome(struct boot *boot, const struct launch *launch, int64_t deadline_ns, bool *again)
{
    struct wire *wire = &boot->peer[0].wire;
    *again = false;
    for (;;) {
        struct pollfd ready = {.fd = wire->fd, .events = (short)(POLLIN | (wire_unsent(wire) ? POLLOUT : 0))};
        poll(&ready, 1, star_wait_ms(deadline_ns, POLL_MS));
        wire_write(wire);
        enum wire_end end = wire_read(wire);
        TRY(star_take_abort(boot)); /* perhaps right behind a welcome */
        struct wire_frame *frame = wire->head;
        if (frame && frame->head.type == WIRE_WELCOME) {
            free(wire_pop(wire));
            return STATUS_OK;
        }
        if (frame && frame->head.type == WIRE_REFUSE)
            return explain_refusal(launch, frame->head.op);
        if (boot->peer[0].bye)
            return status_rank(FAIL(STATUS_PEER, "rank 0 left before the job was open"), 0);
        *again = end == WIRE_ENDED;
        if (end == WIRE_GARBLED)
            return HINT(FAIL(STATUS_USAGE, "whatever listens at %s is not rank 0 of a job", launch->root),
                        "use a port of its own for each job");
        if (end != WIRE_OPEN)
            return FAIL(STATUS_PEER, "rank 0 hung up on rank %d", launch->rank);
        if (clock_passed(deadline_ns))
            return status_rank(FAIL(STATUS_TIMEOUT, "rank 0 did not open the job in time"), 0);
    }
}

enum status boot_join_rank(struct boot *boot, const struct launch *launch, int64_t deadline_ns)
{
    struct addrinfo *addresses;
    TRY(resolve(launch->root, &addresses));
    const int64_t answer_ns = star_patient(boot, deadline_ns);
    enum status status;
    for (bool again = true; again;) {
        int fd = -1;
        again = false;
        TRY_OUT(connect_root(launch, addresses, deadline_ns, &fd));
        wire_open(&boot->peer[0].wire, fd);
        status = say_hello(boot, launch);
        if (status == STATUS_OK)
            status = await_welcome(boot, launch, answer_ns, &again);
        again = again && !clock_passed(deadline_ns);
        if (again) {
            wire_close(&boot->peer[0].wire);
            pause_ms(RETRY_MS);
        }
    }
out:
    freeaddrinfo(addresses);
    return status;
}
