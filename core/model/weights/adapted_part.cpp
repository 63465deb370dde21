// The part of a model with an adapter: which matrices are merged from A and B, and what is trained as a whole. See
// model_part.h.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "model/layers/expert_lora.h"
#include "model/tensor/product.h"
#include "model/tensor/storage_memory.h"
#include "model/weights/model_part.h"
#include "model/weights/names.h"

namespace mortise {
namespace {

using blas::Trans;
using Leaves = std::unordered_set<const c10::TensorImpl*>;

// `to` becomes `from` if its leaves are among `same`.
void take_same(const Leaves& same, const at::Tensor& from, const std::vector<at::Tensor>& from_leaves, at::Tensor& to,
               std::vector<at::Tensor>& to_leaves) {
  if (to_leaves.empty() || !same.contains(to_leaves.front().unsafeGetTensorImpl())) return;
  to = from;
  to_leaves = from_leaves;
}

void take_same(const Leaves& same, const at::Tensor& from, const at::Tensor& from_leaf, at::Tensor& to,
               at::Tensor& to_leaf) {
  if (!same.contains(to_leaf.unsafeGetTensorImpl())) return;
  to = from;
  to_leaf = from_leaf;
}

void take_same_matrices(const Leaves& same, const LayerWeights& from, const LayerLeaves& from_leaves, LayerWeights& to,
                        LayerLeaves& to_leaves) {
  take_same(same, from.qkv_weight_QH, from_leaves.qkv_weights, to.qkv_weight_QH, to_leaves.qkv_weights);
  take_same(same, from.o_weight_HQ, from_leaves.o_weight, to.o_weight_HQ, to_leaves.o_weight);
  take_same(same, from.gate_up_weight_2IH, from_leaves.gate_up_weights, to.gate_up_weight_2IH,
            to_leaves.gate_up_weights);
  take_same(same, from.down_weight_HI, from_leaves.down_weight, to.down_weight_HI, to_leaves.down_weight);
  take_same(same, from.experts.gate_up_E2IH, from_leaves.experts.gate_up, to.experts.gate_up_E2IH,
            to_leaves.experts.gate_up);
  take_same(same, from.experts.down_EHI, from_leaves.experts.down, to.experts.down_EHI, to_leaves.experts.down);
}

}  // namespace

size_t ModelPart::place_of_leaf(const at::Tensor& leaf) const {
  const auto& all = store_.parameters;
  const auto found = std::ranges::find_if(all, [&](const NamedParameter& p) { return p.tensor.is_same(leaf); });
  return static_cast<size_t>(found - all.begin());
}

void ModelPart::adapt_matrices(const std::vector<LoraMatrix>& whole, const std::vector<at::Tensor>& base,
                               const std::vector<at::Tensor>& merged, int64_t layer, std::vector<LoraMatrix>& out) {
  out = whole;
  for (size_t i = 0; i < out.size(); ++i) {
    at::Tensor from = base[i].detach();
    if (out[i].defined()) {
      const size_t place = base_->place_of_leaf(base[i]);
      out[i].split = base_->splits_[place];
      if (out[i].start_a_RI.defined()) {
        const at::Tensor whole_left = out[i].base_OI;
        from = out[i].split.is_split() ? empty_alike(from, from.options()) : whole_left;
        LoraMatrix start = out[i];
        start.a_RI = out[i].start_a_RI;
        start.b_OR = out[i].start_b_OR;
        started_.push_back(
            {static_cast<size_t>(layer) + 1, start, base[i].detach(), from, base_->whole_[place], whole_left});
      }
      out[i].base_OI = from;
    }
    const bool is_trained = place_of_leaf(merged[i]) == store_.parameters.size();  // see keep_trained()
    if (!is_trained) merged_.push_back({layer, merged[i].detach(), from, out[i]});
  }
}

// The adapter of all experts: gate and up of a rank's units are rows of B, and down's are columns of A.
void ModelPart::adapt_experts(const ExpertLeaves& whole, size_t layer) {
  ExpertLeaves& own = store_.leaves.layers[layer].experts;
  const ExpertLeaves& base = base_->leaves().layers[layer].experts;
  const ExpertWeights& merged = store_.weights.layers[layer].experts;
  const ExpertWeights& from = base_->weights().layers[layer].experts;
  const auto number = static_cast<int64_t>(layer);
  adapt_matrices(whole.router_lora, {base.router}, {own.router}, number, own.router_lora);
  adapt_matrices(whole.shared_gate_lora, {base.shared_gate}, {own.shared_gate}, number, own.shared_gate_lora);
  const int64_t units = config_.moe.expert_size, all = units * ranks_->size();
  const TensorSplit rows = config_.moe.is_gpt_oss ? TensorSplit{SplitAxis::kRows, {{0, 2 * units, 1}}}
                                                  : TensorSplit{SplitAxis::kRows, {{0, units, 1}, {all, units, 1}}};
  adapt_stack(whole.gate_up_lora, from.gate_up_E2IH, merged.gate_up_E2IH, rows, number, own.gate_up_lora);
  const TensorSplit columns{SplitAxis::kColumns, {{0, units, 1}}};
  adapt_stack(whole.down_lora, from.down_EHI, merged.down_EHI, columns, number, own.down_lora);
}

void ModelPart::adapt_stack(const LoraMatrix& whole, const at::Tensor& base, const at::Tensor& merged,
                            const TensorSplit& split, int64_t layer, LoraMatrix& out) {
  out = whole;
  if (!whole.defined()) return;
  out.base_OI = base.detach();
  out.split = split;
  merged_.push_back({layer, merged.detach(), out.base_OI, out, /*is_stack=*/true});
}

// Matrices that no adapter changes are those of the base, also in the whole model. They are there once.
void ModelPart::share_with_base() {
  Leaves same;
  for (size_t part = 0; part < by_part_.size(); ++part) {
    std::erase_if(by_part_[part], [&](size_t i) {
      if (whole_[i].dim() != 2 || !whole_[i].is_alias_of(base_->whole_[i])) return false;
      at::Tensor& own = store_.parameters[i].tensor;
      same.insert(own.unsafeGetTensorImpl());  // whose leaf has it until it is replaced below
      own = base_->store_.parameters[i].tensor;
      std::erase_if(storages_[part], [&](const c10::Storage& one) { return one.is_alias_of(whole_[i].storage()); });
      return true;
    });
  }
  const DecoderWeights& from = base_->store_.weights;
  const DecoderLeaves& from_leaves = base_->store_.leaves;
  for (size_t layer = 0; layer < from.layers.size(); ++layer) {
    take_same_matrices(same, from.layers[layer], from_leaves.layers[layer], store_.weights.layers[layer],
                       store_.leaves.layers[layer]);
  }
  take_same(same, from.head_VH, from_leaves.head, store_.weights.head_VH, store_.leaves.head);
  take_same(same, from.embedding_VH, from_leaves.embedding, store_.weights.embedding_VH, store_.leaves.embedding);
}

at::Tensor* ModelPart::slot_of(const at::Tensor& leaf) {
  for (LayerLeaves& layer : store_.leaves.layers) {
    ExpertLeaves& experts = layer.experts;
    for (auto* leaves : {&layer.qkv_weights, &layer.qkv_biases, &layer.gate_up_weights, &layer.gate_up_biases,
                         &experts.gate_up, &experts.down}) {
      for (at::Tensor& one : *leaves) {
        if (one.is_same(leaf)) return &one;
      }
    }
    for (at::Tensor* one : {&layer.o_weight, &layer.down_weight, &layer.sinks, &experts.gate_up_bias}) {
      if (one->is_same(leaf)) return one;
    }
  }
  return nullptr;
}

// The gradient goes through it to the whole leaf.
void ModelPart::view_trained(const Trained& trained) const {
  const at::AutoGradMode with_graph(true);
  const at::Tensor part = split(trained.parameter).part_of(trained.leaf, ranks_->rank());
  *trained.slot = trained.is_copy ? part.contiguous() : part;
}

// What else lies in its storage stays there.
void ModelPart::keep_trained(size_t parameter, const at::Tensor& leaf) {
  at::Tensor& own = store_.parameters[parameter].tensor;
  // Kernels read a vector's numbers one behind the other.
  const bool is_copy = split(parameter).ranges.size() > 1 ||
                       (split(parameter).axis == SplitAxis::kColumns && is_bias(store_.parameters[parameter].name));
  const Trained& trained = trained_.emplace_back(Trained{parameter, leaf, slot_of(own), is_copy});
  own.set_requires_grad(false);
  view_trained(trained);
  for (size_t part = 0; part < by_part_.size(); ++part) {
    std::erase(by_part_[part], parameter);
    std::erase_if(storages_[part], [&](const c10::Storage& one) { return one.is_alias_of(leaf.storage()); });
  }
}

void ModelPart::adapt(const DecoderLeaves& whole, std::shared_ptr<ModelPart> base,
                      std::span<const NamedParameter> parameters) {
  const at::NoGradGuard no_grad;
  base_ = std::move(base);
  share_with_base();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].tensor.requires_grad() && split(i).is_split()) keep_trained(i, parameters[i].tensor);
  }
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const LayerLeaves& from = whole.layers[i];
    const LayerLeaves& base_leaves = base_->leaves().layers[i];
    LayerLeaves& own = store_.leaves.layers[i];
    adapt_matrices(from.qkv_lora, base_leaves.qkv_weights, own.qkv_weights, layer, own.qkv_lora);
    adapt_matrices(from.o_lora, {base_leaves.o_weight}, {own.o_weight}, layer, own.o_lora);
    adapt_matrices(from.gate_up_lora, base_leaves.gate_up_weights, own.gate_up_weights, layer, own.gate_up_lora);
    adapt_matrices(from.down_lora, {base_leaves.down_weight}, {own.down_weight}, layer, own.down_lora);
    adapt_experts(from.experts, i);
  }
  restore_start();
  const auto has_norms = [](const Merged& rows) { return rows.factors.norm_O.defined(); };
  if (std::ranges::any_of(merged_, has_norms)) merge();
}

