// See tensor_rules.h.
#include "config/tensor_rules.h"

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "foundation/base/adapter_choice.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class TensorRules : ConfigRules {
 public:
  using ConfigRules::ConfigRules;

  void check() {
    if (config_.actor.tensor_model_parallel_size == 1) return;
    check_numbers();
    if (config_.model.lora_rank > 0 && !config_.model.lora_adapter_path) check_adapter();
    if (config_.trainer.steps_ahead() > 0)
      refuse("trainer.mode", "samples with other weights than those that learn", "set it to sync");
  }

 private:
  void check_adapter() {
    const ModelSection& model = config_.model;
    if (changes_base(model.init_lora_weights))
      refuse("model.init_lora_weights", "begins with a part of the base", "set it to default or gaussian");
    if (!model.target_parameters.empty()) refuse("model.target_parameters", "adapts experts or routers", "remove it");
  }

  void check_numbers() {
    const OptimConfig& optim = config_.actor.optim;
    if (optim.optimizer != OptimizerName::kAdamW && optim.optimizer != OptimizerName::kSgd &&
        optim.optimizer != OptimizerName::kLion) {
      refuse("actor.optim.optimizer",
             fmt::format("is {}, whose state is not one number per weight", choice_name(optim.optimizer)),
             "choose adamw, lion or sgd");
    }
    if (optim.offload != Offloading::kNone) refuse("actor.optim.offload", "keeps numbers in files", "set it to none");
    if (config_.ref.offload != Offloading::kNone) refuse("ref.offload", "keeps numbers in files", "set it to none");
    if (config_.ref.sync_steps) refuse("ref.sync_steps", "changes the reference", "remove it");
  }

  void refuse(const std::string& key, std::string_view does, std::string_view next) {
    error(key,
          fmt::format("'{}' {}, which cannot be used with actor.tensor_model_parallel_size = {} yet", key, does,
                      config_.actor.tensor_model_parallel_size),
          fmt::format("{}, or set actor.tensor_model_parallel_size to 1", next));
  }
};

class RolloutTensorRules : ConfigRules {
 public:
  using ConfigRules::ConfigRules;

  void check(bool learns) {
    const RolloutConfig& rollout = config_.rollout;
    if (rollout.tensor_model_parallel_size == 1) return;
    // Other groups cut their parts out of whole masters.
    const bool has_masters = config_.actor.optim.master_weights || config_.model.trains_adapter() ||
                             config_.actor.tensor_model_parallel_size == rollout.tensor_model_parallel_size;
    if (config_.model.dtype == ModelDtype::kBfloat16 && learns && !has_masters) {
      refuse(
          "actor.optim.master_weights", "is false",
          fmt::format("set it to true, or actor.tensor_model_parallel_size to {}", rollout.tensor_model_parallel_size));
    }
    if (!learns) return;
    if (config_.trainer.steps_ahead() > 0) refuse("trainer.mode", "samples next to updates", "set it to sync");
  }

 private:
  void refuse(const std::string& key, std::string_view does, std::string_view next) {
    error(key,
          fmt::format("'{}' {}, which cannot be used with rollout.tensor_model_parallel_size = {}", key, does,
                      config_.rollout.tensor_model_parallel_size),
          fmt::format("{}, or set rollout.tensor_model_parallel_size to 1", next));
  }
};

}  // namespace

void check_rollout_tensor_rules(const LoadedConfig& loaded, bool learns, ConfigFindings& found) {
  RolloutTensorRules(loaded, found).check(learns);
}

void check_tensor_rules(const LoadedConfig& loaded, ConfigFindings& found) { TensorRules(loaded, found).check(); }

}  // namespace mortise
