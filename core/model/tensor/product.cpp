// See product.h.
#include "model/tensor/product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "model/tensor/compute_team.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using blas::Trans;

bool uses_operators = false;  // NOLINT: set by tests

bool has_own_product(const at::Tensor& x) {
  return !uses_operators && x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) &&
         x.dim() == 2 && x.stride(1) == 1 && x.stride(0) >= x.size(1);
}

// A matrix of a product. That of a transposed tensor is the tensor itself.
struct Operand {
  at::Tensor matrix;
  bool is_transposed;

  Operand(const at::Tensor& x, Trans trans) : matrix(x), is_transposed(trans == Trans::kYes) {
    if (x.dim() != 2 || has_own_product(x) || !has_own_product(x.t())) return;
    matrix = x.t();
    is_transposed = !is_transposed;
  }
  [[nodiscard]] bool is_own() const { return has_own_product(matrix); }
  [[nodiscard]] Trans trans() const { return is_transposed ? Trans::kYes : Trans::kNo; }
  [[nodiscard]] at::Tensor op() const { return is_transposed ? matrix.t() : matrix; }
  [[nodiscard]] int64_t rows() const { return matrix.size(is_transposed ? 1 : 0); }
  [[nodiscard]] int64_t columns() const { return matrix.size(is_transposed ? 0 : 1); }
};

// out = alpha a b + beta out, of matrices that have their own product.
void multiply(const Operand& a, const Operand& b, double alpha, double beta, const at::Tensor& out) {
  TORCH_CHECK(a.columns() == b.rows() && out.size(0) == a.rows() && out.size(1) == b.columns(),
              "product: the shapes do not match");
  dispatch_float(out, [&](auto zero) {
    using T = decltype(zero);
    blas::gemm(a.trans(), b.trans(), a.rows(), b.columns(), a.columns(), static_cast<T>(alpha),
               a.matrix.const_data_ptr<T>(), a.matrix.stride(0), b.matrix.const_data_ptr<T>(), b.matrix.stride(0),
               static_cast<T>(beta), out.mutable_data_ptr<T>(), out.stride(0));
  });
}

// Each row of `out` becomes `row`.
void fill_rows(const at::Tensor& row, const at::Tensor& out) {
  const int64_t width = out.size(1);
  dispatch_float(out, [&](auto zero) {
    using T = decltype(zero);
    const T* const from = row.const_data_ptr<T>();
    T* const to = out.mutable_data_ptr<T>();
    compute_ranges(out.size(0), std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) std::copy_n(from, width, to + i * width);
                   });
  });
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b,
                          const at::Tensor& added) {
  const Operand left(a, trans_a), right(b, trans_b);
  if (!left.is_own() || !right.is_own())
    return added.defined() ? at::addmm(added, left.op(), right.op()) : at::mm(left.op(), right.op());
  const at::Tensor out = at::empty({left.rows(), right.columns()}, a.options().requires_grad(false));
  if (added.defined()) {
    if (added.dim() == 1 && added.size(0) == out.size(1) && added.is_contiguous() &&
        added.scalar_type() == out.scalar_type())
      fill_rows(added, out);
    else
      out.copy_(added);
  }
  multiply(left, right, 1.0, added.defined() ? 1.0 : 0.0, out);
  return out;
}

void add_product(const at::Tensor& out, const at::Tensor& base, const at::Tensor& a, Trans trans_a, const at::Tensor& b,
                 Trans trans_b, double alpha) {
  const Operand left(a, trans_a), right(b, trans_b);
  if (left.is_own() && right.is_own() && has_own_product(out)) {
    if (!out.is_same(base)) out.copy_(base);
    multiply(left, right, alpha, 1.0, out);
  } else {
    at::Tensor target = out;
    at::addmm_out(target, base, left.op(), right.op(), /*beta=*/1.0, alpha);
  }
}

OperatorProducts::OperatorProducts() { uses_operators = true; }
OperatorProducts::~OperatorProducts() { uses_operators = false; }
bool OperatorProducts::are_used() { return uses_operators; }

}  // namespace mortise
