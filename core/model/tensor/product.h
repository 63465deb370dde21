// Products of float32 or float64 matrices without a graph: on the CPU by blas::gemm, else by libtorch.
// bf16_product.h has those of bfloat16 matrices. Thread rule: uses libtorch's threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/tensor/blas.h"

namespace mortise {

// op(a) op(b); with `added` [columns or rows x columns] that is added. Autograd does not see it.
at::Tensor matrix_product(const at::Tensor& a, blas::Trans trans_a, const at::Tensor& b, blas::Trans trans_b,
                          const at::Tensor& added = {});
// out = base + alpha op(a) op(b). `base` has the shape of `out`, and may be `out` itself.
void add_product(const at::Tensor& out, const at::Tensor& base, const at::Tensor& a, blas::Trans trans_a,
                 const at::Tensor& b, blas::Trans trans_b, double alpha = 1.0);

// For tests: while one lives, products on the CPU are libtorch's operators too, as they are on a GPU. A test sees
// operators, but not blas::gemm. Thread rule: one at a time, and no product meanwhile in another thread.
class OperatorProducts {
 public:
  OperatorProducts();
  OperatorProducts(const OperatorProducts&) = delete;
  OperatorProducts& operator=(const OperatorProducts&) = delete;
  ~OperatorProducts();
  [[nodiscard]] static bool are_used();
};

}  // namespace mortise
