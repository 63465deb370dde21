// The tokens of an update that the policy learns from because of their entropy (Wang et al. 2025, arXiv 2506.01939:
// tokens of high entropy are the forks of a reasoning; TRL, ms-swift: top_entropy_quantile).
//
// keep[t] = 1 if entropy[t] >= the (1 - share) quantile of the unmasked tokens, linearly interpolated as in
// torch.quantile; masked tokens get 0. The quantile is over the whole update; TRL and ms-swift take it over each
// micro-batch. Cost: a copy of N floats and two selections. Pure function.
#pragma once

#include <cstdint>
#include <span>

namespace mortise {

// share in (0, 1]; keep [N] is written whole.
void entropy_mask(std::span<const float> entropy, std::span<const uint8_t> mask, double share, std::span<uint8_t> keep);

}  // namespace mortise
