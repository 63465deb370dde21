// See expert_stacks.h.
#include "model/adapters/expert_stacks.h"

#include <algorithm>
#include <cctype>

#include "model/weights/names.h"

namespace mortise {
namespace {

constexpr std::string_view kExperts = ".experts.";

}  // namespace

std::string transformers_name(std::string name) {
  constexpr std::string_view kOld = ".block_sparse_moe.";
  if (const size_t at = name.find(kOld); at != std::string::npos) name.replace(at, kOld.size(), ".mlp.");
  return name;
}

bool is_router(std::string_view module) { return module.ends_with(".mlp.gate") || module.ends_with(".mlp.router"); }

std::string expert_module(const std::string& stack) { return stack.substr(0, stack.rfind('.')); }

std::string expert_stack_of(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return {};
  const std::string prefix = transformers_name(std::string(name.substr(0, at + kExperts.size())));
  std::string_view rest = name.substr(at + kExperts.size());
  if (rest == "gate_up_proj" || rest == "down_proj") return prefix + std::string(rest);
  size_t digits = 0;
  while (digits < rest.size() && std::isdigit(static_cast<unsigned char>(rest[digits])) != 0) ++digits;
  if (digits == 0 || digits == rest.size() || rest[digits] != '.') return {};
  rest.remove_prefix(digits + 1);
  if (rest.ends_with(".weight")) rest.remove_suffix(std::string_view(".weight").size());
  for (const std::string_view part : {"gate_proj", "up_proj", "w1", "w3"}) {
    if (rest == part) return prefix + "gate_up_proj";
  }
  for (const std::string_view part : {"down_proj", "w2"}) {
    if (rest == part) return prefix + "down_proj";
  }
  return {};
}

std::vector<ExpertStack> expert_stacks(std::span<const NamedParameter> parameters) {
  std::vector<ExpertStack> out;
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::string name = expert_stack_of(parameters[i].name);
    if (name.empty()) continue;
    auto found = std::ranges::find(out, name, &ExpertStack::name);
    if (found == out.end()) found = out.insert(out.end(), ExpertStack{std::move(name), 0, 0, 0, {}});
    found->parameters.push_back(i);
    const at::Tensor& tensor = parameters[i].tensor;
    if (is_expert_stack(parameters[i].name)) {  // [E, in, out]
      found->num_experts = tensor.size(0);
      found->in = tensor.size(1);
      found->out = tensor.size(2);
    } else {
      found->in = tensor.size(1);
      found->out += tensor.size(0);  // all experts': divided below
    }
  }
  for (ExpertStack& stack : out) {
    if (stack.num_experts > 0) continue;
    const auto per_expert = static_cast<int64_t>(stack.name.ends_with("gate_up_proj") ? 2 : 1);
    stack.num_experts = static_cast<int64_t>(stack.parameters.size()) / per_expert;
    stack.out /= stack.num_experts;
  }
  return out;
}

std::vector<at::Tensor> expert_matrices(const ExpertStack& stack, std::span<const NamedParameter> parameters,
                                        int64_t e) {
  const NamedParameter& first = parameters[stack.parameters.front()];
  if (is_expert_stack(first.name)) return {first.tensor.detach().select(0, e).t()};
  const size_t each = stack.parameters.size() / static_cast<size_t>(stack.num_experts);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < each; ++i)
    out.push_back(parameters[stack.parameters[static_cast<size_t>(e) * each + i]].tensor.detach());
  return out;
}

bool names_parameter(std::span<const std::string> targets, std::string_view parameter) {
  return std::ranges::any_of(
      targets, [&](const std::string& target) { return parameter == target || parameter.ends_with("." + target); });
}

}  // namespace mortise
