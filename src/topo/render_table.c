/* topo/render_table.c -- a topology for a terminal of 80 columns. */
#include "topo/topo.h"

#include "base/text.h"

enum status topo_to_table(const struct topo *topo, char **out)
{
    struct text text = {0};
    text_add(&text, "%s\nfingerprint %s\n", topo->source, topo->fingerprint);
    TRY(text_status(&text));
    *out = text.s;
    return STATUS_OK;
}
