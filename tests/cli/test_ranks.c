/* cli/test_ranks.c -- `sptune check`, and ranks that a launcher started: rank 0 alone speaks. */
#include "cli/run.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static void check_rows(const struct run *run, int ranks)
{
    json_t *document = run_json(run, "check"), *row;
    size_t at;
    int passed = 0, waived = 0;
    assert_int_equal(json_integer_value(json_object_get(document, "ranks")), ranks);
    assert_true(json_is_true(json_object_get(document, "oversubscribed")) == (ranks > 1));
    json_array_foreach(json_object_get(document, "rows"), at, row)
    {
        const char *outcome = json_string_value(json_object_get(row, "outcome"));
        if (strcmp(outcome, "passed") == 0) {
            assert_true(json_integer_value(json_object_get(row, "cases")) > 0);
            passed++;
        } else {
            assert_string_equal(outcome, "waived");
            assert_string_not_equal(json_string_value(json_object_get(row, "rule")), "ok");
            assert_true(strlen(json_string_value(json_object_get(row, "why"))) > 0);
            waived++;
        }
    }
    assert_int_equal(json_integer_value(json_object_get(document, "passed")), passed);
    assert_int_equal(json_integer_value(json_object_get(document, "waived")), waived);
    assert_int_equal(json_integer_value(json_object_get(document, "failed")), 0);
    assert_true(passed >= 10);
    json_decref(document);
}

static void test_check(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "check --ranks 2 --json");
    run_expect(&run, 0);
    run_says(run.err, "2 ranks on 1 usable CPUs: oversubscribed");
    check_rows(&run, 2);
    run_free(&run);
    run_do(&run, "check --ranks 1 --progress none"); /* it may take more than ten seconds */
    run_expect(&run, 0);
    run_fits(run.out, true);
    run_says(run.out, "0 failed");
    assert_string_equal(run.err, "");
    run_free(&run);
    run_nothing_left();
}

static void test_transports(void **state)
{
    (void)state;
    static const char *const names[] = {"ucx", "shm", "sysv", "tcp"};
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        struct run run;
        run_do(&run, "bench collective --bytes 1k --ranks 2 --samples 10 --transport %s --json", names[i]);
        run_expect(&run, 0);
        json_t *document = run_json(&run, "samples"), *row = json_array_get(json_object_get(document, "samples"), 0);
        run_says(json_string_value(json_object_get(row, "transport")), names[i]); /* the one really in use */
        json_decref(document);
        run_free(&run);
    }
    run_nothing_left();
}

/* Which ranks hold cell [token][head]; "0,1". */
static void holders(json_t *document, const char *when, const char *tensor, size_t token, size_t head, char out[32])
{
    json_t *cell =
               json_array_get(json_array_get(json_object_get(json_object_get(document, when), tensor), token), head),
           *rank;
    size_t at;
    out[0] = '\0';
    json_array_foreach(cell, at, rank)
        snprintf(out + strlen(out), 32 - strlen(out), at > 0 ? ",%lld" : "%lld", (long long)json_integer_value(rank));
}

/* Ranks hold the heads of q in turn; of the key/value heads, with more ranks than heads, each is held by neighbours: of 4 ranks and 2 heads
 * 0,1 and 2,3. */
static void cells_are_with_their_ranks(int ranks, int heads, int kv_heads, int seq)
{
    struct run run;
    int copies = ranks / kv_heads;
    run_do(&run, "explain exchange --ranks %d --heads %d --kv-heads %d --seq %d --json", ranks, heads, kv_heads, seq);
    run_expect(&run, 0);
    json_t *document = run_json(&run, "exchange");
    for (int token = 0; token < seq; token++) {
        char text[32], owner[32];
        snprintf(owner, sizeof owner, "%d", token / (seq / ranks));
        for (int head = 0; head < heads; head++) {
            holders(document, "before", "q", (size_t)token, (size_t)head, text);
            assert_string_equal(text, owner);
            holders(document, "back", "o", (size_t)token, (size_t)head, text);
            assert_string_equal(text, owner);
            char by_head[32];
            snprintf(by_head, sizeof by_head, "%d", head / (heads / ranks));
            holders(document, "after", "q", (size_t)token, (size_t)head, text);
            assert_string_equal(text, by_head);
        }
        for (int head = 0; head < kv_heads; head++) {
            char both[32];
            snprintf(both, sizeof both, "%d,%d", copies * head, copies * head + 1);
            assert_int_equal(copies, 2);
            holders(document, "after", "kv", (size_t)token, (size_t)head, text);
            assert_string_equal(text, both);
        }
    }
    json_decref(document);
    run_free(&run);
}

static void test_explain_exchange(void **state)
{
    (void)state;
    struct run run;
    cells_are_with_their_ranks(4, 8, 2, 8);
    cells_are_with_their_ranks(8, 32, 4, 96);
    enum { FIRST_WIDE = 4 };
    static const char *const wide[] = {" 31\n    0      5", " 119\n    0       2", "\n  127     0-15"};
    static const char *const screens[] = {"",
                                          "--ranks 8 --heads 16 --kv-heads 16",
                                          "--ranks 8 --heads 8 --kv-heads 1",
                                          "--ranks 1 --seq 3",
                                          "--ranks 8 --heads 32 --kv-heads 8",
                                          "--ranks 3 --heads 120 --kv-heads 3 --seq 9",
                                          "--ranks 16 --heads 32 --kv-heads 1 --seq 128"};
    for (int i = 0; i < CHECK_COUNT(screens); i++) {
        run_do(&run, "explain exchange %s", screens[i]);
        run_expect(&run, 0);
        run_says(run.out, "after exchange 1");
        if (i >= FIRST_WIDE) /* heads that one line has no room for, and many copies */
            run_says(run.out, wide[i - FIRST_WIDE]);
        run_fits(run.out, true);
        run_free(&run);
    }
    static const char *const wrong[][2] = {{"--ranks 3", "8 query heads over 3 ranks leave 2 over"},
                                           {"--seq 9", "8 and 12 would work"},
                                           {"--ranks 65", "use 64 or less"},
                                           {"--seq 1025", "use 1024 or less"},
                                           {"--why-not sp=2", "belongs to the explanation of a recommendation"}};
    for (int i = 0; i < CHECK_COUNT(wrong); i++) {
        run_do(&run, "explain exchange %s", wrong[i][0]);
        run_expect(&run, 2);
        run_says(run.err, wrong[i][1]);
        assert_int_equal(run_lines(run.err), 1);
        run_free(&run);
    }
    run_nothing_left();
}

