// See trained_lora.h.
#include "model/adapters/trained_lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "model/adapters/lora.h"
#include "model/device/compute_device.h"
#include "model/weights/names.h"
#include "model/weights/saver.h"

namespace mortise {
namespace {

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
void fill_a(const at::Tensor& a_RI, LoraInit init, const RngKey& key) {
  if (init == LoraInit::kGaussian) {
    const double deviation = 1.0 / static_cast<double>(a_RI.size(0));
    fill_rows(a_RI, key, [&](RandomStream& stream) { return stream.next_normal() * deviation; });
  } else {
    const double bound = 1.0 / std::sqrt(static_cast<double>(a_RI.size(1)));
    fill_rows(a_RI, key, [&](RandomStream& stream) { return (2.0 * stream.next_double() - 1.0) * bound; });
  }
}

at::Tensor row_norms(const at::Tensor& matrix_OI) { return at::linalg_vector_norm(matrix_OI, 2, {1}); }

}  // namespace

TrainedLora::TrainedLora(LoraPlan plan, ParameterStore& store, BaseMemory memory) : plan_(std::move(plan)) {
  for (NamedParameter& parameter : store.parameters) parameter.tensor.requires_grad_(false);
  keep_base(store, memory);
  for (size_t i = 0; i < base_.leaves.layers.size(); ++i) {
    const LayerLeaves& base = base_.leaves.layers[i];
    LayerLeaves& merged = store.leaves.layers[i];
    const auto layer = static_cast<int64_t>(i);
    add_matrices(base.qkv_weights, merged.qkv_weights, merged.qkv_lora, layer);
    add_matrices({base.o_weight}, {merged.o_weight}, merged.o_lora, layer);
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
    return name.ends_with(kWeightEnd) &&
           std::ranges::find(plan_.modules, name.substr(0, name.size() - kWeightEnd.size())) != plan_.modules.end();
  };
  for (FusedLeaves& group : fused_leaves(copied)) {
    if (std::ranges::none_of(group.leaves, changes)) continue;
    const at::Tensor own = group.fused->detach().clone();
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
    const auto found = std::ranges::find(plan_.modules, name.substr(0, name.size() - kWeightEnd.size()));
    LoraMatrix& matrix = out.emplace_back();
    if (found == plan_.modules.end()) continue;
    const auto module = static_cast<size_t>(found - plan_.modules.begin());
    matrix = add_matrix(module, base_leaves[i]);
    matrices_.push_back({module, matrix, merged_leaves[i], base_leaves[i]});
    any = true;
  }
  if (!any) return;
  for (size_t i = 0; i < out.size(); ++i)
    rows_.push_back({layer, base_leaves[i].detach(), merged_leaves[i].detach(), out[i]});
  lora = std::move(out);
}

LoraMatrix TrainedLora::add_matrix(size_t module, const at::Tensor& base_OI) {
  const int64_t rank = plan_.ranks[module].rank;
  const auto name = [&](std::string_view tensor) { return lora_tensor_name(plan_.modules[module], tensor); };
  LoraMatrix out;
  out.base_OI = changes_base(plan_.config.init) ? at::empty_like(base_OI, at::MemoryFormat::Contiguous) : base_OI;
  out.scale = plan_.ranks[module].scale;
  out.module = static_cast<int64_t>(module);
  out.a_RI = at::zeros({rank, base_OI.size(1)}, base_OI.options()).requires_grad_(true);
  out.b_OR = at::zeros({base_OI.size(0), rank}, base_OI.options()).requires_grad_(true);
  parameters_.push_back({name("lora_A.weight"), out.a_RI, true});
  parameters_.push_back({name("lora_B.weight"), out.b_OR, true});
  if (plan_.config.use_dora) {
    out.magnitude_O = at::ones({base_OI.size(0)}, base_OI.options()).requires_grad_(true);
    out.norm_O = at::ones({base_OI.size(0)}, base_OI.options());
    parameters_.push_back({name("lora_magnitude_vector"), out.magnitude_O, true});
  }
  if (changes_base(plan_.config.init)) {
    start_.push_back({name("lora_A.start"), at::zeros(out.a_RI.sizes(), base_OI.options()), false});
    start_.push_back({name("lora_B.start"), at::zeros(out.b_OR.sizes(), base_OI.options()), false});
  }
  return out;
}

void TrainedLora::add_whole(const ParameterStore& store) {
  for (const NamedParameter& parameter : store.parameters) {
    if (std::ranges::find(plan_.whole, parameter.name) == plan_.whole.end()) continue;
    NamedParameter& added = parameters_.emplace_back(
        NamedParameter{lora_whole_name(plan_, parameter.name), parameter.tensor, parameter.decay});
    added.tensor.requires_grad_(true);
  }
}

const at::Tensor* TrainedLora::find(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &NamedParameter::name);
  return found == parameters_.end() ? nullptr : &found->tensor;
}

