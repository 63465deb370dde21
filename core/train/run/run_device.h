// model.device of a run: which device it is here, and what it says in a dry run.
#pragma once

#include <string>

#include "config/load.h"
#include "dist/communicator.h"
#include "model/device/compute_device.h"
#include "train/loop/parts.h"

namespace mortise {

// The first use of libtorch in a run (compute_device.h); later calls give the same again. "auto" takes the CPU if the run
// or the machine cannot use a GPU, and says why in the text. An Error with several ranks, which have no device yet.
Result<ComputeDevice> open_run_device(const LoadedConfig& loaded, const Communicator& ranks, RunKind kind);

// A line of --dry-run about the device that this machine has, and whether `bytes` fit; empty for the CPU. Asks the driver
// alone and loads nothing.
std::string device_line(const LoadedConfig& loaded, double bytes);

}  // namespace mortise