/* ---- as a launcher would start them ---- */

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
                getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void launch(struct run ranks[2], const char *line)
{
    char root[32], rank[8];
    snprintf(root, sizeof root, "127.0.0.1:%d", free_port());
    run_env("SPTUNE_ROOT", root);
    run_env("SPTUNE_SIZE", "2");
    run_env("SPTUNE_TOKEN", "00112233445566778899aabbccddeeff");
    for (int r = 0; r < 2; r++) {
        snprintf(rank, sizeof rank, "%d", r);
        run_env("SPTUNE_RANK", rank);
        run_begin(&ranks[r], "%s", line);
    }
    for (int r = 0; r < 2; r++)
        run_end(&ranks[r]);
    static const char *const names[] = {"SPTUNE_ROOT", "SPTUNE_SIZE", "SPTUNE_TOKEN", "SPTUNE_RANK"};
    for (int i = 0; i < 4; i++)
        run_env(names[i], NULL);
}

static void test_rank_0_alone_speaks(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int code;
        const char *noun;
    } jobs[] = {
        {"bench collective --bytes 1k --samples 10 --json", 0, "samples"},
        {"bench gemm --m 16 --n 16 --k 16 --samples 10 --json", 0, "samples"},
        {"check --json", 0, "check"},
        {"bench gemm --m 0 --json", 2, "error"},
        {"bench gemm --ranks 4 --json", 2, "error"},
        {"bench gemm --ranks 1,2 --json", 2, "error"},
        {"check --unknown --json", 2, "error"},
        {"bench exchange --sp 3 --seq 64 --samples 10 --json", 2, "samples"},
    };
    for (int i = 0; i < CHECK_COUNT(jobs); i++) {
        struct run ranks[2];
        launch(ranks, jobs[i].line);
        run_expect(&ranks[0], jobs[i].code);
        json_decref(run_json(&ranks[0], jobs[i].noun));
        assert_string_equal(ranks[1].out, "");
        assert_string_equal(ranks[1].err, "");
        if (i == 0)
            run_says(ranks[0].err, "SPTUNE_RANK=0 SPTUNE_SIZE=2"); /* which rule fired */
        run_free(&ranks[0]);
        run_free(&ranks[1]);
    }
    run_nothing_left();
}

/* --ranks is refused there, so no hint names it. */
static void test_sizes_under_a_launcher(void **state)
{
    (void)state;
    static const char *const lines[][2] = {{"train -q --sp 4", "does not divide 2 ranks; sp 2 would work\n"},
                                           {"train -q --dp-shard 4", "are 4 ranks, not 2; dp_shard 2\n"}};
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run ranks[2];
        launch(ranks, lines[i][0]);
        run_expect(&ranks[0], 2);
        run_says(ranks[0].err, lines[i][1]);
        assert_string_equal(ranks[1].err, "");
        run_free(&ranks[0]);
        run_free(&ranks[1]);
    }
    run_nothing_left();
}

/* On one CPU --ranks goes to 64: no hint names more, and the one that it names is taken. */
static void test_ranks_that_hints_name(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"train --ranks 4 --sp 2 --dp-shard 32", "dp_shard 2, or --ranks 64\n"},
        {"train --ranks 4 --sp 2 --dp-shard 33", "are 66 ranks, not 4; dp_shard 2\n"},
        {"train --ranks 6 --sp 65 --method ring", "does not divide 6 ranks; sp 6 would work\n"},
        {"check --ranks 5000", "are more than 64 for each of the 1 usable CPUs, or 4096 in all; use 64 or fewer here"},
        {"bench gemm --ranks 1,65", "--ranks: 65 ranks are more than 64 for each"},
        {"train --ranks 64 --sp 3", "does not divide 64 ranks"},
    };
    for (int i = 0; i < CHECK_COUNT(lines); i++) {
        struct run run;
        run_do(&run, "%s -q", lines[i][0]);
        run_expect(&run, 2);
        run_says(run.err, lines[i][1]);
        run_free(&run);
    }
    run_nothing_left();
}

static void test_half_an_environment(void **state)
{
    (void)state;
    struct run run;
    run_env("SPTUNE_RANK", "0");
    run_do(&run, "check");
    run_env("SPTUNE_RANK", NULL);
    run_expect(&run, 2);
    run_says(run.err, "SPTUNE_RANK is set but");
    assert_int_equal(run_lines(run.err), 1);
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_transports),
        cmocka_unit_test(test_explain_exchange),
        cmocka_unit_test(test_rank_0_alone_speaks),
        cmocka_unit_test(test_sizes_under_a_launcher),
        cmocka_unit_test(test_ranks_that_hints_name),
        cmocka_unit_test(test_half_an_environment),
    };
    return cmocka_run_group_tests(tests, run_place_one_cpu, run_leave);
}
