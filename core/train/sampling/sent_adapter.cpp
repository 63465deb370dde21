// See sent_adapter.h.
#include "train/sampling/sent_adapter.h"

#include <ATen/ops/mul.h>
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/weights/rounded_matrices.h"

namespace mortise {
namespace {

constexpr std::string_view kB = ".lora_B.weight";

// A file in memory.
class TextFile : public WritableFile {
 public:
  Result<> append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  Result<> sync() override { return {}; }
  Result<> close() override { return {}; }
  [[nodiscard]] const Path& path() const override { return path_; }

  std::string text;

 private:
  Path path_ = kAdapterConfigFile;
};

// Ranks and scales of the adapter's modules.
Result<LoraConfig> config_of(const Model& policy) {
  SaveOptions apart;
  apart.lora = LoraSave::kApart;
  apart.base_model = ".";  // has to be named, and is not read
  const std::vector<FolderFile> files = TRY(policy.plan_save(apart));
  TextFile config;
  for (const FolderFile& file : files)
    if (file.name == kAdapterConfigFile) TRY(file.write(config));
  return parse_lora_config(std::move(config.text), kAdapterConfigFile);
}

}  // namespace

Result<> check_sent_adapter(const LoadedConfig& loaded, const Model& policy, const RolloutBackend& backend,
                            bool may_lack) {
  const std::string key = "rollout.send_adapter";
  if (!loaded.config.rollout.send_adapter) return {};
  const auto error = [&](std::string what, std::string next) {
    return Error{ErrorKind::kConfig, "'rollout.send_adapter' is true, but " + what, loaded.where(key), std::move(next)};
  };
  if (!policy.trains_lora() && may_lack) return {};
  if (!policy.trains_lora()) return error("no adapter is trained", "set model.lora_rank, or remove this key");
  if (!policy.trained_lora()->is_plain())
    return error("the adapter is more than A and B (DoRA, PiSSA, OLoRA, modules_to_save or biases)",
                 "remove this key: servers then get the merged weights");
  if (policy.trained_lora()->adapts_parameters())
    return error("the adapter is of experts or routers, which servers do not take as adapters",
                 "remove this key: servers then get the merged weights");
  if (!backend.holds_weights())
    return error(fmt::format("the rollout backend '{}' takes no weights", loaded.config.rollout.name),
                 "remove this key");
  return {};
}

std::vector<NamedParameter> sampled_numbers(const Model& model) {
  std::vector<NamedParameter> out = model.parameters();
  for (NamedParameter& parameter : out) {
    if (rounded_layer(model.weights(), parameter.tensor) >= 0)
      parameter.tensor = rounded_slice(model.weights(), parameter.tensor);
  }
  return out;
}

Result<std::vector<NamedParameter>> sent_tensors(const Model& policy) {
  const LoraConfig config = TRY(config_of(policy));
  std::vector<NamedParameter> sent = policy.trainable();
  for (NamedParameter& parameter : sent) {
    const std::string_view name = parameter.name;
    if (!name.ends_with(kB)) continue;
    const std::string module(name.substr(kLoraPrefix.size(), name.size() - kLoraPrefix.size() - kB.size()));
    const LoraRank rank = TRY(config.rank_of(module));
    parameter.tensor = at::mul(parameter.tensor.detach(), rank.scale);
  }
  return sent;
}

}  // namespace mortise
