/* model/rope.c -- the angle by which RoPE turns a pair of lanes from one position to the next. */
#include "model/model.h"

#include <math.h>

/* As Llama 3.1: short wavelengths stay, long ones are divided by `factor`, a ramp between. */
double model_rope_frequency(const struct model_rope *rope, int head_dim, int pair)
{
    const double pi = 3.14159265358979323846;
    double freq = pow(rope->theta, -2.0 * pair / head_dim);
    if (rope->original <= 0)
        return freq / rope->factor;
    double wave = 2 * pi / freq, share = (rope->original / wave - rope->low) / (rope->high - rope->low);
    if (share <= 0)
        return freq / rope->factor;
    return share >= 1 ? freq : (1 - share) * freq / rope->factor + share * freq;
}
