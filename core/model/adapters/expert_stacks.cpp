// See expert_stacks.h.
#include "model/adapters/expert_stacks.h"

#include <algorithm>

#include "model/weights/names.h"

namespace mortise {

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

}  // namespace mortise
