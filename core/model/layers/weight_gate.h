// WeightGate: where a pass says which matrices it needs next, for a model whose matrices lie on several ranks (ZeRO 3).
//
// The parts of a model are its embedding (0), its layers (1, 2, ...) and its head (the last). A pass opens a part before
// it reads its matrices, and closes it behind. Forward opens them in order, backward opens the layers in the opposite
// order. Vectors (norms, biases) and routers are always there. Behind a gate the matrices of a closed part have no memory.
//
// A gate may talk to other ranks, which then make the same calls: all ranks go through rounds of one forward pass, and
// perhaps one backward pass, of which each has its own or none. Errors are kept: status() tells the first one, and the
// numbers of passes after it have no meaning. Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "foundation/base/result.h"
#include "model/layers/recompute.h"
#include "model/layers/spread_rows.h"

namespace mortise {

enum class GatePass { kForward, kBackward };

class WeightGate {
 public:
  virtual ~WeightGate() = default;

  virtual void open(int64_t part, GatePass pass) = 0;
  virtual void close(int64_t part, GatePass pass) = 0;

  // Every rank of a round: the forward pass is over, the head is closed. A rank that has run none helps the others, and does
  // so before it walks over the head of another model of the round. A second call in the same round does nothing.
  virtual void finish_forward() = 0;
  // Every rank, when finish_forward() of all models of the round is over: helps the ranks whose passes still walk over the
  // head (spread_rows.h), until all are done. The round's forward passes end with it.
  virtual void help_walks() {}
  // Every rank of a round in which some rank runs backward. `own` is this rank's backward pass, or null. Calls
  // `on_layer(part)` when the gradients of a layer are complete.
  virtual void run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) = 0;

  // Null: a pass has the embedding, or the head, as a whole while it is open. Else it reads its rows there.
  [[nodiscard]] virtual SpreadRows* embedding_rows() const { return nullptr; }
  [[nodiscard]] virtual SpreadRows* head_rows() const { return nullptr; }

  // This rank's numbers were changed.
  virtual void weights_changed() {}
  // The float32 masters of the layers' bfloat16 matrices are not needed any more.
  virtual void drop_masters() {}

  // Do all parts have memory now, whatever is opened and closed?
  [[nodiscard]] virtual bool is_whole() const = 0;
  [[nodiscard]] virtual Result<> status() const = 0;
};

// {hidden, normed} as they are. Put behind a layer: its backward pass opens the part first.
ResidualPair open_in_backward(const std::shared_ptr<WeightGate>& gate, int64_t part, const ResidualPair& states);
// Put before a layer: its backward pass closes the part at last.
ResidualPair close_in_backward(const std::shared_ptr<WeightGate>& gate, int64_t part, const ResidualPair& states);

}  // namespace mortise
