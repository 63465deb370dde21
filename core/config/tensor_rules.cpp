// See tensor_rules.h.
#include "config/tensor_rules.h"

#include <fmt/core.h>

#include <cstdint>

namespace mortise {
namespace {

class RolloutTensorRules : ConfigRules {
 public:
  using ConfigRules::ConfigRules;

  void check(bool learns) {
    const int64_t size = config_.rollout.tensor_model_parallel_size;
    if (size == 1 || !learns || config_.trainer.steps_ahead() == 0) return;
    error("trainer.mode",
          fmt::format("'trainer.mode' samples next to updates, which cannot be used with "
                      "rollout.tensor_model_parallel_size = {}",
                      size),
          "set it to sync, or set rollout.tensor_model_parallel_size to 1");
  }
};

}  // namespace

void check_rollout_tensor_rules(const LoadedConfig& loaded, bool learns, ConfigFindings& found) {
  RolloutTensorRules(loaded, found).check(learns);
}

}  // namespace mortise
