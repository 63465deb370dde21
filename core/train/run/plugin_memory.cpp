// Mirrors the bytes of a call in one tensor on the host and one on the device.
#include "train/run/plugin_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/log.h"
#include "model/device/kernel_table.h"
#include "model/tensor/torch_guard.h"

namespace mortise {
namespace {

class MirroredTensors final : public MirroredBytes {
 public:
  // The host's part is pinned, so that a copy to the device does not wait.
  MirroredTensors(c10::Device device, int64_t size)
      : guard_(device),
        host_(at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()))),
        device_(at::empty({size}, at::TensorOptions(at::kByte).device(device))) {}

  std::byte* host() override { return static_cast<std::byte*>(host_.mutable_data_ptr()); }
  std::byte* device() override { return static_cast<std::byte*>(device_.mutable_data_ptr()); }
  void* stream() override { return stream_of(device_.device()); }
  Result<> send(size_t size) override {
    return guard_torch("the tensors of a plugin", [&]() -> Result<> {
      const auto length = static_cast<int64_t>(size);
      device_.narrow(0, 0, length).copy_(host_.narrow(0, 0, length), /*non_blocking=*/true);
      return {};
    });
  }
  Result<> receive(size_t from, size_t size) override {
    return guard_torch("the outputs of a plugin", [&]() -> Result<> {
      const auto begin = static_cast<int64_t>(from), length = static_cast<int64_t>(size);
      host_.narrow(0, begin, length).copy_(device_.narrow(0, begin, length));
      return {};
    });
  }

 private:
  c10::DeviceGuard guard_;
  at::Tensor host_, device_;
};

class TorchDevice final : public PluginDevice {
 public:
  TorchDevice(c10::Device device, int32_t type) : device_(device), type_(type) {}
  int32_t type() const override { return type_; }
  int32_t index() const override { return std::max<int32_t>(device_.index(), 0); }
  Result<std::unique_ptr<MirroredBytes>> mirror(size_t size) override {
    return guard_torch("memory for a plugin", [&]() -> Result<std::unique_ptr<MirroredBytes>> {
      return std::unique_ptr<MirroredBytes>(std::make_unique<MirroredTensors>(device_, static_cast<int64_t>(size)));
    });
  }

 private:
  c10::Device device_;
  int32_t type_;
};

}  // namespace

std::unique_ptr<PluginDevice> plugin_device(c10::Device device, int32_t type) {
  return std::make_unique<TorchDevice>(device, type);
}

void offer_to_plugins(RunSettings& run) {
  if (!run.device.device.is_cuda()) return;
  run.plugin_device = plugin_device(run.device.device);
  run.key.device = run.plugin_device.get();
}

void log_plugin_place(const PluginInstance& instance) {
  if (instance.key().device == nullptr) return;
  const char* place = instance.device() != nullptr   ? "on the GPU"
                      : instance.remote() != nullptr ? "on the CPU, because it is in a worker process"
                                                     : "on the CPU, because its pack has no CUDA build of it";
  log_info(fmt::format("{} computes {}", instance.label(), place));
}

}  // namespace mortise
