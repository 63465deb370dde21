// Finds the names of the hub in a configuration.
#include "hub/config_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "hub/snapshot.h"

namespace mortise {
namespace {

std::string member(const Json& entry, std::string_view key) {
  const Json* value = json_find(entry, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// The commits that the locks name, those of the first lock first.
Result<std::vector<HubPin>> read_pins(Env& env, std::span<const Path> locks) {
  std::vector<HubPin> pins;
  for (const Path& lock : locks) {
    if (!env.exists(lock)) continue;
    const Json json = TRY(read_json_file(env, lock));
    const Json* entries = json_find(json, "hub");
    if (entries == nullptr || !entries->is_array()) continue;
    for (const Json& entry : *entries) {
      HubPin pin{member(entry, "name"), member(entry, "revision"), member(entry, "commit")};
      if (is_commit(pin.commit)) pins.push_back(std::move(pin));
    }
  }
  return pins;
}

// Resolves one name after another. The hub's settings are read for the first.
class Resolver {
 public:
  Resolver(Env& env, LoadedConfig& loaded, std::vector<HubPin> pins)
      : env_(env), loaded_(loaded), pins_(std::move(pins)) {}

  Result<> model(const std::string& key, std::string& value) {
    const auto name = TRY(at_place(loaded_.where(key), find_hub_name(env_, value, HubKind::kModel)));
    if (!name) return {};
    TRY(read_options());
    const HubSnapshot found = TRY(at_place(loaded_.where(key), model_snapshot(env_, *options_, *name, pin_of(*name))));
    note(key, *name, found, found.folder);
    value = found.folder.string();
    return {};
  }

  Result<> data(const std::string& key, std::string& value) {
    const auto name = TRY(at_place(loaded_.where(key), find_hub_name(env_, value, HubKind::kDataset)));
    if (!name) return {};
    TRY(read_options());
    const HubDataFiles found = TRY(at_place(loaded_.where(key), data_snapshot(env_, *options_, *name, pin_of(*name))));
    note(key, *name, found.snapshot, found.snapshot.folder / found.pattern);
    value = (found.snapshot.folder / found.pattern).string();
    return {};
  }

 private:
  Result<> read_options() {
    if (!options_) options_ = TRY(hub_options(env_));
    return {};
  }

  [[nodiscard]] std::optional<std::string> pin_of(const HubName& name) const {
    const auto pin = std::ranges::find_if(
        pins_, [&](const HubPin& one) { return one.name == name.full() && one.revision == name.revision; });
    return pin == pins_.end() ? std::nullopt : std::optional(pin->commit);
  }

  void note(const std::string& key, const HubName& name, const HubSnapshot& found, const Path& place) {
    log_info(fmt::format("{}: {} at commit {}, in {}", key, name.full(), found.commit.substr(0, 12), place.string()));
    const bool is_known = std::ranges::any_of(
        loaded_.hub, [&](const HubPin& one) { return one.name == name.full() && one.revision == name.revision; });
    if (!is_known) loaded_.hub.push_back({name.full(), name.revision, found.commit});
  }

  Env& env_;
  LoadedConfig& loaded_;
  std::vector<HubPin> pins_;
  std::optional<HubOptions> options_;
};

// The files of a set of data.val_sets: a text, or a list of them. Others are errors of whoever reads the set.
Result<> resolve_set(Resolver& resolver, const std::string& name, Json& set) {
  if (!set.is_object() || !set.contains("files")) return {};
  const std::string key = fmt::format("data.val_sets.{}.files", name);
  Json& files = set["files"];
  const auto resolve = [&](Json& file) -> Result<> {
    if (!file.is_string()) return {};
    std::string text = file.get<std::string>();
    TRY(resolver.data(key, text));
    file = text;
    return {};
  };
  if (!files.is_array()) return resolve(files);
  for (Json& file : files) TRY(resolve(file));
  return {};
}

}  // namespace

Result<> resolve_hub_names(Env& env, LoadedConfig& loaded, std::span<const Path> locks) {
  RunConfig& config = loaded.config;
  std::vector<HubPin> pins = TRY(read_pins(env, locks));
  Resolver resolver(env, loaded, std::move(pins));
  TRY(resolver.model("model.path", config.model.path));
  if (config.model.lora_adapter_path) TRY(resolver.model("model.lora_adapter_path", *config.model.lora_adapter_path));
  if (config.ref.path) TRY(resolver.model("ref.path", *config.ref.path));
  if (config.teacher.path) TRY(resolver.model("teacher.path", *config.teacher.path));
  if (config.critic.model.path) TRY(resolver.model("critic.model.path", *config.critic.model.path));
  if (config.critic.model.lora_adapter_path)
    TRY(resolver.model("critic.model.lora_adapter_path", *config.critic.model.lora_adapter_path));
  for (std::string& file : config.data.train_files) TRY(resolver.data("data.train_files", file));
  for (std::string& file : config.data.val_files) TRY(resolver.data("data.val_files", file));
  for (std::string& file : config.sft_mix.files) TRY(resolver.data("sft_mix.files", file));
  for (auto& [name, set] : config.data.val_sets.items()) TRY(resolve_set(resolver, name, set));
  for (size_t i = 0; i < config.reward.size(); ++i) {
    for (const auto& [key, value] : config.reward[i].params.items()) {
      // A parameter may be any text, so only the written scheme makes it a name.
      if (!value.is_string() || !value.get<std::string>().starts_with("hf://")) continue;
      std::string text = value.get<std::string>();
      TRY(resolver.model(fmt::format("reward.{}.{}", i, key), text));
      value = text;
    }
  }
  return {};
}

Result<Path> model_folder(Env& env, const std::string& given) {
  const auto name = TRY(find_hub_name(env, given, HubKind::kModel));
  if (!name) return Path(given);
  const HubOptions options = TRY(hub_options(env));
  return TRY(model_snapshot(env, options, *name)).folder;
}

Json hub_lock(std::span<const HubPin> pins) {
  Json entries = Json::array();
  for (const HubPin& pin : pins)
    entries.push_back({{"name", pin.name}, {"revision", pin.revision}, {"commit", pin.commit}});
  return entries;
}

}  // namespace mortise
