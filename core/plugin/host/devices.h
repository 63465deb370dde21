// The devices on which a plugin's tensors may lie (extension mortise.device/1), and the device of a run, which gives
// its memory and its stream to plugins that take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "mortise/pack.h"

namespace mortise {

// MORTISE_CPU alone for a plugin without the table. An error, which says what is wrong with the table, for one that
// breaks rule R46: such a plugin is not used. Asks the pack; throws what it throws.
[[nodiscard]] Result<std::vector<int32_t>> device_types(const mortise_descriptor& descriptor);

// Bytes on the host and as many on a device, for calls of plugins. While it lives, the device is the thread's
// current one. Both are aligned to 64 bytes.
class MirroredBytes {
 public:
  virtual ~MirroredBytes() = default;
  [[nodiscard]] virtual std::byte* host() = 0;
  [[nodiscard]] virtual std::byte* device() = 0;
  [[nodiscard]] virtual void* stream() = 0;
  // The first `size` of the host's bytes to the device, in the order of the stream.
  virtual Result<> send(size_t size) = 0;
  // `size` of the device's bytes from `from` on to the host. Waits for the stream.
  virtual Result<> receive(size_t from, size_t size) = 0;
};

class HeldBytes;

// The device of a run. Thread rule: one call at a time.
class PluginDevice {
 public:
  virtual ~PluginDevice() = default;
  [[nodiscard]] virtual int32_t type() const = 0;  // MORTISE_CUDA
  [[nodiscard]] virtual int32_t index() const = 0;
  virtual Result<std::unique_ptr<MirroredBytes>> mirror(size_t size) = 0;
  // Where the device has these bytes of the host, aligned to 64 bytes. Null if no HeldBytes has them like that.
  [[nodiscard]] std::byte* find_held(std::span<const std::byte> bytes) const;

 private:
  friend class HeldBytes;
  std::vector<HeldBytes*> held_;
};

// Bytes of the host that are on the device too, so that calls of plugins send no copies of their own. While it lives,
// the host's bytes neither change nor move, and the device lives. The copy is in the order of the stream.
class HeldBytes {
 public:
  static Result<std::unique_ptr<HeldBytes>> send(PluginDevice& device,
                                                 std::span<const std::span<const std::byte>> parts);
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  ~HeldBytes();

 private:
  friend class PluginDevice;
  struct Part {
    std::span<const std::byte> host;
    size_t at = 0;  // its place in mirror_
  };
  HeldBytes(PluginDevice& device, std::unique_ptr<MirroredBytes> mirror, std::vector<Part> parts);

  PluginDevice* device_;
  std::unique_ptr<MirroredBytes> mirror_;
  std::vector<Part> parts_;
};

}  // namespace mortise
