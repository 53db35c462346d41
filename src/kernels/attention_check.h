/* kernels/attention_check.h -- what every attention kernel checks before it touches memory; for the files of this room.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_CHECK_H
#define SPTUNE_KERNELS_ATTENTION_CHECK_H

#include "kernels/attention.h"

/* Shape rules, and every pointer this direction needs is there. A tensor without elements may be NULL. STATUS_USAGE. */
enum status attention_args_check(const struct attention_shape *shape, const struct attention_args *args, bool backward,
                                 size_t workspace_bytes);
/* attention_shape_check as a verdict: RULE_KERNEL_CANNOT with its message. */
struct verdict attention_shape_verdict(const struct attention_shape *shape);
/* As a bool, leaving no message: before sizes are computed from a shape. */
bool attention_shape_good(const struct attention_shape *shape);

#endif
