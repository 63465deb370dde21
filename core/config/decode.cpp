// Walks the tree of values, matches its names with the fields, and suggests the nearest name for an unknown one.
#include "config/decode.h"

#include <fmt/core.h>

#include <algorithm>

#include "config/assign.h"
#include "config/toml_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// "use one of the tables: model, data, ...".
std::string top_tables() {
  std::vector<std::string> names;
  for (const TableInfo& table : all_tables()) {
    const std::string name = table.name.substr(0, table.name.find('.'));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return "use one of the tables: " + join(names, ", ");
}

std::string join_key(std::string_view table, std::string_view leaf) {
  return table.empty() ? toml_key(leaf) : fmt::format("{}.{}", table, toml_key(leaf));
}

class Decoder {
 public:
  Decoder(LoadedConfig& out, std::vector<Error>& problems) : out_(out), problems_(problems) {}

  void decode(const ConfigNode& root) {
    decode_table(root, "");
    decode_backend(root);
  }

 private:
  void report(std::string what, const std::string& where, std::string next) {
    problems_.push_back({ErrorKind::kConfig, std::move(what), where, std::move(next)});
  }

  void note(const std::string& key, const ConfigNode& node) {
    out_.positions[key] = node.where;
    for (const auto& [name, child] : node.entries) note(join_key(key, name), child);
  }

  void assign(const Field& field, const FieldRef& ref, const std::string& key, const ConfigNode& node) {
    note(key, node);
    Result<> assigned = assign_value(field, ref, node);
    if (assigned) return;
    Error error = std::move(assigned).error();
    if (const size_t at = error.what.find("reward.*"); at != std::string::npos) {
      error.what.replace(at, field.key.size(), key);
    }
    problems_.push_back(std::move(error));
  }

  // A table whose keys are in fields.h. `table` is its name, "" for the whole file.
  void decode_table(const ConfigNode& node, const std::string& table) {
    for (const auto& [name, child] : node.entries) {
      const std::string key = join_key(table, name);
      const Field* field = find_field(key);
      if (field != nullptr && !field->inline_params) {
        assign(*field, field->ref(out_.config), key, child);
      } else if (key == "reward") {
        decode_rewards(child);
      } else if (find_table(key) != nullptr) {
        if (child.is_table()) {
          out_.positions[key] = child.where;
          decode_table(child, key);
        } else {
          report(fmt::format("'{}' is a table, not {}", key, child.describe()), child.where,
                 fmt::format("write [{}]", key));
        }
      } else if (table == "actor.policy_loss") {
        note(key, child);
        add_param(out_.config.actor.policy_loss.params, name, child);
      } else if (table == "rollout" && child.is_table()) {
        continue;  // perhaps the backend's table: decode_backend, when its name is known
      } else {
        unknown_key(table, name, child);
      }
    }
  }

  void add_param(Json& params, const std::string& name, const ConfigNode& node) {
    Json value = node_to_json(node, problems_);
    if (!value.is_null()) params[name] = std::move(value);
  }

  void decode_rewards(const ConfigNode& node) {
    const bool empty_list = node.kind == ConfigNode::Kind::kValue && node.value.is_array() && node.value.empty();
    if (node.kind != ConfigNode::Kind::kList && !empty_list) {
      report("'reward' is a list of tables, not " + node.describe(), node.where, "write [[reward]]");
      return;
    }
    out_.positions["reward"] = node.where;
    out_.config.reward.clear();
    for (size_t i = 0; i < node.items.size(); ++i) decode_reward(node.items[i], "reward." + std::to_string(i));
    name_rewards(out_.config.reward);
  }

  // A reward without a name gets its plugin's. If several would share it, a parameter `function` distinguishes them.
  static void name_rewards(std::vector<RewardConfig>& rewards) {
    const auto is_twin = [](const RewardConfig& a, const RewardConfig& b) {
      return &a != &b && plugin_bare_name(a.use) == plugin_bare_name(b.use);
    };
    std::vector<std::string> names;
    for (const RewardConfig& reward : rewards) {
      names.push_back(reward.name.empty() ? plugin_bare_name(reward.use) : reward.name);
      const bool has_twin = std::ranges::any_of(rewards, [&](const auto& other) { return is_twin(reward, other); });
      const Json* function = json_find(reward.params, "function");
      if (!reward.name.empty() || !has_twin || function == nullptr || !function->is_string()) continue;
      if (!function->get_ref<const std::string&>().empty()) names.back() = function->get<std::string>();
    }
    for (size_t i = 0; i < rewards.size(); ++i) rewards[i].name = std::move(names[i]);
  }

  void decode_reward(const ConfigNode& node, const std::string& table) {
    RewardConfig& reward = out_.config.reward.emplace_back();
    out_.positions[table] = node.where;
    if (!node.is_table()) {
      report(fmt::format("'{}' must be a table, but is {}", table, node.describe()), node.where, "write [[reward]]");
      return;
    }
    for (const auto& [name, child] : node.entries) {
      const std::string key = join_key(table, name);
      const Field* field = find_field("reward.*." + name);
      if (field != nullptr && !field->inline_params) {
        assign(*field, field->in_reward(reward), key, child);
      } else {
        note(key, child);
        add_param(reward.params, name, child);
      }
    }
    if (reward.use.empty() && node.find("use") == nullptr) {
      report(fmt::format("'{}' names no reward plugin", table), node.where,
             "add use = \"exact_match\" or another reward");
    }
  }

  // Tables of [rollout] that are not in fields.h: one of them may be the backend's.
  void decode_backend(const ConfigNode& root) {
    const ConfigNode* rollout = root.find("rollout");
    if (rollout == nullptr || !rollout->is_table()) return;
    const std::string backend = plugin_bare_name(out_.config.rollout.name);
    for (const auto& [name, child] : rollout->entries) {
      const std::string key = join_key("rollout", name);
      if (!child.is_table() || find_table(key) != nullptr || (find_field(key) != nullptr && name != "params")) continue;
      if (name == backend) {
        note(key, child);
        out_.config.rollout.params = node_to_json(child, problems_);
        continue;
      }
      const std::string near = suggest_key("rollout", name);
      report(fmt::format("'{}' is neither a table of [rollout] nor the backend in use (rollout.name is {})", key,
                         quote(out_.config.rollout.name)),
             child.where, near.empty() ? fmt::format("remove it, or use ~{} on the command line", key) : near);
    }
  }

  void unknown_key(const std::string& table, const std::string& name, const ConfigNode& node) {
    std::string next = suggest_key(table, name);
    if (next.empty()) {
      next = table.empty() ? top_tables() : fmt::format("`mortise config explain {}` lists its keys", table);
    }
    report(fmt::format("unknown key '{}'", join_key(table, name)), node.where, std::move(next));
  }

  LoadedConfig& out_;
  std::vector<Error>& problems_;
};

std::string leaf_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(dot == std::string_view::npos ? key : key.substr(dot + 1));
}

