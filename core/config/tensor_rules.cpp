// See tensor_rules.h.
#include "config/tensor_rules.h"

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "foundation/base/choice.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class TensorRules : ConfigRules {
 public:
  using ConfigRules::ConfigRules;

  void check() {
    if (config_.actor.tensor_model_parallel_size == 1) return;
    if (config_.ranks.zero_stage > 0) refuse("ranks.zero_stage", "spreads the training state", "set it to 0");
    check_numbers();
    if (config_.model.trains_adapter()) {
      const char* const key = config_.model.lora_adapter_path ? "model.lora_adapter_path" : "model.lora_rank";
      refuse(key, "trains an adapter", config_.model.lora_adapter_path ? "remove it" : "set it to 0");
    }
    if (config_.trainer.steps_ahead() > 0)
      refuse("trainer.mode", "samples with other weights than those that learn", "set it to sync");
  }

 private:
  void check_numbers() {
    if (config_.model.dtype == ModelDtype::kBfloat16)
      refuse("model.dtype", "rounds the matrices of the layers", "set it to float32");
    const OptimConfig& optim = config_.actor.optim;
    if (optim.optimizer != OptimizerName::kAdamW && optim.optimizer != OptimizerName::kSgd &&
        optim.optimizer != OptimizerName::kLion) {
      refuse("actor.optim.optimizer", fmt::format("is {}, whose state is not one number per weight", choice_name(optim.optimizer)),
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

}  // namespace

void check_tensor_rules(const LoadedConfig& loaded, ConfigFindings& found) { TensorRules(loaded, found).check(); }

}  // namespace mortise
