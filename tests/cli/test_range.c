/* tests/cli/test_range.c -- a profiler sees the phases of a run (base/range.h): on every rank, balanced, nested as they are. */
#include "cli/run.h"

#include <glob.h>

#ifdef NVTX_RECORDER

enum { LINES_MAX = 200000, THREADS_MAX = 16, DEPTH_MAX = 16, NAMES_MAX = 64 };

/* What one process recorded. */
struct record {
    char *text;
    char *lines[LINES_MAX];
    int n;
};

static struct record record;

static void record_read(const char *path)
{
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    long size = ftell(in);
    rewind(in);
    record = (struct record){.text = calloc(1, (size_t)size + 1)};
    assert_non_null(record.text);
    assert_int_equal(fread(record.text, 1, (size_t)size, in), size);
    fclose(in);
    for (char *line = strtok(record.text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(record.n < LINES_MAX);
        record.lines[record.n++] = line;
    }
}

struct thread {
    long id;
    int depth;
    const char *open[DEPTH_MAX];
};

static struct thread *thread_of(struct thread *threads, long id)
{
    for (int t = 0; t < THREADS_MAX; t++)
        if (threads[t].id == id || threads[t].id == 0) {
            threads[t].id = id;
            return &threads[t];
        }
    fail_msg("more than %d threads", THREADS_MAX);
    return NULL;
}

static bool is_open(const struct thread *thread, const char *name)
{
    for (int d = 0; d < thread->depth; d++)
        if (strcmp(thread->open[d], name) == 0)
            return true;
    return false;
}

/* Every pop has its push, nothing stays open, every name is registered once. */
static void expect_balanced(void)
{
    struct thread threads[THREADS_MAX] = {{0}};
    int domains = 0, pushes = 0;
    for (int i = 0; i < record.n; i++) {
        const char *line = record.lines[i];
        char name[128];
        long id;
        if (sscanf(line, "push %ld %*s %127[^\n]", &id, name) == 2) {
            struct thread *thread = thread_of(threads, id);
            assert_true(thread->depth < DEPTH_MAX);
            thread->open[thread->depth++] = strchr(strchr(line + 5, ' ') + 1, ' ') + 1;
            pushes++;
        } else if (sscanf(line, "pop %ld", &id) == 1) {
            assert_true(--thread_of(threads, id)->depth >= 0);
        } else if (strcmp(line, "domain sptune") == 0) {
            domains++;
        } else if (strncmp(line, "string ", 7) != 0) {
            fail_msg("recorded '%s'", line);
        }
    }
    for (int t = 0; t < THREADS_MAX; t++)
        if (threads[t].depth != 0)
            fail_msg("'%s' never ends", threads[t].open[threads[t].depth - 1]);
    assert_int_equal(domains, 1);
    assert_true(pushes > 0);
}

/* `name` was pushed, with the index when there is one to see, and (outer) inside a range of that name. */
static void expect_seen(const char *name, const char *index, const char *outer)
{
    struct thread threads[THREADS_MAX] = {{0}};
    for (int i = 0; i < record.n; i++) {
        char at[24], what[128];
        long id;
        if (sscanf(record.lines[i], "pop %ld", &id) == 1)
            thread_of(threads, id)->depth--;
        if (sscanf(record.lines[i], "push %ld %23s %127[^\n]", &id, at, what) != 3)
            continue;
        struct thread *thread = thread_of(threads, id);
        if (strcmp(what, name) == 0 && (index == NULL || strcmp(at, index) == 0) &&
            (outer == NULL || is_open(thread, outer)))
            return;
        thread->open[thread->depth++] = strchr(strchr(record.lines[i] + 5, ' ') + 1, ' ') + 1;
    }
    fail_msg("no range '%s' (%s) inside '%s'", name, index != NULL ? index : "any", outer != NULL ? outer : "any");
}

struct seen {
    const char *name, *index, *outer;
};

/* The command, on 2 ranks: each of them has recorded all of this. */
static void expect_ranges(const char *command, const struct seen *seen, int n)
{
    struct run run;
    glob_t files;
    char pattern[1100];
    static int commands;
    char name[24];
    snprintf(name, sizeof name, "record%d", commands++); /* what a failed test leaves is not taken for another's */
    run_env("NVTX_INJECTION64_PATH", NVTX_RECORDER);
    run_env("NVTX_RECORD", temp_path(&run_temp, name));
    run_do(&run, "%s --ranks 2 --progress none", command);
    run_env("NVTX_INJECTION64_PATH", NULL);
    run_expect(&run, 0);
    run_free(&run);
    snprintf(pattern, sizeof pattern, "%s.*", temp_path(&run_temp, name));
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_int_equal(files.gl_pathc, 2); /* the ranks, not who supervises them */
    for (size_t f = 0; f < files.gl_pathc; f++) {
        record_read(files.gl_pathv[f]);
        expect_balanced();
        for (int i = 0; i < n; i++)
            expect_seen(seen[i].name, seen[i].index, seen[i].outer);
        free(record.text);
        remove(files.gl_pathv[f]);
    }
    globfree(&files);
}

#define BENCH(words) "bench " words " --samples 10"

static void test_layer(void **state)
{
    (void)state;
    static const struct seen seen[] = {
        {"check", "0", NULL},
        {"warm-up", "0", NULL},
        {"timed sample", NULL, NULL},
        {"verify", NULL, NULL},
        {"barrier", NULL, NULL},
        {"exchange in", "0", NULL},
        {"exchange in", "1", NULL},
        {"attention forward", "1", "timed sample"},
        {"attention backward", "1", "timed sample"},
        {"exchange out", "0", NULL},
        {"exchange out", "1", NULL},
        {"pack", NULL, "exchange in"},
        {"transfer", NULL, "exchange in"},
        {"all-to-all", NULL, "transfer"},
        {"unpack", NULL, "exchange out"},
    };
    expect_ranges(
        BENCH("layer --direction fwd,bwd --chunks 2 --exchange packed --heads 4 --kv-heads 4 --head-dim 32 --seq 64"),
        seen, CHECK_COUNT(seen));
    static const struct seen direct[] = {{"transfer", NULL, "exchange in"}, {"transfer", NULL, "exchange out"}};
    expect_ranges(BENCH("layer --direction fwd --exchange direct --heads 4 --kv-heads 4 --head-dim 32 --seq 64"),
                  direct, CHECK_COUNT(direct));
}

static void test_collectives(void **state)
{
    (void)state;
    static const struct seen seen[] = {
        {"all-to-all", NULL, "timed sample"},     {"all-gather", NULL, "timed sample"},
        {"reduce-scatter", NULL, "timed sample"}, {"all-reduce", NULL, "timed sample"},
        {"send-recv", NULL, "timed sample"},
    };
    expect_ranges(BENCH("collective --op alltoall,allgather,reduce_scatter,allreduce,sendrecv --bytes 4k"), seen,
                  CHECK_COUNT(seen));
}

static void test_kernels(void **state)
{
    (void)state;
    static const struct seen gemm[] = {{"gemm", NULL, "timed sample"}};
    static const struct seen attention[] = {{"attention forward", NULL, "timed sample"},
                                            {"attention backward", NULL, "timed sample"}};
    expect_ranges(BENCH("gemm --m 16 --n 16 --k 16"), gemm, CHECK_COUNT(gemm));
    expect_ranges(BENCH("attention --direction fwd,bwd --heads 4 --kv-heads 2 --head-dim 32 --seq 64"), attention,
                  CHECK_COUNT(attention));
}

static void test_ring(void **state)
{
    (void)state;
    static const struct seen seen[] = {{"send-recv", NULL, NULL},
                                       {"attention forward", "1", "timed sample"},
                                       {"attention backward", "1", "timed sample"}};
    expect_ranges(BENCH("layer --direction fwd,bwd --method ring --heads 4 --kv-heads 4 --head-dim 32 --seq 64"), seen,
                  CHECK_COUNT(seen));
}

/* Of the toy's 4 layers: units 1 to 4 of parameters. */
static void test_train(void **state)
{
    (void)state;
    static const struct seen sharded[] = {
        {"layer forward", "0", NULL},
        {"layer forward", "3", NULL},
        {"exchange in", NULL, "layer forward"},
        {"attention forward", NULL, "layer forward"},
        {"exchange out", NULL, "layer forward"},
        {"gather weights", "4", "layer forward"},
        {"head", NULL, NULL},
        {"layer backward", "3", NULL},
        {"attention backward", NULL, "layer backward"},
        {"reduce gradients", "4", "layer backward"},
        {"sum gradients", NULL, NULL},
        {"optimizer", NULL, NULL},
    };
    expect_ranges("train --seq 64 --micro-batch 2 --steps 1", sharded, CHECK_COUNT(sharded));
    static const struct seen spread[] = {{"all-reduce", NULL, "sum gradients"}, {"optimizer", NULL, NULL}};
    expect_ranges("train --seq 64 --micro-batch 2 --steps 1 --zero 0", spread, CHECK_COUNT(spread));
}

/* A path that holds no profiler is said by nobody and changes nothing. */
static void test_no_such_profiler(void **state)
{
    (void)state;
    struct run run;
    run_env("NVTX_INJECTION64_PATH", "/nonexistent/profiler.so");
    run_do(&run, "bench gemm --m 16 --n 16 --k 16 --ranks 2 --samples 10 --progress none");
    run_env("NVTX_INJECTION64_PATH", NULL);
    run_expect(&run, 0);
    assert_null(strstr(run.err, "profiler"));
    assert_null(strstr(run.err, "NVTX"));
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer), cmocka_unit_test(test_collectives),      cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_train), cmocka_unit_test(test_no_such_profiler), cmocka_unit_test(test_ring),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}

#else

int main(void)
{
    printf("skipped: built without NVTX headers, ranges compile to nothing\n");
    return 77;
}

#endif
