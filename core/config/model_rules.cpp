// See model_rules.h.
#include "config/model_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "config/optim_groups.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class ModelRules : ConfigRules {
 public:
  using ConfigRules::ConfigRules;

  void check() {
    check_optimizer();
    check_model_files();
    check_bfloat16();
    if (config_.model.enable_gradient_checkpointing && config_.model.layers == LayerPasses::kPlain) {
      error("model.layers", "'model.layers' is plain, but only the fast layers can be recomputed in the backward pass",
            "remove model.enable_gradient_checkpointing");
    }
  }

 private:
  void check_optimizer() {
    if (config_.actor.optim.lr == 0) warn("actor.optim.lr", "the learning rate is 0, so nothing will be learned");
    check_restarts("actor.optim.num_cycles", config_.actor.optim);
    check_restarts("critic.optim.num_cycles", config_.critic.optim);
    check_length("actor.optim", config_.actor.optim);
    check_length("critic.optim", config_.critic.optim);
    check_nesterov("actor.optim.nesterov", config_.actor.optim);
    check_nesterov("critic.optim.nesterov", config_.critic.optim);
    for (const char* table : {"actor.optim", "critic.optim"}) {
      if (auto groups = optim_groups(loaded_, table); !groups.ok())
        found_.problems.push_back(std::move(groups).error());
    }
  }

  // As in torch.
  void check_nesterov(const std::string& key, const OptimConfig& optim) {
    if (optim.optimizer != OptimizerName::kSgd || !optim.nesterov.value_or(false)) return;
    if (optim.momentum.value_or(0.0) > 0.0 && optim.dampening == 0.0) return;
    error(key, fmt::format("{} is true, but sgd has {}", quote(key), optim.dampening > 0 ? "dampening" : "no momentum"),
          "set momentum above 0 and dampening to 0");
  }

  void check_restarts(const std::string& key, const OptimConfig& optim) {
    if (optim.lr_scheduler_type != LrSchedule::kCosineWithRestarts || optim.num_cycles >= 1) return;
    error(key, fmt::format("{} is {}: cosine_with_restarts needs at least 1", quote(key), format_f64(optim.num_cycles)),
          "set it to 1 or more");
  }

  void check_length(const std::string& table, const OptimConfig& optim) {
    if (follows_metric(optim.lr_scheduler_type) && !optim.lr_metric.name) {
      error(table + ".lr_metric.name",
            fmt::format("{}.lr_scheduler_type is {}, and no metric is named", table,
                        choice_name(optim.lr_scheduler_type)),
            fmt::format("set {}.lr_metric.name = \"eval_reward\", or to another metric of the validation", table));
    }
    if (follows_metric(optim.lr_scheduler_type) && !config_.data.validates()) {
      error(table + ".lr_scheduler_type",
            fmt::format("{}.lr_scheduler_type is {}, and there are no validations to follow", table,
                        choice_name(optim.lr_scheduler_type)),
            "set data.val_files, and trainer.test_freq (sft: sft.test_freq)");
    }
    if (follows_metric(optim.lr_scheduler_type) && config_.trainer.test_freq <= 0 && config_.sft.test_freq <= 0) {
      warn(table + ".lr_scheduler_type",
           fmt::format("{} moves the rate after validations, and only the last step is validated",
                       choice_name(optim.lr_scheduler_type)),
           "set trainer.test_freq (sft: sft.test_freq)");
    }
    if (optim.lr_decay_steps >= 0 && optim.lr_decay_steps <= std::max<int64_t>(0, optim.lr_warmup_steps)) {
      error(table + ".lr_decay_steps",
            fmt::format("{}.lr_decay_steps is {}, which leaves nothing after the warm-up", table, optim.lr_decay_steps),
            "set it above lr_warmup_steps, or to -1 for the length of the run");
    }
  }

  // What does not go together with model.dtype = bfloat16.
  void check_bfloat16() {
    const ModelSection& model = config_.model;
    if (model.dtype != ModelDtype::kBfloat16) return;
    const bool has_adapter = model.trains_adapter();
    if (model.layers == LayerPasses::kPlain && (has_adapter || config_.critic.model.trains_adapter())) {
      error("model.layers", "'model.layers' is plain, and the plain layers have no adapters in bfloat16",
            "set it to fast, or model.dtype=float32");
    }
    if (config_.rollout.kernels == DecodeKernels::kPlain && has_adapter) {
      error("rollout.kernels", "'rollout.kernels' is plain, and the plain layers have no adapters in bfloat16",
            "remove rollout.kernels, or set model.dtype=float32");
    }
  }

  // Which part of the model is trained, and how it is saved.
  void check_model_files() {
    const ModelSection& model = config_.model;
    const bool fresh = model.lora_rank > 0 && !model.lora_adapter_path;
    if (fresh && model.target_modules.empty() && model.target_parameters.empty())
      error("model.target_modules", "'model.target_modules' names no matrix", "use [\"all-linear\"]");
    const TrainerConfig& trainer = config_.trainer;
    if (trainer.max_shard_size && !parse_byte_size(*trainer.max_shard_size)) {
      error("trainer.max_shard_size", "'trainer.max_shard_size' is " + quote(*trainer.max_shard_size),
            "write a number of bytes, or a size such as 500MB, 5GB or 2GiB");
    }
  }
};

}  // namespace

void check_model_rules(const LoadedConfig& loaded, ConfigFindings& found) { ModelRules(loaded, found).check(); }

}  // namespace mortise
