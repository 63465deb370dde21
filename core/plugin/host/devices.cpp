// Reads and checks the table of mortise.device/1.
#include "plugin/host/devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "mortise/ext/device.h"
#include "plugin/host/abi_struct.h"

namespace mortise {
namespace {

constexpr uint32_t kMostDeviceTypes = 64;
constexpr size_t kDeviceAlign = 64;

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

std::byte* PluginDevice::find_held(std::span<const std::byte> bytes) const {
  const std::less_equal<> not_behind;
  for (HeldBytes* const held : held_) {
    for (const HeldBytes::Part& part : held->parts_) {
      const std::byte *const begin = part.host.data(), *const end = begin + part.host.size();
      if (!not_behind(begin, bytes.data()) || !not_behind(bytes.data() + bytes.size(), end)) continue;
      const auto from = static_cast<size_t>(bytes.data() - begin);
      if (from % kDeviceAlign == 0) return held->mirror_->device() + part.at + from;
    }
  }
  return nullptr;
}

HeldBytes::HeldBytes(PluginDevice& device, std::unique_ptr<MirroredBytes> mirror, std::vector<Part> parts)
    : device_(&device), mirror_(std::move(mirror)), parts_(std::move(parts)) {
  device.held_.push_back(this);
}

HeldBytes::~HeldBytes() { std::erase(device_->held_, this); }

Result<std::unique_ptr<HeldBytes>> HeldBytes::send(PluginDevice& device,
                                                   std::span<const std::span<const std::byte>> parts) {
  std::vector<Part> placed;
  size_t size = 0;
  for (const std::span<const std::byte> part : parts) {
    placed.push_back({part, size});
    size += (part.size() + kDeviceAlign - 1) / kDeviceAlign * kDeviceAlign;
  }
  std::unique_ptr<MirroredBytes> mirror = TRY(device.mirror(size));
  for (const Part& part : placed) std::ranges::copy(part.host, mirror->host() + part.at);
  TRY(mirror->send(size));
  return std::unique_ptr<HeldBytes>(new HeldBytes(device, std::move(mirror), std::move(placed)));
}

}  // namespace mortise
