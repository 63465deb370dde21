// See product.h.
#include "model/tensor/product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "model/tensor/compute_team.h"

namespace mortise {
namespace {

using blas::Trans;

bool uses_operators = false;  // NOLINT: set by tests

bool has_own_product(const at::Tensor& x) {
  return !uses_operators && x.is_cpu() && x.scalar_type() == at::kFloat && x.dim() == 2 && x.stride(1) == 1 &&
         x.stride(0) >= x.size(1);
}

// Each row of `out` becomes `row`.
void fill_rows(const at::Tensor& row, const at::Tensor& out) {
  const int64_t width = out.size(1);
  const float* const from = row.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  compute_ranges(out.size(0), std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) std::copy_n(from, width, to + i * width);
                 });
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b,
                          const at::Tensor& added) {
  const bool swaps_a = trans_a == Trans::kYes, swaps_b = trans_b == Trans::kYes;
  if (!has_own_product(a) || !has_own_product(b)) {
    const at::Tensor left = swaps_a ? a.t() : a, right = swaps_b ? b.t() : b;
    return added.defined() ? at::addmm(added, left, right) : at::mm(left, right);
  }
  const int64_t m = a.size(swaps_a ? 1 : 0), k = a.size(swaps_a ? 0 : 1), n = b.size(swaps_b ? 0 : 1);
  TORCH_CHECK(b.size(swaps_b ? 1 : 0) == k, "product: the shapes do not match");
  const at::Tensor out = at::empty({m, n}, a.options().requires_grad(false));
  if (added.defined()) {
    if (added.dim() == 1 && added.size(0) == n && added.is_contiguous() && added.scalar_type() == at::kFloat)
      fill_rows(added, out);
    else
      out.copy_(added);
  }
  blas::gemm(trans_a, trans_b, m, n, k, 1.0F, a.const_data_ptr<float>(), a.stride(0), b.const_data_ptr<float>(),
             b.stride(0), added.defined() ? 1.0F : 0.0F, out.mutable_data_ptr<float>(), n);
  return out;
}

OperatorProducts::OperatorProducts() { uses_operators = true; }
OperatorProducts::~OperatorProducts() { uses_operators = false; }
bool OperatorProducts::are_used() { return uses_operators; }

}  // namespace mortise
