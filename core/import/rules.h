// PeerRule: what becomes of one setting of another framework. Every framework has one table of them.
//
// A setting without a rule is an error, so a table is the whole list of what the framework knows. A setting that has the
// same meaning as a key of ours has no line here: the key's record names it (config/fields.h), and renames() makes the
// rule. To support a setting that is refused today: delete its line, and name it in the record of the new key. Private
// to this room. Constant data.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config/fields.h"
#include "foundation/formats/json.h"

namespace mortise {

enum class PeerAction {
  kTranslate,  // `target` has the same meaning
  kCompute,    // read together with others by the framework's .cpp
  kNoEffect,   // changes no number here; `text` says why
  kRefuse,     // would change numbers: only the values of `values` pass; `text` says what is missing
};

struct PeerRule {
  std::string_view name;  // "learning_rate", "actor.optim.lr"; a trailing ".*" covers everything below
  PeerAction action;
  std::string_view values;  // JSON: the framework's default (kTranslate, kCompute; "" = none), or the list
                            // of what passes (kRefuse)
  std::string_view target;  // our key
  std::string_view text;
  std::string_view below;  // for a ".*": the known names, separated by blanks; a ".*" after a name means a table of
                           // any names. "" = any names: they are the user's own.
};

// The target of a reward model.
inline constexpr std::string_view kRewardModelTable = "a [[reward]] table with use = \"reward_model\"";

constexpr PeerRule compute(std::string_view name, std::string_view fallback, std::string_view text) {
  return {name, PeerAction::kCompute, fallback, "", text, ""};
}
constexpr PeerRule no_effect(std::string_view name, std::string_view text) {
  return {name, PeerAction::kNoEffect, "", "", text, ""};
}
// A table without effect. `name` ends in ".*"; a name that is not in `below` is as unknown as one without a rule.
constexpr PeerRule no_effect_below(std::string_view name, std::string_view below, std::string_view text) {
  return {name, PeerAction::kNoEffect, "", "", text, below};
}
constexpr PeerRule refuse(std::string_view name, std::string_view accepted, std::string_view text) {
  return {name, PeerAction::kRefuse, accepted, "", text, ""};
}

// A framework's rules, in several pieces.
class PeerRules {
 public:
  explicit PeerRules(std::vector<std::span<const PeerRule>> pieces);

  // The rule of that name, else the longest "x.*" above it that knows the name, else null. The first piece wins.
  [[nodiscard]] const PeerRule* find(std::string_view name) const;
  [[nodiscard]] const PeerRule* find_exact(std::string_view name) const;
  // Is there a rule for something below `name`?
  [[nodiscard]] bool has_below(std::string_view name) const;
  // All rules, the ones that lose to an earlier piece left out.
  [[nodiscard]] std::vector<const PeerRule*> all() const;
  // All names, those below the rules' tables too.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::vector<std::span<const PeerRule>> pieces_;
  std::unordered_map<std::string_view, const PeerRule*> exact_;
};

const PeerRules& trl_rules();
const PeerRules& verl_rules();
const PeerRules& swift_rules();

// The part of verl's for reference, sampler, critic and rewards.
std::span<const PeerRule> verl_service_rules();

// The settings that the records of our keys name, with the same meaning.
std::span<const PeerRule> renames(Peer peer);

// transformers.TrainingArguments (TRL's and ms-swift's base): what is the same for both.
std::span<const PeerRule> training_argument_rules();

// Does the rule's table take any name there? Such names are the user's own, and each gets its own note.
bool takes_any_name(const PeerRule& rule, std::string_view name);

// The JSON text of a rule; a broken one ends the program in the tests, which parse them all.
Json rule_json(std::string_view text);
// Equal as a person would say: 0 and 0.0, and a text written as `no` that YAML reads as false.
bool same_setting(const Json& value, std::string_view raw, const Json& accepted);

}  // namespace mortise
