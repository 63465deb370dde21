// Chooses the kernels by what the CPU has.
#include "generate/kernels/kernels.h"

#include "model/tensor/bf16_kernels.h"

namespace mortise {

const Kernels* find_kernels(Isa isa) {
#ifdef __x86_64__
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  const bool has_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16");
  const bool wants_bf16 = isa == Isa::kAvx512Bf16 || (isa == Isa::kAuto && has_fast_bf16_dot());
  if (wants_bf16 && has_bf16) return &isa_avx512bf16::kKernels;
  if ((isa == Isa::kAuto || isa == Isa::kAvx512) && has_avx512) return &isa_avx512::kKernels;
  if ((isa == Isa::kAuto || isa == Isa::kAvx2) && has_avx2) return &isa_avx2::kKernels;
#endif
  if (isa != Isa::kAuto && isa != Isa::kBase) return nullptr;
  return &isa_base::kKernels;
}

}  // namespace mortise
