// The kernels of core/cuda by their emulator, for models whose tensors are on the CPU. It stands in for libmortise_cuda.so.
#pragma once

#include <algorithm>

#include "model/device/kernel_table.h"
#include "support/recorded_graphs.h"
#include "support/started_kernels.h"

namespace mortise::test {

// Norms of rows by the emulated kernels since the counter was made, and the most rows that one had. One counter at a time.
class KernelNorms {
 public:
  KernelNorms() { most = count = rows = 0; }
  static int64_t most_rows() { return most; }
  static int64_t calls() { return count; }
  static int64_t all_rows() { return rows; }
  static int rms_norm(const float* x, const float* added, const float* weight, float eps, int64_t num_rows,
                      int64_t width, float* sum, MortiseCudaOut out, void* stream) {
    most = std::max(most, num_rows);
    ++count;
    rows += num_rows;
    return mortise_cuda_rms_norm(x, added, weight, eps, num_rows, width, sum, out, stream);
  }

 private:
  static inline int64_t most = 0, count = 0, rows = 0;  // NOLINT: the table has plain functions
};

// While one lives, sampling and training by the code of a device use the emulated kernels.
class EmulatedKernels : public CpuKernels {
 public:
  EmulatedKernels()
      : CpuKernels({Capturable<&KernelNorms::rms_norm>::start, Capturable<&mortise_cuda_head_norm>::start,
                    Capturable<&mortise_cuda_gated>::start, Capturable<&mortise_cuda_rope_write>::start,
                    Capturable<&mortise_cuda_attention>::start, Capturable<&mortise_cuda_sample>::start,
                    Capturable<&mortise_cuda_top>::start, Capturable<&mortise_cuda_clamped_gate>::start,
                    Capturable<&mortise_cuda_route>::start, Capturable<&mortise_cuda_group_experts>::start,
                    Capturable<&mortise_cuda_expert_product>::start, Capturable<&mortise_cuda_sum_experts>::start}) {}
};

}  // namespace mortise::test