void ModelPart::merge_rows(const Merged& rows, at::Tensor merged_OI) const {
  const LoraMatrix f = part_on_rank(rows.factors, ranks_->rank());
  if (rows.is_stack) return merge_experts(rows.base_OI, f, config_.moe.is_gpt_oss, merged_OI);
  add_product(merged_OI, rows.base_OI, f.b_OR, Trans::kNo, f.a_RI, Trans::kNo, f.scale);
  if (!f.magnitude_O.defined()) return;
  at::Tensor norm = at::linalg_vector_norm(merged_OI, 2, {1});
  const at::Tensor whole_norm_O = rows.factors.norm_O.variable_data();  // changes no version
  if (f.split.axis == SplitAxis::kColumns) {                            // a rank has some numbers of each row
    norm.square_();
    ranks_->sum(norm);
    norm.sqrt_();
    whole_norm_O.copy_(norm);
  } else if (f.split.is_split()) {
    f.split.put_parts(parts_of(norm), whole_norm_O);
  } else {
    whole_norm_O.copy_(norm);
  }
  merged_OI.mul_((f.magnitude_O / norm).unsqueeze(1));
}

void ModelPart::take_trained(size_t part) const {
  if (trained_.empty()) return;
  const at::NoGradGuard no_grad;
  const auto is_of_part = [&](const NamedParameter& own) {
    return !is_common(own) && part_of_matrix(own.name, by_part_.size()) == part;
  };
  for (const Trained& trained : trained_) {
    const NamedParameter& own = store_.parameters[trained.parameter];
    if (is_of_part(own) && !has_memory(own.tensor)) allocate_memory(own.tensor.storage());
  }
  // Other rows of the same matrices are the base's.
  for (size_t i = 0; i < splits_.size(); ++i) {
    const at::Tensor own = store_.parameters[i].tensor.detach(), from = base_->store_.parameters[i].tensor.detach();
    const bool is_apart = has_memory(own) && has_memory(from) && !own.is_alias_of(from);
    if (is_apart && splits_[i].is_split() && is_of_part(store_.parameters[i])) own.copy_(from);
  }
  for (const Trained& trained : trained_) {
    const NamedParameter& own = store_.parameters[trained.parameter];
    if (!is_of_part(own)) continue;
    own.tensor.detach().copy_(trained_part(trained));
    if (trained.is_copy) view_trained(trained);
  }
}

