// Starts each collective on Gloo or on the network of a device. The watch ends the wait for it if a rank fails.
#include "dist/gloo/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/core.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "dist/arguments.h"
#include "dist/gloo/c10d_handle.h"
#include "dist/gloo/gloo_call.h"
#include "dist/gloo/gloo_devices.h"
#include "dist/nccl/carry_device.h"
#include "dist/nccl/nccl_module.h"

namespace mortise {

namespace {

constexpr const char* kWholeName = "gloo";

// Bytes of any type move this way.
at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

std::vector<int64_t> in_bytes(std::span<const int64_t> sizes, const at::Tensor& tensor) {
  std::vector<int64_t> bytes;
  for (const int64_t size : sizes) bytes.push_back(size * static_cast<int64_t>(tensor.element_size()));
  return bytes;
}

// At least a byte: Gloo takes no memory without an address.
at::Tensor as_some_bytes(const at::Tensor& tensor) {
  return tensor.numel() > 0 ? as_bytes(tensor) : at::empty({1}, tensor.options().dtype(at::kByte)).narrow(0, 0, 0);
}

at::Tensor byte_tensor(const std::string& bytes, int64_t padded) {
  at::Tensor tensor = at::zeros({padded}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// If a rank sends at most so many bytes, a collective takes as long as its rounds of messages. So each rank then sends its
// numbers to all others at once, which is one round. In Gloo's rings a sum has 4 (size - 1) rounds, and a gathering half as
// many.
constexpr int64_t kMostBytesAtOnce = 32768;

// The first byte of each note, and what a rank reads if there is none. A note may be empty.
constexpr uint8_t kIsNote = 1, kNoNote = 0;

// sum = the terms [ranks, n], which are added in the order of ranks. Autograd sees nothing of it, as of Gloo's sums.
void add_terms(const at::Tensor& terms, const at::Tensor& sum) {
  const c10::NoGradGuard no_gradient;
  const at::Tensor numbers = sum.variable_data().view({-1});
  numbers.copy_(terms[0]);
  for (int64_t rank = 1; rank < terms.size(0); ++rank) numbers.add_(terms[rank]);
}

// What a rank tells first in an exchange: how many bytes it has, and as many of them as have room.
constexpr int64_t kStartBytes = 2048, kLengthBytes = sizeof(int64_t);

std::string start_of(const std::string& bytes) {
  const auto length = static_cast<int64_t>(bytes.size());
  std::string start(reinterpret_cast<const char*>(&length), kLengthBytes);
  return start.append(bytes, 0, kStartBytes - kLengthBytes);
}

class NothingPendingHere : public PendingCollective {
 public:
  Result<> wait() override { return {}; }
  [[nodiscard]] bool is_done() const override { return true; }
};

// Connects the ranks of a group; throws if that fails. `name` tells its keys in the store from those of other groups.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                         const std::string& name, const GlooOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices = gloo_devices(options.address);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), options.rank,
                                                     options.size, gloo);
}

class GlooCommunicator : public Communicator {
 public:
  // `name`: that of its keys in the store. kWholeName: all ranks of the run, else some of a larger group, whose watch it
  // shares.
  GlooCommunicator(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, c10::intrusive_ptr<c10d::Store> store,
                   std::shared_ptr<RankWatch> watch, const GlooOptions& options, std::string name,
                   const RankSet& ranks = {})
      : group_(std::move(group)),
        store_(std::move(store)),
        counters_(c10::make_intrusive<c10d::PrefixStore>("counters/" + name, store_)),
        watch_(std::move(watch)),
        options_(options),
        name_(std::move(name)),
        is_part_(name_ != kWholeName),
        ranks_(ranks) {}
  GlooCommunicator(const GlooCommunicator&) = delete;
  GlooCommunicator& operator=(const GlooCommunicator&) = delete;

  // Gloo's threads may wait for a rank that never answers, and its destructor would wait for them.
  ~GlooCommunicator() override {
    if (left_) return;
    static_cast<void>(group_.release());
    static_cast<void>(device_group_.release());
  }

