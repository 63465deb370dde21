// See keys_here.h.
#include "keys_here.h"

#include <fmt/core.h>

#include <map>
#include <vector>

#include "config/fields.h"

namespace mortise {
namespace {

constexpr size_t kWidth = 120, kIndent = 13;

// "  rollout.   n, temperature, ..." in as many lines as it takes.
void add_table(std::string_view table, const std::vector<std::string>& leaves, std::string& text) {
  std::string line = fmt::format("  {:<{}}", std::string(table) + ".", kIndent - 2);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::string word = leaves[i] + (i + 1 < leaves.size() ? "," : "");
    if (line.size() + word.size() > kWidth) {
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = std::string(kIndent, ' ');
    }
    line += word + " ";
  }
  text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string list_by_table(std::span<const std::string> keys) {
  std::vector<std::string> tables;
  std::map<std::string, std::vector<std::string>> leaves;
  for (const std::string& key : keys) {
    const size_t dot = key.find('.');
    const std::string table = key.substr(0, dot);
    if (!leaves.contains(table)) tables.push_back(table);
    leaves[table].push_back(key.substr(dot + 1));
  }
  std::string text;
  for (const std::string& table : tables) add_table(table, leaves[table], text);
  return text;
}

}  // namespace

std::span<const std::string> keys_of(ConfigUse command) {
  static std::map<ConfigUse, std::vector<std::string>> known;
  const auto [found, is_new] = known.try_emplace(command);
  if (is_new) {
    for (const Field& field : all_fields()) {
      if ((field.read_by & uses(command)) != 0) found->second.push_back(field.key);
    }
  }
  return found->second;
}

std::string usage_with_keys(std::string usage, ConfigUse command) {
  constexpr std::string_view kMark = "<keys>\n";
  return usage.replace(usage.find(kMark), kMark.size(), list_by_table(keys_of(command)));
}

}  // namespace mortise
