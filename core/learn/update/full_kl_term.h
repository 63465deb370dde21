// The KL to the reference over the whole vocabulary, for one micro-batch: kl_coef sum_t w_t KL_t and its gradient.
//
// A token's weight does not depend on any log-prob, so this term works with a policy loss of any coupling. The
// reference runs on the micro-batch's rows here. No stage and no checkpoint inside a step keeps its results. Cost: a
// forward pass of the reference, and head_full_kl. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "learn/objective/actor_objective.h"
#include "learn/update/packed_forward.h"
#include "learn/update/update_slice.h"

namespace mortise {

struct FullKlTerm {
  at::Tensor d_hidden_RH;  // of the policy's hidden states; undefined where the term sends nothing back
  ObjectiveSums sums;      // kl, kl_loss and its part of the loss
};

// `slice` and `forward` are those of the micro-batch's rows. Adds to the gradient of the policy's head. Nothing where
// the objective has no such term; an error where it has and there is no reference.
Result<FullKlTerm> full_kl_term(const ActorObjective& objective, const Model& policy, const UpdateSlice& slice,
                                const PackedForward& forward, const LearnerOptions& options);

}  // namespace mortise
