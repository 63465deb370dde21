// What hand-written CPU kernels share: the per-instruction-set clone marker, a task loop, and what cuts work into blocks.
//
// A kernel is an always_inline template body and two non-template wrappers marked MORTISE_CPU_CLONES (float, double);
// the loader picks the best clone. Sums become vector code through `#pragma omp simd reduction`; nothing else may be
// reassociated, so infinities, NaN and the split constants of exp are honoured.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "foundation/base/cpu_clones.h"
#include "model/tensor/compute_team.h"

namespace mortise {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows, columns or terms [begin, end) of a product.
struct BlockRange {
  int64_t begin = 0, end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
};

inline constexpr std::align_val_t kLineBytes{64};  // a line of the cache

template <class T>
struct FreeAligned {
  void operator()(T* p) const { ::operator delete[](p, kLineBytes); }
};
template <class T>
using AlignedArray = std::unique_ptr<T[], FreeAligned<T>>;
template <class T>
AlignedArray<T> make_aligned(int64_t count) {
  return AlignedArray<T>(new (kLineBytes) T[static_cast<size_t>(count)]);
}

// body(float{}) or body(double{}) by the tensor's dtype: `using T = decltype(zero)` inside.
template <class Body>
void dispatch_float(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kDouble) {
    body(double{});
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "fast layers take float32 or float64");
    body(float{});
  }
}

// Runs task(i, scratch) for each i of [0, num_tasks) by compute_tasks(). Threads take the tasks one by one in order, so
// tasks may differ in cost. `scratch` is a worker's buffer of `scratch_size` T. Tasks must write to disjoint memory; then
// the result does not depend on which thread ran which task.
template <class T, class Task>
void parallel_tasks(int64_t num_tasks, int64_t scratch_size, const Task& task) {
  std::vector<std::unique_ptr<T[]>> scratch(static_cast<size_t>(compute_threads()));
  compute_tasks(num_tasks, [&](int member, int64_t i) {
    std::unique_ptr<T[]>& mine = scratch[static_cast<size_t>(member)];
    if (mine == nullptr && scratch_size > 0) mine.reset(new T[static_cast<size_t>(scratch_size)]);
    task(i, mine.get());
  });
}

#ifdef __x86_64__
// Chooses the best of two tables of kernels that this CPU can run; null if it has neither AVX-512 nor AVX2 with FMA.
template <class Kernels>
const Kernels* best_for_this_cpu(const Kernels* avx512, const Kernels* avx2) {
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  if (has_avx512) return avx512;
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return has_avx2 ? avx2 : nullptr;
}
#endif

}  // namespace mortise
