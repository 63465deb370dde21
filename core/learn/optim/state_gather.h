// StateGather: brings optimizer states that are spread over ranks to rank 0, while it writes a checkpoint.
//
// Rank 0 asks for pieces in any order (read), as often as it likes, and ends with finish(). The other ranks answer in
// serve() until then. No rank holds more than a piece. Without sharded states every call is free.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/result.h"
#include "learn/optim/shards.h"

namespace mortise {

class Optimizer;

class StateGather {
 public:
  explicit StateGather(Communicator& communicator) : communicator_(&communicator) {}
  StateGather(const StateGather&) = delete;
  StateGather& operator=(const StateGather&) = delete;

  // Every rank adds the same optimizers in the same order. Does nothing for one that is not sharded.
  void add(Optimizer& optimizer);
  [[nodiscard]] bool is_empty() const { return optimizers_.empty(); }

  // Rank 0, while the others are in serve(): numbers of a state tensor of a parameter (Optimizer::state_range).
  Result<> read(const Optimizer& optimizer, size_t parameter, size_t state, const FlatRange& range,
                std::span<std::byte> out);
  // Rank 0 needs no more.
  Result<> finish();
  // The other ranks.
  Result<> serve();

 private:
  struct Request {
    int64_t optimizer = -1;  // -1: no more
    int64_t parameter = 0, state = 0;
    FlatRange range;
  };
  Result<Request> tell(const Request& request);
  Result<at::Tensor> collect(const Request& request);

  Communicator* communicator_;
  std::vector<const Optimizer*> optimizers_;
};

}  // namespace mortise
