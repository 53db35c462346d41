/* tests/base/test_file.c -- whole files or none, whatever the disk does. */
#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

static struct temp temp;

static int open_temp(void **state)
{
    (void)state;
    temp_open(&temp);
    return 0;
}

static int close_temp(void **state)
{
    (void)state;
    temp_close(&temp);
    return 0;
}

static void expect_content(const char *path, const char *content)
{
    char *text = NULL;
    size_t len = 0;
    CHECK_OK(file_read(path, 1 << 20, &text, &len));
    assert_int_equal(len, strlen(content));
    assert_string_equal(text, content);
    free(text);
}

static void files_come_back(void **state)
{
    (void)state;
    const char *path = temp_path(&temp, "a");
    assert_false(file_exists(path));
    CHECK_OK(file_write(path, "one", 3));
    assert_true(file_exists(path));
    expect_content(path, "one");
    CHECK_OK(file_write(path, "", 0));
    expect_content(path, "");
    assert_int_equal(temp_count(temp.dir), 1);
}

static void a_relative_path_and_a_long_name_work(void **state)
{
    (void)state;
    char name[256], *cwd = getcwd(NULL, 0);
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(chdir(temp.dir), 0);
    CHECK_OK(file_write(name, "x", 1));
    expect_content(name, "x");
    assert_int_equal(chdir(cwd), 0);
    free(cwd);
}

static void bad_paths_are_the_users(void **state)
{
    (void)state;
    char *text;
    size_t len;
    CHECK_FAILS(STATUS_USAGE, "No such file", file_read(temp_path(&temp, "none"), 10, &text, &len));
    assert_string_equal(status_last()->where, temp.path);
    CHECK_FAILS(STATUS_USAGE, "directory", file_read(temp.dir, 10, &text, &len));
    CHECK_FAILS(STATUS_USAGE, "larger than 1000", file_read("/dev/zero", 1000, &text, &len));
    CHECK_FAILS(STATUS_USAGE, "No such file", file_write(temp_path(&temp, "no/such/dir"), "x", 1));
    CHECK_FAILS(STATUS_USAGE, "directory", file_write(temp.dir, "x", 1));
    CHECK_FAILS(STATUS_USAGE, "No such file", file_read("", 10, &text, &len));
    CHECK_FAILS(STATUS_USAGE, "No such file", file_write("", "x", 1));
    temp_put(&temp, "plain", "12345");
    CHECK_FAILS(STATUS_USAGE, "Not a directory", file_write(temp_path(&temp, "plain/x"), "x", 1));
    CHECK_FAILS(STATUS_USAGE, "larger than 4", file_read(temp_path(&temp, "plain"), 4, &text, &len));
    CHECK_OK(file_read(temp_path(&temp, "plain"), 5, &text, &len));
    free(text);
    assert_int_equal(temp_count(temp.dir), 1);
}

