// Asks the owners of a state for pieces of it.
#include "learn/optim/state_gather.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "learn/optim/optimizer.h"

namespace mortise {

namespace {

constexpr std::string_view kGatherStage = "saving the checkpoint";

}  // namespace

void StateGather::add(Optimizer& optimizer) {
  if (!optimizer.is_sharded()) return;
  optimizer.save_through(*this);
  optimizers_.push_back(&optimizer);
}

Result<StateGather::Request> StateGather::tell(const Request& request) {
  std::string bytes(sizeof request, '\0');
  std::memcpy(bytes.data(), &request, sizeof request);
  bytes = TRY(communicator_->broadcast_bytes(bytes, 0, kGatherStage));
  Request told;
  if (bytes.size() != sizeof told)
    return Error{ErrorKind::kInternal, "rank 0 asked for a state in another form", std::string(kGatherStage),
                 "start all ranks from one build of Mortise"};
  std::memcpy(&told, bytes.data(), sizeof told);
  return told;
}

// The numbers on rank 0; on the others nothing.
Result<at::Tensor> StateGather::collect(const Request& request) {
  const Optimizer& optimizer = *optimizers_[static_cast<size_t>(request.optimizer)];
  const auto num_ranks = static_cast<size_t>(communicator_->size());
  const auto parameter = static_cast<size_t>(request.parameter), state = static_cast<size_t>(request.state);
  const auto asked_of = [&](int rank) { return request.range.within(optimizer.state_range(rank, parameter, state)); };
  std::vector<int64_t> sent(num_ranks, 0), received(num_ranks, 0);
  const FlatRange own = asked_of(communicator_->rank());
  sent[0] = own.size();
  const bool is_main = communicator_->is_main();
  for (size_t rank = 0; is_main && rank < num_ranks; ++rank) received[rank] = asked_of(static_cast<int>(rank)).size();
  const at::Tensor part = optimizer.own_state(parameter, state, own);
  const at::Tensor whole = at::empty({is_main ? request.range.size() : 0}, part.options());
  TRY(communicator_->all_to_all(part, sent, whole, received, kGatherStage));
  return whole;
}

Result<> StateGather::read(const Optimizer& optimizer, size_t parameter, size_t state, const FlatRange& range,
                           std::span<std::byte> out) {
  const auto place = std::find(optimizers_.begin(), optimizers_.end(), &optimizer) - optimizers_.begin();
  const Request told = TRY(tell({place, static_cast<int64_t>(parameter), static_cast<int64_t>(state), range}));
  const at::Tensor numbers = TRY(collect(told));
  if (numbers.nbytes() != out.size())
    return Error{ErrorKind::kInternal, "a piece of a state has another size than its file", std::string(kGatherStage),
                 ""};
  if (!out.empty()) std::memcpy(out.data(), numbers.const_data_ptr(), out.size());
  return {};
}

Result<> StateGather::finish() {
  if (is_empty()) return {};
  TRY(tell({}));
  return {};
}

Result<> StateGather::serve() {
  if (is_empty() || communicator_->is_main()) return {};
  while (true) {
    const Request request = TRY(tell({}));
    if (request.optimizer < 0) return {};
    TRY(collect(request));
  }
}

}  // namespace mortise