void ModelPart::merge() {
  const at::NoGradGuard no_grad;
  for (const Merged& rows : merged_) {
    if (rows.factors.defined() && has_memory(rows.base_OI) && has_memory(rows.merged_OI))
      merge_rows(rows, rows.merged_OI);
  }
  for (const Trained& trained : trained_) {
    const at::Tensor own = store_.parameters[trained.parameter].tensor.detach();
    if (has_memory(own)) own.copy_(trained_part(trained));
    if (trained.is_copy) view_trained(trained);
  }
}

at::Tensor ModelPart::trained_part(const Trained& trained) const {
  return split(trained.parameter).part_of(trained.leaf.detach(), ranks_->rank());
}

namespace {

// `start`: A and B as they left the base.
void leave(const at::Tensor& base_OI, const LoraMatrix& start, const at::Tensor& left_OI) {
  add_product(left_OI, base_OI, start.b_OR, Trans::kNo, start.a_RI, Trans::kNo, -start.scale);
}

}  // namespace

void ModelPart::restore_start() const {
  const at::NoGradGuard no_grad;
  for (const Started& one : started_) {
    if (has_memory(one.base_OI) && has_memory(one.left_OI))
      leave(one.base_OI, part_on_rank(one.factors, ranks_->rank()), one.left_OI);
  }
}

