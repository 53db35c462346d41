/* kernels/copy_engine.h -- the layout-changing copy by a GPU's copy engines: no multiprocessor takes part, peers' memory included. */
#ifndef SPTUNE_KERNELS_COPY_ENGINE_H
#define SPTUNE_KERNELS_COPY_ENGINE_H

#include "kernels/copy.h"

/* One after another in the order of the queue. Many short planes cost their launches: see copy_plane.h for what makes one. */
enum status copy_engine_run(const struct copy_job *jobs, int njobs, struct dev_queue *queue);

#endif
