/* comm/launch_env.h -- launchers that tell a rank who it is in its environment: a script, mpirun, srun. */
#ifndef SPTUNE_COMM_LAUNCH_ENV_H
#define SPTUNE_COMM_LAUNCH_ENV_H

#include "comm/launch.h"

extern const struct launcher launcher_env;

#endif
