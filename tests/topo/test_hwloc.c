/* tests/topo/test_hwloc.c -- machines that we do not have, through hwloc: its one-line descriptions, and its XML with
 * PCI. */
#include "topo/make.h"

#include "base/temp.h"
#include "base/text.h"

static struct topo from_synthetic(const char *description)
{
    struct topo topo = {0};
    hwloc_topology_t machine;
    assert_int_equal(hwloc_topology_init(&machine), 0);
    assert_int_equal(hwloc_topology_set_synthetic(machine, description), 0);
    assert_int_equal(hwloc_topology_load(machine), 0);
    CHECK_OK(topo_from_hwloc(machine, NULL, &topo));
    hwloc_topology_destroy(machine);
    return topo;
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *description;
        int packages, numas, cores, pus, l3_count;
        int64_t l1d_bytes, l2_bytes, l3_bytes;
        const char *last_numa, *last_core;
    } rows[] = {
        {"package:1 numa:1 core:4 pu:1", 1, 1, 4, 4, 0, -1, -1, -1, "0-3", "3"},
        {"package:2 numa:1 l3:1(size=33554432) l2:8(size=1048576) l1d:1(size=32768) core:1 pu:2", 2, 2, 16, 32, 2,
         32 << 10, 1 << 20, 32 << 20, "16-31", "30-31"},
        {"package:2 numa:4 l3:2(size=16777216) core:4 pu:2", 2, 8, 64, 128, 16, -1, -1, 16 << 20, "112-127", "126-127"},
        {"numa:1 core:64 pu:4", 1, 1, 64, 256, 0, -1, -1, -1, "0-255", "252-255"},
        {"pu:3", 1, 1, 3, 3, 0, -1, -1, -1, "0-2", "2"}, /* no cores told: every thread is one */
        {"package:1 core:2 pu:2(indexes=0,2,1,3)", 1, 1, 2, 4, 0, -1, -1, -1, "0-3", "1,3"},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct topo topo = from_synthetic(rows[i].description);
        const struct topo_host *host = &topo.hosts[0];
        if (host->packages != rows[i].packages || topo.nnumas != rows[i].numas || host->cores != rows[i].cores ||
            topo.ncores != rows[i].cores || host->pus != rows[i].pus || host->pus_allowed != rows[i].pus ||
            host->l3_count != rows[i].l3_count || host->l1d_bytes != rows[i].l1d_bytes ||
            host->l2_bytes != rows[i].l2_bytes || host->l3_bytes != rows[i].l3_bytes)
            fail_msg("%s: %d packages %d nodes %d cores %d pus, %d L3 of %lld, L2 %lld, L1d %lld", rows[i].description,
                     host->packages, topo.nnumas, host->cores, host->pus, host->l3_count, (long long)host->l3_bytes,
                     (long long)host->l2_bytes, (long long)host->l1d_bytes);
        assert_string_equal(topo.numas[topo.nnumas - 1].cpus, rows[i].last_numa);
        assert_string_equal(topo.cores[topo.ncores - 1].cpus, rows[i].last_core);
        assert_int_equal(host->memory_limit_bytes, -1);
        assert_int_equal(host->quota_version, 0);
        assert_int_equal(topo.ngpus, 0);
        topo_free(&topo);
    }
}

static void test_cores_know_their_place(void **state)
{
    (void)state;
    struct topo topo = from_synthetic("package:2 numa:2 l3:1 core:3 pu:1");
    for (int i = 0; i < 12; i++) {
        assert_int_equal(topo.cores[i].package, i / 6);
        assert_int_equal(topo.cores[i].numa, i / 3);
        assert_int_equal(topo.cores[i].l3, i / 3);
        assert_int_equal(topo.cores[i].pus, 1);
    }
    char **slots = NULL;
    CHECK_OK(topo_cpu_slots(&topo, 4, &slots));
    assert_string_equal(slots[3], "9-11");
    topo_free_slots(slots, 4);
    topo_free(&topo);
}

/* hwloc's XML, written as the machine is walked. */
struct xml {
    struct text text;
    int gp; /* every object needs a number of its own */
};

#define SETS "cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" complete_nodeset=\"0x%x\""

