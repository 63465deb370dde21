// MatrixWindows: the embedding or the head of spread weights (weight_shards.h), which passes read window by window. Each
// window comes from the ranks that own its rows, and its gradient goes to them.
//
// A pass announces each walk over the head. Ranks that have none, or that are done, help until all are done: they only take
// part in the exchanges. The embedding is read once in each forward pass, which needs no announcement.
//
// Cost of a walk: a rank receives the rows that it does not own, in one window of memory; with a partner those of both, unless
// both are the same rows (those of an adapter's base). Back, it sends as many numbers of gradients, and needs a second window
// and a part of 32 MiB. A rank that keeps its gradient sends none, and has all of it in memory.
//
// Thread rule: one thread at a time. Collectives: pick, help_pick, all walks, help_walks and send_gradient. The others are local.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "learn/optim/spread_part.h"
#include "model/layers/spread_rows.h"
#include "model/tensor/offload.h"

namespace mortise {

class MatrixWindows : public SpreadRows {
 public:
  // Borrows all. `unit` has the matrix alone. A window has at most `window_bytes`, but at least kHeadWindowRows rows. The first
  // error goes to `error`; nothing is exchanged after it.
  MatrixWindows(const SpreadPart& unit, Communicator& communicator, int64_t window_bytes, std::optional<Error>& error);

  at::Tensor pick(const at::Tensor& ids_N) override;
  void add_gradient(const at::Tensor& ids_N, const at::Tensor& gradient_NH) override;
  void walk(const Use& use) override;
  void walk_back(const UseBack& use) override;
  [[nodiscard]] SpreadRows* partner() const override { return partner_; }
  void walk_with_partner(const UsePair& use) override;
  void walk_back_with_partner(const UsePairBack& use) override;
  // Borrowed. All ranks give the same.
  void pair_with(MatrixWindows& partner) { partner_ = &partner; }

  // A forward pass of other ranks picks rows.
  void help_pick() { fetch_all({}); }
  // This rank has walked as often as it needs: it helps the others.
  void help_walks();

  // Where this rank's gradient is added from now on [own numbers], on every rank. Undefined: there is none.
  void collect_gradient(const at::Tensor& own_gradient);
  // Or a rank keeps its whole gradient from now on, and nothing is sent.
  void keep_gradient();
  // What it has kept since the last call, with that of picked rows; undefined if there is none.
  at::Tensor take_gradient();
  // What add_gradient() has got on these ranks goes to the owners. They add it in this order.
  void send_gradient(std::span<const int> senders);
  // Its numbers lie in files, whose pages are given back after each walk. Null: they are in memory.
  void lie_in(const Offload* files) { files_ = files; }

 private:
  // If ranks want several, the last one comes first.
  enum class Walk : char { kNone, kBack, kPairBack, kForward, kPair };
  struct Meeting {
    Walk walk = Walk::kNone;
    std::vector<int> ranks;  // that want it
  };
  Meeting meet(Walk own);
  // A window of a walk: its rows, with those of the partner and the gradient if the walk has them.
  using UseWindow = UsePairBack;
  void take_part(Walk own, const UseWindow& use);
  void go(const Meeting& next, const UseWindow& use);
  void fetch_all(const Use& use);
  [[nodiscard]] at::Tensor rows_of_partner(const at::Tensor& rows, int64_t first);
  [[nodiscard]] at::Tensor gradient_of_window(int64_t first, int64_t count);
  void add_picked(int64_t first, const at::Tensor& d_rows) const;
  [[nodiscard]] at::Tensor fetch(int64_t first, int64_t count);
  void reduce(int64_t first, const at::Tensor& d_rows, std::span<const int> senders, int64_t count);
  void leave_file() const;
  void keep_error(const Result<>& done);

  const SpreadPart* unit_;
  Communicator* communicator_;
  std::optional<Error>* error_;
  const Offload* files_ = nullptr;
  MatrixWindows* partner_ = nullptr;
  int64_t num_rows_, width_, window_rows_;
  at::Tensor own_gradient_;
  bool keeps_gradient_ = false;
  at::Tensor kept_gradient_;                               // [rows, H]
  std::vector<std::pair<at::Tensor, at::Tensor>> picked_;  // ids and gradients of rows
};

}  // namespace mortise
