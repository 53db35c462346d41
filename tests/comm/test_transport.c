/* tests/comm/test_transport.c -- what carries data is chosen by what works, and named truly. */
#include "base/table.h"
#include "comm/transport_ucx.h"
#include "ranks.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 300000, CANNOT = 1 /* board flag: this machine does not let the test arrange it */ };

/* ---- the description of an endpoint ---- */

static void test_lanes(void **state)
{
    (void)state;
    static const struct {
        const char *info, *names;
        bool shm;
    } cases[] = {
        {"# lane[0]:  4:posix/memory0.0 md[1]  -> md[1]/posix/sysdev[255] am am_bw#0\n"
         "# lane[1]:  6:cma/memory0.0 md[3]  -> md[3]/cma/sysdev[255] rma_bw#0\n",
         "posix+cma", true},
        {"lane[0]: 1:tcp/lo.0 md[1] -> md[1]/tcp/sysdev[255] am am_bw#0\n", "tcp", false},
        {"lane[0]: 1:rc_mlx5/a:1.0 md\nlane[1]: 2:rc_mlx5/b:1.0 md\nlane[2]: 3:tcp/eth0 md\n", "rc_mlx5+tcp", false},
        {"lane[0]: 1:sysv/m md\nlane[1]: 1:sys/m md\nlane[2]: 1:sysv/m md", "sysv+sys", false},
        {"", "", false},
        {"lane[0]", "", false},
        {"lane[0]:\nlane[1]: x:y\n/z", "", false},
        {"no lanes / here : at all", "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char names[40];
        assert_int_equal(ucx_lanes(cases[i].info, names, sizeof names), cases[i].shm);
        assert_string_equal(names, cases[i].names);
    }
    char small[8];
    assert_true(ucx_lanes("lane[0]: 1:posix/m\nlane[1]: 2:cma/m\n", small, sizeof small)); /* cut, never overrun */
    assert_int_equal(strlen(small), 7);
}

static void test_names_of_ways(void **state)
{
    static const struct {
        enum dev_kind kind;
        struct ucx_way way;
        const char *lanes, *name;
    } cases[] = {
        {DEV_CPU, {.one_host = true, .shm = true}, "posix+cma", "ucx posix+cma shm"},
        {DEV_CPU, {.one_host = true}, "tcp", "ucx tcp"},
        {DEV_CPU, {.one_host = true}, "", "ucx unknown"},
        {DEV_CUDA, {.one_host = true, .direct = true}, "posix+cuda_ipc+cuda_copy", "ucx (cuda_ipc)"},
        {DEV_CUDA, {.one_host = true}, "posix+cuda_ipc", "ucx (staged: cuda_copy+posix)"},
        {DEV_CUDA, {.one_host = true}, "cuda_copy+tcp+sysv", "ucx (staged: cuda_copy+tcp+sysv)"},
        {DEV_CUDA, {.one_host = false}, "tcp", "ucx (tcp)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        ucx_name(cases[i].kind, &cases[i].way, cases[i].lanes, name, sizeof name);
        assert_string_equal(name, cases[i].name);
    }
    char small[16];
    ucx_name(DEV_CUDA, &cases[4].way, cases[4].lanes, small, sizeof small); /* cut, never overrun */
    assert_int_equal(strlen(small), 15);
}

/* ---- a UCX that moves memory of GPUs, and others ---- */

static uint64_t fake_types;
static ucs_status_t fake_opens;

static ucs_status_t fake_config_read(const char *prefix, const char *file, ucp_config_t **out)
{
    (void)prefix;
    (void)file;
    *out = NULL;
    return UCS_OK;
}

static void fake_config_release(ucp_config_t *config)
{
    (void)config;
}

static ucs_status_t fake_init(unsigned major, unsigned minor, const ucp_params_t *params, const ucp_config_t *config,
                              ucp_context_h *out)
{
    (void)major;
    (void)minor;
    (void)params;
    (void)config;
    *out = NULL;
    return fake_opens;
}

static void fake_cleanup(ucp_context_h context)
{
    (void)context;
}

static ucs_status_t fake_query(ucp_context_h context, ucp_context_attr_t *attr)
{
    (void)context;
    attr->memory_types = attr->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES ? fake_types : 0;
    return UCS_OK;
}

static const char *fake_version(void)
{
    return "1.99.0";
}

static const char *fake_text(ucs_status_t code)
{
    (void)code;
    return "No such device";
}

static void test_gpu_memory(void **state)
{
    const struct ucx_api api = {.ucp_config_read = fake_config_read,
                                .ucp_config_release = fake_config_release,
                                .ucp_init_version = fake_init,
                                .ucp_cleanup = fake_cleanup,
                                .ucp_context_query = fake_query,
                                .ucp_get_version_string = fake_version,
                                .ucs_status_string = fake_text};
    (void)state;
    unsetenv("UCX_TLS");
    fake_types = UINT64_C(1) << UCS_MEMORY_TYPE_HOST;
    assert_int_equal(ucx_check_cuda(&api), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_last()->what, "UCX 1.99.0 has no CUDA modules"));
    assert_non_null(strstr(status_last()->what, "SPTUNE_UCX"));
    setenv("UCX_TLS", "posix,self", 1);
    assert_int_equal(ucx_check_cuda(&api), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_last()->what, "UCX_TLS=posix,self"));
    unsetenv("UCX_TLS");
    fake_types |= UINT64_C(1) << UCS_MEMORY_TYPE_CUDA;
    assert_int_equal(ucx_check_cuda(&api), STATUS_OK);
    fake_opens = UCS_ERR_NO_DEVICE;
    assert_int_equal(ucx_check_cuda(&api), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_last()->what, "No such device"));
}

