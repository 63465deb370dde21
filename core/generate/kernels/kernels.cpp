// Chooses the kernels by what the CPU has.
#include "generate/kernels/kernels.h"

namespace mortise {

const Kernels* find_kernels(Isa isa) {
#ifdef __x86_64__
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if ((isa == Isa::kAuto || isa == Isa::kAvx512) && has_avx512) return &isa_avx512::kKernels;
  if ((isa == Isa::kAuto || isa == Isa::kAvx2) && has_avx2) return &isa_avx2::kKernels;
  if (isa == Isa::kAvx2 || isa == Isa::kAvx512) return nullptr;
#else
  if (isa == Isa::kAvx2 || isa == Isa::kAvx512) return nullptr;
#endif
  return &isa_base::kKernels;
}

}  // namespace mortise
