// The text and JSON of `mortise config explain`.
#include "config/explain.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "config/config_node.h"
#include "config/decode.h"
#include "config/fields.h"
#include "config/presets.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr size_t kWidth = 100;
constexpr std::string_view kPrefixOfVerl = "actor_rollout_ref.";

// Words of `text` in lines of at most kWidth bytes, each behind `indent`.
std::string wrap(std::string_view text, std::string_view indent) {
  std::string out;
  std::string line;
  for (const std::string_view word : split(text, ' ')) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > kWidth) {
      out.append(indent).append(line).append("\n");
      line.clear();
    }
    line.append(line.empty() ? "" : " ").append(word);
  }
  return out.append(indent).append(line).append("\n");
}

// Also where it is ours: verl has most of these tables one level deeper.
std::string name_in_verl(const Field& field) {
  for (const PeerName& other : field.peers) {
    if (other.peer != Peer::kVerl) continue;
    if (other.name != field.key) return other.name;
    const std::string table = field.key.substr(0, field.key.find('.'));
    const bool is_deeper = table == "actor" || table == "rollout" || table == "ref" || table == "model";
    return (is_deeper ? std::string(kPrefixOfVerl) : "") + other.name;
  }
  return "";
}

std::string explain_field(const Field& field) {
  std::string text = fmt::format("{}\n{}", field.key, wrap(field.doc, "  "));
  if (field.inline_params) return text;
  text += fmt::format("  type:    {}\n", field.type_name());
  if (field.key != "reward.*.use") text += fmt::format("  default: {}\n", field.default_text());
  if (const std::string range = field.range_text(); !range.empty()) text += fmt::format("  allowed: {}\n", range);
  if (!field.plugin_kind.empty())
    text += fmt::format("  names a plugin of kind {}; `mortise plugin list` shows them\n", field.plugin_kind);
  const std::string verl = name_in_verl(field), trl = field.name_in(Peer::kTrl);
  if (!verl.empty()) text += fmt::format("  in verl: {}\n", verl);
  if (!trl.empty()) text += fmt::format("  in TRL:  {}\n", trl);
  if (const std::string swift = field.name_in(Peer::kSwift); !swift.empty())
    text += fmt::format("  in ms-swift: {}\n", swift);
  return text;
}

Json field_json(const Field& field) {
  Json object = {{"key", field.key}, {"type", field.type_name()}, {"default", nullptr}, {"doc", field.doc}};
  if (!field.inline_params) object["default"] = field.default_text();
  if (const std::string range = field.range_text(); !range.empty()) object["allowed"] = range;
  if (!field.plugin_kind.empty()) object["plugin_kind"] = field.plugin_kind;
  const std::string verl = name_in_verl(field), trl = field.name_in(Peer::kTrl);
  if (!verl.empty()) object["verl"] = verl;
  if (!trl.empty()) object["trl"] = trl;
  if (const std::string swift = field.name_in(Peer::kSwift); !swift.empty()) object["swift"] = swift;
  return object;
}

bool is_inside(std::string_view key, std::string_view table) {
  return key.size() > table.size() && key.starts_with(table) && key[table.size()] == '.';
}

std::string first_sentence(std::string_view doc) {
  const size_t end = doc.find(". ");
  return std::string(doc.substr(0, end == std::string_view::npos ? doc.size() : end + 1));
}

std::string explain_table(const TableInfo& table) {
  std::string text = fmt::format("{}\n{}", table.name == "reward.*" ? "[[reward]]" : fmt::format("[{}]", table.name),
                                 wrap(table.doc, "  "));
  for (const Field& field : all_fields()) {
    if (!is_inside(field.key, table.name)) continue;
    const bool has_default = !field.inline_params && field.key != "reward.*.use";
    text += fmt::format("  {}{}\n{}", field.key, (has_default ? " = " + field.default_text() : ""),
                        wrap(first_sentence(field.doc), "      "));
  }
  return text;
}

std::string explain_preset(const Preset& preset) {
  std::string text = fmt::format("preset = \"{}\"\n{}", preset.name, wrap(preset.doc, "  "));
  for (const std::string& setting : preset.settings) text += fmt::format("  {}\n", setting);
  return text;
}

