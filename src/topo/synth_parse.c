/* topo/synth_parse.c -- reads synth: text (topo/synth.h); every complaint says where it is and what would be right. */
#include "topo/synth.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"
#include "topo/build.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char prefix[] = "synth:";

struct reader {
    const char *text;
    size_t at;
    struct synth *synth;
    unsigned seen;    /* options given: a bit each */
    size_t where[16]; /* and where */
    size_t pairs_cap;
    bool cpu;
};

static char peek(const struct reader *reader)
{
    return reader->text[reader->at];
}

/* Characters count from 1, as people count them. */
static enum status place(enum status status, const struct reader *reader, size_t at)
{
    size_t from = at > 24 ? at - 24 : 0;
    return WHERE(status, "character %zu of synth text: '%s%.*s' <here> '%.24s'", at + 1, from ? "..." : "",
                 (int)(at - from), reader->text + from, reader->text + at);
}

#define COMPLAIN(reader, at, right, ...) HINT(place(FAIL(STATUS_USAGE, __VA_ARGS__), reader, at), "%s", right)

static bool ends_value(char c)
{
    return c == '\0' || c == ',';
}

/* A plain whole number from min to max. */
static enum status read_number(struct reader *reader, const char *what, int min, int max, const char *right, int *out)
{
    size_t start = reader->at;
    int64_t value = 0;
    if (!isdigit((unsigned char)peek(reader)))
        return COMPLAIN(reader, start, right, "%s must be a whole number", what);
    for (; isdigit((unsigned char)peek(reader)); reader->at++)
        value = value > max ? value : value * 10 + (peek(reader) - '0');
    if (value < min || value > max)
        return HINT(place(FAIL(STATUS_USAGE, "%s must be from %d to %d", what, min, max), reader, start), "%s", right);
    *out = (int)value;
    return STATUS_OK;
}

static enum status read_end(struct reader *reader, const char *what, const char *right)
{
    if (ends_value(peek(reader)))
        return STATUS_OK;
    return COMPLAIN(reader, reader->at, right, "%s goes on with something else", what);
}

/* Copies the value up to the next comma; false when it does not fit. */
static bool copy_value(struct reader *reader, char *buf, size_t size)
{
    size_t len = strcspn(reader->text + reader->at, ",");
    if (len >= size)
        return false;
    memcpy(buf, reader->text + reader->at, len);
    buf[len] = '\0';
    reader->at += len;
    return true;
}

static enum status read_memory(struct reader *reader, const char *key, int64_t *out)
{
    char value[64] = "";
    size_t start = reader->at;
    if (!copy_value(reader, value, sizeof value))
        return COMPLAIN(reader, start, "write an amount such as 141GiB", "%s is too long", key);
    TRY(place(units_parse_memory(value, key, out), reader, start));
    if (*out < 1)
        return COMPLAIN(reader, start, "write an amount such as 141GiB", "%s must be more than nothing", key);
    return STATUS_OK;
}

static enum status option_nvlink(struct reader *reader)
{
    static const char right[] = "write the NVLinks of each GPU: nvlink=18";
    TRY(read_number(reader, "nvlink", 0, SYNTH_NVLINKS_MAX, right, &reader->synth->nvlinks));
    return read_end(reader, "nvlink", right);
}

