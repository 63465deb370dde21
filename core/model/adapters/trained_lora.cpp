// See trained_lora.h.
#include "model/adapters/trained_lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "model/adapters/expert_targets.h"
#include "model/adapters/lora.h"
#include "model/device/compute_device.h"
#include "model/layers/expert_lora.h"
#include "model/tensor/product.h"
#include "model/tensor/storage_memory.h"
#include "model/weights/names.h"
#include "model/weights/saver.h"

namespace mortise {
namespace {

using blas::Trans;

constexpr std::string_view kWeightEnd = ".weight";

// A fused tensor and the leaves that are views of it.
struct FusedLeaves {
  at::Tensor* fused;
  std::vector<at::Tensor*> leaves;
};

void add_group(std::vector<FusedLeaves>& out, at::Tensor& fused, std::vector<at::Tensor>& leaves) {
  FusedLeaves& group = out.emplace_back(FusedLeaves{&fused, {}});
  for (at::Tensor& leaf : leaves) group.leaves.push_back(&leaf);
}

void add_group(std::vector<FusedLeaves>& out, at::Tensor& fused, at::Tensor& leaf) {
  if (leaf.defined()) out.push_back({&fused, {&leaf}});
}

void add_layer(std::vector<FusedLeaves>& out, LayerWeights& w, LayerLeaves& l) {
  add_group(out, w.input_norm_H, l.input_norm);
  add_group(out, w.qkv_weight_QH, l.qkv_weights);
  add_group(out, w.qkv_bias_Q, l.qkv_biases);
  add_group(out, w.q_norm_D, l.q_norm);
  add_group(out, w.k_norm_D, l.k_norm);
  add_group(out, w.sinks_A, l.sinks);
  add_group(out, w.o_weight_HQ, l.o_weight);
  add_group(out, w.o_bias_H, l.o_bias);
  add_group(out, w.attention_norm_H, l.attention_norm);
  add_group(out, w.post_norm_H, l.post_norm);
  add_group(out, w.gate_up_weight_2IH, l.gate_up_weights);
  add_group(out, w.gate_up_bias_2I, l.gate_up_biases);
  add_group(out, w.down_weight_HI, l.down_weight);
  add_group(out, w.down_bias_H, l.down_bias);
  add_group(out, w.mlp_norm_H, l.mlp_norm);
  add_group(out, w.experts.router_EH, l.experts.router);
  add_group(out, w.experts.router_bias_E, l.experts.router_bias);
  add_group(out, w.experts.gate_up_E2IH, l.experts.gate_up);
  add_group(out, w.experts.gate_up_bias_E2I, l.experts.gate_up_bias);
  add_group(out, w.experts.down_EHI, l.experts.down);
  add_group(out, w.experts.down_bias_EH, l.experts.down_bias);
  add_group(out, w.experts.shared_gate_1H, l.experts.shared_gate);
}

// Every leaf once; the head of a tied model is its embedding.
std::vector<FusedLeaves> fused_leaves(ParameterStore& store) {
  std::vector<FusedLeaves> out;
  add_group(out, store.weights.embedding_VH, store.leaves.embedding);
  for (size_t i = 0; i < store.leaves.layers.size(); ++i)
    add_layer(out, store.weights.layers[i], store.leaves.layers[i]);
  add_group(out, store.weights.final_norm_H, store.leaves.final_norm);
  if (!store.leaves.head.is_same(store.leaves.embedding)) add_group(out, store.weights.head_VH, store.leaves.head);
  return out;
}

void fill_rows(const at::Tensor& a_RI, const RngKey& key, const auto& draw) {
  const at::Tensor host = on_host(a_RI);  // a_RI itself if it is there
  for (int64_t row = 0; row < host.size(0); ++row) {
    RandomStream stream({key.seed, key.purpose, key.step, static_cast<uint64_t>(row), 0});
    const at::Tensor values = host.select(0, row);
    for (int64_t i = 0; i < a_RI.size(1); ++i) {
      const double value = draw(stream);
      if (a_RI.scalar_type() == at::kDouble) {
        values.mutable_data_ptr<double>()[i] = value;
      } else {
        values.mutable_data_ptr<float>()[i] = static_cast<float>(value);
      }
    }
  }
  if (!a_RI.is_cpu()) a_RI.copy_(host);
}

// A of a start that leaves the base as it is. The step of `key` is the number of the matrix.
void fill_a(const at::Tensor& a_RI, int64_t rank, LoraInit init, const RngKey& key) {
  if (init == LoraInit::kGaussian) {
    const double deviation = 1.0 / static_cast<double>(rank);
    fill_rows(a_RI, key, [&](RandomStream& stream) { return stream.next_normal() * deviation; });
  } else {
    const double bound = 1.0 / std::sqrt(static_cast<double>(a_RI.size(1)));
    fill_rows(a_RI, key, [&](RandomStream& stream) { return (2.0 * stream.next_double() - 1.0) * bound; });
  }
}

// The module of a matrix's parameter.
std::string adapted_name(const std::string& parameter) {
  return transformers_name(parameter.substr(0, parameter.size() - kWeightEnd.size()));
}

std::optional<size_t> module_index(const LoraPlan& plan, const std::string& module) {
  const auto found = std::ranges::find(plan.modules, module);
  if (found == plan.modules.end()) return std::nullopt;
  return static_cast<size_t>(found - plan.modules.begin());
}

at::Tensor row_norms(const at::Tensor& matrix_OI) { return at::linalg_vector_norm(matrix_OI, 2, {1}); }

}  // namespace

TrainedLora::TrainedLora(LoraPlan plan, ParameterStore& store, BaseMemory memory)
    : plan_(std::move(plan)), stacks_(expert_stacks(store.parameters)) {
  for (NamedParameter& parameter : store.parameters) parameter.tensor.requires_grad_(false);
  keep_base(store, memory);
  for (size_t i = 0; i < base_.leaves.layers.size(); ++i) {
    const LayerLeaves& base = base_.leaves.layers[i];
    LayerLeaves& merged = store.leaves.layers[i];
    const auto layer = static_cast<int64_t>(i);
    add_matrices(base.qkv_weights, merged.qkv_weights, merged.qkv_lora, layer);
    add_matrices({base.o_weight}, {merged.o_weight}, merged.o_lora, layer);
    if (base.experts.router.defined()) {
      const ExpertWeights& from = base_.weights.layers[i].experts;
      const ExpertWeights& to = store.weights.layers[i].experts;
      add_gate(base.experts.router, merged.experts.router, merged.experts.router_lora, layer);
      add_stack(base.experts.gate_up, from.gate_up_E2IH, to.gate_up_E2IH, merged.experts.gate_up_lora, layer);
      add_stack(base.experts.down, from.down_EHI, to.down_EHI, merged.experts.down_lora, layer);
      if (base.experts.shared_gate.defined())
        add_gate(base.experts.shared_gate, merged.experts.shared_gate, merged.experts.shared_gate_lora, layer);
    }
    if (!base.down_weight.defined()) continue;  // a mixture without a shared expert
    add_matrices(base.gate_up_weights, merged.gate_up_weights, merged.gate_up_lora, layer);
    add_matrices({base.down_weight}, {merged.down_weight}, merged.down_lora, layer);
  }
  add_whole(store);
}

// base_: the tensors of `store`. If `store` will change them, one of the two gets a copy.
void TrainedLora::keep_base(ParameterStore& store, BaseMemory memory) {
  base_ = store;
  ParameterStore& copied = memory == BaseMemory::kShared ? store : base_;
  const bool ties_head = store.leaves.head.is_same(store.leaves.embedding);
  std::unordered_map<const void*, size_t> index_of;  // leaf -> parameter
  for (size_t i = 0; i < base_.parameters.size(); ++i) index_of[base_.parameters[i].tensor.unsafeGetTensorImpl()] = i;
  const auto changes = [&](const at::Tensor* leaf) {
    const std::string& name = base_.parameters[index_of.at(leaf->unsafeGetTensorImpl())].name;
    if (std::ranges::find(plan_.whole, name) != plan_.whole.end()) return true;
    if (const std::string stack = expert_stack_of(name); !stack.empty()) return module_index(plan_, stack).has_value();
    return name.ends_with(kWeightEnd) && module_index(plan_, adapted_name(name)).has_value();
  };
  for (FusedLeaves& group : fused_leaves(copied)) {
    if (std::ranges::none_of(group.leaves, changes)) continue;
    const at::Tensor from = group.fused->detach();
    const at::Tensor own = has_memory(from) ? from.clone() : without_memory(from.sizes(), from.options());
    for (at::Tensor* leaf : group.leaves) {
      NamedParameter& parameter = copied.parameters[index_of.at(leaf->unsafeGetTensorImpl())];
      *leaf = own.as_strided(leaf->sizes(), leaf->strides(), leaf->storage_offset() - group.fused->storage_offset());
      parameter.tensor = *leaf;
    }
    *group.fused = own;
  }
  if (ties_head) {
    copied.leaves.head = copied.leaves.embedding;
    copied.weights.head_VH = copied.weights.embedding_VH;
  }
  for (size_t i = 0; i < base_.parameters.size(); ++i) index_of_[base_.parameters[i].tensor.unsafeGetTensorImpl()] = i;
}

// The leaves lie under one another in a fused matrix; some of them may be adapted.
void TrainedLora::add_matrices(const std::vector<at::Tensor>& base_leaves, const std::vector<at::Tensor>& merged_leaves,
                               std::vector<LoraMatrix>& lora, int64_t layer) {
  std::vector<LoraMatrix> out;
  bool any = false;
  for (size_t i = 0; i < base_leaves.size(); ++i) {
    const std::string& name = base_.parameters[index_of_.at(base_leaves[i].unsafeGetTensorImpl())].name;
    const std::optional<size_t> module = module_index(plan_, adapted_name(name));
    LoraMatrix& matrix = out.emplace_back();
    if (!module) continue;
    matrix = add_matrix(*module, base_leaves[i]);
    matrices_.push_back({*module, matrix, merged_leaves[i], base_leaves[i]});
    any = true;
  }
  if (!any) return;
  for (size_t i = 0; i < out.size(); ++i)
    rows_.push_back({layer, base_leaves[i].detach(), merged_leaves[i].detach(), out[i]});
  lora = std::move(out);
}

// A router, or the gate of a shared expert.
void TrainedLora::add_gate(const at::Tensor& base_leaf, const at::Tensor& merged_leaf, std::vector<LoraMatrix>& lora,
                           int64_t layer) {
  const size_t first = parameters_.size();
  add_matrices({base_leaf}, {merged_leaf}, lora, layer);
  if (first == parameters_.size()) return;
  for (size_t i = first; i < parameters_.size(); ++i) of_gates_.insert(parameters_[i].name);
  rows_.back().is_gate = true;
}

LoraMatrix TrainedLora::add_matrix(size_t module, const at::Tensor& base_OI) {
  const auto name = [&](std::string_view tensor) { return lora_tensor_name(plan_, plan_.modules[module], tensor); };
  LoraMatrix out;
  out.base_OI = changes_base(plan_.config.init) ? empty_alike(base_OI, base_OI.options()) : base_OI;
  out.module = static_cast<int64_t>(module);
  add_factors(out, plan_.ranks[module].rank, base_OI.size(1), base_OI.size(0));
  if (plan_.config.use_dora) {
    out.magnitude_O = at::ones({base_OI.size(0)}, base_OI.options()).requires_grad_(true);
    out.norm_O = at::ones({base_OI.size(0)}, base_OI.options());
    parameters_.push_back({name("lora_magnitude_vector"), out.magnitude_O, true});
  }
  if (changes_base(plan_.config.init)) {
    out.start_a_RI = at::zeros(out.a_RI.sizes(), base_OI.options());
    out.start_b_OR = at::zeros(out.b_OR.sizes(), base_OI.options());
    start_.push_back({name("lora_A.start"), out.start_a_RI, false});
    start_.push_back({name("lora_B.start"), out.start_b_OR, false});
  }
  return out;
}

// A [columns, in] and B [out, columns] of the matrix, zero.
void TrainedLora::add_factors(LoraMatrix& matrix, int64_t columns, int64_t in, int64_t out) {
  const auto module = static_cast<size_t>(matrix.module);
  const auto name = [&](std::string_view tensor) { return lora_tensor_name(plan_, plan_.modules[module], tensor); };
  matrix.scale = plan_.ranks[module].scale;
  matrix.a_RI = at::zeros({columns, in}, matrix.base_OI.options()).requires_grad_(true);
  matrix.b_OR = at::zeros({out, columns}, matrix.base_OI.options()).requires_grad_(true);
  parameters_.push_back({name("lora_A.weight"), matrix.a_RI, true});
  parameters_.push_back({name("lora_B.weight"), matrix.b_OR, true});
}

void TrainedLora::add_stack(const std::vector<at::Tensor>& base_leaves, const at::Tensor& base,
                            const at::Tensor& merged, LoraMatrix& lora, int64_t layer) {
  const std::string name =
      expert_stack_of(base_.parameters[index_of_.at(base_leaves.front().unsafeGetTensorImpl())].name);
  const std::optional<size_t> module = module_index(plan_, name);
  if (!module) return;
  const auto stack = std::ranges::find(stacks_, name, &ExpertStack::name);
  lora.base_OI = base.detach();
  lora.module = static_cast<int64_t>(*module);
  add_factors(lora, plan_.ranks[*module].rank * stack->num_experts, stack->in, stack->out);
  matrices_.push_back({*module, lora, merged.detach(), lora.base_OI});
  rows_.push_back({layer, lora.base_OI, merged.detach(), lora});
}

void TrainedLora::add_whole(const ParameterStore& store) {
  for (const NamedParameter& parameter : store.parameters) {
    if (std::ranges::find(plan_.whole, parameter.name) == plan_.whole.end()) continue;
    NamedParameter& added = parameters_.emplace_back(
        NamedParameter{lora_whole_name(plan_, parameter.name), parameter.tensor, parameter.decay});
    added.tensor.requires_grad_(true);
    whole_names_.emplace(added.name, parameter.name);
    for (Rows& rows : rows_) rows.has_trained = rows.has_trained || rows.merged_OI.is_alias_of(added.tensor);
  }
}

std::string TrainedLora::whole_parameter(const std::string& name) const {
  const auto found = whole_names_.find(name);
  return found == whole_names_.end() ? "" : found->second;
}

const NamedParameter* TrainedLora::find(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &NamedParameter::name);
  return found == parameters_.end() ? nullptr : &*found;
}

