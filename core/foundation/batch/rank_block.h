// Which prompts of a batch a rank samples and scores: a block of neighbours, so that whole groups stay on one rank and
// the ranks' parts one after the other are the batch in its order.
#pragma once

#include <cstdint>

namespace mortise {

struct RankBlock {
  int64_t begin = 0, end = 0;
  [[nodiscard]] bool contains(int64_t item) const { return begin <= item && item < end; }
  [[nodiscard]] int64_t size() const { return end - begin; }
};

// Sizes differ by one at most.
[[nodiscard]] constexpr RankBlock rank_block(int64_t count, int rank, int num_ranks) {
  return {count * rank / num_ranks, count * (rank + 1) / num_ranks};
}

// All of them to rank 0.
[[nodiscard]] constexpr RankBlock main_block(int64_t count, int rank) {
  return rank == 0 ? RankBlock{0, count} : RankBlock{count, count};
}

}  // namespace mortise
