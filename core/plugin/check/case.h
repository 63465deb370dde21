// A case: one thing that a pack or a plugin must do, in its own process, and the rule of sdk/RULES.md it stands for.
//
// A case returns nothing when the plugin does well, broken() when it does not, and not_applicable() where the plugin
// does not do what the case is about; never "fine" without having looked. What it could not look at in the time it has
// stands beside "passed" (Subject::note). Threading: one case per process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise::check {

class Subject;

// Kinds that a case is about.
inline constexpr uint32_t kPolicyLoss = 1, kKlEstimator = 2, kAdvantage = 4, kReward = 8, kRollout = 16;
inline constexpr uint32_t kLosses = kPolicyLoss | kKlEstimator, kTokens = kLosses | kAdvantage;
inline constexpr uint32_t kEvery = kTokens | kReward | kRollout;
inline constexpr uint32_t kPack = 32;  // about the file as a whole, once

[[nodiscard]] uint32_t kind_bit(std::string_view kind);  // "mortise.reward/1" -> kReward; 0 for an unknown kind

struct Case {
  const char* id;    // "numerics.gradient"
  const char* rule;  // "R22"
  uint32_t kinds;
  const char* title;  // what holds when it passes
  Result<> (*run)(Subject& subject);
  bool needs_load = true;  // static cases read the file alone
};

[[nodiscard]] Error broken(std::string text);
[[nodiscard]] Error not_applicable(std::string why);
[[nodiscard]] bool is_not_applicable(const Error& error);

[[nodiscard]] std::span<const Case> static_cases();
[[nodiscard]] std::span<const Case> load_cases();
[[nodiscard]] std::span<const Case> negotiation_cases();
[[nodiscard]] std::span<const Case> contract_cases();
[[nodiscard]] std::span<const Case> numerics_cases();
[[nodiscard]] std::span<const Case> advantage_cases();
[[nodiscard]] std::span<const Case> reward_cases();
[[nodiscard]] std::span<const Case> rollout_cases();
[[nodiscard]] std::span<const Case> hygiene_cases();

// All of them, in the order of the groups.
[[nodiscard]] std::vector<const Case*> all_cases();
[[nodiscard]] const Case* find_case(std::string_view id);

}  // namespace mortise::check
