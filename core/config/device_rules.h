// Rules for a run on a device (model.device): what its code does not compute yet. check_config asks, and a run with "auto"
// before it takes a GPU. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "config/key_use.h"
#include "config/load.h"

namespace mortise {

// What is wrong with model.device in this config; empty if nothing is. "auto" takes the CPU where a device cannot do what
// the run needs.
std::vector<Error> check_device(const LoadedConfig& loaded, ConfigUse use);

// Each setting that a device cannot have; empty if there is none. What depends on the number of ranks or on plugins, the
// run checks.
std::vector<Error> check_device_rules(const LoadedConfig& loaded, ConfigUse use);

// A device computes no probabilities of the whole vocabulary. `reads_vocabulary`: the advantage estimator of that name asks
// for some. "auto" is refused too: which device it takes is not known yet.
Result<> check_device_estimator(const LoadedConfig& loaded, const std::string& estimator, bool reads_vocabulary);

}  // namespace mortise
