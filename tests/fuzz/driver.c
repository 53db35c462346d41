/* fuzz/driver.c -- runs a fuzz target without libFuzzer: the corpus, then seeded mutations of it.
 *
 *     fuzz_model DIR [RUNS [SEED]]       RUNS: how many mutations, or for how long, as 30s
 *
 * The target runs in a child. When that dies (a sanitizer, FUZZ_MUST, a crash) the input in work is written to
 * <program>-crash.bin in the working directory, so that it can be replayed: fuzz_model FILE. Exit: 0 fine, 1 it died.
 */
#include "fuzz/fuzz.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { INPUT_MAX = 1 << 18, SEEDS_MAX = 128, DEFAULT_RUNS = 20000 };

struct amount {
    long runs;
    int64_t seconds; /* 0: runs; else until they are over */
};

struct input {
    long runs; /* mutations before this input */
    size_t size;
    uint8_t bytes[INPUT_MAX];
};

struct seeds {
    int n;
    char *text[SEEDS_MAX];
    size_t size[SEEDS_MAX];
};

static struct input *now; /* shared with the parent */

/* Values that break what a number means, and pieces that parsers here treat specially. */
static const char *const words[] = {
    "0",
    "-1",
    "1e30",
    "9223372036854775807",
    "18446744073709551616",
    "0.5",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "..",
    ",",
    "*",
    "+",
    "=",
    "x",
    "k",
    "GiB",
    "s",
    ":",
    "-",
    "1e-9",
    "\\u0000",
    "[[[[",
    "{\"",
    "\xff",
    "%00",
    "\n",
    "nan",
    "inf",
    "0x10",
    " ",
    "4096",
    "1..9",
    "128",
};

static void run_one(const char *bytes, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1); /* no byte behind it: a read beyond the end is seen by asan */
    FUZZ_MUST(exact != NULL);
    now->size = size;
    memcpy(now->bytes, bytes, size);
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

/* ---- the corpus ---- */

static void add_seed(const char *path, struct seeds *seeds)
{
    if (seeds->n < SEEDS_MAX && file_read(path, INPUT_MAX, &seeds->text[seeds->n], &seeds->size[seeds->n]) == STATUS_OK)
        seeds->n++;
    else
        fprintf(stderr, "fuzz: cannot take %s: %s\n", path, status_last()->what);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* In the order of names: the same everywhere. */
static void read_corpus(const char *path, struct seeds *seeds)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, by_name);
    if (n < 0)
        add_seed(path, seeds);
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            add_seed(file, seeds);
        free(entries[i]);
    }
    free(entries);
}

/* ---- mutations: each takes text[*size] in place, room for INPUT_MAX ---- */

static void splice_in(char *text, size_t *size, size_t at, size_t remove, const char *put, size_t n)
{
    if (*size - remove + n > INPUT_MAX)
        return;
    memmove(text + at + n, text + at + remove, *size - at - remove);
    memcpy(text + at, put, n);
    *size = *size - remove + n;
}

static void change_bytes(struct rng *rng, char *text, size_t *size)
{
    for (int64_t n = rng_below(rng, 4); n >= 0 && *size > 0; n--)
        text[rng_below(rng, (int64_t)*size)] = (char)rng_below(rng, 256);
}

static void cut(struct rng *rng, char *text, size_t *size)
{
    if (*size == 0)
        return;
    size_t at = (size_t)rng_below(rng, (int64_t)*size), most = *size - at < 64 ? *size - at : 64;
    splice_in(text, size, at, 1 + (size_t)rng_below(rng, (int64_t)most), "", 0);
}

static void put_word(struct rng *rng, char *text, size_t *size)
{
    const char *word = words[rng_below(rng, sizeof words / sizeof words[0])];
    splice_in(text, size, (size_t)rng_below(rng, (int64_t)*size + 1), 0, word, strlen(word));
}

