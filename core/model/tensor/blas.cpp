// Fortran BLAS is column-major: a row-major product C = A B is the column-major C^T = B^T A^T, so operands swap places.
#include "model/tensor/blas.h"

extern "C" {
// NOLINTBEGIN(readability-identifier-naming)
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
// NOLINTEND(readability-identifier-naming)
}

namespace mortise::blas {
namespace {

template <class T, class Function>
void call(Function function, Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
          int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  const char ta = static_cast<char>(trans_a);
  const char tb = static_cast<char>(trans_b);
  const int im = static_cast<int>(m);
  const int in = static_cast<int>(n);
  const int ik = static_cast<int>(k);
  const int ia = static_cast<int>(lda);
  const int ib = static_cast<int>(ldb);
  const int ic = static_cast<int>(ldc);
  function(&tb, &ta, &in, &im, &ik, &alpha, b, &ib, a, &ia, &beta, c, &ic);
}

}  // namespace

void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  call(sgemm_, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  call(dgemm_, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace mortise::blas
