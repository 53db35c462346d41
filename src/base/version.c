/* base/version.c -- the hash that version_hash.cmake makes of the sources at each build. */
#include "base/version.h"
#include "version_hash.h"

const char *version_build(void)
{
    return VERSION_HASH;
}