/* A number becomes another: the text stays what it was, its meaning breaks. */
static void replace_number(struct rng *rng, char *text, size_t *size)
{
    static const char digits[] = "0123456789";
    size_t at = (size_t)rng_below(rng, (int64_t)*size + 1), n = 0;
    while (at < *size && strchr(digits, text[at]) == NULL)
        at++;
    while (at + n < *size && text[at + n] != '\0' && strchr(digits, text[at + n]) != NULL)
        n++;
    const char *word = words[rng_below(rng, sizeof words / sizeof words[0])];
    if (n > 0)
        splice_in(text, size, at, n, word, strlen(word));
}

static void splice_seed(struct rng *rng, const struct seeds *seeds, char *text, size_t *size)
{
    int other = (int)rng_below(rng, seeds->n);
    size_t from = (size_t)rng_below(rng, (int64_t)seeds->size[other] + 1), n = seeds->size[other] - from;
    n = n > 256 ? 256 : n;
    splice_in(text, size, (size_t)rng_below(rng, (int64_t)*size + 1), 0, seeds->text[other] + from, n);
}

static void mutate(struct rng *rng, const struct seeds *seeds, char *text, size_t *size)
{
    switch (rng_below(rng, 5)) {
    case 0:
        change_bytes(rng, text, size);
        break;
    case 1:
        cut(rng, text, size);
        break;
    case 2:
        put_word(rng, text, size);
        break;
    case 3:
        replace_number(rng, text, size);
        break;
    default:
        splice_seed(rng, seeds, text, size);
        break;
    }
}

static void run_all(const struct seeds *seeds, struct amount amount, uint64_t seed)
{
    static char text[INPUT_MAX];
    struct rng rng;
    int64_t deadline_ns = clock_deadline(amount.seconds * 1000000);
    rng_seed(&rng, seed, 0);
    run_one("", 0);
    for (int i = 0; i < seeds->n; i++)
        run_one(seeds->text[i], seeds->size[i]);
    for (; amount.seconds > 0 ? !clock_passed(deadline_ns) : now->runs < amount.runs; now->runs++) {
        int from = (int)rng_below(&rng, seeds->n);
        size_t size = seeds->size[from];
        memcpy(text, seeds->text[from], size);
        for (int64_t n = rng_below(&rng, 4); n >= 0; n--)
            mutate(&rng, seeds, text, &size);
        run_one(text, size);
    }
}

/* ---- the child and its death ---- */

static int report_death(const char *program, int status)
{
    char path[4096];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%s-crash.bin", slash != NULL ? slash + 1 : program);
    bool kept = file_write(path, (const char *)now->bytes, now->size) == STATUS_OK;
    fprintf(stderr, "fuzz: died (%s %d) on an input of %zu bytes, %s %s\n", WIFSIGNALED(status) ? "signal" : "exit",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), now->size, kept ? "kept as" : "not kept as",
            path);
    return 1;
}

static struct amount read_amount(const char *text)
{
    char *end = NULL;
    long n = strtol(text, &end, 10);
    return *end == 's' ? (struct amount){.seconds = n} : (struct amount){.runs = n};
}

int main(int argc, char **argv)
{
    struct seeds seeds = {0};
    struct stat about;
    int status = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIR|FILE [RUNS|SECONDSs [SEED]]\n", argv[0]);
        return 2;
    }
    bool directory = stat(argv[1], &about) == 0 && S_ISDIR(about.st_mode);
    read_corpus(argv[1], &seeds);
    if (seeds.n == 0) {
        fprintf(stderr, "fuzz: no input at %s\n", argv[1]);
        return 2;
    }
    struct amount amount = {.runs = directory ? DEFAULT_RUNS : 0};
    if (argc > 2)
        amount = read_amount(argv[2]);
    now = mmap(NULL, sizeof *now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FUZZ_MUST(now != MAP_FAILED);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        run_all(&seeds, amount, argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
        for (int i = 0; i < seeds.n; i++)
            free(seeds.text[i]);
        exit(0); /* with its look for leaks */
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    for (int i = 0; i < seeds.n; i++)
        free(seeds.text[i]);
    if (pid < 0 || status != 0)
        return report_death(argv[0], status);
    printf("fuzz: %d inputs of the corpus and %ld mutations\n", seeds.n, now->runs);
    return 0;
}
