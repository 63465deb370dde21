// Log-probs and entropies of tokens over the sets that the sampler's filters left (KeptTokens), and their gradients.
//
// Only the kept tokens' rows of the head are read: 2KH flops for K kept tokens in all (6KH with the gradient), and one walk over
// a head of windows (two more with the gradient). Shapes, dtypes and arguments are those of log_prob_head.h; `kept` has a place
// for each of the R tokens. The results do not depend on the number of threads. No autograd inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/batch/kept_tokens.h"
#include "foundation/batch/sampling.h"
#include "foundation/batch/token_history.h"
#include "model/head/log_prob_head.h"

namespace mortise {

LogProbs kept_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, const KeptTokens& kept);

// Writes d_hidden_RH and adds to d_weight_VH (either may be undefined). grad_entropy_R may be undefined. `is_frozen`: nobody
// wants the gradient of a head that comes in windows. All ranks say the same.
void kept_backward(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, const KeptTokens& kept, const at::Tensor& grad_log_prob_R,
                   const at::Tensor& grad_entropy_R, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH,
                   bool is_frozen = false);

// Penalties and forbidden tokens of a place, as copies.
struct PlaceEdits {
  std::vector<int64_t> barred{};
  std::vector<SeenToken> seen{};
};

// What the filters leave of this head's logits at each token: places with a mask of 0 keep their target alone. A target
// that they would drop is kept too, and counted in *num_missing. `edits` has a place for each token, or is empty.
KeptTokens find_kept_tokens(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                            const Sampling& sampling, std::span<const uint8_t> mask, std::span<const PlaceEdits> edits,
                            int64_t* num_missing);

}  // namespace mortise
