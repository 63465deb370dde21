// Looks up the rule of a setting, and applies it to a translation.
#include "import/rules.h"

#include <algorithm>
#include <array>

#include "foundation/base/text.h"

namespace mortise {
namespace {

bool is_subtree(std::string_view rule) { return rule.ends_with(".*"); }

std::string_view stem(std::string_view rule) { return rule.substr(0, rule.size() - 1); }  // with the dot

// visit(word) until one says true.
template <class Visit>
bool any_word(std::string_view words, const Visit& visit) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (end > 0 && visit(words.substr(0, end))) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

// "x.*" is x itself and everything below it.
bool is_in_open_table(std::string_view word, std::string_view name) {
  return is_subtree(word) && (name.starts_with(stem(word)) || name == stem(word).substr(0, word.size() - 2));
}

// Does the table of the rule know the name?
bool covers(const PeerRule& rule, std::string_view name) {
  if (!is_subtree(rule.name) || !name.starts_with(stem(rule.name))) return false;
  const std::string_view leaf = name.substr(stem(rule.name).size());
  return rule.below.empty() ||
         any_word(rule.below, [leaf](std::string_view word) { return word == leaf || is_in_open_table(word, leaf); });
}

}  // namespace

PeerRules::PeerRules(std::vector<std::span<const PeerRule>> pieces) : pieces_(std::move(pieces)) {
  for (const std::span<const PeerRule> piece : pieces_) {
    for (const PeerRule& rule : piece) exact_.try_emplace(rule.name, &rule);
  }
}

const PeerRule* PeerRules::find_exact(std::string_view name) const {
  const auto found = exact_.find(name);
  return found == exact_.end() ? nullptr : found->second;
}

const PeerRule* PeerRules::find(std::string_view name) const {
  if (const PeerRule* rule = find_exact(name)) return rule;
  const PeerRule* best = nullptr;
  for (const std::span<const PeerRule> piece : pieces_) {
    for (const PeerRule& rule : piece) {
      if (!covers(rule, name)) continue;
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
      if (!is_subtree(rule.name) || !prefix.starts_with(stem(rule.name))) continue;
      const std::string_view leaf = std::string_view(prefix).substr(stem(rule.name).size());
      if (any_word(rule.below, [leaf](std::string_view word) { return word.starts_with(leaf); })) return true;
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

std::vector<std::string> PeerRules::names() const {
  std::vector<std::string> names;
  for (const PeerRule* rule : all()) {
    if (!is_subtree(rule->name)) names.emplace_back(rule->name);
    any_word(rule->below, [&](std::string_view word) {
      if (!is_subtree(word)) names.push_back(std::string(stem(rule->name)) + std::string(word));
      return false;
    });
  }
  return names;
}

std::span<const PeerRule> renames(Peer peer) {
  static const std::array<std::vector<PeerRule>, 4> all = [] {
    std::array<std::vector<PeerRule>, 4> rules;
    for (const Field& field : all_fields()) {
      for (const PeerName& name : field.peers) {
        if (!name.fallback) continue;
        rules[static_cast<size_t>(name.peer)].push_back(
            {name.name, PeerAction::kTranslate, *name.fallback, field.key, "", ""});
      }
    }
    return rules;
  }();
  return all[static_cast<size_t>(peer)];
}

bool takes_any_name(const PeerRule& rule, std::string_view name) {
  if (!is_subtree(rule.name)) return false;
  if (rule.below.empty()) return true;
  const std::string_view leaf = name.substr(stem(rule.name).size());
  return any_word(rule.below, [leaf](std::string_view word) { return is_in_open_table(word, leaf); });
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
