// See bf16_product.h.
#include "model/tensor/bf16_product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "model/tensor/product.h"

namespace mortise {

using blas::Trans;

at::Tensor bf16_product(const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b,
                        const at::Tensor& added) {
  const at::Tensor left = a.to(at::kBFloat16).contiguous(), right = b.to(at::kBFloat16).contiguous();
  const bool swaps_a = trans_a == Trans::kYes, swaps_b = trans_b == Trans::kYes;
  const int64_t m = left.size(swaps_a ? 1 : 0), k = left.size(swaps_a ? 0 : 1), n = right.size(swaps_b ? 0 : 1);
  TORCH_CHECK(right.size(swaps_b ? 1 : 0) == k, "product: the shapes do not match");
  if (!left.is_cpu() || OperatorProducts::are_used()) {
    const at::Tensor op_a = swaps_a ? left.t() : left, op_b = swaps_b ? right.t() : right;
    // The CPU's mm has no float32 result for bfloat16 matrices. Widened numbers give the same products.
    const at::Tensor product =
        left.is_cpu() ? at::mm(op_a.to(at::kFloat), op_b.to(at::kFloat)) : at::mm(op_a, op_b, at::kFloat);
    return added.defined() ? product.add_(added) : product;
  }
  const at::TensorOptions options = left.options().dtype(at::kFloat);
  const bool adds = added.defined();
  const at::Tensor out = k == 0 ? at::zeros({m, n}, options) : at::empty({m, n}, options);
  if (adds) out.copy_(added);
  if (k == 0) return out;
  blas::gemm(trans_a, trans_b, m, n, k, 1.0F, left.const_data_ptr<c10::BFloat16>(), left.size(1),
             right.const_data_ptr<c10::BFloat16>(), right.size(1), adds ? 1.0F : 0.0F, out.mutable_data_ptr<float>(),
             n);
  return out;
}

}  // namespace mortise
