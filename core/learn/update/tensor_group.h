// Tensor parallel in the learner: neighbouring ranks share the matrices of each layer (model/layers/tensor_ranks.h).
//
// The ranks of a group run the same passes on the same rows, and have the same numbers behind every layer. Each computes
// its tokens' logits, and the objective as all others. Errors are kept, as those of a SequenceGroup: whoever runs a pass
// asks for status().
// Thread rule: one thread at a time; the calls are collectives of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>

#include "dist/communicator.h"
#include "model/layers/tensor_ranks.h"

namespace mortise {

class TensorGroup : public TensorRanks {
 public:
  // `size` neighbours among `ranks`. They connect in the first pass.
  TensorGroup(Communicator& ranks, int size) : ranks_(&ranks), size_(size) {}

  [[nodiscard]] int rank() const override { return ranks_->rank() % size_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int group() const override { return ranks_->rank() / size_; }
  [[nodiscard]] int num_groups() const override { return ranks_->size() / size_; }
  void sum(const at::Tensor& tensor) override { sum_of_neighbours(tensor, size_); }
  void sum_of_neighbours(const at::Tensor& tensor, int size) override;
  void gather(const at::Tensor& input, const at::Tensor& output) override;
  void exchange(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                std::span<const int64_t> output_sizes) override;
  [[nodiscard]] Result<> status() const override;

 private:
  Communicator* ranks_;
  int size_;
  std::optional<Error> error_;
};

}  // namespace mortise
