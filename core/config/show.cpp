// Writes a RunConfig as TOML or JSON, in the order of the fields.
#include "config/show.h"

#include <fmt/core.h>

#include <algorithm>

#include "config/fields.h"
#include "config/presets.h"
#include "config/toml_text.h"
#include "foundation/base/secrets.h"
#include "foundation/base/shown_text.h"

namespace mortise {
namespace {

std::string table_of(const std::string& key) {
  const size_t dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

std::string last_part_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }

class TomlWriter {
 public:
  TomlWriter(const LoadedConfig& loaded, const ShowOptions& options)
      : loaded_(loaded), config_(loaded.config), options_(options) {}

  std::string write() {
    write_table("");
    for (const TableInfo& table : all_tables()) {
      if (table.name == "reward.*") {
        write_rewards();
      } else {
        write_table(table.name);
      }
    }
    return std::move(text_);
  }

 private:
  // Lines of one table collect in `lines`; the heading comes only if there are any.
  void write_table(const std::string& table) {
    std::string lines;
    for (const Field& field : all_fields()) {
      if (!field.in_run || table_of(field.key) != table) continue;
      const Json value = field_value(field.in_run(config_));
      if (!field.inline_params) {
        add_line(lines, field, field.key, value);
      } else if (table == "actor.policy_loss") {
        add_params(lines, table, value);
      }
    }
    emit(table.empty() ? "" : fmt::format("[{}]", table), lines);
    if (table == "rollout" && !config_.rollout.params.empty()) {
      const std::string name = "rollout." + toml_key(plugin_bare_name(config_.rollout.name));
      std::string params;
      add_params(params, name, config_.rollout.params);
      emit(fmt::format("[{}]", name), params);
    }
  }

  void write_rewards() {
    for (size_t i = 0; i < config_.reward.size(); ++i) {
      const std::string table = "reward." + std::to_string(i);
      std::string lines;
      for (const Field& field : all_fields()) {
        if (!field.in_reward) continue;
        const Json value = field_value(field.in_reward(config_.reward[i]));
        if (field.inline_params) {
          add_params(lines, table, value);
        } else {
          add_line(lines, field, fmt::format("{}.{}", table, last_part_of(field.key)), value);
        }
      }
      emit("[[reward]]", lines);
    }
  }

  void add_line(std::string& lines, const Field& field, const std::string& key, const Json& value) {
    const std::string written = value.is_null() ? "null" : toml_value(value);
    if (options_.only_set && !loaded_.is_set(key) && written == field.default_text()) return;
    if (value.is_null() && (preset_sets(key) || field.default_text() != written)) {
      lines.append(last_part_of(key))
          .append(" = \"null\"");  // left out, the preset's value or the default would come back
    } else {
      lines.append(value.is_null() ? "# " : "").append(last_part_of(key)).append(" = ").append(written);
    }
    add_origin(lines, key);
  }

  [[nodiscard]] bool preset_sets(const std::string& key) const {
    const auto sets = [&key](std::span<const Preset> presets, const std::optional<std::string>& name) {
      return std::ranges::any_of(presets, [&](const Preset& preset) {
        return preset.name == name && std::ranges::any_of(preset.settings, [&key](const std::string& setting) {
                 return setting.starts_with(key + "=");
               });
      });
    };
    return sets(all_presets(), config_.preset) ||
           sets(rollout_correction_presets(), config_.algorithm.rollout_correction.preset);
  }

  void add_params(std::string& lines, const std::string& table, const Json& params) {
    for (const auto& [name, value] : params.items()) {
      lines.append(toml_key(name)).append(" = ").append(toml_value(value));
      add_origin(lines, fmt::format("{}.{}", table, toml_key(name)));
    }
  }

  void add_origin(std::string& lines, const std::string& key) {
    if (const auto remark = options_.remarks.find(key); remark != options_.remarks.end())
      lines += "  # " + remark->second;
    // A place may hold what was typed on the command line.
    if (options_.origins && loaded_.is_set(key)) lines += "  # " + one_line(loaded_.where(key));
    lines += "\n";
  }

  void emit(const std::string& heading, const std::string& lines) {
    if (lines.empty()) return;
    if (!text_.empty()) text_ += "\n";
    if (!heading.empty()) text_ += heading + "\n";
    text_ += lines;
  }

  const LoadedConfig& loaded_;
  RunConfig config_;
  const ShowOptions& options_;
  std::string text_;
};

}  // namespace

std::string config_to_toml(const LoadedConfig& loaded, const ShowOptions& options) {
  return redacted_settings(TomlWriter(loaded, options).write());
}

std::string config_to_toml(const RunConfig& config) {
  LoadedConfig loaded;
  loaded.config = config;
  return config_to_toml(loaded);
}

namespace {

void redact(Json& value) {
  if (value.is_string()) value = redacted_settings(value.get_ref<const std::string&>());
  if (value.is_structured()) {
    for (Json& item : value) redact(item);
  }
}

void flatten(const Json& value, const std::string& key, std::map<std::string, std::string>& out) {
  const bool inner = (value.is_object() || (value.is_array() && !value.empty() && value[0].is_object()));
  if (!inner) {
    out[key] = dump_json(value);
    return;
  }
  size_t index = 0;
  for (const auto& [name, item] : value.items()) {
    flatten(item, (key.empty() ? "" : key + ".") + (value.is_array() ? std::to_string(index++) : name), out);
  }
}

}  // namespace

Json config_to_json(const RunConfig& config) {
  RunConfig copy = config;
  Json root = Json::object();
  for (const Field& field : all_fields()) {
    if (!field.in_run) continue;
    Json* table = &root;
    const std::string name = table_of(field.key);
    for (size_t at = 0; at < name.size();) {
      const size_t end = std::min(name.find('.', at), name.size());
      table = &(*table)[name.substr(at, end - at)];
      at = end + 1;
    }
    const Json value = field_value(field.in_run(copy));
    if (!field.inline_params) {
      (*table)[last_part_of(field.key)] = value;
    } else if (name == "rollout") {
      if (!value.empty()) (*table)[plugin_bare_name(copy.rollout.name)] = value;
    } else {
      for (const auto& [key, item] : value.items()) (*table)[key] = item;
    }
  }
  root["reward"] = Json::array();
  for (RewardConfig& reward : copy.reward) {
    Json& object = root["reward"].emplace_back(Json::object());
    for (const Field& field : all_fields()) {
      if (!field.in_reward) continue;
      const Json value = field_value(field.in_reward(reward));
      if (!field.inline_params) {
        object[last_part_of(field.key)] = value;
      } else {
        for (const auto& [key, item] : value.items()) object[key] = item;
      }
    }
  }
  redact(root);
  return root;
}

std::map<std::string, std::string> flat_settings(const RunConfig& config) {
  std::map<std::string, std::string> out;
  flatten(config_to_json(config), "", out);
  return out;
}

}  // namespace mortise
