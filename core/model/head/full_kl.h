// KL(policy || reference) over the whole vocabulary per token, with its gradient: sum_v p (log p - log q).
//
// Both heads process a chunk of tokens together, block by block of the vocabulary, so tokens x vocabulary is never in
// memory. The weight of a token is known before its log-probs, so one call gives values and gradients. The gradient by
// the policy's logits is weight * p (log p - log q - KL) / temperature; the reference gets none. No autograd inside.
// Shapes: R tokens, H hidden (each model has its own), V vocabulary (equal for both); tensors are contiguous and of one
// dtype (float or double). Cost: 2RHV flops per head, 4RHV for the gradient, three exps per logit. Memory: one chunk
// (HeadOptions) of both heads' logits. The results do not depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "model/head/log_prob_head.h"

namespace mortise {

// One side: the hidden states of the tokens and the head over them.
struct HeadSide {
  at::Tensor hidden_RH;
  VocabularyHead head;
};

// [R] the KL of every token, in nats. Writes d_hidden_RH of the policy with the gradient of sum_r weight_R[r] KL_r, and
// adds to d_weight_VH. Either may be undefined if it is not needed. A token of weight 0 has no gradient, whatever its
// KL.
std::vector<double> head_full_kl(const HeadSide& policy, const HeadSide& reference, double temperature,
                                 std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                 const at::Tensor& d_weight_VH, const HeadOptions& options = {});

// Bytes of head_full_kl's chunk for so many tokens, in addition to its inputs and outputs. `columns` of the vocabulary are in
// memory at once: those of a window, or all.
int64_t full_kl_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes, int64_t columns,
                      const HeadOptions& options = {});

}  // namespace mortise
