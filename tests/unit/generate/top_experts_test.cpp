// The choice of experts in a decode pass against torch.topk, ties and NaN among them.
#include "generate/decode/top_experts.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace mortise {
namespace {

TEST(TopExperts, AreThoseOfTorchAlsoWithTies) {
  std::mt19937 generator(3);
  std::vector<std::pair<float, int64_t>> queue;
  for (const int64_t n : {1, 2, 4, 8, 60, 64, 128, 130, 512}) {
    for (int64_t k = 1; k <= std::min<int64_t>(n, 10); ++k) {
      for (const uint32_t kinds : {1U, 2U, 5U, 1000000U}) {  // kinds of values: most rows have ties
        std::vector<float> probs(static_cast<size_t>(n));
        for (float& p : probs) p = static_cast<float>(generator() % kinds) / static_cast<float>(kinds);
        if (kinds == 5) probs[generator() % probs.size()] = std::numeric_limits<float>::quiet_NaN();
        const at::Tensor row = at::from_blob(probs.data(), {n}, at::kFloat);
        const at::Tensor want = std::get<1>(at::topk(row, k));
        take_top(probs.data(), n, k, queue);
        for (int64_t i = 0; i < k; ++i)
          ASSERT_EQ(queue[static_cast<size_t>(i)].second, want.const_data_ptr<int64_t>()[i]) << n << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace mortise
