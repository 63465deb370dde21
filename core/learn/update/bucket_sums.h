// BucketSums: sums gradients over ranks bucket by bucket, while a backward pass runs. AllSums gives every rank the sums.
// OwnerSums (owner_sums.h) gives each part of them to the rank that owns it.
//
// Every rank starts the sums of the same buckets in the same order (ready_gradients.h).
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
  virtual ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  // Runs `backward`, the last pass of this sum in which the rank adds to its gradients, and starts buckets meanwhile.
  Result<> start_in(const std::function<void()>& backward, Communicator& ranks);
  // Those that were not started in a pass. Parameters without a gradient count as zeros.
  Result<> start_others(Communicator& ranks);
  // All sums are in their places.
  virtual Result<> finish() = 0;

 protected:
  // Borrows the parameters. `buckets` are in the order in which backward completes them.
  BucketSums(std::span<const OptimizedParameter> parameters, std::vector<ParameterRange> buckets)
      : parameters_(parameters), ready_(parameters, std::move(buckets)) {}

  // Called for one bucket after another.
  virtual Result<> start(size_t bucket, Communicator& ranks) = 0;
  // The first bucket is started next, again.
  void begin_again() { num_started_ = 0; }
  [[nodiscard]] const std::vector<ParameterRange>& buckets() const { return ready_.groups(); }
  [[nodiscard]] std::span<const OptimizedParameter> parameters() const { return parameters_; }

 private:
  Result<> start_next(Communicator& ranks);

  std::span<const OptimizedParameter> parameters_;
  ReadyGradients ready_;
  size_t num_started_ = 0;
};

// Every gradient becomes the sum of all ranks'.
class AllSums : public BucketSums {
 public:
  // Copies of buckets on their way: then the pass waits for the older one. A bucket of one tensor needs none.
  static constexpr ptrdiff_t kMostCopies = 2;

  AllSums(std::span<const OptimizedParameter> parameters, std::vector<ParameterRange> buckets)
      : BucketSums(parameters, std::move(buckets)) {}
  Result<> finish() override;

 private:
  struct Sum {
    std::vector<at::Tensor> gradients;
    at::Tensor copy;  // several gradients end to end; undefined: one gradient is summed in place
    std::unique_ptr<PendingCollective> pending;
  };
  Result<> start(size_t bucket, Communicator& ranks) override;
  Result<> finish_oldest();

  std::deque<Sum> on_their_way_;  // the oldest first
};

// A copy of tensors, end to end, and the way back.
[[nodiscard]] at::Tensor flatten(std::span<const at::Tensor> tensors);
void unflatten(const at::Tensor& flat, std::span<const at::Tensor> tensors);

}  // namespace mortise
