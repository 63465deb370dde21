// Communicator: what the ranks of a run tell each other. A rank is one process of a run.
//
// A run of one process has a communicator too (one_process.h): every call answers at once with this rank's own values.
// Callers therefore never ask whether a run is distributed.
//
// Order rule: every rank calls the same collectives, in the same order, with the same sizes and types. all_reduce_sum,
// start_all_reduce_sum, reduce_scatter_sum, all_gather, start_all_gather, all_to_all, start_all_to_all, broadcast, barrier,
// exchange and broadcast_bytes are collectives. send and recv concern two ranks, and each pair of ranks calls them in the
// same order.
//
// Thread rule: one call at a time. The calls may come from different threads (autograd's start the reduction of a
// bucket), if the order rule holds. enter, check and fail may be called by any thread at any time.
//
// Stage: every call takes the name of the stage that waits ("gradients"), for the errors' texts. It must be a literal,
// or live as long as the communicator.
//
// Errors: kind kRankFailure (exit code 7) means that a rank died, hangs, or ended with an error of its own. The text
// names that rank, the stage where it was, and the stage in which this rank waited. The group is broken after any
// Error. The contents of the tensors are undefined, every later call fails with the same Error, and the process should
// end with it. kind kInternal means that the arguments were wrong (a type, a size); nothing was sent.
//
// Numbers: all ranks receive the same bits. The order of a sum depends on size() and the tensor's length, so its last bits do
// too. For sums that do not depend on the number of ranks, gather the terms and add them in an order of your own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

// A collective that runs while the caller computes. Its tensors are untouchable until wait() has returned; the handle
// keeps them alive. Handles may be waited for in any order. A handle that was never waited for waits in its destructor.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  virtual Result<> wait() = 0;
  // wait() returns at once. Ranks may get different answers, so no order of calls may depend on them.
  [[nodiscard]] virtual bool is_done() const = 0;
};

// What a rank does while it waits for others: it is called again and again, works or waits for at most about `wait_ms`
// milliseconds, and says whether it has more to do. It may use counters and notes, but no collectives.
using Meanwhile = std::function<bool(int wait_ms)>;