static void xml_open(struct xml *xml, const char *type, int index, unsigned cpus, unsigned nodes)
{
    text_add(&xml->text, "<object type=\"%s\" os_index=\"%d\" " SETS " gp_index=\"%d\">\n", type, index, cpus, cpus,
             nodes, nodes, ++xml->gp);
}

static void xml_close(struct xml *xml)
{
    text_add(&xml->text, "</object>\n");
}

static void xml_info(struct xml *xml, const char *name, const char *value)
{
    text_add(&xml->text, "<info name=\"%s\" value=\"%s\"/>\n", name, value);
}

static void xml_begin(struct xml *xml, unsigned cpus, unsigned allowed, unsigned nodes)
{
    *xml = (struct xml){.gp = 1};
    text_add(&xml->text,
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
             "<topology version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" " SETS " allowed_cpuset=\"0x%x\" "
             "allowed_nodeset=\"0x%x\" gp_index=\"1\">\n",
             cpus, cpus, nodes, nodes, allowed, nodes);
    xml_info(xml, "HostName", "made &lt;host&gt; &amp; \xc3\xa9");
}

static void xml_node(struct xml *xml, int index, unsigned cpus, const char *subtype, int64_t memory)
{
    text_add(&xml->text,
             "<object type=\"NUMANode\" os_index=\"%d\" " SETS " gp_index=\"%d\" local_memory=\"%lld\"%s%s%s/>\n",
             index, cpus, cpus, 1u << index, 1u << index, ++xml->gp, (long long)memory, *subtype ? " subtype=\"" : "",
             subtype, *subtype ? "\"" : "");
}

static void xml_core(struct xml *xml, int index, unsigned cpus, unsigned nodes)
{
    xml_open(xml, "Core", index, cpus, nodes);
    for (int pu = 0; pu < 32; pu++)
        if (cpus & 1u << pu) {
            xml_open(xml, "PU", pu, 1u << pu, nodes);
            xml_close(xml);
        }
    xml_close(xml);
}

/* A host bridge, or a PCI bridge at bus:dev over buses [from, to]. */
static void xml_host_bridge(struct xml *xml, int from, int to)
{
    text_add(
        &xml->text,
        "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[%02x-%02x]\">\n",
        ++xml->gp, (unsigned)from, (unsigned)to);
}

static void xml_pci_bridge(struct xml *xml, int depth, int bus, int dev, int from, int to)
{
    text_add(
        &xml->text,
        "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"%d\" "
        "bridge_pci=\"0000:[%02x-%02x]\" pci_busid=\"0000:%02x:%02x.0\" pci_type=\"0604 [1000:c030] [0000:0000] 00\" "
        "pci_link_speed=\"0.0\">\n",
        ++xml->gp, depth, (unsigned)from, (unsigned)to, (unsigned)bus, (unsigned)dev);
}

static void xml_pci_at(struct xml *xml, int bus, int slot, unsigned class_id, unsigned vendor, unsigned device)
{
    text_add(&xml->text,
             "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:%02x.0\" "
             "pci_type=\"%04x [%04x:%04x] [0000:0000] 00\" pci_link_speed=\"0.0\">\n",
             ++xml->gp, (unsigned)bus, (unsigned)slot, class_id, vendor, device);
}

static void xml_pci(struct xml *xml, int bus, unsigned class_id, unsigned vendor, unsigned device)
{
    xml_pci_at(xml, bus, 0, class_id, vendor, device);
}

enum { OSDEV_NETWORK = 2, OSDEV_OPENFABRICS = 3 };

static void xml_osdev(struct xml *xml, const char *name, int type)
{
    text_add(&xml->text, "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"%d\"/>\n", ++xml->gp, name,
             type);
}

static struct topo from_xml(struct xml *xml, const char *root)
{
    struct topo topo = {0};
    hwloc_topology_t machine;
    text_add(&xml->text, "</object>\n</topology>\n");
    CHECK_OK(text_status(&xml->text));
    assert_int_equal(hwloc_topology_init(&machine), 0);
    assert_int_equal(hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT), 0);
    assert_int_equal(hwloc_topology_set_flags(machine, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED), 0);
    assert_int_equal(hwloc_topology_set_xmlbuffer(machine, xml->text.s, (int)xml->text.len + 1), 0);
    assert_int_equal(hwloc_topology_load(machine), 0);
    CHECK_OK(topo_from_hwloc(machine, root, &topo));
    hwloc_topology_destroy(machine);
    text_free(&xml->text);
    return topo;
}

