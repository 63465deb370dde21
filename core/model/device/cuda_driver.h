// What NVIDIA's driver says of this machine, asked through the driver's own library before anything of CUDA is loaded.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "foundation/base/result.h"

namespace mortise {

// Where things are. Tests name other places.
struct CudaPlaces {
  std::string driver = "libcuda.so.1";
  std::string libraries = {};  // folder with libtorch_cuda.so; empty: cuda_library_folder()
};

struct GpuFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  uint64_t memory_bytes = 0;
  int num_visible = 0;  // GPUs that this process sees
};

// The GPU number `index`, if a run can use it. `needs_bfloat16`: see open_device().
Result<GpuFacts> ask_driver(const CudaPlaces& places, int index, bool needs_bfloat16);

}  // namespace mortise
