/* sp/plan_check.h -- the part of plan_check that depends on sp alone; for the files of this room. */
#ifndef SPTUNE_SP_PLAN_CHECK_H
#define SPTUNE_SP_PLAN_CHECK_H

#include "sp/plan.h"

/* Heads, KV, world and length: no plan with this sp can be legal when this says no. sp >= 1. */
struct verdict plan_check_sp(const struct problem *problem, int sp);

#endif
