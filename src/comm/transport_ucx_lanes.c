/* comm/transport_ucx_lanes.c -- read the names of transports out of an endpoint's description.
 *
 *     lane[0]:  4:posix/memory0.0 md[1]   -> md[1]/posix/sysdev[255] am am_bw#0
 *     lane[1]:  6:cma/memory0.0   md[3]   -> md[3]/cma/sysdev[255] rma_bw#0
 */
#include "base/text.h"
#include "comm/transport_ucx.h"

#include <string.h>

static bool is_shared_memory(const char *name)
{
    static const char *const names[] = {"posix", "sysv", "cma", "knem", "xpmem"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* The name between the resource index and the device; "" when the line has another form. */
static void lane_name(const char *lane, char *name, size_t size)
{
    name[0] = '\0';
    const char *end_of_line = strchr(lane, '\n');
    const char *colon = strchr(lane, ':');
    const char *from = colon ? strchr(colon + 1, ':') : NULL;
    const char *to = from ? strchr(from, '/') : NULL;
    if (to && (!end_of_line || to < end_of_line))
        text_print(name, size, "%.*s", (int)(to - from - 1), from + 1);
}

/* Is `name` one of the '+' separated words already there? */
bool ucx_lanes_have(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = strstr(names, name); at; at = strstr(at + 1, name))
        if ((at == names || at[-1] == '+') && (at[len] == '\0' || at[len] == '+'))
            return true;
    return false;
}

/* To and from the host by cuda_copy, which is no lane between processes, and on by any other. An endpoint has the lane of cuda_ipc also
 * where UCX found that it cannot be used. */
static void print_staged(const char *lanes, char *name, size_t size)
{
    text_print(name, size, "ucx (staged: cuda_copy");
    for (size_t len; *lanes; lanes += len + (lanes[len] == '+')) {
        size_t used = strlen(name);
        len = strcspn(lanes, "+");
        if (strncmp(lanes, "cuda_", 5) != 0)
            text_print(name + used, size - used, "+%.*s", (int)len, lanes);
    }
    text_print(name + strlen(name), size - strlen(name), ")");
}

void ucx_name(enum dev_kind kind, const struct ucx_way *way, const char *lanes, char *name, size_t size)
{
    lanes = lanes[0] ? lanes : "unknown";
    if (kind != DEV_CUDA)
        text_print(name, size, "ucx %s%s", lanes, way->shm ? " shm" : "");
    else if (way->direct)
        text_print(name, size, "ucx (cuda_ipc)");
    else if (way->one_host)
        print_staged(lanes, name, size);
    else
        text_print(name, size, "ucx (%s)", lanes);
}

bool ucx_lanes(const char *info, char *names, size_t size)
{
    bool shared = true;
    names[0] = '\0';
    for (const char *lane = strstr(info, "lane["); lane; lane = strstr(lane + 1, "lane[")) {
        char name[24];
        lane_name(lane, name, sizeof name);
        if (!name[0] || ucx_lanes_have(names, name))
            continue;
        shared = shared && is_shared_memory(name);
        size_t used = strlen(names);
        text_print(names + used, size - used, "%s%s", used ? "+" : "", name);
    }
    return shared && names[0];
}
