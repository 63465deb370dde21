// The program mortise-engine for which model.device = "cpu-as-device" is a device whose memory the host cannot reach
// (support/locked_device.h): for whole runs, where a pointer of the device in the host's hands ends the run. Float32 and
// bfloat16 sample and learn by the emulated kernels of core/cuda, float64 by libtorch's operators.
// A kernel that gets an address of the host ends it too.
// At its end it says on the console how many operators and kernels ran there, so that a test knows it.
// MORTISE_OPEN_MEMORY=1: the same by tensors of the CPU, to compare with.
#include <cstdio>
#include <cstdlib>

#include "engine_parts.h"
#include "model/device/compute_device.h"
#include "support/locked_device.h"
#include "support/started_kernels.h"

namespace mortise::test {
namespace {

long num_kernels = 0;

// A kernel needs the device of its tensors as the current one.
void open_for_kernel() {
  if (!locked_device_is_current()) {
    std::fputs("a kernel starts, and its device is not the current one\n", stderr);
    std::abort();
  }
  ++num_kernels;
  open_locked_memory();
}

void put_sampling_kernels(DeviceKernels& kernels) {
  kernels.rope_write = Started<&mortise_cuda_rope_write>::start;
  kernels.attention = Started<&mortise_cuda_attention>::start;
  kernels.sample = Started<&mortise_cuda_sample>::start;
  kernels.top = Started<&mortise_cuda_top>::start;
}

}  // namespace
}  // namespace mortise::test

int main(int argc, char** argv) {
  using namespace mortise;  // NOLINT
  DeviceKernels kernels;
  test::put_sampling_kernels(kernels);
  test::put_training_kernels(kernels);
  const bool is_locked = std::getenv("MORTISE_OPEN_MEMORY") == nullptr;
  if (is_locked) {
    test::AroundKernels::open = test::open_for_kernel;
    test::AroundKernels::close = test::close_locked_memory;
    test::DevicePointers::is_of_device = test::is_on_locked_device;
    set_cpu_as_device({test::locked_device(), /*by_operators=*/true, "the CPU, with the code of a device, locked"});
  }
  set_cpu_kernels(&kernels, /*for_cpu_tensors=*/!is_locked);
  const int code = run_program(argc, argv);
  if (test::operators_on_locked_device() > 0)
    std::fprintf(stderr, "locked device: %ld operators, %ld kernels\n", test::operators_on_locked_device(),
                 test::num_kernels);
  return code;
}
