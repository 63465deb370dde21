// Ranks as threads of one process, for tests of what ranks compute: a Communicator over shared memory. Sums run in rank
// order. Real processes over Gloo are in tests/e2e.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/cpus.h"
#include "support/meeting_point.h"

namespace mortise::test {

class ThreadRank : public Communicator {
 public:
  ThreadRank(MeetingPoint& point, int rank, int size) : ThreadRank(point, point, rank, size, rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int local_rank() const override { return rank_; }

  using Communicator::all_reduce_sum;
  Result<> all_reduce_sum(const at::Tensor& tensor, std::string_view stage) override {
    const std::vector<std::string> all = TRY(exchange(bytes_of(tensor), stage));
    tensor.zero_();
    for (const std::string& bytes : all) {
      at::Tensor other = at::empty_like(tensor);
      copy(bytes, other);
      tensor.add_(other);
    }
    return {};
  }
  Result<std::unique_ptr<PendingCollective>> start_all_reduce_sum(const at::Tensor& tensor,
                                                                  std::string_view stage) override {
    TRY(all_reduce_sum(tensor, stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<Done>());
  }
  Result<> all_reduce_extreme(std::span<double> values, Extreme extreme, std::string_view stage) override {
    std::string own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    for (const std::string& bytes : TRY(exchange(own, stage))) {
      for (size_t i = 0; i < values.size(); ++i) {
        double other = 0.0;
        std::memcpy(&other, bytes.data() + i * sizeof other, sizeof other);
        values[i] = extreme == Extreme::kMax ? std::max(values[i], other) : std::min(values[i], other);
      }
    }
    return {};
  }
  Result<> reduce_scatter_sum(const at::Tensor& input, const at::Tensor& output, std::string_view stage) override {
    const at::Tensor sum = input.clone();
    TRY(all_reduce_sum(sum, stage));
    output.copy_(sum.narrow(0, rank_ * output.numel(), output.numel()));
    return {};
  }
  Result<> all_gather(const at::Tensor& input, const at::Tensor& output, std::string_view stage) override {
    const std::vector<std::string> all = TRY(exchange(bytes_of(input), stage));
    std::string joined;
    for (const std::string& bytes : all) joined += bytes;
    copy(joined, output);
    return {};
  }
  Result<std::unique_ptr<PendingCollective>> start_all_gather(const at::Tensor& input, const at::Tensor& output,
                                                              std::string_view stage) override {
    TRY(all_gather(input, output, stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<Done>());
  }
  Result<> all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                      std::span<const int64_t> output_sizes, std::string_view stage) override {
    const auto bytes_before = [&](std::span<const int64_t> sizes, int rank) {
      return static_cast<size_t>(std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0})) *
             static_cast<size_t>(input.element_size());
    };
    // Each rank's message says where its parts begin.
    std::string own;
    for (int rank = 0; rank <= size_; ++rank) {
      const size_t begin = bytes_before(input_sizes, rank);
      own.append(reinterpret_cast<const char*>(&begin), sizeof begin);
    }
    const std::vector<std::string> all = TRY(exchange(own + bytes_of(input), stage));
    std::string joined;
    for (int from = 0; from < size_; ++from) {
      const std::string& message = all[static_cast<size_t>(from)];
      size_t ends[2];
      std::memcpy(ends, message.data() + static_cast<size_t>(rank_) * sizeof(size_t), sizeof ends);
      const size_t head = static_cast<size_t>(size_ + 1) * sizeof(size_t);
      const std::string part = message.substr(head + ends[0], ends[1] - ends[0]);
      EXPECT_EQ(part.size(), bytes_before(output_sizes, from + 1) - bytes_before(output_sizes, from)) << stage;
      joined += part;
    }
    copy(joined, output);
    return {};
  }
  Result<std::unique_ptr<PendingCollective>> start_all_to_all(const at::Tensor& input,
                                                              std::span<const int64_t> input_sizes,
                                                              const at::Tensor& output,
                                                              std::span<const int64_t> output_sizes,
                                                              std::string_view stage) override {
    TRY(all_to_all(input, input_sizes, output, output_sizes, stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<Done>());
  }
  Result<> broadcast(const at::Tensor& tensor, int root, std::string_view stage) override {
    copy(TRY(broadcast_bytes(root == rank_ ? bytes_of(tensor) : "", root, stage)), tensor);
    return {};
  }
  Result<> barrier(std::string_view stage) override {
    TRY(exchange("", stage));
    return {};
  }
  Result<> send(const at::Tensor&, int, std::string_view) override { return unused(); }
  Result<> recv(const at::Tensor&, int, std::string_view) override { return unused(); }
  Result<Communicator*> neighbours(int size) override {
    std::unique_ptr<ThreadRank>& found = parts_[size];
    if (found == nullptr) found = group(point_->part(size, rank_ / size), rank_ % size, size);
    return found.get();
  }
  Result<Communicator*> strided(int step) override {
    std::unique_ptr<ThreadRank>& found = parts_[-step];
    const int size = size_ / step;
    if (found == nullptr) found = group(point_->part(size, -1 - rank_ % step), rank_ / step, size);
    return found.get();
  }
  Result<Communicator*> side_group() override {
    if (side_ == nullptr) side_ = group(point_->side(), rank_, size_);
    return side_.get();
  }
  using Communicator::exchange;
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage,
                                            const Meanwhile& meanwhile) override {
    if (stage == failing_stage_ && ++num_calls_ == failing_call_) fail(error_);
    return point_->meet(rank_, bytes, meanwhile);
  }
  Result<std::string> broadcast_bytes(const std::string& bytes, int root, std::string_view stage) override {
    return TRY(exchange(bytes, stage))[static_cast<size_t>(root)];
  }
  Result<int64_t> add_to_counter(const std::string& counter, int64_t amount, std::string_view) override {
    return point_->add(counter, amount);
  }
  Result<> forget_counter(const std::string& counter, std::string_view) override {
    point_->forget(counter);
    return {};
  }
  Result<> leave_note(const std::string& name, const std::string& bytes, std::string_view) override {
    EXPECT_LE(bytes.size(), size_t{kMaxNoteBytes});
    point_->leave_note(name, bytes);
    return {};
  }
  Result<std::optional<std::string>> take_note(const std::string& name, std::string_view) override {
    return point_->take_note(name);
  }
  // This rank fails in its `call`-th exchange of the stage with this group, counted from 1. All ranks get the error, which
  // names it.
  void fail_at(std::string_view stage, int64_t call) {
    failing_stage_ = stage;
    failing_call_ = call;
    error_ = {ErrorKind::kRankFailure, "rank " + std::to_string(rank_of_run_) + " lost its connection", {}, {}};
  }
  // Its exchanges of that stage up to now.
  [[nodiscard]] int64_t num_calls() const { return num_calls_; }
  void enter(std::string_view, int64_t) override {}
  [[nodiscard]] Result<> check(std::string_view) override { return {}; }
  void fail(const Error& error) override { run_->fail(error); }
  Result<> leave() override { return barrier("leave"); }

