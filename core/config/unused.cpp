// See unused.h.
#include "config/unused.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mortise {
namespace {

class UnusedKeys {
 public:
  UnusedKeys(const LoadedConfig& loaded, ConfigUse use, const PluginFacts* plugins)
      : loaded_(loaded), use_(use), plugins_(plugins) {}

  std::vector<Error> run() {
    for (const TableInfo& table : all_tables()) look_at(table.name, nullptr, table.no_effect);
    for (const Field& field : all_fields()) {
      if (field.no_effect.empty()) continue;
      if (field.in_reward) {
        for (size_t i = 0; i < loaded_.config.reward.size(); ++i)
          look_at(fmt::format("reward.{}{}", i, field.key.substr(field.key.rfind('.'))), &field, field.no_effect);
      } else if (field.inline_params) {
        for (const std::string& key : keys_beside(field)) look_at(key, &field, field.no_effect);
      } else {
        look_at(field.key, &field, field.no_effect);
      }
    }
    return std::move(warnings_);
  }

 private:
  void look_at(const std::string& key, const Field* field, const std::vector<NoEffectRule>& rules) {
    if (rules.empty() || !loaded_.is_set(key)) return;
    const std::string where = loaded_.where(key);
    if (plugins_ != nullptr && where.starts_with("preset ")) return;
    for (const NoEffectRule& rule : rules) {
      if (rule.asks_plugins != (plugins_ != nullptr)) continue;
      const std::optional<std::string> because = rule.why({loaded_, loaded_.config, use_, key, field, plugins_});
      if (!because) continue;
      warnings_.push_back({ErrorKind::kConfig, fmt::format("'{}' has no effect: {}", key, *because), where, ""});
    }
  }

  // The parameters that were set in the table of an inline one.
  [[nodiscard]] std::vector<std::string> keys_beside(const Field& field) const {
    const std::string table = field.key.substr(0, field.key.rfind('.') + 1);
    std::vector<std::string> keys;
    for (const auto& [key, place] : loaded_.positions) {
      if (key.starts_with(table) && find_record(key) == &field) keys.push_back(key);
    }
    return keys;
  }

  const LoadedConfig& loaded_;
  ConfigUse use_;
  const PluginFacts* plugins_;
  std::vector<Error> warnings_;
};

}  // namespace

std::vector<Error> unused_keys(const LoadedConfig& loaded, ConfigUse use, const PluginFacts* plugins) {
  return UnusedKeys(loaded, use, plugins).run();
}

}  // namespace mortise