/* GPU and NIC below their own ports of one switch; the switch below a root port. Buses from `bus` on, 8 of them. */
static void add_switch(struct xml *xml, int bus, const char *nic, bool driver)
{
    xml_pci_bridge(xml, 1, bus, 1, bus + 1, bus + 7);     /* root port */
    xml_pci_bridge(xml, 2, bus + 1, 0, bus + 2, bus + 7); /* upstream port */
    for (int port = 0; port < 2; port++) {
        xml_pci_bridge(xml, 3, bus + 2, port, bus + 3 + port, bus + 3 + port);
        xml_pci(xml, bus + 3 + port, 0x0302, 0x10de, 0x2335);
        xml_close(xml);
        xml_close(xml);
    }
    xml_pci_bridge(xml, 3, bus + 2, 2, bus + 5, bus + 5);
    xml_pci(xml, bus + 5, 0x0207, 0x15b3, 0x1021);
    if (driver) {
        xml_osdev(xml, nic, OSDEV_OPENFABRICS);
        xml_osdev(xml, "ib0", OSDEV_NETWORK);
    }
    xml_close(xml);
    xml_close(xml);
    xml_close(xml);
    xml_close(xml);
}

/* Two packages of two cores; two switches with two GPUs each on the first, one on the second; a VGA of the management.
 */
static struct topo gpu_server(const char *root, unsigned allowed)
{
    struct xml xml;
    xml_begin(&xml, 0xf, allowed, 0x3);
    for (int package = 0; package < 2; package++) {
        unsigned cpus = 0x3u << 2 * package, nodes = 1u << package;
        xml_open(&xml, "Package", package, cpus, nodes);
        xml_info(&xml, "CPUModel", "Made CPU 9000");
        xml_node(&xml, package, cpus, "", INT64_C(1) << 40);
        xml_core(&xml, 0, 1u << 2 * package, nodes);
        xml_core(&xml, 1, 2u << 2 * package, nodes);
        if (package == 0) {
            xml_host_bridge(&xml, 0x80, 0x8f); /* not in bus order on purpose */
            add_switch(&xml, 0x80, "mlx5_1", true);
            xml_close(&xml);
            xml_host_bridge(&xml, 0x10, 0x1f);
            add_switch(&xml, 0x10, "mlx5_0", true);
            add_switch(&xml, 0x18, "", false);
            xml_close(&xml);
            xml_host_bridge(&xml, 0x00, 0x01);
            xml_pci_bridge(&xml, 1, 0, 0x1c, 1, 1);
            xml_pci(&xml, 0x01, 0x0300, 0x1a03, 0x2000);
            xml_close(&xml);
            xml_close(&xml);
            xml_close(&xml);
        } else {
            xml_host_bridge(&xml, 0xc0, 0xcf);
            add_switch(&xml, 0xc0, "mlx5_2", true);
            xml_close(&xml);
        }
        xml_close(&xml);
    }
    return from_xml(&xml, root);
}

static void check_link(const struct topo *topo, int a, int b, enum topo_link_class link)
{
    if (topo_link_at(topo, a, b)->link != link || topo_link_at(topo, b, a)->link != link)
        fail_msg("GPUs %d and %d: %s, expected %s", a, b, topo_link_name(topo_link_at(topo, a, b)->link),
                 topo_link_name(link));
}

