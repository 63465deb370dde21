// Sizes that BLAS cannot count.
#include "model/tensor/blas.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace mortise {
namespace {

using blas::Trans;

TEST(Blas, ASizeAboveIntIsAnErrorAndNotAnotherSize) {
  constexpr int64_t kBig = int64_t{std::numeric_limits<int>::max()} + 1;  // as an int: negative
  constexpr int64_t kWraps = (int64_t{1} << 32) + 2;                      // as an int: 2
  float a[4] = {1, 2, 3, 4}, c[4] = {};
  for (const int64_t bad : {kBig, kWraps, int64_t{-1}}) {
    int64_t sizes[6] = {2, 2, 2, 2, 2, 2};  // m, n, k, lda, ldb, ldc
    for (int64_t& size : sizes) {
      size = bad;
      EXPECT_THROW(blas::gemm(Trans::kNo, Trans::kNo, sizes[0], sizes[1], sizes[2], 1.0F, a, sizes[3], a, sizes[4],
                              0.0F, c, sizes[5]),
                   c10::Error);
      size = 2;
    }
  }
  blas::gemm(Trans::kNo, Trans::kNo, 2, 2, 2, 1.0F, a, 2, a, 2, 0.0F, c, 2);
  EXPECT_EQ(c[3], 22.0F);
}

}  // namespace
}  // namespace mortise
