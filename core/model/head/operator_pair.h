// Divergences of two heads over the whole vocabulary by ATen operations, on the device of their tensors. full_kl.h and
// divergence.h call it for a VocabularyHead that asks for it, and say what the numbers mean.
//
// A chunk of tokens has the logits of both heads in memory, and about six tensors of that size more.
// Cost: 2RHV flops per head, 4RHV for the gradient. Values are on the host. Thread rule: as libtorch. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "model/head/full_kl.h"

namespace mortise::by_operators {

// As head_divergence (divergence.h); beta = 1 is head_full_kl.
std::vector<double> head_divergence(const HeadSide& policy, const HeadSide& teacher, double beta, double temperature,
                                    std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                    const at::Tensor& d_weight_VH, const HeadOptions& options);

}  // namespace mortise::by_operators
