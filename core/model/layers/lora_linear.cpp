// See lora_linear.h.
#include "model/layers/lora_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "model/layers/linear.h"
#include "model/tensor/product.h"

namespace mortise {
namespace {

using blas::Trans;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One adapted part of a stacked matrix.
struct Part {
  LoraMatrix matrix;  // without gradients
  int64_t first_row = 0;
  bool trains_a = true;

  [[nodiscard]] bool is_dora() const { return matrix.magnitude_O.defined(); }
  [[nodiscard]] int64_t num_rows() const { return matrix.b_OR.size(0); }
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& merged_OI) const {
    return merged_OI.narrow(0, first_row, num_rows());
  }
  [[nodiscard]] at::Tensor columns_of(const at::Tensor& y_NO) const { return y_NO.narrow(1, first_row, num_rows()); }
  // What dropout acts on in DoRA: W' - W.
  [[nodiscard]] at::Tensor change_OI(const at::Tensor& merged_OI) const { return rows_of(merged_OI) - matrix.base_OI; }
};

// Rows of the stacked matrix or bias that are trained themselves.
struct WholeRows {
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

// On its way through the graph: a context keeps IValues only.
struct Adapters : torch::CustomClassHolder {
  std::vector<Part> parts;
  std::vector<WholeRows> weights, biases;
  std::optional<LoraDropout> dropout;
};

// a b, a b^T and a^T b.
at::Tensor times(const at::Tensor& a, const at::Tensor& b) { return matrix_product(a, Trans::kNo, b, Trans::kNo); }
at::Tensor times_transposed(const at::Tensor& a, const at::Tensor& b) {
  return matrix_product(a, Trans::kNo, b, Trans::kYes);
}
at::Tensor transposed_times(const at::Tensor& a, const at::Tensor& b) {
  return matrix_product(a, Trans::kYes, b, Trans::kNo);
}
// out += alpha a b^T.
void add_to(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha = 1.0) {
  add_product(out, out, a, Trans::kNo, b, Trans::kYes, alpha);
}

at::Tensor adapted_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& product,
                           const std::optional<at::Tensor>& bias, const Adapters& adapters) {
  at::Tensor y = linear_product(x, product, bias);
  if (!adapters.dropout) return y;
  for (const Part& part : adapters.parts) {
    const LoraMatrix& m = part.matrix;
    const at::Tensor change = lora_dropout_change(x, *adapters.dropout, m.module, m.first_input);
    if (part.is_dora())
      add_to(part.columns_of(y), change, part.change_OI(weight));
    else
      add_to(part.columns_of(y), times_transposed(change, m.a_RI), m.b_OR, m.scale);
  }
  return y;
}

at::Tensor joined(const std::vector<at::Tensor>& tensors, int64_t axis) {
  return tensors.size() == 1 ? tensors.front() : at::cat(tensors, axis);
}

// Appends the gradients of A, B and, for DoRA, the magnitude of parts that read the same input. The products with it are
// those of all parts at once: alone, a part has few columns, and the input would be read for each. Returns dV B, times the
// scale.
at::Tensor part_gradients(std::span<const Part> parts, const at::Tensor& input, const at::Tensor& dy,
                          variable_list& out) {
  std::vector<at::Tensor> a, dvs, scaled;
  std::vector<int64_t> trained;
  for (const Part& part : parts) {
    trained.push_back(part.trains_a ? 1 : 0);
    const LoraMatrix& m = part.matrix;
    const at::Tensor dy_part = part.columns_of(dy);
    a.push_back(m.a_RI);
    dvs.push_back(part.is_dora() ? dy_part * (m.magnitude_O / m.norm_O) : dy_part);  // gradient by x V^T
    scaled.push_back(times(dvs.back(), m.b_OR).mul_(m.scale));
  }
  const at::Tensor reduced = times_transposed(input, joined(a, 0));
  at::Tensor all_scaled = joined(scaled, 1);
  const at::Tensor d_a = transposed_times(all_scaled, input);
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LoraMatrix& m = parts[i].matrix;
    const int64_t rank = m.a_RI.size(0);
    const at::Tensor own = reduced.narrow(1, first, rank) * m.scale;
    out.push_back(leaf_gradient(d_a, first, rank, trained, i));
    out.push_back(transposed_times(dvs[i], own));
    if (parts[i].is_dora()) {
      at::Tensor product = times_transposed(input, m.base_OI);
      add_to(product, own, m.b_OR);
      out.push_back(at::sum(product.mul_(parts[i].columns_of(dy)), {0}) / m.norm_O);
    }
    first += rank;
  }
  return all_scaled;
}

// Appends the same of all parts, and adds dropout's part of the gradient of x, if d_x is defined. Dropout gives each part
// an input of its own.
void adapter_gradients(const Adapters& adapters, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& dy,
                       const at::Tensor& d_x, variable_list& out) {
  if (!adapters.dropout) {
    part_gradients(adapters.parts, x, dy, out);
    return;
  }
  for (const Part& part : adapters.parts) {
    const LoraMatrix& m = part.matrix;
    const at::Tensor input = lora_dropped(x, *adapters.dropout, m.module, m.first_input);
    const at::Tensor scaled = part_gradients({&part, 1}, input, dy, out);
    if (!d_x.defined()) continue;
    const at::Tensor through =
        part.is_dora() ? times(part.columns_of(dy), part.change_OI(weight)) : times(scaled, m.a_RI);
    d_x.add_(lora_dropout_change(through, *adapters.dropout, m.module, m.first_input));
  }
}

