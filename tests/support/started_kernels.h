// The kernels of core/cuda that training uses, by their emulator: for tensors that the host can reach, or whose memory
// is opened while a kernel runs. Ranks that are threads start one at a time, because the emulator has one machine.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "model/device/kernel_table.h"
#include "support/device_pointers.h"

namespace mortise::test {

// Run around each kernel, if they are set.
struct AroundKernels {
  static inline std::mutex mutex;                   // NOLINT: the table has plain functions
  static inline std::function<void()> open, close;  // NOLINT
};

// A kernel that counts how often it started.
template <auto kKernel>
struct Started;
template <class... Arguments, int (*kKernel)(Arguments...)>
struct Started<kKernel> {
  static inline int64_t count = 0;  // NOLINT
  static int start(Arguments... arguments) {
    const std::lock_guard lock(AroundKernels::mutex);
    ++count;
    if (AroundKernels::open) AroundKernels::open();
    DevicePointers::look(arguments...);
    const int code = kKernel(arguments...);
    if (AroundKernels::close) AroundKernels::close();
    return code;
  }
};

inline void put_training_kernels(DeviceKernels& kernels) {
  // Those that sampling has too.
  if (kernels.rms_norm == nullptr) kernels.rms_norm = Started<&mortise_cuda_rms_norm>::start;
  if (kernels.head_norm == nullptr) kernels.head_norm = Started<&mortise_cuda_head_norm>::start;
  if (kernels.gated == nullptr) kernels.gated = Started<&mortise_cuda_gated>::start;
  if (kernels.clamped_gate == nullptr) kernels.clamped_gate = Started<&mortise_cuda_clamped_gate>::start;
  if (kernels.route == nullptr) kernels.route = Started<&mortise_cuda_route>::start;
  if (kernels.group_experts == nullptr) kernels.group_experts = Started<&mortise_cuda_group_experts>::start;
  if (kernels.expert_product == nullptr) kernels.expert_product = Started<&mortise_cuda_expert_product>::start;
  if (kernels.sum_experts == nullptr) kernels.sum_experts = Started<&mortise_cuda_sum_experts>::start;
  kernels.rms_norm_backward = Started<&mortise_cuda_rms_norm_backward>::start;
  kernels.gated_backward = Started<&mortise_cuda_gated_backward>::start;
  kernels.clamped_gate_backward = Started<&mortise_cuda_clamped_gate_backward>::start;
  kernels.rotate_heads = Started<&mortise_cuda_rotate_heads>::start;
  kernels.rotate_heads_backward = Started<&mortise_cuda_rotate_heads_backward>::start;
  kernels.head_chunk = Started<&mortise_cuda_head_chunk>::start;
  kernels.head_finish = Started<&mortise_cuda_head_finish>::start;
  kernels.head_backward = Started<&mortise_cuda_head_backward>::start;
  kernels.square_sums = Started<&mortise_cuda_square_sums>::start;
  kernels.clip = Started<&mortise_cuda_clip>::start;
  kernels.adamw = Started<&mortise_cuda_adamw>::start;
}

// While one lives, the code of a device uses these kernels for sampling, and those above for training: on the CPU, and
// on every other device that is no GPU.
class CpuKernels {
 public:
  explicit CpuKernels(const DeviceKernels& sampling) : kernels_(sampling) {
    put_training_kernels(kernels_);
    set_cpu_kernels(&kernels_);
  }
  CpuKernels(const CpuKernels&) = delete;
  CpuKernels& operator=(const CpuKernels&) = delete;
  ~CpuKernels() { set_cpu_kernels(nullptr); }

 private:
  DeviceKernels kernels_;
};

// Kernels of training alone.
class TrainingKernels : public CpuKernels {
 public:
  TrainingKernels() : CpuKernels({}) {}

  static int64_t steps() { return Started<&mortise_cuda_adamw>::count; }
  static int64_t head_chunks() { return Started<&mortise_cuda_head_chunk>::count; }
  // Calls of a kernel since the program began.
  template <auto kKernel>
  static int64_t calls() {
    return Started<kKernel>::count;
  }
};

}  // namespace mortise::test