static void test_gpu_server(void **state)
{
    (void)state;
    struct topo topo = gpu_server(NULL, 0xf);
    static const char *const busids[8] = {"0000:13:00.0", "0000:14:00.0", "0000:1b:00.0", "0000:1c:00.0",
                                          "0000:83:00.0", "0000:84:00.0", "0000:c3:00.0", "0000:c4:00.0"};
    assert_int_equal(topo.ngpus, 8);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(topo.gpus[i].busid, busids[i]); /* bus order, whatever the file's order */
        assert_string_equal(topo.gpus[i].name, "10de:2335");
        assert_int_equal(topo.gpus[i].numa, i >= 6);
        assert_string_equal(topo.gpus[i].cpus, topo.numas[i >= 6].cpus);
        assert_int_equal(topo.gpus[i].memory_bytes, -1);
        assert_int_equal(topo.gpus[i].nvlinks, -1);
        assert_false(topo.gpus[i].driver);
    }
    check_link(&topo, 0, 0, TOPO_LINK_SELF);
    check_link(&topo, 0, 1, TOPO_LINK_PIX);
    check_link(&topo, 0, 2, TOPO_LINK_PHB);
    check_link(&topo, 0, 4, TOPO_LINK_NODE);
    check_link(&topo, 3, 5, TOPO_LINK_NODE);
    check_link(&topo, 0, 6, TOPO_LINK_SYS);
    check_link(&topo, 6, 7, TOPO_LINK_PIX);
    assert_string_equal(topo.hosts[0].cpu_model, "Made CPU 9000");
    assert_string_equal(topo.hosts[0].name, "made <host> & \xc3\xa9");
    assert_int_equal(topo.hosts[0].memory_bytes, INT64_C(2) << 40);
    assert_int_equal(topo.nwarnings, 1);
    assert_non_null(strstr(topo.warnings[0], "8 GPUs seen on PCI (first 10de:2335 at 0000:13:00.0)"));
    /* NICs: the verbs name, one row per function, and the one without a driver. */
    assert_int_equal(topo.nnics, 4);
    assert_string_equal(topo.nics[0].name, "mlx5_0");
    assert_string_equal(topo.nics[1].name, "15b3:1021");
    assert_string_equal(topo.nics[2].name, "mlx5_1");
    assert_string_equal(topo.nics[3].busid, "0000:c5:00.0");
    assert_int_equal(topo.nics[3].numa, 1);
    assert_true(topo.nics[0].GBps < 0); /* another machine: nothing is read from this one's /sys */
    int order[8];
    CHECK_OK(topo_rank_order(&topo, 8, 2, order));
    assert_int_equal(topo_group_link(&topo, order, 8, 2), TOPO_LINK_PIX);
    topo_free(&topo);
}

/* Two switches in a row, and functions of one bus below the host bridge. */
static void test_far_switches(void **state)
{
    (void)state;
    struct xml xml;
    xml_begin(&xml, 0x1, 0x1, 0x1);
    xml_node(&xml, 0, 0x1, "", 1 << 30);
    xml_core(&xml, 0, 0x1, 0x1);
    xml_host_bridge(&xml, 0x10, 0x2f);
    xml_pci_bridge(&xml, 1, 0x10, 1, 0x11, 0x1f);
    for (int side = 0; side < 2; side++) {
        int bus = 0x12 + 4 * side;
        xml_pci_bridge(&xml, 2, 0x11, side, bus, bus + 3);
        xml_pci_bridge(&xml, 3, bus, 0, bus + 1, bus + 2);
        xml_pci(&xml, bus + 1, 0x0302, 0x10de, 0x20b2);
        xml_close(&xml);
        xml_close(&xml);
        xml_close(&xml);
    }
    xml_close(&xml);
    xml_pci(&xml, 0x10, 0x0300, 0x10de, 0x2204);
    xml_close(&xml);
    xml_close(&xml);
    struct topo topo = from_xml(&xml, NULL);
    assert_int_equal(topo.ngpus, 3);
    check_link(&topo, 1, 2, TOPO_LINK_PXB);
    check_link(&topo, 0, 1, TOPO_LINK_PHB);
    topo_free(&topo);
}

