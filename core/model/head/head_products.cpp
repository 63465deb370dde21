// See head_products.h.
#include "model/head/head_products.h"

#include <ATen/ops/matmul.h>

#include "model/tensor/bf16_product.h"

namespace mortise {

using blas::Trans;

VocabularyHead with_rounded_weight(const VocabularyHead& head) {
  VocabularyHead out = head;
  if (out.rounds && !out.rounded_VH.defined()) out.rounded_VH = out.weight_VH.to(at::kBFloat16);
  return out;
}

VocabularyHead head_columns(const VocabularyHead& head, int64_t first, int64_t count) {
  VocabularyHead out = head;
  out.weight_VH = out.weight_VH.narrow(0, first, count);
  if (out.rounded_VH.defined()) out.rounded_VH = out.rounded_VH.narrow(0, first, count);
  return out;
}

at::Tensor head_inputs(const at::Tensor& hidden_CH, const VocabularyHead& head) {
  return head.rounds ? hidden_CH.to(at::kBFloat16) : hidden_CH;
}

at::Tensor head_factor(const at::Tensor& numbers, const VocabularyHead& head) {
  return head.rounds ? numbers.to(at::kBFloat16).to(numbers.scalar_type()) : numbers;
}

namespace {

const at::Tensor& factor_of(const VocabularyHead& head) {
  return head.rounded_VH.defined() ? head.rounded_VH : head.weight_VH;
}

}  // namespace

at::Tensor head_product(const at::Tensor& inputs_CH, const VocabularyHead& head) {
  if (!head.rounds) return at::matmul(inputs_CH, head.weight_VH.t());
  return bf16_product(inputs_CH, Trans::kNo, factor_of(head), Trans::kYes);
}

void add_head_gradients(const at::Tensor& d_logits_CV, const at::Tensor& inputs_CH, const VocabularyHead& head,
                        const at::Tensor& d_hidden_CH, const at::Tensor& d_weight_VH) {
  if (!head.rounds) {
    if (d_hidden_CH.defined()) d_hidden_CH.addmm_(d_logits_CV, head.weight_VH);
    if (d_weight_VH.defined()) d_weight_VH.addmm_(d_logits_CV.t(), inputs_CH);
    return;
  }
  const at::Tensor gradients = d_logits_CV.to(at::kBFloat16);
  if (d_hidden_CH.defined()) add_bf16_product(d_hidden_CH, gradients, Trans::kNo, factor_of(head), Trans::kNo);
  if (d_weight_VH.defined()) add_bf16_product(d_weight_VH, gradients, Trans::kYes, inputs_CH, Trans::kNo);
}

}  // namespace mortise
