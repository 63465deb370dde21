// The terms of the loss that compare whole distributions over the vocabulary, for one micro-batch:
//   kl_coef sum_t w_t KL_t       to the reference (actor.kl_loss_type = "full")
//   loss_coef sum_t w_t D_t      to a teacher ([teacher], on-policy distillation)
// and their gradient.
//
// A token's weight does not depend on any log-prob, so these terms work with a policy loss of any coupling. The other
// model runs on the micro-batch's rows here. No stage and no checkpoint inside a step keeps its results. Cost of each: a
// forward pass of the other model, and a pass over both heads. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include "foundation/metrics/registry.h"
#include "learn/objective/actor_objective.h"
#include "learn/update/packed_forward.h"
#include "learn/update/update_slice.h"

namespace mortise {

struct VocabularyTerms {
  at::Tensor d_hidden_RH;  // gradient by the policy's hidden states; undefined where no term sends anything back
  ObjectiveSums sums;      // kl, kl_loss and these terms' part of the loss
  MetricSet metrics;
};

[[nodiscard]] bool has_vocabulary_terms(const ActorObjective& objective, const LearnerOptions& options);

// `slice` and `forward` are those of the micro-batch's rows. `share` is the factor of the gradient, not of the sums. Adds
// to the gradient of the policy's head. Nothing if there is no such term; an error if the objective has one and there is
// no reference.
Result<VocabularyTerms> vocabulary_terms(const ActorObjective& objective, const Model& policy, const UpdateSlice& slice,
                                         const PackedForward& forward, const LearnerOptions& options, double share);

}  // namespace mortise
