// The products of a head on a device: logits from hidden states, and both gradients from those of the logits. In the head's own
// numbers, or, if it rounds, of bfloat16 matrices with float32 sums and results. A product of two bfloat16 numbers is exact in
// float32, so rounding the matrices is the only difference.
//
// Error of a rounded head, relative: a factor's is up to 2^-9. Gradients of random inputs are 0.24 % from those in float64, and
// logits do not round. Cost: 2 C H V flops for each of the three. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/head/log_prob_head.h"

namespace mortise {

// The head with the copy of the weight that its products read: what a pass with several products begins with.
[[nodiscard]] VocabularyHead with_rounded_weight(const VocabularyHead& head);
// Rows [first, first + count) of the weight: columns of the logits.
[[nodiscard]] VocabularyHead head_columns(const VocabularyHead& head, int64_t first, int64_t count);
// Hidden states as products read them.
[[nodiscard]] at::Tensor head_inputs(const at::Tensor& hidden_CH, const VocabularyHead& head);
// The same of numbers that are multiplied one by one, in their own dtype.
[[nodiscard]] at::Tensor head_factor(const at::Tensor& numbers, const VocabularyHead& head);

// [C, V] before the cap.
[[nodiscard]] at::Tensor head_product(const at::Tensor& inputs_CH, const VocabularyHead& head);
// Adds to the rows of d_hidden and to d_weight. Either may be undefined. d_logits_CV may be bfloat16 if the head rounds.
void add_head_gradients(const at::Tensor& d_logits_CV, const at::Tensor& inputs_CH, const VocabularyHead& head,
                        const at::Tensor& d_hidden_CH, const at::Tensor& d_weight_VH);

}  // namespace mortise
