// See bf16_product.h.
#include "model/tensor/bf16_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "model/tensor/product.h"

namespace mortise {

using blas::Trans;

namespace {

// Both matrices in bfloat16, and the sizes of the result.
struct Factors {
  at::Tensor left, right;
  Trans trans_left, trans_right;
  int64_t m, k, n;

  Factors(const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b)
      : left(a.to(at::kBFloat16).contiguous()),
        right(b.to(at::kBFloat16).contiguous()),
        trans_left(trans_a),
        trans_right(trans_b),
        m(left.size(trans_a == Trans::kYes ? 1 : 0)),
        k(left.size(trans_a == Trans::kYes ? 0 : 1)),
        n(right.size(trans_b == Trans::kYes ? 0 : 1)) {
    TORCH_CHECK(right.size(trans_b == Trans::kYes ? 1 : 0) == k, "product: the shapes do not match");
  }
  [[nodiscard]] bool take_operators() const { return !left.is_cpu() || OperatorProducts::are_used(); }
  // Without rows or terms, as for an expert without tokens, no operator is asked.
  [[nodiscard]] bool are_empty() const { return m == 0 || k == 0 || n == 0; }
  [[nodiscard]] at::Tensor zeros(at::ScalarType dtype) const { return at::zeros({m, n}, left.options().dtype(dtype)); }
  // The CPU's operators have no float32 result for bfloat16 matrices. Widened numbers give the same products.
  [[nodiscard]] at::Tensor op_left() const { return operand(left, trans_left); }
  [[nodiscard]] at::Tensor op_right() const { return operand(right, trans_right); }
  // On the CPU: out = op(left) op(right) + beta out
  void multiply(float beta, const at::Tensor& out) const {
    blas::gemm(trans_left, trans_right, m, n, k, 1.0F, left.const_data_ptr<c10::BFloat16>(), left.size(1),
               right.const_data_ptr<c10::BFloat16>(), right.size(1), beta, out.mutable_data_ptr<float>(), n);
  }

 private:
  static at::Tensor operand(const at::Tensor& matrix, Trans trans) {
    const at::Tensor out = trans == Trans::kYes ? matrix.t() : matrix;
    return out.is_cpu() ? out.to(at::kFloat) : out;
  }
};

}  // namespace

at::Tensor bf16_product(const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b,
                        const at::Tensor& added) {
  const Factors f(a, trans_a, b, trans_b);
  if (f.take_operators()) {
    const at::Tensor product = f.are_empty()     ? f.zeros(at::kFloat)
                               : f.left.is_cpu() ? at::mm(f.op_left(), f.op_right())
                                                 : at::mm(f.op_left(), f.op_right(), at::kFloat);
    return added.defined() ? product.add_(added) : product;
  }
  const at::TensorOptions options = f.left.options().dtype(at::kFloat);
  const bool adds = added.defined();
  const at::Tensor out = f.k == 0 ? at::zeros({f.m, f.n}, options) : at::empty({f.m, f.n}, options);
  if (adds) out.copy_(added);
  if (f.k > 0) f.multiply(adds ? 1.0F : 0.0F, out);
  return out;
}

at::Tensor rounded_bf16_product(const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b) {
  if (a.is_cpu()) return bf16_product(a, trans_a, b, trans_b).to(at::kBFloat16);
  const Factors f(a, trans_a, b, trans_b);
  return f.are_empty() ? f.zeros(at::kBFloat16) : at::mm(f.op_left(), f.op_right());
}

void add_bf16_product(const at::Tensor& out, const at::Tensor& a, Trans trans_a, const at::Tensor& b, Trans trans_b) {
  const Factors f(a, trans_a, b, trans_b);
  TORCH_CHECK(out.size(0) == f.m && out.size(1) == f.n && out.is_contiguous(), "product: the result's shape");
  at::Tensor sum = out;
  if (!f.left.is_cpu() && f.m == 1)  // a GPU may take one row for a bias, which has other rules
    sum.add_(at::mm(f.op_left(), f.op_right(), at::kFloat));
  else if (!f.left.is_cpu())
    at::addmm_out(sum, out, f.op_left(), f.op_right(), at::kFloat);
  else if (f.take_operators())
    sum.addmm_(f.op_left(), f.op_right());
  else if (f.k > 0)
    f.multiply(1.0F, out);
}

}  // namespace mortise