// The largest or smallest value of all ranks, for metrics such as the time of the slowest rank.
enum class Extreme { kMax, kMin };

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int local_rank() const = 0;  // number of this rank on its machine
  [[nodiscard]] bool is_main() const { return rank() == 0; }

  // Tensors are contiguous, on the CPU or on this rank's GPU (nccl/carry_device.h). Sums take float32, float64 and int64;
  // the others take every type.

  // tensor = the sum over ranks, in place, on every rank.
  virtual Result<> all_reduce_sum(const at::Tensor& tensor, std::string_view stage) = 0;
  Result<> all_reduce_sum(std::span<float> values, std::string_view stage);
  Result<> all_reduce_sum(std::span<double> values, std::string_view stage);
  Result<> all_reduce_sum(std::span<int64_t> values, std::string_view stage);
  // The same without waiting: gradients go out in buckets while the backward pass runs. Never null.
  virtual Result<std::unique_ptr<PendingCollective>> start_all_reduce_sum(const at::Tensor& tensor,
                                                                          std::string_view stage) = 0;
  virtual Result<> all_reduce_extreme(std::span<double> values, Extreme extreme, std::string_view stage) = 0;

  // output [n] = this rank's part of the sum over ranks of input [size() * n]. The ranks are added in the order 0, 1, ...
  virtual Result<> reduce_scatter_sum(const at::Tensor& input, const at::Tensor& output, std::string_view stage) = 0;
  // output [size() * n] = the inputs [n] of all ranks, in rank order.
  virtual Result<> all_gather(const at::Tensor& input, const at::Tensor& output, std::string_view stage) = 0;
  // The same without waiting: the weights of a layer travel while the layer before it computes. Never null.
  virtual Result<std::unique_ptr<PendingCollective>> start_all_gather(const at::Tensor& input, const at::Tensor& output,
                                                                      std::string_view stage) = 0;
  // output = what each rank has for this one, in rank order. input = what this rank has for each of them: first
  // input_sizes[0] numbers for rank 0, and so on. A size may be 0; what rank a sends to b is what b expects from a.
  virtual Result<> all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                              std::span<const int64_t> output_sizes, std::string_view stage) = 0;
  // The same without waiting: gradients go to their owners while the backward pass runs. Never null.
  virtual Result<std::unique_ptr<PendingCollective>> start_all_to_all(const at::Tensor& input,
                                                                      std::span<const int64_t> input_sizes,
                                                                      const at::Tensor& output,
                                                                      std::span<const int64_t> output_sizes,
                                                                      std::string_view stage) = 0;
  // tensor = that of the rank `root`.
  virtual Result<> broadcast(const at::Tensor& tensor, int root, std::string_view stage) = 0;
  // Returns when every rank has called it.
  virtual Result<> barrier(std::string_view stage) = 0;

  // To and from another rank, never this one.
  virtual Result<> send(const at::Tensor& tensor, int to, std::string_view stage) = 0;
  virtual Result<> recv(const at::Tensor& tensor, int from, std::string_view stage) = 0;

  // The group of the ranks [k size, (k + 1) size) to which this rank belongs; `size` divides that of this group. Its ranks
  // count from 0, and its collectives concern nobody else. It lives as long as this communicator, and every call with one
  // size gives the same one. Its ranks make the call together. Errors name the ranks of the whole run; leave() does nothing.
  virtual Result<Communicator*> neighbours(int size) = 0;
  // The same of the ranks whose numbers leave the same rest when they are divided by `step`, which divides size(): one rank
  // out of each group of `step` neighbours. They count from 0 in rank order. A group has groups too.
  virtual Result<Communicator*> strided(int step) = 0;

  // A second group of the same ranks. Another thread may use it at the same time as this one, because the order of its calls
  // is its own. It lives as long as this communicator, and every call gives the same one. The ranks make the call together.
  virtual Result<Communicator*> side_group() = 0;

  // Every rank's bytes, in rank order, on every rank. Sizes may differ and may be 0. The rank calls `meanwhile`
  // until all have come.
  virtual Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage,
                                                    const Meanwhile& meanwhile) = 0;
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage) {
    return exchange(bytes, stage, {});
  }
  // The bytes of the rank `root`, on every rank; those of the others are ignored.
  virtual Result<std::string> broadcast_bytes(const std::string& bytes, int root, std::string_view stage) = 0;

  // Adds to a counter that all ranks share, and returns its value before that. Counters begin at 0. Not a collective:
  // ranks call it when they like, from the thread of the collectives.
  virtual Result<int64_t> add_to_counter(const std::string& counter, int64_t amount, std::string_view stage) = 0;
  // Every rank is done with it: one of them forgets it.
  virtual Result<> forget_counter(const std::string& counter, std::string_view stage) = 0;
  // Bytes that a rank leaves for another one under a new name, at most kMaxNoteBytes. As for counters, this is no collective.
  static constexpr size_t kMaxNoteBytes = size_t{4} << 20;
  virtual Result<> leave_note(const std::string& name, const std::string& bytes, std::string_view stage) = 0;
  // The note with this name, which is gone then; nothing if there is none yet. Only one rank may look for it.
  virtual Result<std::optional<std::string>> take_note(const std::string& name, std::string_view stage) = 0;
  // 0, 1, ...: the same number on all ranks, which ask for numbers in the same order. For the names of counters and notes.
  [[nodiscard]] int64_t next_number() { return num_numbers_++; }

  // Says where this rank is now. If this rank dies, the others name the stage and the step. Costs no message.
  virtual void enter(std::string_view stage, int64_t step) = 0;
  // The Error of the group, if it is known that a rank has failed. Long stages without collectives call it now and then.
  // Costs no message.
  [[nodiscard]] virtual Result<> check(std::string_view stage) = 0;
  // This rank ends with this Error: the others learn of it and end too, naming it. Call it before the destructor.
  virtual void fail(const Error& error) = 0;
  // A run that is done: returns when all ranks have called it. Without it, and without fail(), the others take this
  // rank for dead when its process ends.
  virtual Result<> leave() = 0;

 private:
  int64_t num_numbers_ = 0;
};

}  // namespace mortise
