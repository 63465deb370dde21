// Shards: which rank owns which parameters of an optimizer, for ZeRO (Rajbhandari et al., arXiv:1910.02054).
//
// The flat order is the parameters one behind another, each row-major. Rank r owns one range of it, r + 1 the next.
// Ranges are cut between tensors, and for optimizers that work element by element also at multiples of kBlock numbers
// of a tensor. AdamW's kernel works in vectors from the start of a tensor, so such a cut changes no bit. A rank may own
// nothing. Thread rule: constants.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/result.h"

namespace mortise {

// Numbers [begin, end) of the flat order.
struct FlatRange {
  int64_t begin = 0, end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  // What both have; empty ranges have end == begin.
  [[nodiscard]] FlatRange within(const FlatRange& other) const;
};

// A part of one tensor.
struct TensorPart {
  size_t tensor = 0;
  int64_t begin = 0, size = 0;  // numbers of the tensor
};

// Where ranges may be cut.
enum class ShardCut { kBlocks, kTensors };

class Shards {
 public:
  static constexpr int64_t kBlock = int64_t{1} << 18;
  // Bytes of one exchange between ranks: what a rank sends and receives is held twice meanwhile.
  static constexpr int64_t kRoundBytes = int64_t{32} << 20;

  // `sizes`: the numbers of each parameter.
  Shards(std::span<const int64_t> sizes, int num_ranks, ShardCut cut = ShardCut::kBlocks);
  // One of several lists: ranks with less of the lists before own more of this one. `loads`: the numbers that each rank
  // owns of them, to which this list's are added.
  Shards(std::span<const int64_t> sizes, ShardCut cut, std::vector<int64_t>& loads);

  // Some of the tensors, in rising order, with the owners that their numbers have here.
  [[nodiscard]] Shards only(std::span<const size_t> tensors) const;

  [[nodiscard]] int num_ranks() const { return static_cast<int>(ranges_.size()); }
  [[nodiscard]] FlatRange of(int rank) const { return ranges_[static_cast<size_t>(rank)]; }
  [[nodiscard]] int64_t largest() const;  // numbers that one rank owns
  // The tensors of a range, in order.
  [[nodiscard]] std::vector<TensorPart> parts(const FlatRange& range) const;
  // Where a tensor begins.
  [[nodiscard]] int64_t begin_of(size_t tensor) const { return begins_[tensor]; }

 private:
  Shards() = default;
  void set_ranges(std::span<const int64_t> pieces, std::span<const int> owners, int num_ranks);

  std::vector<int64_t> begins_;  // one more than there are tensors
  std::vector<FlatRange> ranges_;
};

// The blocks of tensors of these sizes: no block crosses a tensor, and all but the last of a tensor have kBlock numbers.
[[nodiscard]] std::vector<TensorPart> blocks_of(std::span<const int64_t> sizes);

// Between a range of the flat order and one tensor [range.size()]. `tensors` are contiguous, of the sizes of `shards`.
void copy_from_tensors(const Shards& shards, std::span<const at::Tensor> tensors, const FlatRange& range,
                       const at::Tensor& flat);
void copy_to_tensors(const Shards& shards, const at::Tensor& flat, const FlatRange& range,
                     std::span<const at::Tensor> tensors);

// Ranges of the owners that travel together: round k has the k-th piece of each rank's range, all pieces together at
// most `numbers` (but one number per rank).
class ShardRounds {
 public:
  ShardRounds(const Shards& shards, int64_t numbers);
  [[nodiscard]] int64_t size() const { return num_rounds_; }
  [[nodiscard]] FlatRange piece(int64_t round, int rank) const;

 private:
  const Shards* shards_;
  int64_t piece_;
  int64_t num_rounds_;
};

// Every rank gets the owners' numbers of all `tensors`.
Result<> gather_tensors(Communicator& communicator, const Shards& shards, std::span<const at::Tensor> tensors,
                        std::string_view stage);

}  // namespace mortise
