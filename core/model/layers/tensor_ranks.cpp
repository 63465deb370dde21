// See tensor_ranks.h.
#include "model/layers/tensor_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On its way through the graph: a context keeps IValues only.
struct RanksHolder : torch::CustomClassHolder {
  explicit RanksHolder(std::shared_ptr<TensorRanks> ranks_in) : ranks(std::move(ranks_in)) {}
  std::shared_ptr<TensorRanks> ranks;
};

at::Tensor sum_of(const at::Tensor& x, TensorRanks& ranks) {
  at::Tensor sum = x.detach().clone(at::MemoryFormat::Contiguous);
  ranks.sum(sum);
  return sum;
}

class EnterSplit : public torch::autograd::Function<EnterSplit> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<RanksHolder>& holder) {
    ctx->saved_data["ranks"] = c10::IValue::make_capsule(holder);
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["ranks"].toCapsule();
    return {sum_of(grads[0], *static_cast<const RanksHolder*>(capsule.get())->ranks), at::Tensor()};
  }
};

class LeaveSplit : public torch::autograd::Function<LeaveSplit> {
 public:
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x,
                            const c10::intrusive_ptr<RanksHolder>& holder) {
    return sum_of(x, *holder->ranks);
  }

  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return {grads[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor split_embedding(const at::Tensor& weight_VH, const at::Tensor& ids_N, const VocabularyShare& share) {
  if (ids_N.numel() == 0) return at::embedding(weight_VH, ids_N);
  const at::Tensor place = ids_N - share.begin;
  const at::Tensor is_own = (place >= 0).logical_and(place < share.count);
  // The rows of other ranks are zeros here, so the sum is exact.
  const at::Tensor own = at::embedding(weight_VH, place.clamp(0, share.count - 1));
  return leave_split(own.where(is_own.unsqueeze(1), at::zeros({}, own.options())), share.ranks);
}

at::Tensor split_embedding(const at::Tensor& weight_VH, const at::Tensor& ids_N, const VocabularyShare& share,
                           SpreadRows& rows) {
  const at::Tensor place = ids_N - share.begin;
  const at::Tensor is_own = (place >= 0).logical_and(place < share.count);
  // No row has the number -1, so that those of other ranks are zeros.
  const at::Tensor own = spread_embedding(weight_VH, place.masked_fill(is_own.logical_not(), -1), rows);
  return ids_N.numel() == 0 ? own : leave_split(own, share.ranks);
}

at::Tensor enter_split(const at::Tensor& x, const std::shared_ptr<TensorRanks>& ranks) {
  return EnterSplit::apply(x, c10::make_intrusive<RanksHolder>(ranks));
}

at::Tensor leave_split(const at::Tensor& x, const std::shared_ptr<TensorRanks>& ranks) {
  return LeaveSplit::apply(x, c10::make_intrusive<RanksHolder>(ranks));
}

}  // namespace mortise