// A and B of a start that leaves the base, and what it leaves.
Result<> TrainedLora::take_start() {
  for (size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = matrices_[m];
    if (!has_memory(matrix.whole_base_OI)) continue;
    auto start = lora_start(plan_.config.init, matrix.whole_base_OI, plan_.ranks[matrix.module]);
    if (!start.ok()) {
      start.error().what += ": " + plan_.modules[matrix.module];
      start.error().where = plan_.config.where;
      return std::move(start).error();
    }
    start_[2 * m].tensor.copy_(start->a_RI);
    start_[2 * m + 1].tensor.copy_(start->b_OR);
    matrix.factors.a_RI.detach().copy_(start->a_RI);
    matrix.factors.b_OR.detach().copy_(start->b_OR);
  }
  restore_start();
  return {};
}

namespace {

// `f.base_OI` of a start that leaves the base.
void leave_start(const at::Tensor& whole_base_OI, const LoraMatrix& f) {
  add_product(f.base_OI.variable_data(), whole_base_OI, f.start_b_OR, Trans::kNo, f.start_a_RI, Trans::kNo, -f.scale);
}

}  // namespace

void TrainedLora::restore_start() {
  const at::NoGradGuard no_grad;
  for (const Matrix& matrix : matrices_) {
    if (matrix.factors.start_a_RI.defined() && has_memory(matrix.whole_base_OI) && has_memory(matrix.factors.base_OI))
      leave_start(matrix.whole_base_OI, matrix.factors);
  }
}

