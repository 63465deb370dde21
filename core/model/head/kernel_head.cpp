// See kernel_head.h.
#include "model/head/kernel_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "model/head/head_products.h"

namespace mortise::by_operators {
namespace {

constexpr int64_t kRowNumbers = sizeof(MortiseCudaHeadRow) / sizeof(float);

}  // namespace

const DeviceKernels* KernelHead::find(const at::Tensor& hidden, const VocabularyHead& head) {
  if (hidden.scalar_type() != at::kFloat || head.weight_VH.scalar_type() != at::kFloat) return nullptr;
  return device_kernels(hidden.device());
}

KernelHead::KernelHead(const DeviceKernels& kernels, const VocabularyHead& head, double temperature,
                       int64_t block_columns)
    : kernels_(&kernels),
      head_(head),
      vocab_(head.weight_VH.size(0)),
      block_columns_(block_columns),
      scale_{static_cast<float>(1.0 / temperature), static_cast<float>(head.softcap)} {}

KernelHead::Forward KernelHead::forward(const TokenChunk& chunk, bool keeps_logits) const {
  const c10::OptionalDeviceGuard own_device(chunk.inputs_CH.device());
  const int64_t count = chunk.inputs_CH.size(0);
  void* const stream = stream_of(chunk.inputs_CH.device());
  const at::Tensor rows = at::empty({count, kRowNumbers}, chunk.inputs_CH.options().dtype(at::kFloat));
  auto* const states = static_cast<MortiseCudaHeadRow*>(rows.mutable_data_ptr());
  std::vector<at::Tensor> kept;
  for (int64_t first = 0; first < vocab_; first += block_columns_) {
    const at::Tensor logits = head_product(chunk.inputs_CH, head_columns(head_, first, columns_from(first)));
    check_started(kernels_->head_chunk(logits.const_data_ptr<float>(), count, logits.size(1), first, logits.size(1),
                                       chunk.targets_C.const_data_ptr<int64_t>(), scale_, states, stream),
                  "head_chunk");
    if (keeps_logits) kept.push_back(logits);
  }
  const at::Tensor numbers = at::empty({3, count}, rows.options().dtype(at::kDouble));
  check_started(kernels_->head_finish(states, count, scale_, numbers.mutable_data_ptr<double>(), stream),
                "head_finish");
  return {numbers, rows, std::move(kept)};
}

// Every maximum near the log of the sum of exp serves. With the one that float32 has, the sum is 1 but for its rounding.
at::Tensor KernelHead::rows_of(const at::Tensor& lse, const at::Tensor& entropy) const {
  const auto inverse = static_cast<double>(scale_.inverse_temperature);
  const at::Tensor max = (lse / inverse).to(at::kFloat);
  const at::Tensor shift = lse - max.to(at::kDouble) * inverse, sum = at::exp(shift);
  return at::stack({max, sum.to(at::kFloat), (sum * (shift - entropy)).to(at::kFloat), at::zeros_like(max)}, 1);
}

void KernelHead::backward(const TokenChunk& chunk, const Forward& forward, const at::Tensor& grads,
                          const at::Tensor& d_hidden_CH, const at::Tensor& d_weight_VH) const {
  const c10::OptionalDeviceGuard own_device(chunk.inputs_CH.device());
  const int64_t count = chunk.inputs_CH.size(0);
  const auto* const states = static_cast<const MortiseCudaHeadRow*>(forward.rows.const_data_ptr());
  for (int64_t first = 0; first < vocab_; first += block_columns_) {
    const int64_t columns = columns_from(first);
    const VocabularyHead block = head_columns(head_, first, columns);
    const at::Tensor logits = forward.logits.empty() ? head_product(chunk.inputs_CH, block)
                                                     : forward.logits[static_cast<size_t>(first / block_columns_)];
    const at::Tensor gradients =
        head_.rounds ? at::empty({count, columns}, logits.options().dtype(at::kBFloat16)) : logits;
    auto* const rounded = head_.rounds ? static_cast<uint16_t*>(gradients.mutable_data_ptr()) : nullptr;
    check_started(kernels_->head_backward(logits.mutable_data_ptr<float>(), count, columns, first, columns,
                                          chunk.targets_C.const_data_ptr<int64_t>(), scale_, states,
                                          grads.const_data_ptr<float>(), rounded, stream_of(logits.device())),
                  "head_backward");
    const at::Tensor d_rows = d_weight_VH.defined() ? d_weight_VH.narrow(0, first, columns) : d_weight_VH;
    add_head_gradients(gradients, chunk.inputs_CH, block, d_hidden_CH, d_rows);
  }
}

}  // namespace mortise::by_operators
