/* tests/base/test_progress.c -- silence, plain lines, and a line redrawn on a (pseudo) terminal. */
#include "base/check.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/temp.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>

static void none_is_silent(void **state)
{
    (void)state;
    struct capture capture;
    capture_begin(&capture, STDERR_FILENO);
    progress_setup(PROGRESS_NONE);
    progress_begin("measuring", 3);
    progress_step(1, "exchange", 1000000);
    progress_end();
    assert_string_equal(capture_end(&capture), "");
}

static void plain_lines_say_what_how_far_and_how_long(void **state)
{
    (void)state;
    struct capture capture;
    capture_begin(&capture, STDERR_FILENO);
    progress_setup(PROGRESS_PLAIN);
    progress_begin("measuring", 47);
    progress_step(14, "exchange packed", 130000000);
    progress_step(15, "held back: a line was just shown", 130000000);
    progress_end();
    progress_begin("checking", 0);
    progress_at(0, "what may hang");
    progress_at(1, "the next");
    progress_end();
    progress_begin("reading", 0);
    progress_step(3, NULL, -1);
    progress_end();
    assert_string_equal(capture_end(&capture),
                        "sptune: measuring 14 of 47 exchange packed, 2m10s left\nsptune: checking 0 what may hang\n"
                        "sptune: checking 1 the next\nsptune: reading 3\n");
}

static void the_pace_gives_an_estimate(void **state)
{
    (void)state;
    struct capture capture;
    capture_begin(&capture, STDERR_FILENO);
    progress_setup(PROGRESS_AUTO); /* a file: lines */
    progress_begin("x", 4);
    progress_step(0, "a", -1);
    progress_begin("x", 4);
    progress_step(4, "b", -1);
    progress_end();
    progress_begin("y", 0); /* it may be over before anybody asks */
    progress_at(0, "c");
    progress_end();
    assert_string_equal(capture_end(&capture), "sptune: x 0 of 4 a\nsptune: x 4 of 4 b\n");
}

/* What stderr got when it is a terminal of 40 columns. */
static const char *on_terminal(void (*act)(void))
{
    static char text[4096];
    struct winsize size = {.ws_row = 5, .ws_col = 40};
    int master = posix_openpt(O_RDWR | O_NOCTTY), saved = dup(STDERR_FILENO);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0 && ioctl(slave, TIOCSWINSZ, &size) == 0);
    dup2(slave, STDERR_FILENO);
    setenv("TERM", "xterm", 1);
    act();
    dup2(saved, STDERR_FILENO);
    close(saved);
    /* What was written may arrive in pieces: the terminal is drained until it has been still for a moment. */
    struct pollfd ready = {.fd = master, .events = POLLIN};
    size_t got = 0;
    while (got < sizeof text - 1 && poll(&ready, 1, 500) == 1) {
        ssize_t n = read(master, text + got, sizeof text - 1 - got);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    text[got] = '\0';
    close(slave);
    close(master);
    return text;
}

static void draw_and_log(void)
{
    progress_setup(PROGRESS_AUTO);
    progress_begin("measuring", 47);
    progress_step(14, "a label that is much too long for it", 1000000);
    log_info("between");
    progress_end();
}

static void a_terminal_line_is_redrawn_and_makes_way(void **state)
{
    (void)state;
    assert_string_equal(on_terminal(draw_and_log), "\rsptune: measuring 14 of 47 a label that\033[K"
                                                   "\r\033[Ksptune: between\r\n");
}

static void draw_wide_character(void)
{
    progress_setup(PROGRESS_AUTO);
    progress_begin("measuring", 47);
    progress_step(14, "a label thh\xc3\xa4t", 1000000);
    progress_end();
}

static void no_character_is_cut(void **state)
{
    (void)state;
    assert_string_equal(on_terminal(draw_wide_character), "\rsptune: measuring 14 of 47 a label thh\033[K\r\033[K");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_is_silent),
        cmocka_unit_test(plain_lines_say_what_how_far_and_how_long),
        cmocka_unit_test(the_pace_gives_an_estimate),
        cmocka_unit_test(a_terminal_line_is_redrawn_and_makes_way),
        cmocka_unit_test(no_character_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
