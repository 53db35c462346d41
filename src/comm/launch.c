/* comm/launch.c -- the launchers that this program recognises, in order of precedence. */
#include "comm/launch.h"
#include "comm/launch_env.h"

#include <stddef.h>

const struct launcher *const launchers[] = {
    &launcher_env,
    NULL,
};

enum status launch_detect(struct launch *out, bool *found)
{
    *found = false;
    for (int i = 0; launchers[i] && !*found; i++)
        TRY(launchers[i]->detect(out, found));
    return STATUS_OK;
}
