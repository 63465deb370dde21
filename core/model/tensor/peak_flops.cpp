// Times a few matrix products, and keeps the fastest per type and number of threads.
#include "model/tensor/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "model/tensor/blas.h"
#include "model/tensor/compute_team.h"

namespace mortise {
namespace {

// In, Out: the numbers of operands and of the result.
template <class In, class Out>
double measure() {
  constexpr int64_t kSize = 512;  // three matrices fit in the caches
  constexpr int kRepeats = 5;     // the first wakes the threads up
  const std::vector<In> a(kSize * kSize, In(0.5)), b(kSize * kSize, In(0.25));
  std::vector<Out> c(kSize * kSize);
  double best = 0.0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    blas::gemm(blas::Trans::kNo, blas::Trans::kNo, kSize, kSize, kSize, Out(1), a.data(), kSize, b.data(), kSize,
               Out(0), c.data(), kSize);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * kSize * kSize * kSize / std::max(seconds, 1e-9));
  }
  return best;
}

}  // namespace

double measured_peak_flops(at::ScalarType dtype) {
  static std::map<std::pair<at::ScalarType, int>, double> known;
  double& peak = known[{dtype, compute_threads()}];
  if (peak != 0.0) return peak;
  if (dtype == at::kBFloat16) return peak = measure<c10::BFloat16, float>();
  return peak = dtype == at::kDouble ? measure<double, double>() : measure<float, float>();
}

}  // namespace mortise
