/* bench/odd_device.h -- for tests: a device whose memory the host cannot read.
 *
 * It is host memory in which every byte is kept with some bits turned; copies to and from the host turn them back. So what reads or
 * writes it through a pointer finds nonsense. Its kind is neither the CPU nor any other that there is; its calls complete before they
 * return, but it counts as one that runs behind the host.
 */
#ifndef SPTUNE_TESTS_BENCH_ODD_DEVICE_H
#define SPTUNE_TESTS_BENCH_ODD_DEVICE_H

#include "base/dev.h"

enum { ODD_TURNED = 0x5a };
struct dev *odd_device(void); /* one per process, not to be closed */

#endif
