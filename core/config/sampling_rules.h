// Rules for sampling: in training, validation, `mortise generate` and `mortise serve`. Pure functions.
#pragma once

#include "config/findings.h"
#include "config/key_use.h"
#include "config/load.h"

namespace mortise {

void check_sampling_rules(const LoadedConfig& loaded, ConfigUse use, ConfigFindings& found);
// Only those of the validation sets.
void check_validation_sampling(const LoadedConfig& loaded, ConfigFindings& found);

// For users of the model, without a run.
[[nodiscard]] constexpr bool samples_alone(ConfigUse use) {
  return use == ConfigUse::kGenerate || use == ConfigUse::kServe;
}

}  // namespace mortise
