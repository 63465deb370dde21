// model.device of a run: which device it is here, and what it says in a dry run.
#pragma once

#include <optional>
#include <string>

#include "config/key_use.h"
#include "config/load.h"
#include "dist/communicator.h"
#include "foundation/formats/json.h"
#include "model/device/compute_device.h"
#include "plugin/host/registry.h"
#include "train/loop/parts.h"

namespace mortise {

// What model.device means for a run on this machine.
struct DeviceChoice {
  DeviceName name = {};               // never kAuto
  std::optional<GpuFacts> gpu = {};   // what the driver says of it, if it is kCuda
  std::string why_cpu = {};           // "auto" takes the CPU, because of this
  std::optional<Error> problem = {};  // the run cannot have the device that the key names
  [[nodiscard]] bool is_by_operators() const { return name.kind != DeviceKind::kCpu; }
};

// How many ranks a run has, and this one's number on its machine.
struct RankCount {
  int size = 1;
  int local_rank = 0;
};

// Asks the rules and the driver, and loads nothing. With several ranks, "cuda" is the GPU of the rank's number on the
// machine. "auto" takes the CPU if the run or the machine cannot use a GPU.
// `registry`: the plugins of the run, which the rules look at; null: they are not known yet.
DeviceChoice choose_device(const LoadedConfig& loaded, const RankCount& ranks, RunKind kind,
                           const PluginRegistry* registry);

// Opens the chosen device, or says why it cannot. In a run of one process its first call is the first use of libtorch
// (compute_device.h); several ranks have joined before, with Gloo. They can then move tensors of the device.
// Reward models are loaded onto it from then on.
Result<ComputeDevice> open_run_device(const LoadedConfig& loaded, Communicator& ranks, RunKind kind,
                                      const PluginRegistry* registry);

// The same for a command that samples and has no run: `mortise generate` or `mortise serve`. It logs the choice.
Result<ComputeDevice> open_sampling_device(const LoadedConfig& loaded, ConfigUse use);

// Unless the config says "cpu".
void log_device(const RunConfig& config, const ComputeDevice& device);

// Why libtorch's operators compute what the kernels of core/cuda could; empty if they do not.
std::string why_operators(const RunConfig& config);

// For --dry-run: whether `bytes` fit on the device, and what computes there. Empty if the config says "cpu".
std::string device_line(const LoadedConfig& loaded, const DeviceChoice& choice, double bytes);
Json device_json(const RunConfig& config, const DeviceChoice& choice, double bytes);

}  // namespace mortise