/* A virtual machine with two GPUs handed to it, as one was seen: everything on bus 0, disks and network by virtio. */
static void test_virtual_machine(void **state)
{
    (void)state;
    struct xml xml;
    xml_begin(&xml, 0x3, 0x3, 0x1);
    xml_open(&xml, "Package", 0, 0x3, 0x1);
    xml_node(&xml, 0, 0x3, "", INT64_C(4) << 30);
    xml_core(&xml, 0, 0x1, 0x1);
    xml_core(&xml, 1, 0x2, 0x1);
    xml_host_bridge(&xml, 0x00, 0x00);
    xml_pci_at(&xml, 0, 2, 0x0180, 0x1af4, 0x1042);
    xml_close(&xml);
    xml_pci_at(&xml, 0, 3, 0x0200, 0x1af4, 0x1041);
    xml_osdev(&xml, "eth0", OSDEV_NETWORK);
    xml_close(&xml);
    xml_pci_at(&xml, 0, 7, 0x0302, 0x10de, 0x2335);
    xml_close(&xml);
    xml_pci_at(&xml, 0, 6, 0x0302, 0x10de, 0x2335);
    xml_close(&xml);
    xml_close(&xml);
    xml_close(&xml);
    struct topo topo = from_xml(&xml, NULL);
    assert_int_equal(topo.ngpus, 2);
    assert_string_equal(topo.gpus[0].busid, "0000:00:06.0");
    assert_string_equal(topo.gpus[1].busid, "0000:00:07.0");
    assert_int_equal(topo.gpus[1].numa, 0);
    check_link(&topo, 0, 1, TOPO_LINK_PHB);
    assert_int_equal(topo.nnics, 1);
    assert_string_equal(topo.nics[0].name, "eth0");
    topo_free(&topo);
}

/* C60 and its kin: memory of GPUs and high-bandwidth memory are NUMA nodes without CPUs of their own. */
static void test_memory_nodes(void **state)
{
    (void)state;
    struct xml xml;
    xml_begin(&xml, 0xf, 0xf, 0x3f);
    xml_node(&xml, 4, 0xf, "GPUMemory", INT64_C(96) << 30);
    xml_node(&xml, 5, 0xf, "", INT64_C(96) << 30); /* a GPU's too, but nobody says so */
    for (int package = 0; package < 2; package++) {
        unsigned cpus = 0x3u << 2 * package, nodes = 0x35u << package;
        xml_open(&xml, "Package", package, cpus, nodes & 0x3fu);
        xml_node(&xml, package, cpus, "", INT64_C(512) << 30);
        xml_node(&xml, 2 + package, cpus, "HBM", INT64_C(64) << 30);
        xml_core(&xml, 0, 1u << 2 * package, nodes & 0x3fu);
        xml_core(&xml, 1, 2u << 2 * package, nodes & 0x3fu);
        xml_close(&xml);
    }
    struct topo topo = from_xml(&xml, NULL);
    assert_int_equal(topo.nnumas, 2);
    assert_int_equal(topo.numas[0].os_index, 0);
    assert_int_equal(topo.numas[1].os_index, 1);
    assert_string_equal(topo.numas[1].cpus, "2-3");
    assert_int_equal(topo.hosts[0].memory_bytes, INT64_C(1) << 40);
    for (int i = 0; i < 4; i++)
        assert_int_equal(topo.cores[i].numa, i / 2);
    topo_free(&topo);
}

/* What a display adapter is worth: vendor, class, bus -> a device to train on? */
static void test_which_are_gpus(void **state)
{
    (void)state;
    static const struct {
        unsigned vendor, class_id, bus, slot;
        bool gpu;
        const char *what;
    } rows[] = {
        {0x10de, 0x0302, 0x17, 0x00, true, "H200"},
        {0x10de, 0x0300, 0x01, 0x00, true, "GeForce"},
        {0x10de, 0x0300, 0x00, 0x00, true, "GeForce handed to a virtual machine"},
        {0x10de, 0x0403, 0x01, 0x00, false, "its sound"},
        {0x10de, 0x0680, 0x05, 0x00, false, "NVSwitch"},
        {0x10de, 0x0200, 0x05, 0x00, false, "an old nForce network"},
        {0x1002, 0x0380, 0x29, 0x00, true, "Instinct MI250X"},
        {0x1002, 0x1200, 0x29, 0x00, true, "Instinct MI300X"},
        {0x1002, 0x0300, 0x03, 0x00, true, "Radeon"},
        {0x1022, 0x1200, 0x03, 0x00, false, "AMD's NPU"},
        {0x8086, 0x0380, 0x29, 0x00, true, "Data Center GPU Max"},
        {0x8086, 0x0300, 0x03, 0x00, true, "Arc"},
        {0x8086, 0x0300, 0x00, 0x02, false, "integrated graphics"},
        {0x8086, 0x0380, 0x00, 0x02, false, "integrated graphics beside a card"},
        {0x8086, 0x1200, 0x00, 0x0b, false, "a laptop's NPU"},
        {0x8086, 0x0380, 0x00, 0x06, true, "Data Center GPU Max handed to a virtual machine"},
        {0x8086, 0x0880, 0x6a, 0x01, false, "a data streaming accelerator"},
        {0x1da3, 0x1200, 0x19, 0x00, true, "Gaudi"},
        {0x1a03, 0x0300, 0x03, 0x00, false, "a server's management controller"},
        {0x102b, 0x0300, 0x03, 0x00, false, "Matrox management"},
        {0x1234, 0x0300, 0x00, 0x00, false, "QEMU VGA"},
        {0x1af4, 0x0300, 0x00, 0x00, false, "virtio VGA"},
        {0x1af4, 0x0380, 0x00, 0x00, false, "virtio GPU"},
        {0x1b36, 0x0300, 0x00, 0x00, false, "QXL"},
        {0x15ad, 0x0300, 0x00, 0x00, false, "VMware"},
        {0x1013, 0x0300, 0x00, 0x00, false, "Cirrus"},
        {0x1414, 0x0300, 0x00, 0x00, false, "Hyper-V"},
        {0x80ee, 0x0300, 0x00, 0x00, false, "VirtualBox"},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++)
        if (topo_pci_is_gpu(rows[i].vendor, rows[i].class_id, rows[i].bus, rows[i].slot) != rows[i].gpu)
            fail_msg("%s: %s", rows[i].what, rows[i].gpu ? "not seen as a GPU" : "seen as a GPU");
}

