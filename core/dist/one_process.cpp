// Answers every call with the values of the only rank.
#include "dist/one_process.h"

#include <cstring>
#include <map>
#include <utility>

#include "dist/arguments.h"

namespace mortise {

namespace {

class NothingPending : public PendingCollective {
 public:
  Result<> wait() override { return {}; }
  [[nodiscard]] bool is_done() const override { return true; }
};

class OneProcess : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] int local_rank() const override { return 0; }

  using Communicator::all_reduce_sum;
  Result<> all_reduce_sum(const at::Tensor& tensor, std::string_view stage) override {
    return check_sum_argument(tensor, "all_reduce_sum", stage);
  }
  Result<std::unique_ptr<PendingCollective>> start_all_reduce_sum(const at::Tensor& tensor,
                                                                  std::string_view stage) override {
    TRY(check_sum_argument(tensor, "start_all_reduce_sum", stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<NothingPending>());
  }
  Result<> all_reduce_extreme(std::span<double>, Extreme, std::string_view) override { return {}; }

  Result<> reduce_scatter_sum(const at::Tensor& input, const at::Tensor& output, std::string_view stage) override {
    TRY(check_sum_argument(input, "reduce_scatter_sum", stage));
    return copy(input, output, "reduce_scatter_sum", stage);
  }
  Result<> all_gather(const at::Tensor& input, const at::Tensor& output, std::string_view stage) override {
    return copy(input, output, "all_gather", stage);
  }
  Result<std::unique_ptr<PendingCollective>> start_all_gather(const at::Tensor& input, const at::Tensor& output,
                                                              std::string_view stage) override {
    TRY(copy(input, output, "start_all_gather", stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<NothingPending>());
  }
  Result<> all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                      std::span<const int64_t> output_sizes, std::string_view stage) override {
    TRY(check_sizes(input, input_sizes, 1, "all_to_all", stage));
    TRY(check_sizes(output, output_sizes, 1, "all_to_all", stage));
    return copy(input, output, "all_to_all", stage);
  }
  Result<std::unique_ptr<PendingCollective>> start_all_to_all(const at::Tensor& input,
                                                              std::span<const int64_t> input_sizes,
                                                              const at::Tensor& output,
                                                              std::span<const int64_t> output_sizes,
                                                              std::string_view stage) override {
    TRY(all_to_all(input, input_sizes, output, output_sizes, stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<NothingPending>());
  }
  Result<> broadcast(const at::Tensor& tensor, int root, std::string_view stage) override {
    TRY(check_root(root, 1, "broadcast", stage));
    return check_moved_argument(tensor, "broadcast", stage);
  }
  Result<> barrier(std::string_view) override { return {}; }

  Result<> send(const at::Tensor&, int to, std::string_view stage) override {
    return check_peer(to, 0, 1, "send", stage);
  }
  Result<> recv(const at::Tensor&, int from, std::string_view stage) override {
    return check_peer(from, 0, 1, "recv", stage);
  }

  Result<Communicator*> neighbours(int size) override {
    TRY(check_group_size(size, 1));
    return this;
  }
  Result<Communicator*> strided(int step) override { return neighbours(step); }
  Result<Communicator*> side_group() override {
    if (side_ == nullptr) side_ = std::make_unique<OneProcess>();
    return side_.get();
  }

  using Communicator::exchange;
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view, const Meanwhile&) override {
    return std::vector<std::string>{bytes};
  }
  Result<std::string> broadcast_bytes(const std::string& bytes, int root, std::string_view stage) override {
    TRY(check_root(root, 1, "broadcast_bytes", stage));
    return bytes;
  }

  Result<int64_t> add_to_counter(const std::string& counter, int64_t amount, std::string_view) override {
    return std::exchange(counters_[counter], counters_[counter] + amount);
  }
  Result<> forget_counter(const std::string& counter, std::string_view) override {
    counters_.erase(counter);
    return {};
  }
  Result<> leave_note(const std::string& name, const std::string& bytes, std::string_view stage) override {
    TRY(check_note(bytes, stage));
    notes_[name] = bytes;
    return {};
  }
  Result<std::optional<std::string>> take_note(const std::string& name, std::string_view) override {
    auto note = notes_.extract(name);
    return note ? std::optional(std::move(note.mapped())) : std::nullopt;
  }

  void enter(std::string_view, int64_t) override {}
  Result<> check(std::string_view) override { return {}; }
  void fail(const Error&) override {}
  Result<> leave() override { return {}; }

 private:
  static Result<> copy(const at::Tensor& from, const at::Tensor& to, std::string_view call, std::string_view stage) {
    TRY(check_parts(from, to, 1, call, stage));
    if (from.nbytes() == 0) return {};
    if (from.is_cpu())
      std::memmove(to.data_ptr(), from.data_ptr(), from.nbytes());
    else
      to.view({-1}).copy_(from.view({-1}));
    return {};
  }

  std::map<std::string, int64_t> counters_;
  std::map<std::string, std::string> notes_;
  std::unique_ptr<OneProcess> side_;
};

}  // namespace

std::unique_ptr<Communicator> one_process_communicator() { return std::make_unique<OneProcess>(); }

}  // namespace mortise
