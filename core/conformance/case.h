// A case: one thing that a pack or a plugin must do, tested in its own process, and the rule of sdk/RULES.md behind it.
//
// A case returns nothing if the plugin is right, broken() if it is wrong, and not_applicable() if the plugin does not
// do what the case is about. It never passes without a test. The report shows next to "passed" what the case could not
// test in its time (Subject::note). Threading: one case per process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/host/kinds/kinds.h"

namespace mortise::check {

class Subject;

inline constexpr uint32_t kPack = 1U << 31;  // about the file as a whole, once

// A kind by its index in the table; 0 for an unknown one.
[[nodiscard]] constexpr uint32_t kind_bit(std::string_view kind) {
  return find_kind(kind) == nullptr ? 0 : 1U << kind_place(kind);
}

// Kinds that a case is about.
inline constexpr uint32_t kPolicyLoss = kind_bit(MORTISE_KIND_POLICY_LOSS);
inline constexpr uint32_t kKlEstimator = kind_bit(MORTISE_KIND_KL_ESTIMATOR);
inline constexpr uint32_t kAdvantage = kind_bit(MORTISE_KIND_ADVANTAGE_ESTIMATOR);
inline constexpr uint32_t kReward = kind_bit(MORTISE_KIND_REWARD);
inline constexpr uint32_t kRollout = kind_bit(MORTISE_KIND_ROLLOUT_BACKEND);
inline constexpr uint32_t kEnvironment = kind_bit(MORTISE_KIND_ENVIRONMENT);
inline constexpr uint32_t kLosses = kPolicyLoss | kKlEstimator, kTokens = kLosses | kAdvantage;
inline constexpr uint32_t kEvery = (1U << kNumKinds) - 1;

struct Case {
  const char* id;    // "numerics.gradient"
  const char* rule;  // "R22"
  uint32_t kinds;
  const char* title;  // what holds when it passes
  Result<> (*run)(Subject& subject);
  bool needs_load = true;  // static cases read only the file
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
[[nodiscard]] std::span<const Case> environment_cases();
[[nodiscard]] std::span<const Case> hygiene_cases();

// All of them, in the order of the groups.
[[nodiscard]] std::vector<const Case*> all_cases();
[[nodiscard]] const Case* find_case(std::string_view id);

}  // namespace mortise::check
