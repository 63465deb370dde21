// Public properties of GPUs as cuDNN's JSON, for plans without a GPU.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

namespace mortise::test {

struct GpuProperties {
  const char* name;
  int compute_capability;  // 90: 9.0
  int processors;
  int64_t shared_bytes;  // most of a block
};
inline constexpr GpuProperties kA100{"NVIDIA A100", 80, 108, 166912};
inline constexpr GpuProperties kH200{"NVIDIA H200", 90, 132, 232448};
inline constexpr GpuProperties kB200{"NVIDIA B200", 100, 148, 232448};

inline std::string properties_json(const GpuProperties& gpu) {
  return fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":85899345920,)"
      R"("smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":{},)"
      R"("driverVer":13000,"deviceName":"{}"}})",
      gpu.processors, gpu.shared_bytes, gpu.compute_capability * 10, gpu.name);
}

}  // namespace mortise::test
