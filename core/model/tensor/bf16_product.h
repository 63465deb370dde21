// Products of bfloat16 matrices, mostly with a float32 result: each product of two numbers is exact, and the sums are float32.
// Cost: 2 M N K flops. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/tensor/blas.h"

namespace mortise {

// op(a) op(b). Other dtypes are rounded to bfloat16 first. `added`: a float32 row that is added to every row of the
// result; may be undefined.
at::Tensor bf16_product(const at::Tensor& a, blas::Trans trans_a, const at::Tensor& b, blas::Trans trans_b,
                        const at::Tensor& added = {});
// The same with the result rounded to bfloat16.
at::Tensor rounded_bf16_product(const at::Tensor& a, blas::Trans trans_a, const at::Tensor& b, blas::Trans trans_b);

// out += op(a) op(b). `out` is float32, and its rows lie one behind the other. On a GPU no matrix of its size is made.
void add_bf16_product(const at::Tensor& out, const at::Tensor& a, blas::Trans trans_a, const at::Tensor& b,
                      blas::Trans trans_b);

}  // namespace mortise
