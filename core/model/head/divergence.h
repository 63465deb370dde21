// The divergence between a teacher q and the policy p over the whole vocabulary per token, with its gradient by the
// policy, as TRL's GKDTrainer defines it (arXiv:2306.13649):
//
//   beta = 0  KL(q || p), the forward KL        beta = 1  KL(p || q), the reverse KL
//   between   beta KL(q || m) + (1 - beta) KL(p || m),  m = beta q + (1 - beta) p: generalised Jensen-Shannon
//
// Works as head_full_kl (full_kl.h): shapes, chunks, weights; tokens x vocabulary is never in memory. beta = 1 is that
// function. Cost: as there, and up to six exps and one log per logit.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "model/head/full_kl.h"

namespace mortise {

// [R] the divergence of every token, in nats. Writes d_hidden_RH of the policy with the gradient of
// sum_r weight_R[r] D_r, and adds to d_weight_VH. Either may be undefined if it is not needed.
std::vector<double> head_divergence(const HeadSide& policy, const HeadSide& teacher, double beta, double temperature,
                                    std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                    const at::Tensor& d_weight_VH, const HeadOptions& options = {});

}  // namespace mortise
