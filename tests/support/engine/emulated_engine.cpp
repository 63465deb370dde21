// The program mortise-engine whose code of a device has the kernels of core/cuda, by their emulator: for whole runs with
// model.device = "cpu-as-device". It says on the console when these kernels take their first step, so that a test knows it.
#include <cstdio>

#include "engine_parts.h"
#include "support/started_kernels.h"

namespace mortise::test {
namespace {

int said_step(MortiseCudaAdamW settings, const MortiseCudaStepTensor* tensors, int64_t num_tensors, int64_t num_parts,
              const float* clip, void* stream) {
  if (TrainingKernels::steps() == 0) std::fputs("emulated kernels step\n", stderr);
  return Started<&mortise_cuda_adamw>::start(settings, tensors, num_tensors, num_parts, clip, stream);
}

}  // namespace
}  // namespace mortise::test

int main(int argc, char** argv) {
  mortise::DeviceKernels kernels;
  mortise::test::put_training_kernels(kernels);
  kernels.adamw = mortise::test::said_step;
  mortise::set_cpu_kernels(&kernels);
  return mortise::run_program(argc, argv);
}
