/* topo/render_svg.c -- a picture of a topology. */
#include "topo/topo.h"

#include "base/text.h"

enum status topo_to_svg(const struct topo *topo, char **out)
{
    struct text text = {0};
    text_add(&text, "<svg xmlns=\"http://www.w3.org/2000/svg\"><title>%s</title></svg>\n", topo->fingerprint);
    TRY(text_status(&text));
    *out = text.s;
    return STATUS_OK;
}
