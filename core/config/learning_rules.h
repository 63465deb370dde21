// Rules for what a run learns from: filtered log-probs, a teacher, supervised rows, chosen rows. check_config asks. Pure
// function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"

namespace mortise {

// What is wrong with these settings of `train`; empty if nothing is.
std::vector<Error> check_learning_rules(const LoadedConfig& loaded);

// A run that samples during its updates, and whose optimizer's state (`key`) is to leave the device while it samples. Of a critic
// it matters only if the run has one.
[[nodiscard]] Error resting_ahead(const LoadedConfig& loaded, std::string_view key);

// Over the sampler's filters there are no probabilities of the whole vocabulary. `reads_vocabulary`: the advantage
// estimator of that name asks for some.
Result<> check_filtered_estimator(const LoadedConfig& loaded, const std::string& estimator, bool reads_vocabulary);

// A replayed group gets the advantage that it had if the estimator compares the summed rewards of a group and reads
// nothing of the step's weights. `compares_sums_alone`: the estimator of that name is so.
Result<> check_replay_estimator(const LoadedConfig& loaded, const std::string& estimator, bool compares_sums_alone);

}  // namespace mortise