  // From now on tensors of this device may be given, which NCCL moves.
  Result<> carry(const at::Device& device) {
    if (device.is_cpu() || device_group_) return {};
    device_group_ = TRY(open_nccl_group({store_, options_.rank, options_.size, options_.timeout}));
    // The ranks connect at the first collective. A number now shows before a model is loaded whether they can.
    const at::Tensor one = at::ones({1}, at::TensorOptions().device(device));
    Result<> sum = reduce(one, c10d::ReduceOp::SUM, "connecting the GPUs");
    if (sum.ok()) carry_in_parts();
    if (!sum.ok()) {
      sum.error().what += "; NCCL may not be able to connect the ranks";
      sum.error().next += "; look whether each rank has a GPU of its own (NCCL_DEBUG=INFO says more)";
    }
    return sum;
  }

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }
  [[nodiscard]] int local_rank() const override { return options_.local_rank; }

  using Communicator::all_reduce_sum;
  Result<> all_reduce_sum(const at::Tensor& tensor, std::string_view stage) override {
    TRY(check_sum_argument(tensor, "all_reduce_sum", stage));
    if (tensor.numel() == 0) return {};
    Call call = TRY(start_sum(tensor, stage));
    return call.wait();
  }

  Result<std::unique_ptr<PendingCollective>> start_all_reduce_sum(const at::Tensor& tensor,
                                                                  std::string_view stage) override {
    TRY(check_sum_argument(tensor, "start_all_reduce_sum", stage));
    if (tensor.numel() == 0) return std::unique_ptr<PendingCollective>(std::make_unique<NothingPendingHere>());
    Call call = TRY(start_sum(tensor, stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<PendingCall>(std::move(call)));
  }

  Result<> all_reduce_extreme(std::span<double> values, Extreme extreme, std::string_view stage) override {
    const at::Tensor copy = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
    std::copy(values.begin(), values.end(), copy.data_ptr<double>());
    TRY(reduce(copy, extreme == Extreme::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN, stage));
    std::copy_n(copy.data_ptr<double>(), values.size(), values.begin());
    return {};
  }

  // Every rank gets all terms of its part and adds them itself. As many bytes as a ring moves.
  Result<> reduce_scatter_sum(const at::Tensor& input, const at::Tensor& output, std::string_view stage) override {
    TRY(check_sum_argument(input, "reduce_scatter_sum", stage));
    TRY(check_parts(input, output, size(), "reduce_scatter_sum", stage));
    if (output.numel() == 0) return {};
    at::Tensor terms = at::empty({size(), output.numel()}, input.options());
    at::Tensor parts = input.view({size(), output.numel()});
    TRY(run(stage, input, [&](auto& group) {
      std::vector<int64_t> equal;
      return group.alltoall_base(terms, parts, equal, equal);
    }));
    add_terms(terms, output);
    return {};
  }

  Result<> all_gather(const at::Tensor& input, const at::Tensor& output, std::string_view stage) override {
    TRY(check_parts(output, input, size(), "all_gather", stage));
    if (input.numel() == 0) return {};
    Call call = TRY(start_gather(input, output, stage));
    return call.wait();
  }

  Result<std::unique_ptr<PendingCollective>> start_all_gather(const at::Tensor& input, const at::Tensor& output,
                                                              std::string_view stage) override {
    TRY(check_parts(output, input, size(), "start_all_gather", stage));
    if (input.numel() == 0) return std::unique_ptr<PendingCollective>(std::make_unique<NothingPendingHere>());
    Call call = TRY(start_gather(input, output, stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<PendingCall>(std::move(call)));
  }

  Result<> all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                      std::span<const int64_t> output_sizes, std::string_view stage) override {
    Call call = TRY(start_exchange(input, input_sizes, output, output_sizes, "all_to_all", stage));
    return call.wait();
  }

  Result<std::unique_ptr<PendingCollective>> start_all_to_all(const at::Tensor& input,
                                                              std::span<const int64_t> input_sizes,
                                                              const at::Tensor& output,
                                                              std::span<const int64_t> output_sizes,
                                                              std::string_view stage) override {
    Call call = TRY(start_exchange(input, input_sizes, output, output_sizes, "start_all_to_all", stage));
    return std::unique_ptr<PendingCollective>(std::make_unique<PendingCall>(std::move(call)));
  }

  Result<> broadcast(const at::Tensor& tensor, int root, std::string_view stage) override {
    TRY(check_root(root, size(), "broadcast", stage));
    TRY(check_moved_argument(tensor, "broadcast", stage));
    if (tensor.numel() == 0) return {};
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return run(stage, tensor, [&](auto& group) { return group.broadcast(tensors, options); });
  }

  Result<> barrier(std::string_view stage) override {
    return run(stage, at::Tensor(), [&](auto& group) { return group.barrier(); });
  }

  Result<> send(const at::Tensor& tensor, int to, std::string_view stage) override {
    TRY(check_peer(to, rank(), size(), "send", stage));
    TRY(check_moved_argument(tensor, "send", stage));
    if (tensor.numel() == 0) return {};
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return run_pair(stage, to, tensor, [&](auto& group) { return group.send(tensors, to, 0); });
  }
  Result<> recv(const at::Tensor& tensor, int from, std::string_view stage) override {
    TRY(check_peer(from, rank(), size(), "recv", stage));
    TRY(check_moved_argument(tensor, "recv", stage));
    if (tensor.numel() == 0) return {};
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return run_pair(stage, from, tensor, [&](auto& group) { return group.recv(tensors, from, 0); });
  }

  Result<Communicator*> neighbours(int size) override {
    TRY(check_group_size(size, options_.size));
    const int group = options_.rank / size;
    return part(fmt::format("{}/{}/{}", name_, size, group), options_.rank % size,
                {ranks_.first + group * size * ranks_.step, ranks_.step, size, ranks_.is_aside});
  }

  Result<Communicator*> strided(int step) override {
    TRY(check_group_size(step, options_.size));
    const int first = options_.rank % step;
    return part(fmt::format("{}/every/{}/{}", name_, step, first), options_.rank / step,
                {ranks_.first + first * ranks_.step, step * ranks_.step, options_.size / step, ranks_.is_aside});
  }

  Result<Communicator*> side_group() override {
    return part(fmt::format("{}/side", name_), options_.rank,
                {ranks_.first, ranks_.step, options_.size, /*is_aside=*/true});
  }

  // Few texts are long: a second round, for what is left of them, is seldom needed.
  using Communicator::exchange;
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage,
                                            const Meanwhile& meanwhile) override {
    const at::Tensor starts = at::empty({size() * kStartBytes}, at::kByte);
    const at::Tensor own = byte_tensor(start_of(bytes), kStartBytes);
    Call call = TRY(start_gather(own, starts, stage));
    TRY(call.wait(meanwhile));
    std::vector<int64_t> left(static_cast<size_t>(size()));
    std::vector<std::string> texts;
    const auto* start = reinterpret_cast<const char*>(starts.data_ptr());
    for (int64_t& one : left) {
      std::memcpy(&one, start, kLengthBytes);
      const int64_t here = std::min(one, kStartBytes - kLengthBytes);
      texts.emplace_back(start + kLengthBytes, static_cast<size_t>(here));
      one -= here;
      start += kStartBytes;
    }
    const int64_t most = *std::max_element(left.begin(), left.end());
    if (most == 0) return texts;
    const at::Tensor ends = at::empty({size() * most}, at::kByte);
    TRY(all_gather(byte_tensor(bytes.substr(texts[static_cast<size_t>(rank())].size()), most), ends, stage));
    const auto* end = reinterpret_cast<const char*>(ends.data_ptr());
    for (size_t i = 0; i < texts.size(); ++i, end += most) texts[i].append(end, static_cast<size_t>(left[i]));
    return texts;
  }