static enum status read_pair(struct reader *reader, struct synth_pair *out)
{
    static const char right[] = "write pairs of GPU numbers of one host: pairs=0-4,1-5";
    struct synth *synth = reader->synth;
    size_t start = reader->at;
    TRY(read_number(reader, "the first GPU of a pair", 0, SYNTH_PER_HOST_MAX - 1, right, &out->a));
    if (peek(reader) != '-')
        return COMPLAIN(reader, reader->at, right, "a pair needs '-' between its GPUs");
    reader->at++;
    TRY(read_number(reader, "the second GPU of a pair", 0, SYNTH_PER_HOST_MAX - 1, right, &out->b));
    TRY(read_end(reader, "a pair", right));
    if (out->a >= synth->gpus || out->b >= synth->gpus)
        return HINT(place(FAIL(STATUS_USAGE, "GPU %d of a pair does not exist", out->a > out->b ? out->a : out->b),
                          reader, start),
                    "a host has GPUs 0 to %d", synth->gpus - 1);
    if (out->a == out->b)
        return COMPLAIN(reader, start, right, "GPU %d cannot be linked with itself", out->a);
    for (int i = 0; i < synth->npairs; i++) {
        const struct synth_pair *other = &synth->pairs[i];
        if ((other->a == out->a && other->b == out->b) || (other->a == out->b && other->b == out->a))
            return COMPLAIN(reader, start, "give each pair once", "pair %d-%d is given twice", out->a, out->b);
    }
    return STATUS_OK;
}

/* The list's commas are those of the options too: a pair follows while a digit does. */
static enum status option_pairs(struct reader *reader)
{
    struct synth *synth = reader->synth;
    for (;;) {
        struct synth_pair pair;
        TRY(read_pair(reader, &pair));
        TRY(mem_grow((void **)&synth->pairs, &reader->pairs_cap, (size_t)synth->npairs + 1, sizeof *synth->pairs));
        synth->pairs[synth->npairs++] = pair;
        if (peek(reader) != ',' || !isdigit((unsigned char)reader->text[reader->at + 1]))
            return STATUS_OK;
        reader->at++;
    }
}

static enum status option_mem(struct reader *reader)
{
    return read_memory(reader, "mem",
                       reader->cpu ? &reader->synth->host_memory_bytes : &reader->synth->gpu_memory_bytes);
}

static enum status option_hostmem(struct reader *reader)
{
    return read_memory(reader, "hostmem", &reader->synth->host_memory_bytes);
}

static enum status option_numa(struct reader *reader)
{
    static const char right[] = "write the NUMA nodes of a host: numa=2";
    TRY(read_number(reader, "numa", 1, SYNTH_NUMAS_MAX, right, &reader->synth->numas));
    return read_end(reader, "numa", right);
}

static enum status option_cpus(struct reader *reader)
{
    static const char right[] = "write the cores of a host: cpus=128";
    TRY(read_number(reader, "cpus", 1, SYNTH_CORES_MAX, right, &reader->synth->cores));
    return read_end(reader, "cpus", right);
}

static enum status option_nic(struct reader *reader)
{
    static const char right[] = "write count x network rate in Gbit/s: nic=8x400G";
    char value[64] = "";
    double gbit = 0;
    size_t count_at = reader->at, digits = strspn(reader->text + count_at, "0123456789");
    if (digits && reader->text[count_at + digits] != 'x') /* before the range: nic=400G is a rate without a count */
        return COMPLAIN(reader, count_at + digits, right, "nic needs 'x' between count and rate");
    TRY(read_number(reader, "the count of NICs", 1, SYNTH_NICS_MAX, right, &reader->synth->nics));
    size_t start = ++reader->at;
    bool fits = copy_value(reader, value, sizeof value);
    size_t len = strlen(value);
    if (!fits || len < 2 || value[len - 1] != 'G')
        return COMPLAIN(reader, start, right, "a network rate is a number and G");
    value[len - 1] = '\0';
    if (!isdigit((unsigned char)value[0]) || strpbrk(value, "eE+-"))
        return COMPLAIN(reader, start, right, "a network rate is a plain number and G");
    TRY(place(units_parse_double(value, "nic", 0.001, 1e5, &gbit), reader, start));
    reader->synth->nic_GBps = gbit / 8.0;
    return STATUS_OK;
}

enum option_row { NVLINK, PAIRS, MEM, HOSTMEM, NUMA, CPUS, NIC, OPTIONS };