std::string overview() {
  std::string text = "The tables of a config file; `mortise config explain TABLE` lists the keys of one.\n";
  for (const TableInfo& table : all_tables()) {
    text += fmt::format("  {}\n{}", table.name == "reward.*" ? "[[reward]]" : fmt::format("[{}]", table.name),
                        wrap(table.doc, "      "));
  }
  text += "  base = \"other.toml\"\n" + wrap("Another file, relative to this one, that this one builds on.", "      ");
  return fmt::format("{}  preset = \"NAME\"\n{}", text, wrap(find_field("preset")->doc, "      "));
}

// The keys with this name in a peer's config, or with this leaf in ours.
std::vector<const Field*> find_by_other_name(std::string_view name) {
  std::vector<const Field*> found;
  for (const Field& field : all_fields()) {
    if (field.inline_params) continue;
    const std::string trl = field.name_in(Peer::kTrl);
    const bool matches = trl.substr(0, trl.find(' ')) == name || field.name_in(Peer::kVerl) == name ||
                         field.name_in(Peer::kSwift) == name ||
                         (field.key.size() > name.size() && field.key.ends_with(name) &&
                          field.key[field.key.size() - name.size() - 1] == '.');
    if (matches) found.push_back(&field);
  }
  return found;
}

Error unknown(const std::string& key) {
  const size_t dot = key.rfind('.');
  std::string next =
      dot == std::string::npos ? suggest_key("", key) : suggest_key(key.substr(0, dot), key.substr(dot + 1));
  if (next.empty()) next = "`mortise config explain` lists the tables";
  return {ErrorKind::kConfig, "there is no key " + quote(key), "", std::move(next)};
}

}  // namespace

std::string canonical_key(std::string_view text) {
  std::string key(trim(text));
  const bool is_table = key.starts_with('[');  // [actor], [[reward]]; else reward[0].weight
  std::string plain;
  for (const char character : key) {
    if (character == '[' && !is_table)
      plain += '.';
    else if (character != '[' && character != ']')
      plain += character;
  }
  key = std::move(plain);
  if (key.starts_with(kPrefixOfVerl)) key.erase(0, kPrefixOfVerl.size());
  if (key == "reward") return "reward.*";
  if (!key.starts_with("reward.") || key.starts_with("reward.*")) return key;
  std::string rest = key.substr(7);
  const size_t dot = std::min(rest.find('.'), rest.size());
  if (parse_u64(rest.substr(0, dot))) rest = dot == rest.size() ? "" : rest.substr(dot + 1);
  return rest.empty() ? "reward.*" : "reward.*." + rest;
}

Result<std::string> explain_key(std::string_view name) {
  const std::string key = canonical_key(name);
  if (key.empty()) return overview();
  if (key == "preset") {
    std::string text = explain_field(*find_field("preset"));
    for (const Preset& preset : all_presets()) text += "\n" + explain_preset(preset);
    return text;
  }
  if (key.starts_with("preset.")) {
    if (const Preset* preset = find_preset(std::string_view(key).substr(7))) return explain_preset(*preset);
  }
  if (const TableInfo* table = find_table(key)) return explain_table(*table);
  if (const Field* field = find_field(key)) return explain_field(*field);
  if (key == "base") return "base\n" + wrap("Another TOML file, relative to this one, that this one builds on.", "  ");
  std::string text;
  for (const Field* field : find_by_other_name(key)) text += (text.empty() ? "" : "\n") + explain_field(*field);
  if (text.empty()) return unknown(key);
  return text;
}

Result<Json> explain_key_json(std::string_view name) {
  const std::string key = canonical_key(name);
  if (find_table(key) != nullptr || key.empty()) {
    Json list = Json::array();
    for (const Field& field : all_fields()) {
      if (key.empty() || is_inside(field.key, key)) list.push_back(field_json(field));
    }
    return list;
  }
  if (key == "preset" || key.starts_with("preset.")) {
    Json list = Json::array();
    for (const Preset& preset : all_presets()) {
      if (key != "preset" && key.substr(7) != preset.name) continue;
      list.push_back({{"name", preset.name}, {"doc", preset.doc}, {"settings", preset.settings}});
    }
    if (!list.empty()) return list;
  }
  if (const Field* field = find_field(key)) return field_json(*field);
  const std::vector<const Field*> found = find_by_other_name(key);
  if (found.empty()) return unknown(key);
  if (found.size() == 1) return field_json(*found.front());
  Json list = Json::array();
  for (const Field* field : found) list.push_back(field_json(*field));
  return list;
}

}  // namespace mortise
