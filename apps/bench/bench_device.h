// The device that a benchmark is asked to measure.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "model/device/compute_device.h"

namespace mortise {

// `text` is a name of model.device other than "auto". Call this before libtorch is used. It ends the program with code 2 for
// another name, and with kExitNoDevice if this machine lacks the device.
inline ComputeDevice open_bench_device(std::string_view text) {
  const auto name = parse_device_name(text);
  if (!name || name->kind == DeviceKind::kAuto) {
    std::fprintf(stderr, "a device is cpu, cuda, cuda:N or cpu-as-device\n");
    std::exit(2);
  }
  auto opened = open_device(*name, /*needs_bfloat16=*/true);
  if (opened.ok()) return *std::move(opened);
  std::fprintf(stderr, "no device to measure: %s\n", opened.error().to_string().c_str());
  std::exit(kExitNoDevice);
}

}  // namespace mortise