static const struct option {
    const char *key;
    enum status (*read)(struct reader *reader);
    bool gpus_only;
} options[OPTIONS] = {
    [NVLINK] = {"nvlink", option_nvlink, true}, [PAIRS] = {"pairs", option_pairs, true},
    [MEM] = {"mem", option_mem, false},         [HOSTMEM] = {"hostmem", option_hostmem, true},
    [NUMA] = {"numa", option_numa, false},      [CPUS] = {"cpus", option_cpus, true},
    [NIC] = {"nic", option_nic, false},
};

static enum status no_option(const struct reader *reader, size_t len)
{
    const char *keys[OPTIONS];
    char word[32];
    for (int i = 0; i < OPTIONS; i++)
        keys[i] = options[i].key;
    text_print(word, sizeof word, "%.*s", (int)(len < sizeof word ? len : sizeof word - 1), reader->text + reader->at);
    const char *nearest = text_nearest(word, keys, OPTIONS);
    enum status status = place(FAIL(STATUS_USAGE, "'%s' is no option of synth:", word), reader, reader->at);
    if (nearest)
        return HINT(status, "did you mean %s=?", nearest);
    return HINT(status, "options are nvlink= pairs= mem= hostmem= numa= cpus= nic=");
}

static enum status read_option(struct reader *reader)
{
    size_t start = reader->at, len = strcspn(reader->text + start, "=,");
    int row = 0;
    while (row < OPTIONS &&
           (strlen(options[row].key) != len || strncmp(options[row].key, reader->text + start, len) != 0))
        row++;
    if (row == OPTIONS)
        return no_option(reader, len);
    if (reader->seen & 1u << row)
        return COMPLAIN(reader, start, "give each option once", "%s is given twice", options[row].key);
    if (reader->cpu && options[row].gpus_only)
        return COMPLAIN(reader, start, "a machine without GPUs takes mem= numa= nic=", "%s needs GPUs",
                        options[row].key);
    if (reader->text[start + len] != '=')
        return COMPLAIN(reader, start + len, "write key=value", "%s needs a value", options[row].key);
    reader->seen |= 1u << row;
    reader->where[row] = start;
    reader->at += len + 1;
    return options[row].read(reader);
}

/* Is there "DIGITS x" here? Then it is a count, else the name begins. */
static bool count_follows(const struct reader *reader)
{
    const char *text = reader->text + reader->at;
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && text[digits] == 'x' && !ends_value(text[digits + 1]);
}

static enum status read_name(struct reader *reader)
{
    struct synth *synth = reader->synth;
    size_t start = reader->at;
    static const char right[] = "write a GPU's name, or cpu: synth:8xH200";
    while (!ends_value(peek(reader))) {
        if (!isalnum((unsigned char)peek(reader)) && !strchr("-_. +/()", peek(reader)))
            return COMPLAIN(reader, reader->at, right, "this character cannot be part of a name");
        reader->at++;
    }
    size_t len = reader->at - start;
    if (len == 0 || len >= sizeof synth->name)
        return COMPLAIN(reader, start, right, len ? "the name is too long" : "the name of the device is missing");
    memcpy(synth->name, reader->text + start, len);
    synth->name[len] = '\0';
    reader->cpu = strcasecmp(synth->name, "cpu") == 0;
    return STATUS_OK;
}

