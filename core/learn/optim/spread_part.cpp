// See spread_part.h.
#include "learn/optim/spread_part.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "model/weights/rounded_matrices.h"

namespace mortise {
namespace {

bool holds(std::span<const c10::Storage> storages, const c10::Storage& one) {
  return std::ranges::any_of(storages, [&](const c10::Storage& other) { return other.is_alias_of(one); });
}

// Each storage once.
void add_storages(std::span<const at::Tensor> tensors, std::vector<c10::Storage>& out) {
  for (const at::Tensor& tensor : tensors) {
    if (!holds(out, tensor.storage())) out.push_back(tensor.storage());
  }
}

// What is there while a layer is open: what arrives, and what is computed from it.
std::vector<c10::Storage> memory_of_layer(const Model& model, SpreadModel kind, size_t layer, const SpreadPart& part) {
  std::vector<c10::Storage> out;
  add_storages(part.tensors, out);
  if (kind == SpreadModel::kAdapted) {
    const auto index = static_cast<int64_t>(layer);
    const ModelPart* const split = model.model_part();
    add_storages(split != nullptr ? split->merged_matrices(index) : model.trained_lora()->merged_matrices(index), out);
  }
  if (!pass_weights(model).rounded.empty()) add_storages(copies_of_layer(pass_weights(model), layer), out);
  return out;
}

// The memory that passes read of the parameters of a part.
std::vector<c10::Storage> memory_of_passes(const Model& model, std::span<const size_t> indices) {
  std::vector<at::Tensor> read;
  for (const size_t i : indices) read.push_back(pass_parameters(model)[i].tensor);
  std::vector<c10::Storage> out;
  add_storages(read, out);
  return out;
}

std::vector<c10::Storage> memory_of_copies(const Model& model, size_t layer) {
  std::vector<c10::Storage> out;
  add_storages(copies_of_layer(pass_weights(model), layer), out);
  return out;
}

}  // namespace

const std::vector<NamedParameter>& pass_parameters(const Model& model) {
  return model.model_part() != nullptr ? model.model_part()->parameters() : model.parameters();
}

const std::vector<NamedParameter>& parameters_to_spread(const Model& model) {
  const ModelPart* const part = model.model_part();
  if (part == nullptr) return model.stored_parameters();
  return (part->base() != nullptr ? *part->base() : *part).parameters();
}

const DecoderWeights& pass_weights(const Model& model) {
  return model.model_part() != nullptr ? model.model_part()->weights() : model.weights();
}

SpreadPart make_spread_part(const Model& model, SpreadModel kind, size_t part, std::span<const size_t> indices,
                            int num_ranks, ShardCut cut, bool keeps_base) {
  const bool is_layer = part > 0 && part <= static_cast<size_t>(model.config().num_layers);
  const bool rounds = is_layer && !pass_weights(model).rounded.empty();
  const bool has_copies = rounds && kind == SpreadModel::kParameters;
  std::vector<at::Tensor> tensors, masters;
  std::vector<int64_t> sizes;
  for (const size_t i : indices) {
    const at::Tensor& stored = parameters_to_spread(model)[i].tensor;
    tensors.push_back((has_copies ? rounded_slice(pass_weights(model), stored) : stored).variable_data());
    if (has_copies && model.has_masters()) masters.push_back(stored.variable_data());
    sizes.push_back(stored.numel());
  }
  SpreadPart out(Shards(sizes, num_ranks, cut));
  out.tensors = std::move(tensors);
  out.masters = std::move(masters);
  add_storages(out.masters, out.of_masters);
  const std::vector<c10::Storage> read = rounds ? memory_of_copies(model, part - 1) : memory_of_passes(model, indices);
  std::vector<c10::Storage> all;
  if (is_layer)
    all = memory_of_layer(model, kind, part - 1, out);
  else
    add_storages(out.tensors, all);
  const bool keeps_all = keeps_base && is_layer;  // an embedding or a head has no adapter: no pass reads its base
  for (const c10::Storage& one : all) (keeps_all || holds(read, one) ? out.kept : out.passing).push_back(one);
  if (is_layer) return out;
  out.is_read = out.passing.empty();
  out.passing.clear();
  return out;
}

void SpreadPart::make_own(int rank) {
  if (tensors.empty()) return;
  own_size = shards.of(rank).size();
  padded = at::zeros({shards.largest()}, tensors.front().options());
  if (!masters.empty()) padded_masters = at::zeros({shards.largest()}, masters.front().options());
}

void SpreadPart::take_from_model(int rank) {
  if (tensors.empty()) return;
  copy_from_tensors(shards, masters.empty() ? tensors : masters, shards.of(rank), numbers());
  round();
}

void SpreadPart::take_numbers(const at::Tensor& from) {
  if (tensors.empty()) return;
  numbers().copy_(from);
  round();
}

void SpreadPart::round() {
  if (padded_masters.defined()) padded.copy_(padded_masters);
}

void SpreadPart::drop_masters() {
  masters.clear();
  of_masters.clear();
  padded_masters = at::Tensor();
}

}  // namespace mortise
