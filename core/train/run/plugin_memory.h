// The GPU of a run for plugins that take CUDA tensors (plugin/host/devices.h): memory and stream are libtorch's.
// Thread rule: one thread.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "plugin/host/devices.h"
#include "plugin/host/instance.h"
#include "train/loop/parts.h"

namespace mortise {

// `type`: how plugins are told that tensors lie on `device`.
std::unique_ptr<PluginDevice> plugin_device(c10::Device device, int32_t type = MORTISE_CUDA);

// Plugins of a run on a GPU that take CUDA tensors get them from now on.
void offer_to_plugins(RunSettings& run);

// A line of the log: where a loss or an estimator of a run on a GPU computes.
void log_plugin_place(const PluginInstance& instance);

}  // namespace mortise