// The same of a layer that is whole, as long as it is.
void ModelPart::leave_whole(size_t part) const {
  for (const Started& one : started_) {
    if (one.part != part || !one.factors.split.is_split()) continue;
    if (!has_memory(one.whole_left_OI)) allocate_memory(one.whole_left_OI.storage());
    leave(one.whole_base_OI, one.factors, one.whole_left_OI);
  }
}

void ModelPart::merge_layer(int64_t layer) const {
  const at::NoGradGuard no_grad;
  const auto part = static_cast<size_t>(layer) + 1;
  for (const Started& one : started_) {
    if (one.part == part && one.factors.split.is_split())
      leave(one.base_OI, part_on_rank(one.factors, ranks_->rank()), one.left_OI.variable_data());
  }
  for (const Merged& rows : merged_) {
    if (rows.layer != layer || rows.is_gate()) continue;
    at::Tensor merged = rows.merged_OI.variable_data();
    if (rows.factors.defined())
      merge_rows(rows, merged);
    else
      merged.copy_(rows.base_OI);
  }
  for (const Trained& trained : trained_) {
    const NamedParameter& own = store_.parameters[trained.parameter];
    if (layer_of(own.name) == layer) own.tensor.variable_data().copy_(trained_part(trained));
  }
}

std::vector<at::Tensor> ModelPart::merged_matrices(int64_t layer) const {
  std::vector<at::Tensor> out;
  for (const Merged& rows : merged_) {
    if (rows.layer == layer && !rows.is_gate()) out.push_back(rows.merged_OI);
  }
  for (const Started& one : started_) {
    if (one.part == static_cast<size_t>(layer) + 1 && one.factors.split.is_split()) out.push_back(one.left_OI);
  }
  return out;
}

}  // namespace mortise
