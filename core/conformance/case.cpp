// Makes the three outcomes of a case, and tells them apart.
#include "conformance/case.h"

namespace mortise::check {

Error broken(std::string text) { return {ErrorKind::kPlugin, std::move(text), "", ""}; }
Error not_applicable(std::string why) { return {ErrorKind::kConfig, std::move(why), "", ""}; }
bool is_not_applicable(const Error& error) { return error.kind == ErrorKind::kConfig; }

std::vector<const Case*> all_cases() {
  std::vector<const Case*> all;
  for (const auto& group : {static_cases(), load_cases(), negotiation_cases(), contract_cases(), numerics_cases(),
                            advantage_cases(), reward_cases(), rollout_cases(), environment_cases(), hygiene_cases()}) {
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