  Result<std::string> broadcast_bytes(const std::string& bytes, int root, std::string_view stage) override {
    TRY(check_root(root, size(), "broadcast_bytes", stage));
    const at::Tensor length = at::zeros({1}, at::kLong);
    length.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
    TRY(broadcast(length, root, stage));
    const int64_t count = length.data_ptr<int64_t>()[0];
    const at::Tensor data = rank() == root ? byte_tensor(bytes, count) : at::empty({count}, at::kByte);
    TRY(broadcast(data, root, stage));
    return std::string(reinterpret_cast<const char*>(data.data_ptr()), static_cast<size_t>(count));
  }

  Result<int64_t> add_to_counter(const std::string& counter, int64_t amount, std::string_view stage) override {
    return ask_store(stage, [&] { return counters_->add(counter, amount) - amount; });
  }
  Result<> forget_counter(const std::string& counter, std::string_view stage) override {
    TRY(ask_store(stage, [&] { return counters_->deleteKey(counter); }));
    return {};
  }
  Result<> leave_note(const std::string& name, const std::string& bytes, std::string_view stage) override {
    TRY(check_note(bytes, stage));
    TRY(ask_store(stage, [&] {
      std::vector<uint8_t> note{kIsNote};
      note.insert(note.end(), bytes.begin(), bytes.end());
      counters_->set(name, note);
      return true;
    }));
    return {};
  }
  Result<std::optional<std::string>> take_note(const std::string& name, std::string_view stage) override {
    return ask_store(stage, [&]() -> std::optional<std::string> {
      // One message, where check() and get() are three: without a value the store answers what it was asked to replace.
      const std::vector<uint8_t> none{kNoNote};
      const std::vector<uint8_t> note = counters_->compareSet(name, none, none);
      if (note == none) return std::nullopt;
      counters_->deleteKey(name);
      return std::string(note.begin() + 1, note.end());
    });
  }

