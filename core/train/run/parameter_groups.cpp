// Matches the patterns of optim.groups with the names of a model's parameters.
#include "train/run/parameter_groups.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <vector>

#include "foundation/base/text.h"
#include "learn/optim/rules.h"
#include "model/weights/names.h"

namespace mortise {

namespace {

// How often a group's pattern matched, and how often it was the first.
struct GroupUse {
  size_t num_matched = 0, num_taken = 0;
  bool takes_matrix = false;
};

// The parts of all names between dots, and the names, each once: what a pattern may have meant.
std::vector<std::string> words_of(std::span<const std::string> names) {
  std::set<std::string> words;
  for (const std::string& name : names) {
    words.insert(name);
    for (const std::string_view part : split(name, '.')) {
      if (part.find_first_not_of("0123456789") != std::string_view::npos) words.emplace(part);
    }
  }
  return {words.begin(), words.end()};
}

Error matches_nothing(const LoadedConfig& loaded, const OptimGroup& group, std::span<const std::string> names) {
  const std::string key = group.key + ".match";
  Error error{ErrorKind::kConfig, fmt::format("'{}' is {}, which matches no parameter's name", key, quote(group.match)),
              loaded.where(key), did_you_mean(group.match, words_of(names))};
  const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  if (group.match.find("lm_head") != std::string::npos && has(kEmbeddingName) && !has(kHeadName))
    error.next = fmt::format("the head of this model is its embedding: write {}", kEmbeddingName);
  if (error.next.empty()) error.next = fmt::format("names are like {} and {}", names.front(), names.back());
  return error;
}

Result<> check_use(const LoadedConfig& loaded, const OptimGroup& group, const GroupUse& use,
                   std::span<const std::string> names) {
  if (use.num_matched == 0) return matches_nothing(loaded, group, names);
  if (use.num_taken == 0) {
    return Error{ErrorKind::kConfig,
                 fmt::format("'{}' has no parameter left: earlier groups have all that it matches", group.key),
                 loaded.where(group.key), "remove it, or write it before the others"};
  }
  if (!group.uses_muon.value_or(false) || use.takes_matrix) return {};
  const std::string key = group.key + ".optimizer";
  return Error{ErrorKind::kConfig,
               fmt::format("'{}' is muon, which updates matrices only, but the group has no matrix", key),
               loaded.where(key), fmt::format("remove it, or match matrices with {}.match", group.key)};
}

}  // namespace

bool is_frozen(const ParameterGroups& groups, std::string_view name) {
  const auto found = groups.find(name);
  return found != groups.end() && found->second.freeze;
}

Result<ParameterGroups> group_parameters(const LoadedConfig& loaded, const std::string& table,
                                         std::span<const NamedParameter> parameters) {
  const std::vector<OptimGroup> groups = TRY(optim_groups(loaded, table));
  ParameterGroups out;
  if (groups.empty()) return out;
  std::vector<GroupUse> uses(groups.size());
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) {
    const std::string& name = names.emplace_back(parameter.name);
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto matched = groups[i].pattern.matches(name);
      if (!matched.ok()) {
        return Error{ErrorKind::kConfig,
                     fmt::format("'{}.match' failed on {}: {}", groups[i].key, name, matched.fault().what),
                     loaded.where(groups[i].key + ".match"), "write a simpler pattern"};
      }
      if (!*matched) continue;
      ++uses[i].num_matched;
      if (!out.emplace(name, groups[i]).second) continue;
      ++uses[i].num_taken;
      if (is_muon_matrix(name, parameter.tensor)) uses[i].takes_matrix = true;
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) TRY(check_use(loaded, groups[i], uses[i], names));
  if (std::ranges::all_of(names, [&](const std::string& name) { return is_frozen(out, name); })) {
    return Error{ErrorKind::kConfig, fmt::format("'{}.groups' freezes every parameter", table),
                 loaded.where(table + ".groups"), "leave some to be trained"};
  }
  return out;
}

Result<ParameterGroups> group_and_freeze(const LoadedConfig& loaded, const std::string& table, Model& model) {
  ParameterGroups groups = TRY(group_parameters(loaded, table, model.trainable()));
  for (const NamedParameter& parameter : model.trainable()) {
    if (is_frozen(groups, parameter.name)) parameter.tensor.requires_grad_(false);
  }
  return groups;
}

}  // namespace mortise
