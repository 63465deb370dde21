// The fused head by ATen operations, on the device of its tensors. log_prob_head.h calls it for a VocabularyHead that
// asks for it, and says what each function means.
//
// A chunk of tokens goes over blocks of the vocabulary with a running maximum and sum, so at most one block of logits
// is in memory. Backward computes the logits again. Log-probs, entropies and their gradients are on the host. What is
// float32 is computed by the kernels of core/cuda if the device has them (kernel_head.h). Cost: 2RHV flops forward,
// 6RHV backward; of a one-pass 8RHV, and 6RHV with kernels. Memory: about four blocks; with kernels one, and in a
// one-pass a chunk's logits (kept_logits.h). Thread rule: as libtorch. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "model/head/log_prob_head.h"

namespace mortise::by_operators {

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options);

// With the norms of head_log_prob. The gradients are float64.
void head_second_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                      double temperature, std::span<const TokenNorm> norms_R, std::span<const double> grad_log_prob,
                      std::span<const double> grad_entropy, const at::Tensor& d_hidden_RH,
                      const at::Tensor& d_weight_VH, const HeadOptions& options);

void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, EntropyUse entropy, const std::function<void(const HeadChunk&)>& on_chunk,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH, const HeadOptions& options);

}  // namespace mortise::by_operators