static void test_table(void **state)
{
    (void)state;
    table_holds("src/comm", "transport", "transport", "src/comm/transport.c", -1); /* NCCL's is not in every build */
    assert_ptr_equal(transport_find("ucx"), &transport_ucx);
    assert_null(transport_find("ucxx"));
    assert_null(transport_find(NULL));
    assert_ptr_equal(transport_usual(DEV_CPU), &transport_ucx);
    assert_true(transport_usual(DEV_CUDA) == NULL || transport_usual(DEV_CUDA)->dev == DEV_CUDA);
    assert_int_equal(strncmp(transport_ucx.version(), "ucx 1.", 6), 0);
    transport_ucx.close(NULL);
}

/* ---- names are true ---- */

static int all_to_all(struct side *side)
{
    int size = comm_size(side->comm), rank = comm_rank(side->comm);
    unsigned char *send = malloc((size_t)size * BYTES), *recv = malloc((size_t)size * BYTES);
    for (size_t i = 0; i < (size_t)size * BYTES; i++)
        send[i] = (unsigned char)((size_t)rank * 41 + i / BYTES * 13 + i % BYTES * 7);
    RANK_TRY(comm_alltoall(side->comm, send, recv, BYTES, side->queue));
    for (size_t i = 0; i < (size_t)size * BYTES; i++)
        RANK_CHECK(recv[i] == (unsigned char)(i / BYTES * 41 + (size_t)rank * 13 + i % BYTES * 7));
    free(send);
    free(recv);
    return 0;
}

static long long loopback_bytes(void)
{
    long long bytes = -1;
    char line[512];
    FILE *file = fopen("/proc/net/dev", "r");
    while (file && fgets(line, sizeof line, file))
        if (strstr(line, "lo:"))
            sscanf(strstr(line, "lo:") + 3, "%lld", &bytes);
    if (file)
        fclose(file);
    return bytes;
}

/* Connections of this process that can carry data to another one: UCX keeps a local datagram socket for wake-ups. */
static int count_connections(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        struct sockaddr_storage address;
        socklen_t len = sizeof address;
        if (getsockname(fd, (struct sockaddr *)&address, &len) == 0 && address.ss_family != AF_UNIX)
            n++;
    }
    return n;
}

