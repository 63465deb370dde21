// Ranks as threads of one process, whose sums and terms arrive late.
#pragma once

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "learn/optim/optimizer.h"
#include "support/thread_ranks.h"

namespace mortise {

// Sums and terms arrive when they are waited for. Before that nobody may read what is on its way, or write to it.
class LateRank : public test::ThreadRank {
 public:
  using ThreadRank::ThreadRank;
  const Optimizer* optimizer = nullptr;  // null: nothing is noted
  std::vector<int64_t> num_stored;       // gradients that this rank has, by sum that is started
  int64_t most_on_their_way = 0;

  Result<std::unique_ptr<PendingCollective>> start_all_reduce_sum(const at::Tensor& tensor,
                                                                  std::string_view stage) override {
    note_stored();
    const at::Tensor sum = tensor.clone();
    TRY(all_reduce_sum(sum, stage));
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    return late(tensor, sum);
  }
  Result<std::unique_ptr<PendingCollective>> start_all_to_all(const at::Tensor& input,
                                                              std::span<const int64_t> input_sizes,
                                                              const at::Tensor& output,
                                                              std::span<const int64_t> output_sizes,
                                                              std::string_view stage) override {
    note_stored();
    const at::Tensor terms = output.clone();
    TRY(all_to_all(input, input_sizes, terms, output_sizes, stage));
    for (const at::Tensor& tensor : {input, output}) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    return late(output, terms);
  }

 private:
  class Late : public PendingCollective {
   public:
    Late(at::Tensor to, at::Tensor arrived, int64_t& num_on_their_way)
        : to_(std::move(to)), arrived_(std::move(arrived)), num_on_their_way_(&num_on_their_way) {}
    Result<> wait() override {
      to_.copy_(arrived_);
      if (!std::exchange(is_done_, true)) --*num_on_their_way_;
      return {};
    }
    [[nodiscard]] bool is_done() const override { return is_done_; }

   private:
    at::Tensor to_, arrived_;
    int64_t* num_on_their_way_;
    bool is_done_ = false;
  };
  void note_stored() {
    if (optimizer == nullptr) return;
    num_stored.push_back(std::ranges::count_if(
        optimizer->parameters(), [](const OptimizedParameter& one) { return one.tensor.grad().defined(); }));
  }
  std::unique_ptr<PendingCollective> late(const at::Tensor& to, const at::Tensor& arrived) {
    most_on_their_way = std::max(most_on_their_way, ++num_on_their_way_);
    return std::make_unique<Late>(to, arrived, num_on_their_way_);
  }

  int64_t num_on_their_way_ = 0;
};

inline void on_late_ranks(int size, const std::function<void(LateRank&)>& work) {
  test::MeetingPoint point(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      LateRank ranks(point, rank, size);
      work(ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mortise
