/* train/loss.c -- sums, one division, and the factor that undoes what a reduction does. */
#include "train/loss.h"

#include "base/log.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {[LOSS_TOKENS] = "tokens", [LOSS_GROUP] = "group"};
enum { NORMS = sizeof names / sizeof names[0] };

const char *loss_norm_name(enum loss_norm norm)
{
    return (unsigned)norm < NORMS ? names[norm] : "unknown";
}

enum status loss_norm_parse(const char *text, const char *option, enum loss_norm *out)
{
    for (int i = 0; i < NORMS; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum loss_norm)i;
            return STATUS_OK;
        }
    }
    return HINT(WHERE(FAIL(STATUS_USAGE, "'%.40s' is no way to normalise a loss", text), "%s", option),
                "use tokens or group");
}

static double at_least_one(int64_t valid)
{
    return valid > 1 ? (double)valid : 1;
}

struct loss_part loss_from_mean(double mean, int64_t valid)
{
    return (struct loss_part){.sum = valid > 0 ? mean * (double)valid : 0, .valid = valid > 0 ? valid : 0};
}

void loss_add(struct loss_part *to, const struct loss_part *part)
{
    if (part->valid <= 0) /* whatever its sum says, 0 or NaN */
        return;
    to->sum += part->sum;
    to->valid += part->valid;
}

double loss_combine(enum loss_norm norm, int groups, int micros, const struct loss_part *parts)
{
    struct loss_part all = {0};
    double means = 0;
    int empty = 0;
    for (int i = 0; i < groups * micros; i++) {
        loss_add(&all, &parts[i]);
        empty += parts[i].valid <= 0;
        means += parts[i].valid > 0 ? parts[i].sum / (double)parts[i].valid : 0;
    }
    if (all.valid == 0)
        log_warn("a step had no label that counts: its loss is 0 and its gradient zero");
    else if (norm == LOSS_GROUP && empty > 0)
        log_warn(
            "a group had no label that counts in a micro-step: by groups that is a mean of 0, and lowers the loss");
    return norm == LOSS_GROUP ? means / at_least_one((int64_t)groups * micros) : all.sum / at_least_one(all.valid);
}

double loss_scale(enum loss_norm norm, const struct loss_share *share)
{
    double parts = (double)share->groups * share->micros;
    double divisor = norm == LOSS_GROUP ? at_least_one(share->part_valid) * parts : at_least_one(share->step_valid);
    return share->averaged / divisor;
}

double loss_lift(enum dtype dtype, double step_valid)
{
    return dtype == DTYPE_FP16 && step_valid > 1 ? ldexp(1, ilogb(step_valid)) : 1;
}
