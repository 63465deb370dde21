// See device_rules.h.
#include "config/device_rules.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "config/sampling_rules.h"
#include "foundation/base/device_name.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class DeviceRules {
 public:
  explicit DeviceRules(const LoadedConfig& loaded) : loaded_(loaded), config_(loaded.config) {}

  std::vector<Error> run(ConfigUse use) {
    if (!samples_alone(use)) check_layers();
    if (use != ConfigUse::kSft) check_sampling();
    return std::move(problems_);
  }

  std::vector<Error> run(const DevicePlugins& plugins) {
    if (plugins.has_reference) check_reference();
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

  void check_layers() {
    if (config_.model.layers == LayerPasses::kPlain) refuse("model.layers", "takes the plain layers", "set it to fast");
  }

  void check_sampling() {
    const RolloutConfig& rollout = config_.rollout;
    if (rollout.kernels != DecodeKernels::kAuto)
      refuse("rollout.kernels", "names kernels of the CPU", "set it to auto");
    if (rollout.dtype != DecodeDtype::kAuto)
      refuse("rollout.dtype", "samples from a rounded copy of the weights", "set it to auto");
    if (rollout.deterministic)
      refuse("rollout.deterministic", "asks for the same tokens for any order of requests", "set it to false");
  }

  // An adapter's base is no model of its own.
  void check_reference() {
    const bool moves = config_.ref.sync_steps.has_value();
    if (config_.ref.offload == Offloading::kNone) return;
    if (config_.model.trains_adapter() && !config_.ref.has_own_weights()) return;
    const char* const next = "set it to none";
    if (config_.ranks.zero_stage == 3) refuse("ref.offload", "keeps weights in files that ZeRO 3 spreads", next);
    if (moves && config_.actor.tensor_model_parallel_size > 1)
      refuse("ref.offload", "keeps split layers in files that ref.sync_steps moves", next);
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
