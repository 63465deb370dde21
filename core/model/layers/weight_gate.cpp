// Nodes of the autograd graph that open and close parts.
#include "model/layers/weight_gate.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On its way through the graph: a context keeps IValues only.
struct GateHolder : torch::CustomClassHolder {
  GateHolder(std::shared_ptr<WeightGate> gate_in, int64_t part_in, bool opens_in)
      : gate(std::move(gate_in)), part(part_in), opens(opens_in) {}
  std::shared_ptr<WeightGate> gate;
  int64_t part;
  bool opens;
};

class GateFunction : public torch::autograd::Function<GateFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& normed,
                               const c10::intrusive_ptr<GateHolder>& holder) {
    ctx->saved_data["gate"] = c10::IValue::make_capsule(holder);
    ctx->set_materialize_grads(false);
    return {hidden.detach(), normed.detach()};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["gate"].toCapsule();
    const auto& holder = *static_cast<const GateHolder*>(capsule.get());
    if (holder.opens)
      holder.gate->open(holder.part, GatePass::kBackward);
    else
      holder.gate->close(holder.part, GatePass::kBackward);
    return {grads[0], grads[1], at::Tensor()};
  }
};

ResidualPair pass_gate(const std::shared_ptr<WeightGate>& gate, int64_t part, bool opens, const ResidualPair& states) {
  if (gate == nullptr || !states.first.requires_grad()) return states;
  const variable_list out =
      GateFunction::apply(states.first, states.second, c10::make_intrusive<GateHolder>(gate, part, opens));
  return {out[0], out[1]};
}

}  // namespace

ResidualPair open_in_backward(const std::shared_ptr<WeightGate>& gate, int64_t part, const ResidualPair& states) {
  return pass_gate(gate, part, true, states);
}

ResidualPair close_in_backward(const std::shared_ptr<WeightGate>& gate, int64_t part, const ResidualPair& states) {
  return pass_gate(gate, part, false, states);
}

}  // namespace mortise
