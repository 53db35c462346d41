/* base/version.h -- what this program is called in every document it writes. */
#ifndef SPTUNE_BASE_VERSION_H
#define SPTUNE_BASE_VERSION_H

#define SPTUNE_VERSION "0.1.0"

/* Versions of what this build runs on: "ucx 1.13.1", "hwloc 2.9.0" ... are reported by the rooms that own them. */
const char *version_build(void); /* short hash of the sources this binary was built from, stable for equal sources */

#endif