static enum status read_machine(struct reader *reader)
{
    static const char right[] = "write hosts x GPUs x name: synth:2x8xH200, or synth:8xH200 for one host";
    struct synth *synth = reader->synth;
    size_t start[2] = {0};
    int counts[2] = {1, 1}, n = 0;
    for (; n < 2 && count_follows(reader); n++) {
        start[n] = reader->at;
        TRY(read_number(reader, "a count", 1, 1000000, right, &counts[n]));
        reader->at++;
    }
    if (n == 0)
        return COMPLAIN(reader, reader->at, right, "how many devices is missing");
    TRY(read_name(reader));
    synth->hosts = n == 2 ? counts[0] : 1;
    int each = counts[n - 1], most = reader->cpu ? SYNTH_CORES_MAX : SYNTH_PER_HOST_MAX;
    if (synth->hosts > SYNTH_HOSTS_MAX)
        return HINT(place(FAIL(STATUS_USAGE, "%d hosts are too many", synth->hosts), reader, start[0]),
                    "use 1 to %d hosts", SYNTH_HOSTS_MAX);
    if (each > most)
        return HINT(place(FAIL(STATUS_USAGE, "%d %s on one host are too many", each, reader->cpu ? "cores" : "GPUs"),
                          reader, start[n - 1]),
                    "use 1 to %d", most);
    if (reader->cpu) {
        synth->name[0] = '\0';
        synth->cores = each;
        return STATUS_OK;
    }
    synth->gpus = each;
    synth->cores = 16 * each;
    if (synth->hosts * each > SYNTH_GPUS_MAX)
        return HINT(place(FAIL(STATUS_USAGE, "%d GPUs in all are too many", synth->hosts * each), reader, start[0]),
                    "use %d or fewer", SYNTH_GPUS_MAX);
    return STATUS_OK;
}

/* What the name tells: memory, rate of a link. */
static enum status apply_kind(struct reader *reader)
{
    struct synth *synth = reader->synth;
    const struct topo_gpu_kind *kind = topo_gpu_kind(synth->name);
    if (!kind && synth->gpu_memory_bytes < 0)
        return HINT(
            place(FAIL(STATUS_USAGE, "the memory of a '%s' is not known", synth->name), reader, strlen(reader->text)),
            "add it, as in mem=80GiB");
    if (!kind)
        return STATUS_OK;
    text_print(synth->name, sizeof synth->name, "%s", kind->name);
    synth->nvlink_GBps = kind->nvlink_GBps;
    if (synth->gpu_memory_bytes < 0)
        synth->gpu_memory_bytes = kind->memory_bytes;
    return STATUS_OK;
}

/* What options say together. */
static enum status check_whole(struct reader *reader)
{
    struct synth *synth = reader->synth;
    if (synth->npairs && synth->nvlinks < 1)
        return COMPLAIN(reader, reader->where[PAIRS], "say how many links join a pair: nvlink=4",
                        "pairs without nvlink of at least 1");
    if (synth->numas == 0)
        synth->numas = synth->gpus >= 4 ? 2 : 1;
    if (synth->numas > synth->cores)
        return HINT(place(FAIL(STATUS_USAGE, "%d NUMA nodes with %d cores", synth->numas, synth->cores), reader,
                          reader->where[reader->seen & 1u << NUMA ? NUMA : CPUS]),
                    "use numa=%d or less", synth->cores);
    if ((int64_t)synth->hosts * synth->cores > SYNTH_ALL_CORES_MAX)
        return HINT(place(FAIL(STATUS_USAGE, "%d hosts of %d cores are too many", synth->hosts, synth->cores), reader,
                          strlen(prefix)),
                    "use %d cores in all, or fewer", SYNTH_ALL_CORES_MAX);
    return STATUS_OK;
}

enum status synth_parse(const char *text, struct synth *out)
{
    *out = (struct synth){
        .gpu_memory_bytes = -1, .host_memory_bytes = -1, .nvlinks = -1, .nvlink_GBps = -1.0, .nic_GBps = -1.0};
    struct reader reader = {.text = text, .at = strlen(prefix), .synth = out};
    if (strlen(text) > SYNTH_TEXT_MAX)
        return FAIL(STATUS_USAGE, "synth text of %zu characters: %d are the most", strlen(text), SYNTH_TEXT_MAX);
    TRY(read_machine(&reader));
    while (peek(&reader) == ',') {
        reader.at++;
        TRY(read_option(&reader));
    }
    if (!reader.cpu)
        TRY(apply_kind(&reader));
    return check_whole(&reader);
}

void synth_free(struct synth *synth)
{
    free(synth->pairs);
    *synth = (struct synth){0};
}