void TrainedLora::start_magnitudes() {
  for (Matrix& matrix : matrices_) {
    LoraMatrix& f = matrix.factors;
    if (!f.magnitude_O.defined() || !has_memory(f.base_OI)) continue;
    const at::Tensor sum = at::empty_like(f.base_OI);
    add_product(sum, f.base_OI, f.b_OR, Trans::kNo, f.a_RI, Trans::kNo, f.scale);
    f.magnitude_O.detach().copy_(row_norms(sum));
  }
}

Result<> TrainedLora::initialize(uint64_t seed, RandomPurpose purpose) {
  const at::NoGradGuard no_grad;
  for (size_t m = 0; m < matrices_.size() && !changes_base(plan_.config.init); ++m) {
    matrices_[m].factors.b_OR.detach().zero_();
    const int64_t rank = plan_.ranks[matrices_[m].module].rank;
    fill_a(matrices_[m].factors.a_RI.detach(), rank, plan_.config.init, {seed, purpose, m});
  }
  TRY(start_from_base());
  merge();
  return {};
}

Result<> TrainedLora::start_from_base() {
  const at::NoGradGuard no_grad;
  if (changes_base(plan_.config.init)) TRY(take_start());
  start_magnitudes();
  return {};
}

// Changes no version of the norms, which merge_layer() needs.
void TrainedLora::merge_rows(const LoraMatrix& f, at::Tensor merged) const {
  const std::string& module = plan_.modules[static_cast<size_t>(f.module)];
  if (is_expert_stack(module)) {
    const auto stack = std::ranges::find(stacks_, module, &ExpertStack::name);
    return merge_experts(f.base_OI, f, is_expert_stack(base_.parameters[stack->parameters.front()].name), merged);
  }
  add_product(merged, f.base_OI, f.b_OR, Trans::kNo, f.a_RI, Trans::kNo, f.scale);
  if (!f.magnitude_O.defined()) return;
  f.norm_O.variable_data().copy_(row_norms(merged));
  merged.mul_((f.magnitude_O / f.norm_O).unsqueeze(1));
}

void TrainedLora::merge() {
  const at::NoGradGuard no_grad;
  for (const Matrix& matrix : matrices_) {
    if (has_memory(matrix.factors.base_OI) && has_memory(matrix.merged_OI))
      merge_rows(matrix.factors, matrix.merged_OI);
  }
}

void TrainedLora::merge_layer(int64_t layer) {
  const at::NoGradGuard no_grad;
  for (const Rows& rows : rows_) {
    if (rows.layer != layer || rows.is_gate) continue;
    const LoraMatrix& f = rows.factors;
    if (f.start_a_RI.defined()) leave_start(rows.base_OI, f);
    if (f.defined())
      merge_rows(f, rows.merged_OI.variable_data());
    else if (!rows.has_trained)
      rows.merged_OI.variable_data().copy_(rows.base_OI);
  }
}

std::vector<at::Tensor> TrainedLora::merged_matrices(int64_t layer) const {
  std::vector<at::Tensor> out;
  for (const Rows& rows : rows_) {
    if (rows.layer != layer || rows.is_gate) continue;
    if (!rows.has_trained) out.push_back(rows.merged_OI);
    if (rows.factors.start_a_RI.defined()) out.push_back(rows.factors.base_OI);
  }
  return out;
}

}  // namespace mortise
