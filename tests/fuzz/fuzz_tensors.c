/* fuzz/fuzz_tensors.c -- safetensors and indexes of shards: what is accepted covers its file and can be read, element by element.
 *
 * By the first byte: 'h', a header, a newline, data, made into a file whose length is right; 'i' an index, beside a whole shard that it
 * may name (a.safetensors); else the file itself.
 */
#include "fuzz/fuzz.h"

#include "train/tensors.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WHOLE, INDEX, SHARD, FILES };
static const char *const names[FILES] = {"whole.safetensors", "i.json", "a.safetensors"};
static char dir[] = "/tmp/sptune-fuzz-XXXXXX", path[FILES][64];
static int fd[FILES];

static void put(int file, const void *bytes, size_t size)
{
    FUZZ_MUST(ftruncate(fd[file], 0) == 0 && pwrite(fd[file], bytes, size, 0) == (ssize_t)size);
}

static void remove_all(void)
{
    for (int i = 0; i < FILES; i++)
        unlink(path[i]);
    rmdir(dir);
}

/* A length that is right, a header, data; from a header, a newline, data. */
static void put_whole(const uint8_t *data, size_t size)
{
    char *header = fuzz_line(&data, &size);
    size_t n = strlen(header);
    char *bytes = malloc(8 + n + size);
    FUZZ_MUST(bytes != NULL);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, header, n);
    if (size > 0)
        memcpy(bytes + 8 + n, data, size);
    put(WHOLE, bytes, 8 + n + size);
    free(bytes);
    free(header);
}

/* Once: links to files in memory, as a disk would be what takes the time. */
static void make_dir(void)
{
    static const char header[] = "{\"w\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
                                 "\"v\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]}}";
    char bytes[8 + sizeof header - 1 + 12] = {sizeof header - 1}, target[32];
    if (path[0][0])
        return;
    FUZZ_MUST(mkdtemp(dir) != NULL && sizeof header < 128);
    for (int i = 0; i < FILES; i++) {
        fd[i] = memfd_create(names[i], MFD_CLOEXEC);
        snprintf(path[i], sizeof path[i], "%s/%s", dir, names[i]);
        snprintf(target, sizeof target, "/proc/self/fd/%d", fd[i]);
        FUZZ_MUST(fd[i] >= 0 && symlink(target, path[i]) == 0);
    }
    memcpy(bytes + 8, header, sizeof header - 1);
    put(SHARD, bytes, sizeof bytes);
    atexit(remove_all);
}

static void check_entry(const struct tensors *tensors, const struct tensors_entry *entry)
{
    float value[64];
    struct stat info;
    int64_t elems = 1;
    FUZZ_MUST(stat(tensors_path(tensors, entry), &info) == 0);
    FUZZ_MUST(entry->offset >= 8 && entry->bytes >= 0 && entry->offset + entry->bytes <= info.st_size);
    FUZZ_MUST(entry->dims >= 0 && entry->dims <= TENSORS_DIMS_MAX);
    for (int i = 0; i < entry->dims; i++)
        elems *= entry->shape[i];
    FUZZ_MUST(entry->elems == elems);
    if (!entry->readable) {
        fuzz_refused(tensors_read(tensors, entry, 0, 0, DTYPE_FP32, value), STATUS_USAGE, STATUS_USAGE);
        return;
    }
    FUZZ_MUST(entry->bytes == elems * dtype_bytes(entry->dtype));
    for (int64_t first = 0; first < elems; first += 64) {
        int64_t n = elems - first < 64 ? elems - first : 64;
        FUZZ_MUST(tensors_read(tensors, entry, first, n, DTYPE_FP32, value) == STATUS_OK);
        FUZZ_MUST(tensors_read(tensors, entry, first, n, DTYPE_FP16, value) == STATUS_OK);
    }
    FUZZ_MUST(tensors_read(tensors, entry, elems, 1, DTYPE_FP32, value) == STATUS_USAGE);
}

static void check_all(const struct tensors *tensors)
{
    int n = tensors_count(tensors);
    for (int i = 0; i < n; i++) {
        const struct tensors_entry *entry = tensors_at(tensors, i), *needed = NULL;
        FUZZ_MUST(i == 0 || strcmp(tensors_at(tensors, i - 1)->name, entry->name) < 0);
        FUZZ_MUST(tensors_find(tensors, entry->name) == entry);
        enum status status = tensors_need(tensors, entry->name, entry->dims, entry->shape, &needed);
        FUZZ_MUST(entry->readable ? status == STATUS_OK && needed == entry : status == STATUS_USAGE);
        check_entry(tensors, entry);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensors *tensors = NULL;
    char kind = size > 0 ? (char)data[0] : '\0';
    int file = kind == 'i' ? INDEX : WHOLE;
    fuzz_quiet();
    make_dir();
    if (kind == 'h')
        put_whole(data + 1, size - 1);
    else
        put(file, data + (file == INDEX), size - (file == INDEX));
    enum status status = tensors_open(path[file], &tensors);
    if (status == STATUS_OK)
        check_all(tensors);
    else
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    tensors_close(tensors);
    return 0;
}
