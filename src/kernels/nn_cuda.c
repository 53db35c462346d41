/* kernels/nn_cuda.c -- the table of nn's calls on CUDA GPUs. */
#include "kernels/nn_cuda.h"

const struct nn_ops nn_cuda = {
    .norm_forward = nn_cuda_norm_forward,
    .norm_backward = nn_cuda_norm_backward,
    .rope = nn_cuda_rope,
    .swiglu_forward = nn_cuda_swiglu_forward,
    .swiglu_backward = nn_cuda_swiglu_backward,
    .add = nn_cuda_add,
    .convert = nn_cuda_convert,
    .bias = nn_cuda_bias,
    .bias_backward = nn_cuda_bias_backward,
    .embed_forward = nn_cuda_embed_forward,
    .embed_backward = nn_cuda_embed_backward,
    .loss = nn_cuda_loss,
    .sum = nn_cuda_sum,
    .adamw = nn_cuda_adamw,
};
