// Two heads over the same tokens, for the tests of divergences between them.
#pragma once

#include <vector>

#include "model/head/full_kl.h"
#include "torch_helpers.h"

namespace mortise {

struct HeadPair {
  HeadSide policy, other;
  std::vector<double> weight;  // per token
};

// The other head has another width, and every third token has weight 0.
inline HeadPair make_head_pair(int64_t rows, int64_t width, int64_t vocab, double softcap = 0.0,
                               at::ScalarType dtype = at::kDouble, double scale = 1.0, uint64_t first_seed = 1) {
  const auto side = [&](int64_t size, uint64_t seed) {
    return HeadSide{random_tensor({rows, size}, seed, dtype, scale),
                    VocabularyHead(random_tensor({vocab, size}, seed + 1, dtype, scale), softcap)};
  };
  HeadPair out{side(width, first_seed), side(width + 1, first_seed + 2), {}};
  RandomStream stream({first_seed + 4, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t r = 0; r < rows; ++r) out.weight.push_back(r % 3 == 2 ? 0.0 : stream.next_normal());
  return out;
}

}  // namespace mortise
