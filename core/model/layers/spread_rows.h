// SpreadRows: an embedding or a head whose rows lie on several ranks, and which no rank has as a whole (ZeRO 3). Passes read
// windows of its rows, one after another.
//
// The embedding: a pass picks the rows of its tokens, once, when the gate has opened the embedding. Backward hands in the
// gradients of these rows. The head: a pass walks over all rows once for log-probs, and once more for gradients. Passes that
// compare two heads walk more often.
//
// Thread rule: one thread at a time. pick and all walks are collectives of the ranks. Ranks without a pass of their own
// help from WeightGate (weight_gate.h), which keeps errors: numbers after one have no meaning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace mortise {

// The rows of a head, window by window. Thread rule and errors: as SpreadRows.
class RowWindows {
 public:
  virtual ~RowWindows() = default;

  // `rows` [n, H] are those from `first` on. Windows come in rising order, and begin at multiples of kHeadWindowRows.
  using Use = std::function<void(int64_t first, const at::Tensor& rows)>;
  virtual void walk(const Use& use) = 0;
  // To `d_rows` [n, H] `use` adds the gradient of the rows. Undefined: it is not wanted.
  using UseBack = std::function<void(int64_t first, const at::Tensor& rows, const at::Tensor& d_rows)>;
  virtual void walk_back(const UseBack& use) = 0;
};

class SpreadRows : public RowWindows {
 public:
  // The rows of these tokens [N, H].
  virtual at::Tensor pick(const at::Tensor& ids_N) = 0;
  // Adds to the gradient of these rows. Their owners get it when backward is over.
  virtual void add_gradient(const at::Tensor& ids_N, const at::Tensor& gradient_NH) = 0;

  // Another head, to which a loss compares this one: that of the reference. Null: there is none.
  [[nodiscard]] virtual SpreadRows* partner() const = 0;
  // The same rows of both, next to each other.
  using UsePair = std::function<void(int64_t first, const at::Tensor& rows, const at::Tensor& partner_rows)>;
  virtual void walk_with_partner(const UsePair& use) = 0;
  using UsePairBack = std::function<void(int64_t first, const at::Tensor& rows, const at::Tensor& partner_rows,
                                         const at::Tensor& d_rows)>;
  virtual void walk_back_with_partner(const UsePairBack& use) = 0;
};

// The rows of an embedding without memory, whose leaf tells whether they have a gradient.
at::Tensor spread_embedding(const at::Tensor& leaf_VH, const at::Tensor& ids_N, SpreadRows& rows);

}  // namespace mortise
