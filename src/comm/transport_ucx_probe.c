/* comm/transport_ucx_probe.c -- which ways of moving bytes work between these ranks, found out by using them.
 *
 * UCX trusts what it sees in its own process: a small /dev/shm ends in SIGBUS, a /proc that is not shared in a failing
 * connection, a forbidden process_vm_readv in an abort, all in the middle of a run. So each rank offers a segment of
 * each kind, as large as UCX will need and made the way UCX makes it, and its right-hand neighbour reads from it.
 */
#include "base/clock.h"
#include "base/text.h"
#include "comm/comm_group.h"
#include "comm/transport_ucx.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SEGMENT_BYTES = 16 << 20 }; /* UCX 1.13 takes 4.3 MB per rank, and again whenever messages pile up */

struct offer { /* to the other ranks */
    char boot_id[40];
    uint64_t secret;
    uint64_t address; /* of a copy of the secret in this process */
    int32_t pid;
    int32_t fd;    /* of a POSIX segment, -1 none */
    int32_t shmid; /* of a System V segment, -1 none */
    char why[96];  /* why there is none */
};

struct found { /* by the reader */
    bool posix, sysv, cma;
    char why[160];
};

/* ---- offering ---- */

static void read_boot_id(char *buf, size_t size)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!file || !fgets(buf, (int)size, file))
        gethostname(buf, size - 1);
    if (file)
        fclose(file);
}

/* UCX unlinks its file at once, and others reach it through /proc; this one never has a name. */
static void offer_posix(struct offer *offer)
{
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        text_print(offer->why, sizeof offer->why, "/dev/shm cannot be used: %s", strerror(errno));
        return;
    }
    int error = posix_fallocate(fd, 0, SEGMENT_BYTES); /* really takes the room, unlike ftruncate */
    if (!error && pwrite(fd, &offer->secret, sizeof offer->secret, 0) < 0)
        error = errno;
    if (error) {
        text_print(offer->why, sizeof offer->why, "/dev/shm has no room for %d MiB: %s", SEGMENT_BYTES >> 20,
                   strerror(error));
        close(fd);
        return;
    }
    offer->fd = fd;
}

static void *offer_sysv(struct offer *offer)
{
    int id = shmget(IPC_PRIVATE, SEGMENT_BYTES, IPC_CREAT | 0600);
    if (id < 0)
        return NULL;
    void *memory = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL); /* Linux still lets others attach while we are attached */
    if (memory == (void *)-1)
        return NULL;
    memcpy(memory, &offer->secret, sizeof offer->secret);
    offer->shmid = id;
    return memory;
}

/* ---- reading what the left-hand neighbour offers ---- */

static bool read_posix(const struct offer *from)
{
    char path[64];
    uint64_t seen = 0;
    text_print(path, sizeof path, "/proc/%d/fd/%d", from->pid, from->fd);
    int fd = from->fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    void *memory = mmap(NULL, sizeof seen, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return false;
    memcpy(&seen, memory, sizeof seen);
    munmap(memory, sizeof seen);
    return seen == from->secret;
}

static bool read_sysv(const struct offer *from)
{
    uint64_t seen = 0;
    void *memory = from->shmid < 0 ? (void *)-1 : shmat(from->shmid, NULL, 0);
    if (memory == (void *)-1)
        return false;
    memcpy(&seen, memory, sizeof seen);
    shmdt(memory);
    return seen == from->secret;
}

static bool read_cma(const struct offer *from)
{
    uint64_t seen = 0;
    const struct iovec here = {.iov_base = &seen, .iov_len = sizeof seen};
    struct iovec there = {.iov_len = sizeof seen};
    memcpy(&there.iov_base, &from->address, sizeof there.iov_base);
    return process_vm_readv(from->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof seen && seen == from->secret;
}

static struct found look(const struct ucx *ucx, const struct offer *offers)
{
    const int place = (ucx->place + ucx->nmembers - 1) % ucx->nmembers, rank = ucx->members[place];
    const struct offer *from = &offers[place];
    struct found found = {.posix = read_posix(from), .sysv = read_sysv(from)};
    bool same_host = strcmp(from->boot_id, offers[ucx->place].boot_id) == 0;
    found.cma = same_host && read_cma(from);
    if (found.posix || !same_host)
        return found;
    if (from->fd < 0)
        text_print(found.why, sizeof found.why, "%s (rank %d)", from->why, rank);
    else
        text_print(found.why, sizeof found.why, "rank %d cannot map /proc/%d/fd/%d of rank %d", ucx->rank, from->pid,
                   from->fd, rank);
    return found;
}

static struct ucx_paths join(const struct offer *offers, const struct found *found, int size)
{
    struct ucx_paths paths = {.one_host = true, .posix = true, .sysv = true, .cma = true};
    for (int r = 0; r < size; r++) {
        paths.one_host = paths.one_host && strcmp(offers[r].boot_id, offers[0].boot_id) == 0;
        paths.posix = paths.posix && found[r].posix;
        paths.sysv = paths.sysv && found[r].sysv;
        paths.cma = paths.cma && found[r].cma;
        if (!paths.why[0])
            text_print(paths.why, sizeof paths.why, "%s", found[r].why);
    }
    if (!paths.one_host)
        text_print(paths.why, sizeof paths.why, "they are on several hosts");
    paths.posix = paths.posix && paths.one_host;
    paths.sysv = paths.sysv && paths.one_host;
    return paths;
}

_Static_assert(sizeof(struct offer) <= GROUP_SLOT_BYTES && sizeof(struct found) <= GROUP_SLOT_BYTES,
               "they can be shared");

static enum status exchange(const struct ucx *ucx, const struct offer *mine, struct offer *offers, struct found *found,
                            struct ucx_paths *out)
{
    TRY(ucx_share(ucx, mine, sizeof *mine, offers));
    struct found here = look(ucx, offers);
    /* Also the moment until which every offer has to stand. */
    TRY(ucx_share(ucx, &here, sizeof here, found));
    *out = join(offers, found, ucx->nmembers);
    return STATUS_OK;
}

enum status ucx_probe(const struct ucx *ucx, struct ucx_paths *out)
{
    size_t size = (size_t)ucx->nmembers;
    struct offer mine = {.pid = (int32_t)getpid(), .fd = -1, .shmid = -1};
    if (getrandom(&mine.secret, sizeof mine.secret, 0) != (ssize_t)sizeof mine.secret)
        mine.secret = (uint64_t)clock_ns();
    uint64_t secret = mine.secret;
    const void *address = &secret;
    memcpy(&mine.address, &address, sizeof address);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* what UCX asks for too: yama's scope 1 then allows reading */
    read_boot_id(mine.boot_id, sizeof mine.boot_id);
    offer_posix(&mine);
    void *sysv = offer_sysv(&mine);
    struct offer *offers = calloc(size, sizeof *offers);
    struct found *found = calloc(size, sizeof *found);
    enum status status = STATUS_OK;
    if (!offers || !found)
        status = FAIL(STATUS_NOMEM, "out of memory for %zu ranks", size);
    status = ucx_agree(ucx, status);
    if (status == STATUS_OK)
        status = exchange(ucx, &mine, offers, found, out);
    free(offers);
    free(found);
    if (sysv)
        shmdt(sysv);
    if (mine.fd >= 0)
        close(mine.fd);
    return status;
}
