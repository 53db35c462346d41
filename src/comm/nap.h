/* comm/nap.h -- a wait that looks again and again: spin, then yield, then sleep for a small part of the time waited so
 * far.
 *
 *     struct nap nap = {0};
 *     while (!there())
 *         nap_take(&nap);
 */
#ifndef SPTUNE_COMM_NAP_H
#define SPTUNE_COMM_NAP_H

#include <stdint.h>

enum { NAP_SPINS = 200 }; /* looks without a pause: a few microseconds, the time of a message */

struct nap { /* zero-initialised, and set to zero when there was progress */
    int looks;
    int64_t since_ns;
};
void nap_take(struct nap *nap);

#endif
