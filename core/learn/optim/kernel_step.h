// KernelStep: an update of AdamW by the kernels of core/cuda, on float32 tensors of a device. Three launches for all
// tensors: the sums of squares of their gradients, the norm with the factor that clips, and the step, which also writes
// the bfloat16 copies of masters. Norm and factor stay on the device. The host may read the norm at any later time.
// Cost: 28 bytes for each number, 2 more with a copy, and 4 for the norm. Thread rule: one thread. Private to this
// folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "learn/optim/rules.h"
#include "learn/optim/step_norm.h"
#include "learn/optim/update_rule.h"
#include "model/device/kernel_table.h"
#include "model/tensor/offload.h"
#include "model/weights/rounded_matrices.h"

namespace mortise {

// Null if they do not take these steps: the rule is not AdamW, a parameter is not float32, or the device has no
// kernels.
[[nodiscard]] const DeviceKernels* step_kernels(const UpdateRule& rule, std::span<const OptimizedParameter> parameters);

class KernelStep {
 public:
  // How many parts so many numbers of a tensor make.
  [[nodiscard]] static int64_t num_parts(int64_t count) {
    return (count + MORTISE_CUDA_STEP_PART - 1) / MORTISE_CUDA_STEP_PART;
  }

  // Starts the sums of squares. Those of parts[i] begin at first_sums[i] of `num_sums`; the others are 0. `parts` stay
  // where they are. `in_files`: their state, and perhaps their weights, lie in files, which run() gets.
  KernelStep(const DeviceKernels& kernels, const c10::Device& device, std::span<StepPart> parts,
             std::span<const int64_t> first_sums, int64_t num_sums, const MasterCopies& copies, bool in_files);

  [[nodiscard]] const at::Tensor& square_sums() const { return sums_; }  // float64, on the device
  // Then, in this order:
  void clip(double max_norm);
  // `files`: where the numbers of the parts lie, which the kernel then steps one by one. Null: on the device.
  void run(const AdamWOptions& options, int64_t update, const Offload* files = nullptr);
  // Behind clip(). Whoever reads it waits for clip(), not for run().
  [[nodiscard]] StepNorm norm() const { return StepNorm(HostCopy(clip_)); }

 private:
  // Steps these tensors, which have so many parts.
  void start(const MortiseCudaAdamW& settings, const at::Tensor& table, int64_t num_parts) const;

  const DeviceKernels* kernels_;
  std::span<StepPart> parts_;
  std::vector<MortiseCudaStepTensor> rows_;  // one for each part
  int64_t num_parts_ = 0;
  at::Tensor table_, sums_, clip_;
};

}  // namespace mortise
