// What model.device names, as text and as a value. Pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "foundation/base/text.h"

namespace mortise {

enum class DeviceKind {
  kAuto,         // a GPU if there is one that the run can use, else the CPU
  kCpu,          // the CPU's own kernels
  kCpuAsDevice,  // the code of a device on CPU tensors, for tests
  kCuda,
};

struct DeviceName {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // the GPU's number, from 0
};

inline constexpr std::string_view kDeviceNames = "auto, cpu, cuda, cuda:N or cpu-as-device";

// Nothing if it is none of kDeviceNames.
inline std::optional<DeviceName> parse_device_name(std::string_view text) {
  if (text == "auto") return DeviceName{DeviceKind::kAuto};
  if (text == "cpu") return DeviceName{DeviceKind::kCpu};
  if (text == "cpu-as-device") return DeviceName{DeviceKind::kCpuAsDevice};
  if (text == "cuda") return DeviceName{DeviceKind::kCuda};
  constexpr std::string_view kPrefix = "cuda:";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const auto index = parse_i64(text.substr(kPrefix.size()));
  if (!index || *index < 0 || *index > 127) return std::nullopt;
  return DeviceName{DeviceKind::kCuda, static_cast<int>(*index)};
}

// Whether models with such a model.device can lie on a GPU.
inline bool may_be_gpu(std::string_view text) {
  const DeviceKind kind = parse_device_name(text).value_or(DeviceName()).kind;
  return kind == DeviceKind::kCuda || kind == DeviceKind::kAuto;
}

}  // namespace mortise