 private:
  ThreadRank(MeetingPoint& run, MeetingPoint& point, int rank, int size, int rank_of_run)
      : run_(&run), point_(&point), rank_(rank), size_(size), rank_of_run_(rank_of_run) {}
  std::unique_ptr<ThreadRank> group(MeetingPoint& point, int rank, int size) {
    return std::unique_ptr<ThreadRank>(new ThreadRank(*run_, point, rank, size, rank_of_run_));
  }

  class Done : public PendingCollective {
    Result<> wait() override { return {}; }
    [[nodiscard]] bool is_done() const override { return true; }
  };
  static std::string bytes_of(const at::Tensor& tensor) {
    const at::Tensor host = tensor.cpu();
    return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
  }
  static void copy(const std::string& bytes, const at::Tensor& tensor) {
    EXPECT_EQ(bytes.size(), tensor.nbytes()) << "the ranks sent tensors of different sizes";
    if (bytes.size() != tensor.nbytes()) return;
    if (tensor.is_cpu())
      std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    else
      tensor.copy_(at::from_blob(const_cast<char*>(bytes.data()), tensor.sizes(), tensor.options().device(at::kCPU)));
  }
  static Result<> unused() { return Error{ErrorKind::kInternal, "ranks of threads have no point to point", "", ""}; }

  MeetingPoint *run_, *point_;  // where all ranks meet, and those of this group
  int rank_, size_, rank_of_run_;
  std::string failing_stage_;
  int64_t failing_call_ = 0, num_calls_ = 0;
  Error error_;
  std::unique_ptr<ThreadRank> side_;
  std::map<int, std::unique_ptr<ThreadRank>> parts_;  // by size of neighbours, or by minus the step
};

// Until it ends, this thread computes with one thread, as each rank of on_ranks does, if the bits of libtorch's products
// depend on the number of threads: on AMD's processors. Runs of plain layers whose bits are compared with those of ranks need
// this.
class ThreadsOfRanks {
 public:
  ThreadsOfRanks() {
    if (is_amd_cpu()) at::set_num_threads(1);
  }
  ~ThreadsOfRanks() { at::set_num_threads(before_); }
  ThreadsOfRanks(const ThreadsOfRanks&) = delete;
  ThreadsOfRanks& operator=(const ThreadsOfRanks&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// Runs `work` as so many ranks at once. Returns the bytes that they sent.
inline size_t on_ranks(int size, const std::function<void(Communicator&)>& work) {
  MeetingPoint point(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ThreadRank communicator(point, rank, size);
      work(communicator);
      if (testing::Test::HasFailure()) communicator.fail({ErrorKind::kInternal, "another rank failed", {}, {}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return point.num_sent();
}

}  // namespace mortise::test
