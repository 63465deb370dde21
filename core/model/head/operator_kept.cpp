// See operator_kept.h.
#include "model/head/operator_kept.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <functional>

#include "model/head/head_products.h"

namespace mortise::by_operators {
namespace {

constexpr int64_t kBlockBytes = int64_t{64} << 20;  // rows of the head in a block

// visit(begin, places, ids) for blocks of kept tokens; both are indices where `like` lies.
void visit_blocks(const at::Tensor& like, const KeptTokens& kept,
                  const std::function<void(int64_t, const at::Tensor&, const at::Tensor&)>& visit) {
  const auto count = static_cast<int64_t>(kept.ids.size());
  const int64_t row_bytes = like.size(1) * static_cast<int64_t>(like.element_size());
  const int64_t block = std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, row_bytes));
  int64_t place = 0;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t size = std::min(block, count - begin);
    const at::Tensor places = at::empty({size}, at::kLong), ids = at::empty({size}, at::kLong);
    for (int64_t k = begin; k < begin + size; ++k) {
      while (kept.offsets[static_cast<size_t>(place) + 1] <= k) ++place;
      places.mutable_data_ptr<int64_t>()[k - begin] = place;
      ids.mutable_data_ptr<int64_t>()[k - begin] = kept.ids[static_cast<size_t>(k)];
    }
    visit(begin, places.to(like.device()), ids.to(like.device()));
  }
}

}  // namespace

std::vector<double> kept_dots(const at::Tensor& hidden_RH, const VocabularyHead& head, const KeptTokens& kept) {
  std::vector<double> out;
  const at::Tensor inputs_RH = head_factor(hidden_RH, head);
  out.reserve(kept.ids.size());
  visit_blocks(hidden_RH, kept, [&](int64_t /*begin*/, const at::Tensor& places, const at::Tensor& ids) {
    const at::Tensor rows = head_factor(head.weight_VH.index_select(0, ids), head);
    const at::Tensor dots = at::sum(inputs_RH.index_select(0, places) * rows, {1}, /*keepdim=*/false, at::kDouble)
                                .to(at::kCPU)
                                .contiguous();
    out.insert(out.end(), dots.const_data_ptr<double>(), dots.const_data_ptr<double>() + dots.numel());
  });
  return out;
}

void kept_gradients(const at::Tensor& hidden_RH, const VocabularyHead& head, const KeptTokens& kept,
                    const at::Tensor& grads_K, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH) {
  if (d_hidden_RH.defined()) d_hidden_RH.zero_();
  const at::Tensor inputs_RH = head_factor(hidden_RH, head);
  visit_blocks(hidden_RH, kept, [&](int64_t begin, const at::Tensor& places, const at::Tensor& ids) {
    const at::Tensor grads = grads_K.narrow(0, begin, ids.size(0)).to(hidden_RH.device()).unsqueeze(1);
    if (d_hidden_RH.defined())
      d_hidden_RH.index_add_(0, places, grads * head_factor(head.weight_VH.index_select(0, ids), head));
    if (d_weight_VH.defined()) d_weight_VH.index_add_(0, ids, grads * inputs_RH.index_select(0, places));
  });
}

}  // namespace mortise::by_operators
