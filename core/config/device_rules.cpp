// See device_rules.h.
#include "config/device_rules.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "config/full_kl.h"
#include "foundation/base/choice.h"
#include "foundation/base/device_name.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class DeviceRules {
 public:
  explicit DeviceRules(const LoadedConfig& loaded) : loaded_(loaded), config_(loaded.config) {}

  std::vector<Error> run(ConfigUse use) {
    check_model();
    if (use != ConfigUse::kSft) check_sampling(use);
    if (use == ConfigUse::kEval) return std::move(problems_);
    check_optimizer("actor.optim", config_.actor.optim);
    if (config_.ranks.zero_stage > 0) refuse("ranks.zero_stage", "shares an optimizer among ranks", "set it to 0");
    check_tokens("actor.ulysses_sequence_parallel_size", config_.actor.ulysses_sequence_parallel_size);
    check_tokens("ref.ulysses_sequence_parallel_size", config_.ref.ulysses_sequence_parallel_size.value_or(1));
    if (config_.actor.tensor_model_parallel_size > 1)
      refuse("actor.tensor_model_parallel_size", "shares layers among ranks", "set it to 1");
    if (use == ConfigUse::kTrain) check_objective();
    return std::move(problems_);
  }

  std::vector<Error> run(const DevicePlugins& plugins) {
    if (plugins.has_critic) {
      check_optimizer("critic.optim", config_.critic.optim);
      check_tokens("critic.ulysses_sequence_parallel_size", config_.critic.ulysses_sequence_parallel_size);
      const CriticModelConfig& critic = config_.critic.model;
      if (critic.lora_rank > 0) refuse("critic.model.lora_rank", "trains an adapter", "set it to 0");
      if (critic.lora_adapter_path) refuse("critic.model.lora_adapter_path", "trains an adapter", "remove it");
    }
    if (plugins.has_reference && config_.ref.offload != Offloading::kNone)
      refuse("ref.offload", "keeps numbers in files", "set it to none");
    if (plugins.reads_vocabulary) {
      refuse("algorithm.adv_estimator",
             fmt::format("is {}, which reads sums of squared probabilities", plugins.estimator),
             "take another estimator");
    }
    return std::move(problems_);
  }

 private:
  void refuse(const std::string& key, std::string_view does, std::string next) {
    const bool is_auto = !names_device(loaded_);
    const std::string who =
        is_auto ? "which runs on a GPU" : fmt::format("which model.device = \"{}\"", config_.model.device);
    problems_.push_back({ErrorKind::kConfig, fmt::format("'{}' {}, {} cannot do yet", key, does, who),
                         loaded_.where(key), fmt::format("{}, or set model.device = \"cpu\"", next)});
  }

  void check_model() {
    const ModelSection& model = config_.model;
    if (model.lora_rank > 0) refuse("model.lora_rank", "trains an adapter", "set it to 0");
    if (model.lora_adapter_path) refuse("model.lora_adapter_path", "trains an adapter", "remove it");
    if (model.layers == LayerPasses::kPlain) refuse("model.layers", "takes the plain layers", "set it to fast");
  }

  void check_sampling(ConfigUse use) {
    const RolloutConfig& rollout = config_.rollout;
    if (rollout.kernels != DecodeKernels::kAuto)
      refuse("rollout.kernels", "names kernels of the CPU", "set it to auto");
    if (rollout.dtype != DecodeDtype::kAuto)
      refuse("rollout.dtype", "samples from a rounded copy of the weights", "set it to auto");
    if (rollout.deterministic)
      refuse("rollout.deterministic", "asks for the same tokens for any order of requests", "set it to false");
    if (rollout.filtered_log_probs)
      refuse("rollout.filtered_log_probs", "computes log-probs over the kept tokens alone", "set it to false");
    if (use == ConfigUse::kTrain && config_.actor.router_replay.mode == RouterReplay::kR3)
      refuse("actor.router_replay.mode", "records experts while it samples", "set it to R2");
  }

  void check_optimizer(const std::string& table, const OptimConfig& optim) {
    if (optim.optimizer != OptimizerName::kAdamW)
      refuse(table + ".optimizer", fmt::format("is {}", choice_name(optim.optimizer)), "set it to adamw");
    if (optim.offload != Offloading::kNone) refuse(table + ".offload", "keeps numbers in files", "set it to none");
    if (!optim.master_weights) refuse(table + ".master_weights", "is false", "set it to true");
  }

  void check_tokens(const std::string& key, int64_t num_ranks) {
    if (num_ranks > 1) refuse(key, "shares the tokens of a pass among ranks", "set it to 1");
  }

  void check_objective() {
    if (config_.actor.use_kl_loss && config_.actor.kl_loss_type == kFullKl)
      refuse("actor.kl_loss_type", "compares whole vocabularies", "use an estimator");
    if (config_.teacher.path) refuse("teacher.path", "compares with a teacher", "remove it");
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  std::vector<Error> problems_;
};

}  // namespace

std::vector<Error> check_device(const LoadedConfig& loaded, ConfigUse use) {
  const std::string& text = loaded.config.model.device;
  const std::optional<DeviceName> device = parse_device_name(text);
  if (!device) {
    return {{ErrorKind::kConfig, fmt::format("'model.device' is {}", quote(text)), loaded.where("model.device"),
             fmt::format("choose {}", kDeviceNames)}};
  }
  return names_device(loaded) ? check_device_rules(loaded, use) : std::vector<Error>();
}

std::vector<Error> check_device_rules(const LoadedConfig& loaded, ConfigUse use) {
  return DeviceRules(loaded).run(use);
}

std::vector<Error> check_device_plugin_rules(const LoadedConfig& loaded, const DevicePlugins& plugins) {
  return DeviceRules(loaded).run(plugins);
}

bool names_device(const LoadedConfig& loaded) {
  const DeviceKind kind = parse_device_name(loaded.config.model.device).value_or(DeviceName()).kind;
  return kind != DeviceKind::kCpu && kind != DeviceKind::kAuto;
}

}  // namespace mortise
