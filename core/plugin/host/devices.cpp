// Reads and checks the table of mortise.device/1.
#include "plugin/host/devices.h"

#include <fmt/core.h>

#include <algorithm>

#include "mortise/ext/device.h"
#include "plugin/host/abi_struct.h"

namespace mortise {
namespace {

constexpr uint32_t kMostDeviceTypes = 64;

Error bad_devices(std::string what) {
  return {ErrorKind::kPlugin, fmt::format("its mortise.device/1 {} (R46)", what), "", "tell the pack's author"};
}

}  // namespace

Result<std::vector<int32_t>> device_types(const mortise_descriptor& descriptor) {
  const mortise_descriptor known = read_abi_struct(&descriptor);
  if (known.get_extension == nullptr) return std::vector<int32_t>{MORTISE_CPU};
  const auto* const found = static_cast<const mortise_device*>(catchable(known.get_extension)(MORTISE_EXT_DEVICE));
  if (found == nullptr) return std::vector<int32_t>{MORTISE_CPU};
  const mortise_device table = read_abi_struct(found);
  if (table.num_device_types > kMostDeviceTypes || table.device_types == nullptr)
    return bad_devices(fmt::format("has no list of at most {} devices", kMostDeviceTypes));
  std::vector<int32_t> types(table.device_types, table.device_types + table.num_device_types);
  std::vector<int32_t> sorted = types;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    return bad_devices(fmt::format("lists the device type {} twice", *twice));
  if (!std::binary_search(sorted.begin(), sorted.end(), MORTISE_CPU))
    return bad_devices("does not list the CPU, so the plugin takes no tensors of this program");
  return types;
}

}  // namespace mortise