static void a_full_device_is_io(void **state)
{
    (void)state;
    CHECK_FAILS(STATUS_IO, "No space", file_write("/dev/full", "x", 1));
    struct stat info;
    CHECK_OK(file_write("/dev/null", "x", 1));
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

enum { CHILD_FINE, CHILD_WRONG, CHILD_CANNOT_MOUNT };

/* Mounts live in the child's own namespace and end with it. */
static int fill_small_disk(const char *dir)
{
    static char block[1 << 20];
    char path[128], *text = NULL;
    size_t len;
    memset(block, 'x', sizeof block);
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return CHILD_CANNOT_MOUNT;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", dir, "tmpfs", 0, "size=64k") != 0)
        return CHILD_CANNOT_MOUNT;
    snprintf(path, sizeof path, "%s/report", dir);
    if (file_write(path, "old", 3) != STATUS_OK)
        return CHILD_WRONG;
    if (file_write(path, block, sizeof block) != STATUS_IO || !strstr(status_last()->what, "No space"))
        return CHILD_WRONG;
    if (file_read(path, 10, &text, &len) != STATUS_OK || strcmp(text, "old") != 0)
        return CHILD_WRONG;
    free(text);
    return temp_count(dir) == 1 ? CHILD_FINE : CHILD_WRONG;
}

static void a_full_disk_keeps_the_old_file(void **state)
{
    (void)state;
    int ended;
    pid_t child = fork();
    if (child == 0)
        _exit(fill_small_disk(temp.dir));
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    if (WEXITSTATUS(ended) == CHILD_CANNOT_MOUNT) {
        print_message("skipped: this process may not mount a small tmpfs\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(ended), CHILD_FINE);
}

static void links_and_modes_stay(void **state)
{
    (void)state;
    char target[1024], link_path[1024];
    struct stat info;
    strcpy(target, temp_path(&temp, "target"));
    strcpy(link_path, temp_path(&temp, "link"));
    temp_put(&temp, "target", "old");
    assert_int_equal(chmod(target, 0640), 0);
    assert_int_equal(symlink("target", link_path), 0);
    CHECK_OK(file_write(link_path, "new", 3));
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    expect_content(target, "new");
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0640);
    assert_int_equal(unlink(target), 0); /* a link to what is not there yet is a link all the same */
    CHECK_OK(file_write(link_path, "again", 5));
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    expect_content(target, "again");
    strcpy(link_path, temp_path(&temp, "lost"));
    assert_int_equal(symlink("nowhere/at/all", link_path), 0);
    CHECK_FAILS(STATUS_USAGE, "cannot write", file_write(link_path, "x", 1));
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
}

static void directories_are_made(void **state)
{
    (void)state;
    CHECK_OK(file_make_dirs(temp_path(&temp, "x/y//z/")));
    assert_true(file_exists(temp_path(&temp, "x/y/z")));
    CHECK_OK(file_make_dirs(temp.path));
    temp_put(&temp, "plain", "");
    CHECK_FAILS(STATUS_USAGE, "Not a directory", file_make_dirs(temp_path(&temp, "plain")));
    CHECK_FAILS(STATUS_USAGE, "Not a directory", file_make_dirs(temp_path(&temp, "plain/below")));
    CHECK_FAILS(STATUS_USAGE, "No such file", file_make_dirs(""));
    CHECK_OK(file_make_dirs("/"));
}

static enum status write_parts(void *arg, struct file_sink *sink)
{
    const int *parts = arg;
    for (int i = 0; i < *parts; i++)
        TRY(file_put(sink, "abc", i < 2 ? 3 : 0));
    return *parts > 3 ? FAIL(STATUS_NODATA, "no more parts") : STATUS_OK;
}

static void parts_become_a_file_or_leave_the_old_one(void **state)
{
    (void)state;
    char path[1024];
    int parts = 3;
    snprintf(path, sizeof path, "%s", temp_path(&temp, "parts"));
    CHECK_OK(file_write_by(path, write_parts, &parts));
    expect_content(path, "abcabc");
    parts = 4; /* the writer fails after it has written */
    CHECK_FAILS(STATUS_NODATA, "no more parts", file_write_by(path, write_parts, &parts));
    expect_content(path, "abcabc");
    assert_int_equal(temp_count(temp.dir), 1);
}

static void parts_of_a_file_are_read(void **state)
{
    (void)state;
    char path[1024], bytes[4] = "";
    int fd = -1;
    int64_t size = 0;
    temp_put(&temp, "in", "0123456789");
    snprintf(path, sizeof path, "%s", temp_path(&temp, "in"));
    CHECK_OK(file_open(path, &fd, &size));
    assert_int_equal(size, 10);
    CHECK_OK(file_read_at(fd, path, 7, bytes, 3));
    assert_string_equal(bytes, "789");
    assert_int_equal(truncate(path, 8), 0);
    CHECK_FAILS(STATUS_IO, "nothing from byte 8 on, 2 bytes", file_read_at(fd, path, 7, bytes, 3));
    close(fd);
    CHECK_FAILS(STATUS_USAGE, "No such file", file_open(temp_path(&temp, "none"), &fd, &size));
    CHECK_FAILS(STATUS_USAGE, "Is a directory", file_open(temp.dir, &fd, &size));
    assert_int_equal(mkfifo(temp_path(&temp, "pipe"), 0600), 0);
    CHECK_FAILS(STATUS_USAGE, "not a regular file", file_open(temp_path(&temp, "pipe"), &fd, &size));
}

static void hashes_are_sha256(void **state)
{
    (void)state;
    char hex[65];
    file_sha256("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    file_sha256("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void the_data_directory_follows_xdg(void **state)
{
    (void)state;
    char buf[256], tiny[4];
    setenv("HOME", "/home/me", 1);
    setenv("XDG_DATA_HOME", "/data", 1);
    CHECK_OK(file_data_dir(buf, sizeof buf));
    assert_string_equal(buf, "/data/sptune");
    CHECK_FAILS(STATUS_USAGE, "longer", file_data_dir(tiny, sizeof tiny));
    setenv("XDG_DATA_HOME", "relative", 1);
    CHECK_OK(file_data_dir(buf, sizeof buf));
    assert_string_equal(buf, "/home/me/.local/share/sptune");
    unsetenv("XDG_DATA_HOME");
    CHECK_OK(file_data_dir(buf, sizeof buf));
    assert_string_equal(buf, "/home/me/.local/share/sptune");
}

static void dash_is_stdin(void **state)
{
    (void)state;
    int saved = dup(STDIN_FILENO);
    temp_put(&temp, "in", "typed");
    int fd = open(temp_path(&temp, "in"), O_RDONLY);
    assert_true(fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    expect_content("-", "typed");
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(fd);
}

#define IN_TEMP(test) cmocka_unit_test_setup_teardown(test, open_temp, close_temp)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(files_come_back),
        IN_TEMP(a_relative_path_and_a_long_name_work),
        IN_TEMP(bad_paths_are_the_users),
        IN_TEMP(a_full_device_is_io),
        IN_TEMP(a_full_disk_keeps_the_old_file),
        IN_TEMP(links_and_modes_stay),
        IN_TEMP(directories_are_made),
        IN_TEMP(parts_become_a_file_or_leave_the_old_one),
        IN_TEMP(parts_of_a_file_are_read),
        cmocka_unit_test(hashes_are_sha256),
        cmocka_unit_test(the_data_directory_follows_xdg),
        IN_TEMP(dash_is_stdin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
