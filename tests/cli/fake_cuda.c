/* cli/fake_cuda.c -- a CUDA driver's library that fails as SPTUNE_TEST_CUDA says: "old", "none" (it sees no GPU), "broken".
 *
 * For test_driver, on machines without a GPU: of what the runtime asks first, which is all it asks of such a driver.
 */
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);

static int fails(const char *how)
{
    const char *asked = getenv("SPTUNE_TEST_CUDA");
    return asked && strcmp(asked, how) == 0;
}

int cuInit(unsigned flags)
{
    enum { DONE = 0, NO_DEVICE = 100, UNKNOWN = 999 };
    (void)flags;
    return fails("none") ? NO_DEVICE : fails("broken") ? UNKNOWN : DONE;
}

int cuDriverGetVersion(int *version)
{
    *version = fails("old") ? 11040 : 99000;
    return 0;
}
