// The functions of module.h. nvcc makes libmortise_cuda.so of this file; for tests a host compiler makes it of
// emulated_module.cpp, which includes it.
#include "cuda/module.h"

#include "cuda/kernels/head.cuh"
#include "cuda/kernels/objective.cuh"
#include "cuda/kernels/optimizer.cuh"

using namespace mortise::cuda;

namespace {
unsigned blocks_for(int64_t count, int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }
}  // namespace

extern "C" {

int mortise_cuda_head_chunk(const float* logits, int64_t num_rows, int64_t stride, int64_t first, int64_t columns,
                            const int64_t* target, float inverse_temperature, MortiseCudaHeadRow* rows, void* stream) {
  if (num_rows == 0 || columns == 0) return 0;
  MORTISE_LAUNCH(head_chunk_kernel, blocks_for(num_rows, 1), kThreads, stream, logits, stride, first, columns, target,
                 inverse_temperature, rows);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_head_finish(const MortiseCudaHeadRow* rows, int64_t num_rows, float inverse_temperature,
                             float* log_prob, float* entropy, void* stream) {
  if (num_rows == 0) return 0;
  MORTISE_LAUNCH(head_finish_kernel, blocks_for(num_rows, kThreads), kThreads, stream, rows, num_rows,
                 inverse_temperature, log_prob, entropy);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_head_backward(float* logits, int64_t num_rows, int64_t stride, int64_t first, int64_t columns,
                               const int64_t* target, float inverse_temperature, const MortiseCudaHeadRow* rows,
                               const float* grad_log_prob, const float* grad_entropy, void* stream) {
  if (num_rows == 0 || columns == 0) return 0;
  MORTISE_LAUNCH(head_backward_kernel, blocks_for(num_rows, 1), kThreads, stream, logits, stride, first, columns,
                 target, inverse_temperature, rows, grad_log_prob, grad_entropy);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_policy_loss(MortiseCudaLoss settings, int64_t num_tokens, const float* log_prob,
                             const float* old_log_prob, const float* advantages, const float* weight,
                             const uint8_t* mask, float* loss, float* grad_log_prob, void* stream) {
  if (num_tokens == 0) return 0;
  MORTISE_LAUNCH(policy_loss_kernel, blocks_for(num_tokens, kThreads), kThreads, stream, settings, num_tokens, log_prob,
                 old_log_prob, advantages, weight, mask, loss, grad_log_prob);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_kl(MortiseCudaKl settings, int64_t num_tokens, const float* log_prob, const float* ref_log_prob,
                    const float* weight, const uint8_t* mask, float* kl, float* grad_log_prob, void* stream) {
  if (num_tokens == 0) return 0;
  MORTISE_LAUNCH(kl_kernel, blocks_for(num_tokens, kThreads), kThreads, stream, settings, num_tokens, log_prob,
                 ref_log_prob, weight, mask, kl, grad_log_prob);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_square_sums(const float* gradient, int64_t count, double* partial, void* stream) {
  if (count == 0) return 0;
  MORTISE_LAUNCH(square_sum_kernel, blocks_for(count, MORTISE_CUDA_NORM_PART), kThreads, stream, gradient, count,
                 partial);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_clip(const double* partial, int64_t count, float max_norm, float* clip, void* stream) {
  MORTISE_LAUNCH(clip_kernel, 1, kThreads, stream, partial, count, max_norm, clip);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_adamw(MortiseCudaAdamW settings, int64_t count, const float* clip, const float* gradient,
                       float* master, float* exp_avg, float* exp_avg_sq, uint16_t* weights, void* stream) {
  if (count == 0) return 0;
  MORTISE_LAUNCH(adamw_kernel, blocks_for(count, kThreads), kThreads, stream, settings, count, clip, gradient, master,
                 exp_avg, exp_avg_sq, weights);
  return MORTISE_LAUNCHED();
}

}  // extern "C"
