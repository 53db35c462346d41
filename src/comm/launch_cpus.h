/* comm/launch_cpus.h -- bind this thread, and what it forks, to a list of CPUs. */
#ifndef SPTUNE_COMM_LAUNCH_CPUS_H
#define SPTUNE_COMM_LAUNCH_CPUS_H

#include "base/status.h"

struct launch_cpus; /* a saved binding; owned */

enum status launch_cpus_save(struct launch_cpus **out);
void launch_cpus_restore(struct launch_cpus *saved); /* binds as before and releases; accepts NULL */
/* list as the kernel writes it: "0-3,8". Malformed, or CPUs that may not be used here: STATUS_USAGE. NULL and "" go
 * back to the saved binding. */
enum status launch_cpus_bind(const char *list, const struct launch_cpus *saved);

#endif
