// The machine's peak, to which perf/mfu/* compares: the fastest of a few products of square matrices on all threads of
// libtorch, measured once per number of threads and type. Cost: 10 to 30 ms, the first time.
// Thread rule: not from several threads at once.
#pragma once

#include <c10/core/ScalarType.h>

namespace mortise {

// Floating-point operations per second, a multiply-add being two. `dtype`: kFloat, kDouble, or kBFloat16 (with float32
// sums).
double measured_peak_flops(at::ScalarType dtype);

}  // namespace mortise
