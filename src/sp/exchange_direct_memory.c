/* sp/exchange_direct_memory.c -- buffers that peers can reach: an arena of windows.
 *
 * What is asked for shares a window that is larger than the one before, from the smallest one below to the largest; what would take more
 * than half of it has a window of its own size. What is freed is not handed out again; a window ends with the last buffer in it.
 */
#include "sp/exchange_direct.h"

#include "base/mem.h"

#include <stdlib.h>

enum { WINDOW_FIRST_BYTES = 256 * 1024, WINDOW_SHARED_BYTES = 16 << 20 };

static size_t round_up(size_t bytes)
{
    return (bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Of the window for `bytes` that comes after `before` others. */
static size_t window_size(int before, size_t bytes)
{
    size_t share = WINDOW_FIRST_BYTES;
    for (int i = 0; i < before && share < WINDOW_SHARED_BYTES; i++)
        share *= 2;
    return bytes > share / 2 ? bytes : share;
}

static enum status window_add(struct direct_memory *memory, size_t bytes, const char *what)
{
    void *windows = memory->windows;
    enum status status = mem_grow(&windows, &memory->cap, (size_t)memory->n + 1, sizeof *memory->windows);
    memory->windows = windows;
    TRY(comm_agree(memory->group, status, "keep track of a window"));
    struct direct_window add = {.used = 0};
    TRY(window_create(memory->group, window_size(memory->n, bytes), what, &add.window));
    memory->windows[memory->n++] = add;
    return STATUS_OK;
}

/* Beside what is asked for there are ends of windows that the next buffer was too large for: for the 16 buffers of a layer at most 1.5 times
 * as much, and no more than three of the largest shared windows. */
size_t direct_memory_room(size_t bytes)
{
    size_t most = 3 * (size_t)WINDOW_SHARED_BYTES, ends = bytes < most ? bytes + bytes / 2 + WINDOW_FIRST_BYTES : most;
    return bytes + (ends < most ? ends : most);
}

size_t direct_memory_windows(const size_t *bytes, int n)
{
    size_t all = 0, left = 0;
    int windows = 0;
    for (int i = 0; i < n; i++) {
        size_t take = round_up(bytes[i] > 0 ? bytes[i] : 1);
        if (take > left) {
            left = window_size(windows++, take);
            all += left;
        }
        left -= take;
    }
    return all;
}

static bool last_has(const struct direct_memory *memory, size_t bytes)
{
    const struct direct_window *last = memory->n > 0 ? &memory->windows[memory->n - 1] : NULL;
    return last != NULL && last->window != NULL && bytes <= window_bytes(last->window) - last->used;
}

enum status direct_memory_alloc(struct direct_memory *memory, size_t bytes, const char *what, void **out)
{
    if (bytes > SIZE_MAX / 4)
        return FAIL(STATUS_UNSUPPORTED, "no machine has %zu bytes for %s", bytes, what);
    size_t take = round_up(bytes > 0 ? bytes : 1);
    if (!last_has(memory, take))
        TRY(window_add(memory, take, what));
    struct direct_window *last = &memory->windows[memory->n - 1];
    *out = (char *)window_local(last->window) + last->used;
    last->used += take;
    last->live++;
    return STATUS_OK;
}

static struct direct_window *find(const struct direct_memory *memory, const void *local)
{
    uintptr_t at = (uintptr_t)local;
    for (int i = 0; i < memory->n; i++) {
        struct direct_window *window = &memory->windows[i];
        if (window->window == NULL)
            continue;
        uintptr_t base = (uintptr_t)window_local(window->window);
        if (at >= base && at - base < window->used)
            return window;
    }
    return NULL;
}

/* The last window stays, whatever other ranks have freed by now: all go on from the same place. */
void direct_memory_free(struct direct_memory *memory, void *local)
{
    struct direct_window *window = local != NULL ? find(memory, local) : NULL;
    if (window == NULL || --window->live > 0 || window == &memory->windows[memory->n - 1])
        return;
    window_destroy(window->window);
    window->window = NULL;
}

void direct_memory_destroy(struct direct_memory *memory)
{
    for (int i = memory->n - 1; i >= 0; i--)
        window_destroy(memory->windows[i].window);
    free(memory->windows);
    *memory = (struct direct_memory){.group = memory->group};
}

char *direct_memory_at(const struct direct_memory *memory, int rank, const void *local)
{
    const struct direct_window *window = find(memory, local);
    if (window == NULL)
        return NULL;
    return (char *)window_peer(window->window, rank) + ((uintptr_t)local - (uintptr_t)window_local(window->window));
}
