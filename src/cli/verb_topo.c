/* cli/verb_topo.c -- `sptune topo`: this machine, or one described by a line of text. */
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/place.h"
#include "cli/stamp.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

static const struct opt options[] = {
    {"from", 0, OPT_VALUE, "SOURCE", "local, or synth:... (sptune help synth) [local]"},
    {"svg", 0, OPT_VALUE, "FILE", "draw it"},
    {"sp", 0, OPT_VALUE, "P", "print the rank order that keeps groups of P in the best-joined sets"},
    {0},
};

static enum status write_svg(const struct cli *cli, const struct topo *topo, const char *path)
{
    char *svg = NULL;
    TRY(topo_to_svg(topo, &svg));
    size_t len = strlen(svg);
    enum status status = stamp_svg(cli, &svg, &len);
    if (status == STATUS_OK)
        status = file_write(path, svg, len);
    free(svg);
    if (status == STATUS_OK)
        log_info("wrote %s", path);
    return status;
}

static enum status order_of(const struct topo *topo, int64_t sp, int **out)
{
    int n = topo->ngpus;
    if (n == 0)
        return HINT(FAIL(STATUS_USAGE, "--sp orders devices, and there are none here"), "ranks on CPUs need no order");
    if (n % sp != 0)
        return HINT(FAIL(STATUS_USAGE, "--sp %lld does not divide the %d devices here", (long long)sp, n),
                    "give a divisor of the device count");
    *out = calloc((size_t)n, sizeof **out);
    if (*out == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %d ranks", n);
    enum status status = topo_rank_order(topo, n, (int)sp, *out);
    if (status != STATUS_OK)
        free(*out);
    return status;
}

static enum status show_json(struct cli *cli, const struct topo *topo, int64_t sp, const int *order)
{
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = topo_to_json(topo, &envelope);
    if (document != NULL && order != NULL) {
        json_t *list = json_array();
        for (int i = 0; i < topo->ngpus; i++)
            json_array_append_new(list, json_integer(order[i]));
        json_object_set_new(document, "rank_order", list); /* instead of the one without --sp */
        json_object_set_new(document, "rank_order_sp", json_integer(sp));
    }
    return cli_print_json(cli, document);
}

static enum status show_table(const struct topo *topo, int64_t sp, const int *order)
{
    struct text screen = {0};
    char *table = NULL;
    TRY(topo_to_table(topo, &table));
    text_add(&screen, "%s", table);
    free(table);
    if (order != NULL) {
        text_add(&screen, "rank order for sp=%lld:", (long long)sp);
        for (int i = 0; i < topo->ngpus; i++)
            text_add(&screen, " %d", order[i]);
        text_add(&screen, "  (worst link inside a group: %s)\n",
                 topo_link_name(topo_group_link(topo, order, topo->ngpus, (int)sp)));
    }
    enum status status = text_status(&screen);
    if (status == STATUS_OK)
        status = cli_print(text_get(&screen));
    text_free(&screen);
    return status;
}

static enum status show(struct cli *cli, const struct topo *topo)
{
    int64_t sp = 0;
    int *order = NULL;
    TRY(opt_count(&cli->opts, "sp", 1, 4096, 0, &sp));
    if (sp > 0)
        TRY(order_of(topo, sp, &order));
    enum status status = cli->json ? show_json(cli, topo, sp, order) : show_table(topo, sp, order);
    free(order);
    return status;
}

static enum status run(struct cli *cli)
{
    const char *from = opt_value(&cli->opts, "from");
    const char *svg = opt_value(&cli->opts, "svg");
    struct topo topo;
    if (from != NULL && from[0] == '\0')
        return HINT(WHERE(FAIL(STATUS_USAGE, "a source is missing"), "--from"), "local, or synth:2x8xH200,nvlink=18");
    if (svg != NULL)
        TRY(place_check_file(svg, "--svg"));
    TRY(topo_open(from != NULL ? from : "local", &topo));
    memcpy(cli->machine, topo.fingerprint, sizeof cli->machine);
    enum status status = svg != NULL ? write_svg(cli, &topo, svg) : STATUS_OK;
    if (status == STATUS_OK)
        status = show(cli, &topo);
    topo_free(&topo);
    return status;
}

static const struct opt *const tables[] = {options, NULL};

const struct verb verb_topo = {
    .name = "topo",
    .usage = "[--from SOURCE] [--svg FILE] [--sp P]",
    .about = "hosts, NUMA nodes, devices, NICs and what joins them; islands and rank order",
    .help = "What this machine is, or one described by `synth:...`. Islands are the sets of devices with the best "
            "links among "
            "themselves; the rank order keeps sp groups inside them.",
    .tables = tables,
    .run = run,
};