class LoraLinearFunction : public torch::autograd::Function<LoraLinearFunction> {
 public:
  // `leaves`: A and B (and the magnitude) of each part, weights and biases that are trained; for their gradients.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& product, const std::optional<at::Tensor>& bias, at::TensorList leaves,
                            const c10::intrusive_ptr<Adapters>& adapters, const KnownResult& known) {
    static_cast<void>(leaves);
    ctx->save_for_backward({x, weight, product});
    ctx->saved_data["adapters"] = c10::IValue::make_capsule(adapters);
    return known.value.defined() ? known.value : adapted_product(x, weight, product, bias, *adapters);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["adapters"].toCapsule();
    const auto& adapters = *static_cast<const Adapters*>(capsule.get());
    variable_list out(4);  // x, weight, product, bias
    at::Tensor d_x;
    if (ctx->needs_input_grad(0)) d_x = input_gradient(dy, saved[2]);
    if (!adapters.parts.empty()) adapter_gradients(adapters, x, saved[1], dy, d_x, out);
    for (const WholeRows& rows : adapters.weights)
      out.push_back(weight_gradient(dy.narrow(1, rows.first_row, rows.num_rows), x));
    for (const WholeRows& rows : adapters.biases)
      out.push_back(at::sum(dy.narrow(1, rows.first_row, rows.num_rows), {0}));
    out[0] = d_x;
    out.resize(out.size() + 2);  // adapters, known result
    return out;
  }
};

// The leaves that are trained themselves, among those without an adapter.
std::vector<WholeRows> trained_rows(std::span<const at::Tensor> leaves, std::span<const LoraMatrix> parts,
                                    std::vector<at::Tensor>& inputs) {
  std::vector<WholeRows> out;
  int64_t row = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool is_adapted = i < parts.size() && parts[i].defined();
    if (!is_adapted && leaves[i].requires_grad()) {
      out.push_back({row, leaves[i].size(0)});
      inputs.push_back(leaves[i]);
    }
    row += leaves[i].size(0);
  }
  return out;
}

}  // namespace

LoraMatrix part_on_rank(const LoraMatrix& lora, int64_t rank) {
  LoraMatrix out = lora;
  if (!lora.defined()) return out;
  if (lora.split.axis == SplitAxis::kRows) {
    out.b_OR = lora.split.part_of(lora.b_OR, rank);
    if (lora.magnitude_O.defined()) {
      out.magnitude_O = lora.split.part_of(lora.magnitude_O, rank);
      out.norm_O = lora.split.part_of(lora.norm_O, rank);
    }
  } else if (lora.split.axis == SplitAxis::kColumns) {
    out.a_RI = lora.split.part_of(lora.a_RI, rank);
    out.first_input = lora.split.ranges.front().begin_on(rank);
  }
  return out;
}

at::Tensor lora_linear(const at::Tensor& x_NI, const at::Tensor& merged_OI, const at::Tensor& product_OI,
                       const at::Tensor& bias_O, std::span<const at::Tensor> leaves,
                       std::span<const at::Tensor> bias_leaves, std::span<const LoraMatrix> parts,
                       const LoraDropout* dropout, const KnownResult& known_NO) {
  const std::optional<at::Tensor> bias = optional_bias(bias_O.defined() ? bias_O.detach() : bias_O);
  auto adapters = c10::make_intrusive<Adapters>();
  if (dropout != nullptr) adapters->dropout = *dropout;
  std::vector<at::Tensor> inputs;
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LoraMatrix& part = parts[i];
    if (part.defined()) {
      LoraMatrix plain = part;
      const bool trains_a = part.a_RI.requires_grad();
      inputs.insert(inputs.end(), {part.a_RI, part.b_OR});
      plain.a_RI = part.a_RI.detach();
      plain.b_OR = part.b_OR.detach();
      if (part.magnitude_O.defined()) {
        inputs.push_back(part.magnitude_O);
        plain.magnitude_O = part.magnitude_O.detach();
      }
      adapters->parts.push_back({std::move(plain), row, trains_a});
    }
    row += leaves[i].size(0);
  }
  if (!at::GradMode::is_enabled()) return adapted_product(x_NI, merged_OI, product_OI, bias, *adapters);
  adapters->weights = trained_rows(leaves, parts, inputs);
  adapters->biases = trained_rows(bias_leaves, {}, inputs);
  return LoraLinearFunction::apply(x_NI, merged_OI.detach(), product_OI.detach(), bias, at::TensorList(inputs),
                                   adapters, known_NO);
}

at::Tensor lora_linear_plain(const at::Tensor& x_NI, const LoraMatrix& part, const at::Tensor& bias_O,
                             const LoraDropout* dropout) {
  at::Tensor input = x_NI;
  if (dropout != nullptr)
    input = x_NI * lora_dropped(at::ones_like(x_NI.detach()), *dropout, part.module, part.first_input);
  const at::Tensor adapted = at::linear(at::linear(input, part.a_RI), part.b_OR) * part.scale;
  const at::Tensor y = at::linear(x_NI, part.base_OI, optional_bias(bias_O));
  if (!part.magnitude_O.defined()) return y + adapted;
  const at::Tensor factor = part.magnitude_O / part.norm_O;
  return y + (factor - 1.0) * at::linear(input, part.base_OI) + factor * adapted;
}

}  // namespace mortise
