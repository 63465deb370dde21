// Philox4x32-10 (foundation/base/rng.h) as ATen operations, for random numbers where tensors of a device lie: the same bits.
//
// Counters and words are 32-bit numbers in int64 tensors. Products are split so that none exceeds 63 bits.
// Cost: about 150 operations. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "foundation/base/rng.h"

namespace mortise {

// The four counters broadcast against one another; each word has their common shape.
std::array<at::Tensor, 4> philox_operators(std::array<at::Tensor, 4> counter, const PhiloxKey& key);

// What philox_eight_blocks gives for counters whose first number is 8 g + l: [..., G, 32], word w of block l at 8 w + l.
// `first`: [..., 8 G], the others broadcast against it.
at::Tensor philox_eight_words(const std::array<at::Tensor, 4>& counter, const PhiloxKey& key);

}  // namespace mortise
