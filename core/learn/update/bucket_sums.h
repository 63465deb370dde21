// BucketSums: sums gradients over ranks bucket by bucket, while the backward pass of a rank's last micro-batch runs.
//
// Every rank starts the sums of the same buckets in the same order (ready_gradients.h). At most two copies of buckets
// are on their way at a time: then the pass waits for the older one.
//
// Ranks that share the tokens of a pass must store the same gradients in it. Else one of them would wait for a sum,
// while the other waits for it in the pass. Private to this folder. Thread rule: one call at a time. On a GPU, sums are
// started on the thread that runs autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "learn/update/ready_gradients.h"

namespace mortise {

class BucketSums {
 public:
  // Copies of buckets on their way. A bucket of one tensor needs none.
  static constexpr ptrdiff_t kMostCopies = 2;

  // Borrows the parameters. `buckets` are in the order in which backward completes them.
  BucketSums(std::span<const OptimizedParameter> parameters, std::vector<ParameterRange> buckets)
      : parameters_(parameters), ready_(parameters, std::move(buckets)) {}

  // The last pass of this rank.
  Result<> start_in(const std::function<void()>& backward, Communicator& ranks);
  // Behind the last round of all ranks: those that were not started in a pass. Parameters without a gradient get zeros.
  Result<> start_others(Communicator& ranks);
  // Every gradient is the sum of all ranks'.
  Result<> finish();

  [[nodiscard]] const std::vector<ParameterRange>& buckets() const { return ready_.groups(); }

 private:
  struct Sum {
    std::vector<at::Tensor> gradients;
    at::Tensor copy;  // several gradients end to end; undefined: one gradient is summed in place
    std::unique_ptr<PendingCollective> pending;
  };
  Result<> start(size_t bucket, Communicator& ranks);
  Result<> finish_oldest();

  std::span<const OptimizedParameter> parameters_;
  ReadyGradients ready_;
  size_t num_started_ = 0;
  std::deque<Sum> on_their_way_;  // the oldest first
};

// A copy of tensors, end to end, and the way back.
[[nodiscard]] at::Tensor flatten(std::span<const at::Tensor> tensors);
void unflatten(const at::Tensor& flat, std::span<const at::Tensor> tensors);

}  // namespace mortise
