/* comm/launch_env.h -- the launcher that is nothing but five environment variables. */
#ifndef SPTUNE_COMM_LAUNCH_ENV_H
#define SPTUNE_COMM_LAUNCH_ENV_H

#include "comm/launch.h"

extern const struct launcher launcher_env;

#endif
