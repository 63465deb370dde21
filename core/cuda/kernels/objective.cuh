// Policy losses and KL estimators of single tokens with their gradients, one thread per token, one launch.
// The formulas are those of plugins/policy_loss/{vanilla,cispo}.cpp and plugins/kl_estimator/{k1,k2,k3}.cpp.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

__device__ inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// PPO's clipped surrogate with dual clip. Where two branches are equal, the gradient is that of the ratio itself.
__device__ inline void vanilla_token(float log_prob, float old_log_prob, float advantage,
                                     const MortiseCudaLoss& settings, float& loss, float& slope) {
  const float difference = log_prob - old_log_prob;
  const float ratio = expf(clamped(difference, -20.0F, 20.0F));
  const float plain = -advantage * ratio, clipped = -advantage * clamped(ratio, settings.low, settings.high);
  const bool inside = difference > -20.0F && difference < 20.0F;
  loss = plain >= clipped ? plain : clipped;
  slope = plain >= clipped && inside ? plain : 0.0F;
  const float worst = -advantage * settings.dual_clip;
  if (advantage < 0.0F && settings.dual_clip > 0.0F && loss > worst) {
    loss = worst;
    slope = 0.0F;
  }
}

__device__ inline void cispo_token(float log_prob, float old_log_prob, float advantage, const MortiseCudaLoss& settings,
                                   float& loss, float& slope) {
  const float ratio = expf(clamped(log_prob - old_log_prob, -20.0F, 20.0F));
  slope = -advantage * clamped(ratio, settings.low, settings.high);
  loss = slope * log_prob;
}

// grad_log_prob = weight * d loss / d log_prob. Tokens outside the mask get zeros.
__global__ void __launch_bounds__(kThreads)
    policy_loss_kernel(MortiseCudaLoss settings, int64_t num_tokens, const float* __restrict__ log_prob,
                       const float* __restrict__ old_log_prob, const float* __restrict__ advantages,
                       const float* __restrict__ weight, const uint8_t* __restrict__ mask, float* loss,
                       float* grad_log_prob) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= num_tokens) return;
  float value = 0.0F, slope = 0.0F;
  if (mask[i] != 0) {
    if (settings.kind == MORTISE_CUDA_LOSS_VANILLA)
      vanilla_token(log_prob[i], old_log_prob[i], advantages[i], settings, value, slope);
    else
      cispo_token(log_prob[i], old_log_prob[i], advantages[i], settings, value, slope);
    slope *= weight[i];
  }
  loss[i] = value;
  grad_log_prob[i] = slope;
}

// The estimate's clamp has slope 0 beyond it, and so has that of the log ratio.
__global__ void __launch_bounds__(kThreads)
    kl_kernel(MortiseCudaKl settings, int64_t num_tokens, const float* __restrict__ log_prob,
              const float* __restrict__ ref_log_prob, const float* __restrict__ weight,
              const uint8_t* __restrict__ mask, float* kl, float* grad_log_prob) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= num_tokens) return;
  float value = 0.0F, slope = 0.0F;
  if (mask[i] != 0) {
    const float ratio = log_prob[i] - ref_log_prob[i];
    const float x = clamped(ratio, -settings.max_log_ratio, settings.max_log_ratio);
    value = settings.kind == 1 ? x : settings.kind == 2 ? 0.5F * x * x : expm1f(-x) + x;
    slope = settings.kind == 1 ? 1.0F : settings.kind == 2 ? x : -expm1f(-x);
    if (ratio != x || value < -settings.max_kl || value > settings.max_kl) slope = 0.0F;
    value = clamped(value, -settings.max_kl, settings.max_kl);
    slope *= weight[i];
  }
  kl[i] = value;
  grad_log_prob[i] = slope;
}

}  // namespace mortise::cuda
