// Masks rows from which the policy has moved away, where an update would make them even less likely (DeepSeek-V3.2,
// arXiv 2512.02556; TRL: off_policy_mask_threshold, ms-swift: off_policy_sequence_mask_delta).
//
// A token with A < 0 has weight 0 if the mean over its row's unmasked tokens of behaviour - log_prob is above the
// threshold. `behaviour` are the sampler's log-probs, or the old policy's if the sampler gave none. The choice is a
// constant for the gradient. Pure function, one pass.
#pragma once

#include <span>

#include "foundation/batch/step_view.h"

namespace mortise {

// Sets weight [N] to 0 at such tokens.
void off_policy_mask(const StepView& view, double threshold, std::span<float> weight);

}  // namespace mortise
