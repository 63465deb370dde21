// The KL to the reference over the whole vocabulary, of one micro-batch: kl_coef sum_t w_t KL_t and its gradient.
//
// What a token counts does not depend on any log-prob, so this term stands beside the policy loss whatever that is
// coupled over. The reference runs over the micro-batch's rows here: nothing of it is kept from stage to stage, and a
// checkpoint inside a step holds nothing of it. Cost: a forward pass of the reference, and head_full_kl.
// Private to this folder.
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
Result<FullKlTerm> full_kl_term(const ActorObjective& objective, const Model& policy, const TrainBatch& batch,
                                const UpdateSlice& slice, const PackedForward& forward, const LearnerOptions& options);

}  // namespace mortise