/* With tcp, everything passes the loopback interface; with shared memory, a rank has no connection beside the
 * bootstrap's. */
static int name_is_true(const struct launch *launch, void *arg)
{
    const char *prefer = arg;
    struct side side = {.boot = NULL};
    RANK_TRY(boot_open(launch, clock_deadline(BOOT_DEADLINE_US), &side.boot));
    int connections = count_connections();
    RANK_TRY(dev_open(DEV_CPU, 0, &side.dev));
    RANK_TRY(dev_queue_create(side.dev, &side.queue));
    RANK_TRY(comm_open(side.boot, side.dev, "ucx", prefer, &side.comm));
    const char *name = comm_transport(side.comm);
    bool tcp = prefer && strcmp(prefer, "tcp") == 0;
    if (tcp)
        RANK_CHECK(strcmp(name, "ucx tcp") == 0);
    else
        RANK_CHECK(strcmp(name, prefer && strcmp(prefer, "sysv") == 0 ? "ucx sysv shm" : "ucx posix shm") == 0);
    RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    long long before = loopback_bytes();
    int code = 0;
    for (int i = 0; i < 10 && !code; i++)
        code = all_to_all(&side);
    RANK_TRY(comm_barrier(side.comm, side.queue));
    if (tcp)
        RANK_CHECK(loopback_bytes() - before >= 10LL * BYTES * (launch->size - 1));
    else
        RANK_CHECK(count_connections() == connections);
    side_close(&side);
    return code;
}

static void test_names(void **state)
{
    (void)state;
    static const char *const prefer[] = {NULL, "shm", "posix", "sysv", "tcp"};
    for (size_t i = 0; i < sizeof prefer / sizeof prefer[0]; i++)
        ranks_pass(3, name_is_true, (void *)(uintptr_t)prefer[i]);
}

static int alone(const struct launch *launch, void *arg)
{
    struct side side;
    RANK_TRY(side_open(&side, launch, arg));
    RANK_CHECK(strcmp(comm_transport(side.comm), "local copy") == 0);
    int code = all_to_all(&side);
    RANK_TRY(comm_barrier(side.comm, NULL));
    side_close(&side);
    return code;
}

static void test_alone(void **state)
{
    (void)state;
    ranks_pass(1, alone, NULL);
    ranks_pass(1, alone, (void *)(uintptr_t) "tcp");
}

/* Two transports in one job, as `check` uses them; the first one closed first, then the other way round. */
static int two_at_once(const struct launch *launch, void *arg)
{
    (void)arg;
    struct side a, b;
    int code = 0;
    RANK_TRY(side_open(&a, launch, "tcp"));
    for (int i = 0; i < 2 && !code; i++) {
        b = a;
        RANK_TRY(comm_open(a.boot, a.dev, "ucx", NULL, &b.comm));
        code = all_to_all(&a);
        code = code ? code : all_to_all(&b);
        RANK_CHECK(strcmp(comm_transport(a.comm), "ucx tcp") == 0 && strstr(comm_transport(b.comm), "shm"));
        struct comm *first = i ? a.comm : b.comm;
        comm_close(first);
        a.comm = i ? b.comm : a.comm;
        code = code ? code : all_to_all(&a);
    }
    side_close(&a);
    return code;
}

static void test_two_at_once(void **state)
{
    (void)state;
    ranks_pass(2, two_at_once, NULL);
}

/* ---- what the user set wins ---- */

static int expect_name(const struct launch *launch, void *arg)
{
    struct side side;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_CHECK(strcmp(comm_transport(side.comm), arg) == 0);
    int code = all_to_all(&side);
    side_close(&side);
    return code;
}

static void test_user_tls(void **state)
{
    (void)state;
    setenv("UCX_TLS", "sysv,self", 1);
    ranks_pass(2, expect_name, (void *)(uintptr_t) "ucx sysv shm");
    setenv("UCX_TLS", "tcp,self", 1);
    ranks_pass(2, expect_name, (void *)(uintptr_t) "ucx tcp");
    unsetenv("UCX_TLS");
}

