#include "config/import/rules.h"

#include "foundation/base/text.h"

namespace mortise {
namespace {

bool is_subtree(std::string_view rule) { return rule.ends_with(".*"); }

std::string_view stem(std::string_view rule) { return rule.substr(0, rule.size() - 1); }  // with the dot

}  // namespace

const PeerRule* PeerRules::find_exact(std::string_view name) const {
  for (const std::span<const PeerRule> piece : pieces_) {
    for (const PeerRule& rule : piece) {
      if (rule.name == name) return &rule;
    }
  }
  return nullptr;
}

const PeerRule* PeerRules::find(std::string_view name) const {
  if (const PeerRule* rule = find_exact(name)) return rule;
  const PeerRule* best = nullptr;
  for (const std::span<const PeerRule> piece : pieces_) {
    for (const PeerRule& rule : piece) {
      if (!is_subtree(rule.name) || !name.starts_with(stem(rule.name))) continue;
      if (best == nullptr || rule.name.size() > best->name.size()) best = &rule;
    }
  }
  return best;
}

bool PeerRules::has_below(std::string_view name) const {
  const std::string prefix = std::string(name) + ".";
  for (const std::span<const PeerRule> piece : pieces_) {
    for (const PeerRule& rule : piece) {
      if (rule.name.starts_with(prefix)) return true;
    }
  }
  return false;
}

std::vector<const PeerRule*> PeerRules::all() const {
  std::vector<const PeerRule*> rules;
  for (const std::span<const PeerRule> piece : pieces_) {
    for (const PeerRule& rule : piece) {
      if (find_exact(rule.name) == &rule) rules.push_back(&rule);
    }
  }
  return rules;
}

Json rule_json(std::string_view text) {
  if (text.empty()) return Json();
  return parse_json(text, "import rule").value();
}

bool same_setting(const Json& value, std::string_view raw, const Json& accepted) {
  if (value.is_number() && accepted.is_number()) return value.get<double>() == accepted.get<double>();
  if (accepted.is_string() && accepted.get_ref<const std::string&>() == raw) return true;
  return value == accepted;
}

}  // namespace mortise
