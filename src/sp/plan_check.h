/* sp/plan_check.h -- the part of plan_check that depends on method and sp alone; for the files of this room. */
#ifndef SPTUNE_SP_PLAN_CHECK_H
#define SPTUNE_SP_PLAN_CHECK_H

#include "sp/plan.h"

/* Heads, KV, world, length, and the ring's part of sp: no plan with this method, sp and ring can be legal when this says no. sp >= 1. */
struct verdict plan_check_sp(const struct problem *problem, const struct plan *plan);

#endif