static int expect_failure(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    enum status status = side_open(&side, launch, NULL);
    RANK_CHECK(status != STATUS_OK && strstr(status_last()->what, "UCX"));
    side_close(&side);
    return 0;
}

static void test_user_tls_wrong(void **state)
{
    (void)state;
    setenv("UCX_TLS", "no_such_transport", 1);
    setenv("UCX_LOG_LEVEL", "fatal", 1);
    ranks_pass(2, expect_failure, NULL);
    unsetenv("UCX_TLS");
    unsetenv("UCX_LOG_LEVEL");
}

/* ---- machines that do not allow everything ---- */

static int small_dev_shm(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("none", "/dev/shm", "tmpfs", 0, "size=2m") == 0
               ? 0
               : errno;
}

static int run_small_shm(const struct launch *launch, void *arg)
{
    const char *prefer = arg;
    struct side side;
    if (small_dev_shm() != 0) {
        board->flag[launch->rank] = CANNOT;
        return 0;
    }
    enum status status = side_open(&side, launch, prefer);
    if (prefer && strcmp(prefer, "posix") == 0) {
        RANK_CHECK(status == STATUS_ABSENT && strstr(status_last()->what, "/dev/shm has no room"));
        side_close(&side);
        return 0;
    }
    RANK_TRY(status);
    RANK_CHECK(strcmp(comm_transport(side.comm), "ucx sysv shm") == 0);
    int code = all_to_all(&side);
    side_close(&side);
    return code;
}

static void skip_if_cannot(const char *what)
{
    if (board->flag[0] != CANNOT)
        return;
    print_message("skipped: %s needs a privilege that is not here\n", what);
    skip();
}

static void test_small_dev_shm(void **state)
{
    (void)state;
    static const char *const prefer[] = {NULL, "shm", "posix"};
    for (size_t i = 0; i < sizeof prefer / sizeof prefer[0]; i++) {
        ranks_pass(2, run_small_shm, (void *)(uintptr_t)prefer[i]);
        skip_if_cannot("a small /dev/shm");
    }
}

/* process_vm_readv works on oneself only: UCX's own test passes, and without ours it would abort in the middle of a run. */
static int forbid_reading_others(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)getpid(), 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0
               ? 0
               : errno;
}

static int run_without_cma(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    if (forbid_reading_others() != 0) {
        board->flag[launch->rank] = CANNOT;
        return 0;
    }
    enum status status = side_open(&side, launch, "cma");
    RANK_CHECK(status == STATUS_ABSENT && strstr(status_last()->what, "process_vm_readv is not allowed"));
    RANK_TRY(comm_open(side.boot, side.dev, "ucx", NULL, &side.comm));
    RANK_CHECK(strcmp(comm_transport(side.comm), "ucx posix shm") == 0);
    int code = all_to_all(&side);
    side_close(&side);
    return code;
}

static int run_with_cma(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    enum status status = side_open(&side, launch, "cma");
    if (status == STATUS_ABSENT) {
        board->flag[launch->rank] = CANNOT;
        side_close(&side);
        return 0;
    }
    RANK_TRY(status);
    RANK_CHECK(strcmp(comm_transport(side.comm), "ucx posix+cma shm") == 0);
    int code = all_to_all(&side);
    side_close(&side);
    return code;
}

static void test_cma(void **state)
{
    (void)state;
    ranks_pass(3, run_without_cma, NULL);
    skip_if_cannot("a system call filter");
    ranks_pass(3, run_with_cma, NULL);
    skip_if_cannot("reading from other processes");
}

