#include "plugin/check/case.h"

#include "mortise/pack.h"

namespace mortise::check {

uint32_t kind_bit(std::string_view kind) {
  if (kind == MORTISE_KIND_POLICY_LOSS) return kPolicyLoss;
  if (kind == MORTISE_KIND_KL_ESTIMATOR) return kKlEstimator;
  if (kind == MORTISE_KIND_ADVANTAGE_ESTIMATOR) return kAdvantage;
  if (kind == MORTISE_KIND_REWARD) return kReward;
  if (kind == MORTISE_KIND_ROLLOUT_BACKEND) return kRollout;
  return 0;
}

Error broken(std::string text) { return {ErrorKind::kPlugin, std::move(text), "", ""}; }
Error not_applicable(std::string why) { return {ErrorKind::kConfig, std::move(why), "", ""}; }
bool is_not_applicable(const Error& error) { return error.kind == ErrorKind::kConfig; }

std::vector<const Case*> all_cases() {
  std::vector<const Case*> all;
  for (const auto& group : {static_cases(), load_cases(), negotiation_cases(), contract_cases(), numerics_cases(),
                            advantage_cases(), reward_cases(), rollout_cases(), hygiene_cases()}) {
    for (const Case& one : group) all.push_back(&one);
  }
  return all;
}

const Case* find_case(std::string_view id) {
  for (const Case* one : all_cases()) {
    if (one->id == id) return one;
  }
  return nullptr;
}

}  // namespace mortise::check
