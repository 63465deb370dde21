// Logits, log-probs and entropies of a padded batch (B, T), as in `mortise model logprob` and in the reference files.
// Padding may be on either side; positions count real tokens; everything at padding is 0.
//
// Cost: a forward pass, and B x T x V logits in memory. It is a tool for comparisons, not a training path.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "model/model.h"

namespace mortise {

struct PaddedEval {
  at::Tensor logits_BTV;    // undefined for a classifier
  at::Tensor log_prob_BT1;  // [B, T-1]: log p(ids[t+1] | ids[..t]) at temperature 1, where t and t+1 are real
  at::Tensor entropy_BT1;   // [B, T-1]: of the same distribution, nats
  at::Tensor scores_BC;     // a classifier's scores at the last real token that is not pad_token_id
};

// ids_BT int64, mask_BT (non-zero = real). Errors (kind data) name row and id.
Result<PaddedEval> evaluate_padded(const Model& model, const at::Tensor& ids_BT, const at::Tensor& mask_BT,
                                   const ForwardOptions& options = {});

// [B, C] of a classifier, for rows without padding, in one pass. The score is taken at the last token that is not
// `pad_id` (transformers' rule), or at the first if all are. An empty row scores 0.
Result<at::Tensor> classifier_scores(const Model& model, std::span<const std::vector<int64_t>> rows,
                                     std::optional<int64_t> pad_id, const ForwardOptions& options = {});

}  // namespace mortise