// A and B of a start that leaves the base, and what it leaves.
Result<> TrainedLora::take_start() {
  for (size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = matrices_[m];
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

void TrainedLora::restore_start() {
  const at::NoGradGuard no_grad;
  for (size_t m = 0; m < matrices_.size() && !start_.empty(); ++m) {
    at::Tensor left = matrices_[m].factors.base_OI;
    at::addmm_out(left, matrices_[m].whole_base_OI, start_[2 * m + 1].tensor, start_[2 * m].tensor, /*beta=*/1.0,
                  /*alpha=*/-matrices_[m].factors.scale);
  }
}

void TrainedLora::start_magnitudes() {
  for (Matrix& matrix : matrices_) {
    LoraMatrix& f = matrix.factors;
    if (!f.magnitude_O.defined()) continue;
    const at::Tensor sum = at::addmm(f.base_OI, f.b_OR, f.a_RI, /*beta=*/1.0, /*alpha=*/f.scale);
    f.magnitude_O.detach().copy_(row_norms(sum));
  }
}

Result<> TrainedLora::initialize(uint64_t seed, RandomPurpose purpose) {
  const at::NoGradGuard no_grad;
  if (changes_base(plan_.config.init)) {
    TRY(take_start());
  } else {
    for (size_t m = 0; m < matrices_.size(); ++m) {
      matrices_[m].factors.b_OR.detach().zero_();
      fill_a(matrices_[m].factors.a_RI.detach(), plan_.config.init, {seed, purpose, m});
    }
  }
  start_magnitudes();
  merge();
  return {};
}

Result<> TrainedLora::load(Env& env, const Path& folder) {
  const at::NoGradGuard no_grad;
  const LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  const std::string where = tensors.file.path().string();
  if (changes_base(plan_.config.init)) TRY(take_start());
  for (const Matrix& matrix : matrices_) {
    const std::string& module = plan_.modules[matrix.module];
    const auto found = tensors.pairs.find(module);
    if (found == tensors.pairs.end()) {
      return Error{ErrorKind::kData, "the adapter has no lora_A and lora_B of " + quote(module), where,
                   "use the adapter of the same modules"};
    }
    const LoraMatrix& f = matrix.factors;
    TRY(copy_stored(*found->second.a, where, f.a_RI.detach()));
    TRY(copy_stored(*found->second.b, where, f.b_OR.detach()));
    if (f.magnitude_O.defined()) TRY(copy_stored(*found->second.magnitude, where, f.magnitude_O.detach()));
  }
  for (const TensorView* view : tensors.others) {
    const at::Tensor* parameter = find(view->name);
    if (parameter == nullptr) parameter = find(std::string(kLoraPrefix) + whole_parameter_name(view->name));
    if (parameter != nullptr) TRY(copy_stored(*view, where, parameter->detach()));
  }
  merge();
  return {};
}

void TrainedLora::merge() {
  const at::NoGradGuard no_grad;
  for (Matrix& matrix : matrices_) {
    LoraMatrix& f = matrix.factors;
    at::addmm_out(matrix.merged_OI, f.base_OI, f.b_OR, f.a_RI, /*beta=*/1.0, /*alpha=*/f.scale);
    if (!f.magnitude_O.defined()) continue;
    f.norm_O.copy_(row_norms(matrix.merged_OI));
    matrix.merged_OI.mul_((f.magnitude_O / f.norm_O).unsqueeze(1));
  }
}

void TrainedLora::merge_layer(int64_t layer) {
  const at::NoGradGuard no_grad;
  for (const Rows& rows : rows_) {
    if (rows.layer != layer) continue;
    at::Tensor merged = rows.merged_OI.variable_data(), base = rows.base_OI.variable_data();
    const LoraMatrix& f = rows.factors;
    if (f.defined())
      at::addmm_out(merged, base, f.b_OR, f.a_RI, /*beta=*/1.0, /*alpha=*/f.scale);
    else
      merged.copy_(base);
  }
}

std::vector<at::Tensor> TrainedLora::merged_matrices(int64_t layer) const {
  std::vector<at::Tensor> out;
  for (const Rows& rows : rows_) {
    if (rows.layer == layer) out.push_back(rows.merged_OI);
  }
  return out;
}

namespace {

// The configuration of an adapter of twice the rank, with the scales of the one before.
void double_ranks(Json& json, bool use_rslora) {
  const double factor = use_rslora ? std::sqrt(2.0) : 2.0;
  json["r"] = json["r"].get<int64_t>() * 2;
  json["lora_alpha"] = json["lora_alpha"].get<double>() * factor;
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (!json.contains(key) || !json[key].is_object()) continue;
    for (auto& [pattern, value] : json[key].items()) {
      if (value.is_number_integer() && std::string_view(key) == "rank_pattern")
        value = value.template get<int64_t>() * 2;
      else
        value = value.template get<double>() * factor;
    }
  }
  json["init_lora_weights"] = true;
}

}  // namespace

Result<std::vector<FolderFile>> TrainedLora::plan_save(const std::string& base_model, at::ScalarType stored) const {
  const at::NoGradGuard no_grad;
  Json json = TRY(parse_json(plan_.config.text, kAdapterConfigFile));
  if (!base_model.empty()) json["base_model_name_or_path"] = base_model;
  std::vector<NamedTensor> tensors;
  for (const NamedParameter& parameter : parameters_) tensors.push_back({parameter.name, parameter.tensor});
  if (!start_.empty()) {
    double_ranks(json, plan_.config.use_rslora);
    const size_t each = plan_.config.use_dora ? 3 : 2;
    for (size_t m = 0; m < matrices_.size(); ++m) {
      at::Tensor& a = tensors[each * m].tensor;
      at::Tensor& b = tensors[each * m + 1].tensor;
      a = at::cat({a.detach(), start_[2 * m].tensor}, 0);
      b = at::cat({b.detach(), -start_[2 * m + 1].tensor}, 1);
    }
  }
  // PEFT wants the one matrix of a tied model under both names.
  const std::string prefix(kLoraPrefix);
  if (const at::Tensor* embedding = find(prefix + kEmbeddingName); embedding != nullptr && plan_.config.ties_weights)
    tensors.push_back({prefix + kHeadName, *embedding});
  std::vector<FolderFile> files = {plan_tensor_file(kAdapterWeightsFile, std::move(tensors), stored)};
  files.push_back(text_folder_file(kAdapterConfigFile, dump_json(json, 2) + "\n"));
  return files;
}

}  // namespace mortise
