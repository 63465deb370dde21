// Fortran BLAS is column-major: a row-major product C = A B is the column-major C^T = B^T A^T, so operands swap places.
#include "model/tensor/blas.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "foundation/base/cpus.h"
#include "model/tensor/bf16_gemm.h"
#include "model/tensor/compute_team.h"
#include "model/tensor/f32_gemm.h"
#include "model/tensor/kernel.h"

extern "C" {
// NOLINTBEGIN(readability-identifier-naming)
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                       const float* alpha, const c10::BFloat16* a, const int* lda, const c10::BFloat16* b,
                       const int* ldb, const float* beta, float* c, const int* ldc);
// NOLINTEND(readability-identifier-naming)
}

namespace mortise::blas {
namespace {

// BLAS counts in int.
int to_int(int64_t value, const char* name) {
  TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int>::max(), "matrix product: ", name, " = ", value,
              " is out of the range of BLAS, 0 to ", std::numeric_limits<int>::max(),
              ". Lower the number of tokens per micro-batch");
  return static_cast<int>(value);
}

struct Sizes {
  int m, n, k, lda, ldb, ldc;
};

Sizes checked_sizes(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
  // Without columns a matrix may have the leading dimension 0, which BLAS refuses.
  return {to_int(m, "m"),
          to_int(n, "n"),
          to_int(k, "k"),
          to_int(lda == 0 ? 1 : lda, "lda"),
          to_int(ldb == 0 ? 1 : ldb, "ldb"),
          to_int(ldc, "ldc")};
}

template <class In, class T, class Function>
void call_once(Function function, Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, T alpha, const In* a,
               int64_t lda, const In* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  const char ta = static_cast<char>(trans_a);
  const char tb = static_cast<char>(trans_b);
  const Sizes sizes = checked_sizes(m, n, k, lda, ldb, ldc);
  function(&tb, &ta, &sizes.n, &sizes.m, &sizes.k, &alpha, b, &sizes.ldb, a, &sizes.lda, &beta, c, &sizes.ldc);
}

// On AMD's processors the last bits of MKL's products depend on its threads. Those of tiles of one size do not, if each is
// the work of one thread. A product of one tile is so, whatever its sums' length: with sums of 16,384 terms, two threads of MKL
// were not faster for [8 x 8] and [1 x 512] results.
template <class In, class T, class Function>
void call(Function function, Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, T alpha, const In* a,
          int64_t lda, const In* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  constexpr int64_t kTile = 512;
  if (!is_amd_cpu()) return call_once(function, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  checked_sizes(m, n, k, lda, ldb, ldc);
  const int64_t down = ceil_div(m, kTile), across = ceil_div(n, kTile);
  const auto tile = [&](int, int64_t i) {
    const int64_t row = i % down * kTile, column = i / down * kTile;
    call_once(function, trans_a, trans_b, std::min(kTile, m - row), std::min(kTile, n - column), k, alpha,
              a + (trans_a == Trans::kNo ? row * lda : row), lda, b + (trans_b == Trans::kYes ? column * ldb : column),
              ldb, beta, c + row * ldc + column, ldc);
  };
  if (down * across == 1 && !at::in_parallel_region()) {
    const OneThread alone;
    tile(0, 0);
  } else {
    compute_tasks(down * across, tile);
  }
}

}  // namespace

void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  // With many columns and long sums, MKL's packing of both operands pays. It does not for the gradient of a weight with
  // few outputs, whose right operand the kernels copy without a transposition.
  constexpr int64_t kCopyPays = 32;
  const bool is_gradient = trans_a == Trans::kYes && trans_b == Trans::kNo && m >= kCopyPays;
  const bool is_ours = std::min(n, k) <= kFewForF32 || (is_gradient && m <= kFewForF32) ||
                       (m >= kManyForSlowBlas && has_slow_f32_blas());
  const F32Kernels* const kernels = is_ours ? find_f32_kernels() : nullptr;
  if (kernels != nullptr && (beta == 0.0F || beta == 1.0F)) {
    if (m == 0 || n == 0) return;
    checked_sizes(m, n, k, lda, ldb, ldc);  // the same error on every CPU
    f32_gemm(*kernels, m, n, k, {a, lda, trans_a == Trans::kNo}, {b, ldb, trans_b == Trans::kYes}, alpha, beta == 1.0F,
             c, ldc);
    return;
  }
  call(sgemm_, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  call(dgemm_, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha, const c10::BFloat16* a,
          int64_t lda, const c10::BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (has_fast_bf16_dot() && alpha == 1.0F && (beta == 0.0F || beta == 1.0F)) {
    bf16_gemm(*find_bf16_kernels(), m, n, k, {a, lda, trans_a == Trans::kNo}, {b, ldb, trans_b == Trans::kYes},
              beta == 1.0F, c, ldc);
    return;
  }
  call(gemm_bf16bf16f32_, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace mortise::blas
