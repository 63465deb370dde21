// KL(policy || reference) over the whole vocabulary per token, with its gradient: sum_v p (log p - log q).
//
// Both heads run side by side over a chunk of tokens, block by block of the vocabulary, so that tokens x vocabulary is
// never kept. What a token counts is known before its log-probs, so values and gradients come from one call; the
// gradient by the policy's logits is weight * p (log p - log q - KL) / temperature, the reference gets none. No
// autograd inside. Shapes: R tokens, H hidden (of each model its own), V vocabulary, the same for both; tensors
// contiguous, of one dtype (float or double). Cost: 2RHV flops for each head, 4RHV for the gradient, three exps per
// logit. Memory: one chunk (HeadOptions), of both heads' logits. The results do not depend on the number of threads.
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

// [R] the KL of every token, in nats. d_hidden_RH of the policy is written with the gradient of sum_r weight_R[r] KL_r,
// d_weight_VH added to; either may be undefined: not wanted. A token of weight 0 sends nothing back, whatever its KL.
std::vector<double> head_full_kl(const HeadSide& policy, const HeadSide& reference, double temperature,
                                 std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                 const at::Tensor& d_weight_VH, const HeadOptions& options = {});

// Bytes that head_full_kl takes for so many tokens beside what it is given and gives back: its chunk.
int64_t full_kl_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes,
                      const HeadOptions& options = {});

}  // namespace mortise
