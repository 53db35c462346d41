/* topo/source_hwloc.c -- "local": this machine, through hwloc.
 *
 * Only what is needed is discovered, so that an answer takes milliseconds: hwloc's parts that start GPU and display
 * libraries stay off (a driver that hangs must not hang `topo`), and distances, memory attributes and CPU kinds are not
 * asked.
 */
#include "topo/build.h"

#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool accepts(const char *from)
{
    return strcmp(from, "local") == 0;
}

/* hwloc's x86 part moves this thread over all CPUs to ask each: time that grows with the machine, and a disturbance for
 * whoever measures there. Where the kernel tells the caches itself (not in some sandboxes) there is nothing left to
 * ask. */
static bool kernel_tells_all(void)
{
    return access("/sys/devices/system/cpu/cpu0/cache/index0/size", R_OK) == 0 &&
           access("/sys/devices/system/cpu/cpu0/topology/core_id", R_OK) == 0;
}

static void leave_out(hwloc_topology_t machine, const char *component)
{
    /* Fails where that part is not installed, which is as good. */
    (void)hwloc_topology_set_components(machine, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
}

/* Nothing of a plugin (Debian's libhwloc-plugins: OpenCL, GL, X) is needed here, and some of them start threads, take a tenth of a
 * second, or leak. What is built into hwloc and does the same is left out by name: cuda and opencl start the CUDA driver, which ranks that this
 * process forks could not use any more. */
static enum status load(hwloc_topology_t machine)
{
    static const char *const slow[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
    unsigned long flags = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
                          HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS;
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++)
        leave_out(machine, slow[i]);
    if (kernel_tells_all())
        leave_out(machine, "x86");
    if (hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0 ||
        hwloc_topology_set_flags(machine, flags) != 0 || hwloc_topology_load(machine) != 0)
        return FAIL(STATUS_MACHINE, "hwloc %s cannot read this machine: %s", HWLOC_VERSION, strerror(errno));
    return STATUS_OK;
}

static enum status read_machine(hwloc_topology_t machine, struct topo *out)
{
    bool here = hwloc_topology_is_thissystem(machine);
    TRY(topo_from_hwloc(machine, here ? "" : NULL, out));
    text_print(out->source, sizeof out->source, "local: hwloc %s", HWLOC_VERSION);
    if (here)
        return STATUS_OK;
    return topo_warn(
        out, "hwloc's environment (HWLOC_XMLFILE, HWLOC_SYNTHETIC, HWLOC_FSROOT) describes another machine than "
             "this one");
}

static void without_plugins(void)
{
    setenv("HWLOC_PLUGINS_PATH", "", 0); /* read when the first topology is made */
}

static enum status read_local(const char *from, struct topo *out)
{
    hwloc_topology_t machine;
    (void)from;
    without_plugins();
    if (hwloc_topology_init(&machine) != 0)
        return FAIL(STATUS_NOMEM, "hwloc cannot start: %s", strerror(errno));
    enum status status = load(machine);
    if (status == STATUS_OK)
        status = read_machine(machine, out);
    hwloc_topology_destroy(machine);
    return status;
}

const struct topo_source topo_source_hwloc = {.name = "hwloc", .accepts = accepts, .read = read_local};
