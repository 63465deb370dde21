// The tokens of an update that the policy learns from by their entropy (Wang et al. 2025, arXiv 2506.01939: the forks
// of a reasoning are its tokens of high entropy; TRL, ms-swift: top_entropy_quantile).
//
// keep[t] = 1 where entropy[t] >= the (1 - share) quantile of the unmasked tokens, linearly interpolated as
// torch.quantile has it; masked tokens get 0. Over the whole update, where the peers take it over each micro-batch.
// Cost: a copy of N floats and two selections. Pure function.
#pragma once

#include <cstdint>
#include <span>

namespace mortise {

// share in (0, 1]; keep [N] is written whole.
void entropy_mask(std::span<const float> entropy, std::span<const uint8_t> mask, double share, std::span<uint8_t> keep);

}  // namespace mortise