/* Ranks that share no memory at all: no room in /dev/shm, and an IPC namespace for each. */
static int run_apart(const struct launch *launch, void *arg)
{
    const char *prefer = arg;
    struct side side;
    if (small_dev_shm() != 0 || unshare(CLONE_NEWIPC) != 0) {
        board->flag[launch->rank] = CANNOT;
        return 0;
    }
    enum status status = side_open(&side, launch, prefer);
    if (prefer) {
        RANK_CHECK(status == STATUS_ABSENT &&
                   strstr(status_last()->what, "shm does not work between these ranks: /dev/shm has no room"));
        side_close(&side);
        return 0;
    }
    RANK_TRY(status);
    RANK_CHECK(strcmp(comm_transport(side.comm), "ucx tcp") == 0);
    int code = all_to_all(&side);
    side_close(&side);
    return code;
}

static void test_apart(void **state)
{
    (void)state;
    ranks_pass(2, run_apart, NULL);
    skip_if_cannot("a namespace of its own");
    ranks_pass(2, run_apart, (void *)(uintptr_t) "shm");
}

/* ---- messages beside the job's ---- */

static int order(const struct launch *launch, void *arg)
{
    (void)arg;
    enum { MESSAGES = 40 };
    static char out[MESSAGES][20000], in[MESSAGES][20000], own[2][8];
    struct transport_xfer sends[MESSAGES + 3], recvs[MESSAGES + 3];
    struct side side;
    void *ucx;
    int peer = 1 - launch->rank, n = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(transport_ucx.open(side.boot, side.dev, NULL, &ucx));
    /* Small and large messages with one tag arrive in the order they were posted. */
    for (; n < MESSAGES; n++) {
        size_t bytes = n % 3 == 0 ? 20000 : n % 3 == 1 ? 1 : 3000;
        memset(out[n], n + 1, bytes);
        sends[n] = (struct transport_xfer){.peer = peer, .tag = 7, .data = out[n], .bytes = bytes};
        recvs[n] = (struct transport_xfer){.peer = peer, .tag = 7, .data = in[n], .bytes = bytes};
    }
    /* Two to itself in order, and one of nothing that the other side does not know of. */
    sends[n] = (struct transport_xfer){.peer = launch->rank, .tag = 1, .data = "first", .bytes = 6};
    recvs[n] = (struct transport_xfer){.peer = launch->rank, .tag = 1, .data = own[0], .bytes = 6};
    sends[n + 1] = (struct transport_xfer){.peer = launch->rank, .tag = 1, .data = "second", .bytes = 7};
    recvs[n + 1] = (struct transport_xfer){.peer = launch->rank, .tag = 1, .data = own[1], .bytes = 7};
    sends[n + 2] = (struct transport_xfer){.peer = peer, .tag = 9, .data = NULL, .bytes = 0};
    RANK_TRY(transport_ucx.batch(ucx, sends, n + 3, recvs, n + 2, side.queue, clock_deadline(BOOT_DEADLINE_US)));
    for (int i = 0; i < MESSAGES; i++)
        RANK_CHECK(in[i][0] == i + 1 && in[i][recvs[i].bytes - 1] == i + 1);
    RANK_CHECK(strcmp(own[0], "first") == 0 && strcmp(own[1], "second") == 0);
    /* Nothing at all; and a message to itself that nobody takes. */
    RANK_TRY(transport_ucx.batch(ucx, NULL, 0, NULL, 0, NULL, clock_deadline(0)));
    RANK_CHECK(transport_ucx.batch(ucx, sends + n, 1, NULL, 0, NULL, clock_deadline(BOOT_DEADLINE_US)) == STATUS_USAGE);
    RANK_CHECK(transport_ucx.batch(ucx, sends + n, 1, recvs + n + 1, 1, NULL, clock_deadline(BOOT_DEADLINE_US)) ==
               STATUS_USAGE);
    int code = all_to_all(&side);
    transport_ucx.close(ucx);
    side_close(&side);
    return code;
}

static void test_order(void **state)
{
    (void)state;
    ranks_pass(2, order, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_names_of_ways),
        cmocka_unit_test(test_gpu_memory),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_user_tls),
        cmocka_unit_test(test_user_tls_wrong),
        cmocka_unit_test(test_small_dev_shm),
        cmocka_unit_test(test_cma),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
