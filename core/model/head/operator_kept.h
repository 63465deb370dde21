// The products of kept_head.h by ATen operations, on the device of their tensors. What lies between the products is on the
// host.
//
// Cost: kept_head.h's flops; a block of kept tokens has its rows of the head and its hidden states in memory. Thread rule: as
// libtorch. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "foundation/batch/kept_tokens.h"
#include "model/head/log_prob_head.h"

namespace mortise::by_operators {

// [K] the product of each kept token's row of the head with the hidden states of its place.
std::vector<double> kept_dots(const at::Tensor& hidden_RH, const VocabularyHead& head, const KeptTokens& kept);

// grads_K (on the host): the gradients by these products. Writes d_hidden_RH and adds to d_weight_VH; either may be undefined.
void kept_gradients(const at::Tensor& hidden_RH, const VocabularyHead& head, const KeptTokens& kept,
                    const at::Tensor& grads_K, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH);

}  // namespace mortise::by_operators