  void enter(std::string_view stage, int64_t step) override { watch_->enter(stage, step); }
  Result<> check(std::string_view stage) override { return watch_->check(stage); }
  void fail(const Error& error) override { watch_->fail(error); }
  Result<> leave() override {
    if (is_part_) return {};
    TRY(watch_->leave());
    end_alike();
    return {};
  }

 private:
  // A call of the store that counts and keeps notes, which throws if it fails.
  template <class Ask>
  auto ask_store(std::string_view stage, const Ask& ask) -> Result<decltype(ask())> {
    TRY(watch_->check(stage));
    try {
      return ask();
    } catch (const std::exception& error) {
      return watch_->explain_failure(stage, c10d_text(error));
    }
  }

  // All ranks are here. A group has groups too.
  void end_alike() {
    left_ = true;
    for (const auto& [name, part] : parts_) part->end_alike();
    if (device_group_) device_group_->shutdown();
  }

  void carry_in_parts() {
    carries_ = true;
    for (const auto& [name, part] : parts_) part->carry_in_parts();
  }

  // `name` tells its keys in the store from those of other groups.
  Result<Communicator*> part(const std::string& name, int rank, const RankSet& ranks) {
    const auto found = parts_.find(name);
    if (found != parts_.end()) return found->second.get();
    constexpr std::string_view kStage = "start of a group";
    TRY(watch_->begin_call(kStage, false));
    GlooOptions own = options_;
    own.rank = rank;
    own.size = ranks.count;
    try {
      auto group = connect_group(store_, name, own);
      auto& made = parts_[name] =
          std::make_unique<GlooCommunicator>(std::move(group), store_, watch_, own, name, ranks);
      made->carries_ = carries_;
      return made.get();
    } catch (const std::exception& error) {
      return watch_->explain_failure(kStage, c10d_text(error));
    }
  }

  static Work start_reduce(c10d::Backend& group, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op) {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    return group.allreduce(tensors, options);
  }
  Result<> reduce(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op, std::string_view stage) {
    if (tensor.numel() == 0) return {};
    return run(stage, tensor, [&](auto& group) { return start_reduce(group, tensor, op); });
  }

  [[nodiscard]] bool goes_at_once(const at::Tensor& tensor) const {
    return !is_on_device(tensor) && static_cast<int64_t>(tensor.nbytes()) * (size() - 1) <= kMostBytesAtOnce;
  }
  Result<Call> start_gather(const at::Tensor& input, const at::Tensor& output, std::string_view stage) {
    at::Tensor part = as_bytes(input), whole = as_bytes(output);
    if (!goes_at_once(input))
      return start(stage, input, [&](auto& group) { return group._allgather_base(whole, part); });
    at::Tensor copies = part.expand({size(), part.numel()}).contiguous().view({-1});
    return start(stage, input, [&](auto& group) {
      std::vector<int64_t> equal;
      return group.alltoall_base(whole, copies, equal, equal);
    });
  }
  Result<Call> start_exchange(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                              std::span<const int64_t> output_sizes, std::string_view name, std::string_view stage) {
    TRY(check_sizes(input, input_sizes, size(), name, stage));
    TRY(check_sizes(output, output_sizes, size(), name, stage));
    at::Tensor from = as_some_bytes(input), to = as_some_bytes(output);
    return start(stage, input, [&](auto& group) {
      std::vector<int64_t> sent = in_bytes(input_sizes, input), received = in_bytes(output_sizes, output);
      return group.alltoall_base(to, from, received, sent);
    });
  }
  Result<Call> start_sum(const at::Tensor& tensor, std::string_view stage) {
    if (!goes_at_once(tensor))
      return start(stage, tensor, [&](auto& group) { return start_reduce(group, tensor, c10d::ReduceOp::SUM); });
    const at::Tensor terms = at::empty({size(), tensor.numel()}, tensor.options());
    Call call = TRY(start_gather(tensor, terms, stage));
    call.then([terms, tensor] { add_terms(terms, tensor); });
    return call;
  }