/* The cpuset allows CPUs 1 and 2 of 4; rates, boot id and limits come from the tree below `root`. */
static void test_sysfs(void **state)
{
    (void)state;
    struct temp temp;
    temp_open(&temp);
    temp_put(&temp, "proc/self/cgroup", "0::/a\n");
    temp_put(&temp, "proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    temp_put(&temp, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    temp_put(&temp, "sys/fs/cgroup/a/memory.max", "1048576\n");
    temp_put(&temp, "proc/sys/kernel/random/boot_id", "0ab3f540-81d0-437e-b75a-073a964feb1c\n");
    temp_put(&temp, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    temp_put(&temp, "sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    temp_put(&temp, "sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    temp_put(&temp, "sys/class/infiniband/mlx5_1/ports/1/rate", "10 Gb/sec (4X SDR)\n");
    temp_put(&temp, "sys/class/infiniband/mlx5_2/ports/1/rate", "garbage\n");
    struct topo topo = gpu_server(temp.dir, 0x6);
    temp_close(&temp);
    const struct topo_host *host = &topo.hosts[0];
    assert_int_equal(host->pus, 4);
    assert_int_equal(host->cores, 4);
    assert_true(host->cpu_quota >= 1.5 && host->cpu_quota <= 1.5);
    assert_int_equal(host->quota_version, 2);
    assert_int_equal(host->memory_limit_bytes, 1048576);
    assert_string_equal(host->boot_id, "0ab3f540-81d0-437e-b75a-073a964feb1c");
    assert_int_equal(topo_usable_cpus(&topo), 1);
    assert_true(topo.nics[0].GBps >= 50.0 && topo.nics[0].GBps <= 50.0);
    assert_true(topo.nics[2].GBps < 0 && topo.nics[3].GBps < 0);
    topo_free(&topo);
}

static void test_cpuset(void **state)
{
    (void)state;
    struct topo all = gpu_server(NULL, 0xf), some = gpu_server(NULL, 0x6);
    assert_int_equal(some.hosts[0].pus_allowed, 2);
    assert_int_equal(some.hosts[0].pus, 4);
    assert_string_equal(some.numas[0].cpus, "1");
    assert_string_equal(some.numas[1].cpus, "2");
    assert_string_equal(some.cores[0].cpus, "");
    assert_string_equal(some.cores[1].cpus, "1");
    assert_string_equal(some.fingerprint, all.fingerprint); /* the same machine, less of it */
    topo_free(&all);
    topo_free(&some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),          cmocka_unit_test(test_cores_know_their_place),
        cmocka_unit_test(test_gpu_server),      cmocka_unit_test(test_far_switches),
        cmocka_unit_test(test_virtual_machine), cmocka_unit_test(test_memory_nodes),
        cmocka_unit_test(test_which_are_gpus),  cmocka_unit_test(test_sysfs),
        cmocka_unit_test(test_cpuset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
