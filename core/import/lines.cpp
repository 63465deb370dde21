// What a translation writes: the tables of our file, each line with what it follows from, and the lists behind them.
#include <fmt/core.h>

#include "config/fields.h"
#include "config/toml_text.h"
#include "foundation/base/shown_text.h"
#include "import/translation.h"

namespace mortise {
namespace {

// The table of a key: the longest one of fields.h that contains it.
std::string table_of(std::string_view key) {
  for (size_t dot = key.rfind('.'); dot != std::string_view::npos; dot = key.substr(0, dot).rfind('.')) {
    if (find_table(key.substr(0, dot)) != nullptr) return std::string(key.substr(0, dot));
  }
  return "";
}

void add_list(std::vector<Translation::Line>& lines, const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  lines.push_back({"", ""});
  lines.push_back({title, ""});
  for (const std::string& item : items) lines.push_back({"#   " + item, ""});
}

}  // namespace

// In the order of the documentation, plugin parameters behind.
std::multimap<std::string, std::string> Translation::keys_by_table() const {
  std::multimap<std::string, std::string> keys;
  for (const Field& field : all_fields()) {
    if (assignments_.contains(field.key)) keys.emplace(table_of(field.key), field.key);
  }
  for (const std::string& key : order_) {
    if (find_field(key) == nullptr && !key.starts_with("reward.")) keys.emplace(table_of(key), key);
  }
  return keys;
}

void Translation::add_table(std::vector<Line>& lines, const std::string& table,
                            const std::multimap<std::string, std::string>& keys) const {
  std::vector<Line> body;
  const auto [first, last] = keys.equal_range(table);
  for (auto one = first; one != last; ++one) {
    const std::string& key = one->second;
    const Assignment& assignment = assignments_.find(key)->second;
    const std::string leaf = table.empty() ? key : key.substr(table.size() + 1);
    const Field* const field = find_field(key);
    const bool is_default = assignment.value.is_null() && (field == nullptr || field->default_text() == "null");
    const std::string written =
        is_default ? fmt::format("# {} = null", leaf) : fmt::format("{} = {}", leaf, toml_value(assignment.value));
    const std::string remark = assignment.remark.empty() ? "" : "; " + assignment.remark;
    body.push_back({fmt::format("{}  # {}", written, one_line(assignment.origin + remark)), assignment.origin});
  }
  for (const auto& [name, line] : asked_) {
    if (name == table) body.push_back({"# " + line, ""});
  }
  if (body.empty()) return;
  lines.push_back({"", ""});
  if (!table.empty()) lines.push_back({fmt::format("[{}]", table), ""});
  lines.insert(lines.end(), body.begin(), body.end());
}

void Translation::add_reward_tables(std::vector<Line>& lines) const {
  for (size_t i = 0; i < num_rewards_; ++i) {
    const std::string prefix = fmt::format("reward.{}.", i);
    lines.push_back({"", ""});
    lines.push_back({"[[reward]]", ""});
    for (const std::string& key : order_) {
      if (!key.starts_with(prefix)) continue;
      const Assignment& assignment = assignments_.find(key)->second;
      const std::string remark = assignment.remark.empty() ? "" : "; " + assignment.remark;
      lines.push_back({fmt::format("{} = {}  # {}", key.substr(prefix.size()), toml_value(assignment.value),
                                   one_line(assignment.origin + remark)),
                       assignment.origin});
    }
  }
  bool first = true;
  for (const auto& [name, line] : asked_) {
    if (name != "reward") continue;
    if (first) lines.push_back({"", ""});
    first = false;
    lines.push_back({"# " + line, ""});
  }
}

std::vector<Translation::Line> Translation::lines() const {
  std::vector<Line> lines;
  const std::multimap<std::string, std::string> keys = keys_by_table();
  add_table(lines, "", keys);
  for (const TableInfo& table : all_tables()) {
    if (table.name == "reward.*") {
      add_reward_tables(lines);
    } else {
      add_table(lines, table.name, keys);
    }
  }
  add_list(lines, "# Read together with others, so without a line of their own:", read_with_others_);
  add_list(lines, "# Without effect here:", notes_);
  return lines;
}

}  // namespace mortise
