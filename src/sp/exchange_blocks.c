/* sp/exchange_blocks.c -- one number of blocks for all ranks of an exchange. */
#include "sp/exchange_blocks.h"

#include "base/text.h"
#include "base/units.h"
#include "kernels/copy_peers.h"

#include <stdlib.h>

#define VARIABLE "SPTUNE_EXCHANGE_BLOCKS"

/* For those who want to see what another number does; 0: not set. */
static enum status asked(int *out)
{
    const char *text = getenv(VARIABLE);
    int64_t blocks = 0;
    if (text != NULL && text[0] != '\0')
        TRY(units_parse_count(text, VARIABLE, 1, COPY_PEERS_BLOCKS, &blocks));
    *out = (int)blocks;
    return STATUS_OK;
}

enum status exchange_blocks_agree(struct comm *group, int multiprocessors, int most, struct exchange_blocks *out)
{
    int mine = 0;
    TRY(comm_agree(group, asked(&mine), "prepare an exchange"));
    double ends[] = {mine, -mine, multiprocessors, -multiprocessors};
    TRY(comm_max(group, ends, 4));
    const int highest = (int)ends[0], lowest = (int)-ends[1], largest = (int)ends[2], smallest = (int)-ends[3];
    if (lowest != highest) {
        char low[16] = "not set";
        if (lowest > 0)
            text_print(low, sizeof low, "%d", lowest);
        return HINT(FAIL(STATUS_USAGE, VARIABLE " is %d on one rank of an exchange and %s on another", highest, low),
                    "the same on all ranks: their blocks meet each other");
    }
    if (smallest != largest && (most == 0 || most > smallest))
        most = smallest;
    *out = (struct exchange_blocks){highest, most};
    return STATUS_OK;
}
