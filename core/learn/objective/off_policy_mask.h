// Rows that the policy has moved away from take no part where they would be made less likely still (DeepSeek-V3.2,
// arXiv 2512.02556; TRL: off_policy_mask_threshold, ms-swift: off_policy_sequence_mask_delta).
//
// A token with A < 0 weighs 0 where the mean over its row's unmasked tokens of behaviour - log_prob is above the
// threshold; `behaviour` are the sampler's log-probs, or the old policy's where the sampler gave none. The choice is a
// constant for the gradient. Pure function, one pass.
#pragma once

#include <cstdint>
#include <span>

#include "plugin/host/kinds/layout.h"

namespace mortise {

// Sets weight [N] to 0 at such tokens.
void off_policy_mask(const Layout& layout, std::span<const float> behaviour, std::span<const float> log_prob,
                     std::span<const float> advantages, std::span<const uint8_t> mask, double threshold,
                     std::span<float> weight);

}  // namespace mortise
