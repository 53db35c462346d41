/* fuzz/fuzz_synth.c -- a machine in one line (synth:...): what is accepted can be built, drawn and ordered. */
#include "fuzz/fuzz.h"

#include "topo/topo.h"

enum { GPUS_DRAWN = 64 }; /* larger machines are legal, and slow to draw a million times */

static void check_order(const struct topo *topo)
{
    int n = topo->ngpus < GPUS_DRAWN ? topo->ngpus : GPUS_DRAWN, order[GPUS_DRAWN], seen[GPUS_DRAWN] = {0};
    for (int sp = 1; sp <= n; sp *= 2) {
        if (n % sp != 0)
            continue;
        FUZZ_MUST(topo_rank_order(topo, n, sp, order) == STATUS_OK);
        memset(seen, 0, sizeof seen);
        for (int r = 0; r < n; r++) {
            FUZZ_MUST(order[r] >= 0 && order[r] < topo->ngpus);
            if (topo->ngpus <= GPUS_DRAWN)
                FUZZ_MUST(seen[order[r]]++ == 0);
        }
    }
}

static void check_drawn(const struct topo *topo)
{
    const struct json_envelope envelope = {.command = "fuzz", .started = "", .machine = "", .seed = 1};
    char *text = NULL;
    json_t *document = topo_to_json(topo, &envelope);
    FUZZ_MUST(document != NULL);
    json_decref(document);
    FUZZ_MUST(topo_to_table(topo, &text) == STATUS_OK && text != NULL);
    free(text);
    text = NULL;
    FUZZ_MUST(topo_to_svg(topo, &text) == STATUS_OK && text != NULL);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct topo topo;
    fuzz_quiet();
    char *tail = fuzz_text(data, size), *text = malloc(size + sizeof "synth:");
    FUZZ_MUST(text != NULL);
    snprintf(text, size + sizeof "synth:", "synth:%s", tail);
    enum status status = topo_open(text, &topo);
    if (status != STATUS_OK) {
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    } else {
        FUZZ_MUST(topo.ngpus >= 0 && topo.nhosts >= 1 && topo.fingerprint[0] != '\0');
        if (topo.ngpus <= GPUS_DRAWN && topo.ncores <= 1024 && topo.nhosts <= 16) {
            check_order(&topo);
            check_drawn(&topo);
        }
        topo_free(&topo);
    }
    free(text);
    free(tail);
    return 0;
}