// The keys that may be meant by a name, most likely first.
std::vector<std::string> keys_named(std::string_view leaf) {
  std::vector<std::string> keys;
  for (const Field& field : all_fields()) {
    if (leaf_of(field.key) == leaf && !field.inline_params) keys.push_back(field.key);
  }
  for (const TableInfo& table : all_tables()) {
    if (leaf_of(table.name) == leaf) keys.push_back(table.name);
  }
  if (!keys.empty()) return keys;
  for (const Field& field : all_fields()) {
    const std::string trl = field.name_in(Peer::kTrl);
    const bool matches = trl.substr(0, trl.find(' ')) == leaf || leaf_of(field.name_in(Peer::kVerl)) == leaf ||
                         field.name_in(Peer::kSwift) == leaf;
    if (matches) keys.push_back(field.key);
  }
  return keys;
}

}  // namespace

std::string suggest_key(std::string_view table, std::string_view leaf) {
  std::vector<std::string> named = keys_named(leaf);
  if (!named.empty()) {
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(named.size(), 3); ++i)
      text += fmt::format("{}{}'", i == 0 ? "'" : " or '", named[i]);
    return fmt::format("did you mean {}?", text);
  }
  std::vector<std::string> siblings;
  std::vector<std::string> all;
  const auto consider = [&](const std::string& key) {
    all.push_back(key);
    const size_t dot = key.rfind('.');
    if ((dot == std::string::npos ? "" : key.substr(0, dot)) == table) siblings.push_back(leaf_of(key));
  };
  for (const Field& field : all_fields()) {
    if (!field.inline_params) consider(field.key);
  }
  for (const TableInfo& info : all_tables()) {
    if (info.name != "reward.*") consider(info.name);
  }
  if (table.empty()) siblings.push_back("reward");
  std::vector<std::string> near = nearest_names(leaf, siblings);
  if (!near.empty()) {
    for (std::string& name : near) name = join_key(table, name);
  } else {
    const std::string key = join_key(table, leaf);
    near = nearest_names(key, all, 2);
    std::erase_if(near, [&key](const std::string& name) { return key.starts_with(name) || name.starts_with(key); });
  }
  if (near.empty()) return "";
  std::string text;
  for (const std::string& name : near) text += fmt::format("{}{}'", text.empty() ? "'" : " or '", name);
  return fmt::format("did you mean {}?", text);
}

void decode_tree(const ConfigNode& root, LoadedConfig& out, std::vector<Error>& problems) {
  Decoder(out, problems).decode(root);
}

}  // namespace mortise
