// The devices on which a plugin's tensors may lie (extension mortise.device/1), and the device of a run, which gives
// its memory and its stream to plugins that take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "foundation/base/result.h"
#include "mortise/pack.h"

namespace mortise {

// MORTISE_CPU alone for a plugin without the table. An error, which says what is wrong with the table, for one that
// breaks rule R46: such a plugin is not used. Asks the pack; throws what it throws.
[[nodiscard]] Result<std::vector<int32_t>> device_types(const mortise_descriptor& descriptor);

// Bytes on the host and as many on a device, for one call of a plugin. While it lives, the device is the thread's
// current one. Both are aligned to 64 bytes.
class MirroredBytes {
 public:
  virtual ~MirroredBytes() = default;
  [[nodiscard]] virtual std::byte* host() = 0;
  [[nodiscard]] virtual std::byte* device() = 0;
  [[nodiscard]] virtual void* stream() = 0;
  // The host's bytes to the device, in the order of the stream.
  virtual Result<> send() = 0;
  // `size` of the device's bytes from `from` on to the host. Waits for the stream.
  virtual Result<> receive(size_t from, size_t size) = 0;
};

// The device of a run. Thread rule: one call at a time.
class PluginDevice {
 public:
  virtual ~PluginDevice() = default;
  [[nodiscard]] virtual int32_t type() const = 0;  // MORTISE_CUDA
  [[nodiscard]] virtual int32_t index() const = 0;
  virtual Result<std::unique_ptr<MirroredBytes>> mirror(size_t size) = 0;
};

}  // namespace mortise