  static bool is_on_device(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); }
  // What moves a tensor. Not defined: no tensor moves. A part connects its GPUs when the first one comes.
  Result<c10d::Backend*> group_of(const at::Tensor& tensor) {
    if (!is_on_device(tensor)) return static_cast<c10d::Backend*>(group_.get());
    if (!device_group_ && is_part_ && carries_) {
      device_group_ = TRY(open_nccl_group({.store = store_,
                                           .rank = options_.rank,
                                           .size = options_.size,
                                           .timeout = options_.timeout,
                                           .prefix = "nccl/" + name_}));
    }
    if (device_group_) return device_group_.get();
    return Error{ErrorKind::kInternal, "the ranks have no group for tensors of a device", {}, "please report this"};
  }

  template <class Start>
  Result<Call> start(std::string_view stage, const at::Tensor& tensor, const Start& begin) {
    c10d::Backend* const group = TRY(group_of(tensor));
    TRY(watch_->begin_call(stage, !is_part_));
    try {
      return Call(watch_, stage, ranks_, begin(*group), is_on_device(tensor));
    } catch (const std::exception& error) {
      return watch_->explain_failure(stage, c10d_text(error));
    }
  }
  template <class Start>
  Result<> run(std::string_view stage, const at::Tensor& tensor, const Start& begin) {
    Call call = TRY(start(stage, tensor, begin));
    return call.wait();
  }

  // Gloo's send and recv have no future: a thread waits for them. abort() ends it when the group has failed.
  template <class Start>
  Result<> run_pair(std::string_view stage, int other, const at::Tensor& tensor, const Start& begin) {
    const RankSet ranks{ranks_.first + other * ranks_.step, 1, 1, ranks_.is_aside};
    c10d::Backend* const group = TRY(group_of(tensor));
    TRY(watch_->begin_call(stage, false));
    Work work;
    try {
      work = begin(*group);
    } catch (const std::exception& error) {
      return watch_->explain_failure(stage, c10d_text(error));
    }
    if (is_on_device(tensor)) return Call(watch_, stage, ranks, work, true).wait();
    std::string failure;
    const std::shared_ptr<Completion> completion = watch_->new_completion();
    std::thread waiter([&] {
      try {
        work->wait();
      } catch (const std::exception& error) {
        failure = c10d_text(error);
      }
      completion->finish();
    });
    const Result<> done = watch_->wait(completion, stage, ranks);
    if (!done.ok()) work->abort();
    waiter.join();
    if (!done.ok()) return done.error();
    if (!failure.empty()) return watch_->explain_failure(stage, failure);
    return {};
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  c10::intrusive_ptr<c10d::Backend> device_group_;  // null: all tensors are on the CPU
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> counters_;
  std::shared_ptr<RankWatch> watch_;
  GlooOptions options_;
  std::string name_;
  bool is_part_;  // its calls do not count in the order of calls, which all ranks of a run share
  RankSet ranks_;
  bool left_ = false;
  bool carries_ = false;                                            // tensors of a device may be given
  std::map<std::string, std::unique_ptr<GlooCommunicator>> parts_;  // by name
};

}  // namespace

Result<> carry_device(Communicator& ranks, const at::Device& device) {
  auto* const group = dynamic_cast<GlooCommunicator*>(&ranks);  // one process moves nothing between ranks
  return group == nullptr ? Result<>() : group->carry(device);
}

Result<std::unique_ptr<Communicator>> gloo_communicator(std::unique_ptr<C10dStore> store,
                                                        std::unique_ptr<RankWatch> watch, const GlooOptions& options) {
  const std::shared_ptr<RankWatch> kept = std::move(watch);
  TRY(kept->begin_call("start", true));
  try {
    auto group = connect_group(store->handle()->store, kWholeName, options);
    return std::unique_ptr<Communicator>(
        std::make_unique<GlooCommunicator>(std::move(group), store->handle()->store, kept, options, kWholeName));
  } catch (const std::exception& error) {
    return kept->explain_failure("start", c10d_text(error));
  }
}

}  // namespace mortise
