// See tensor_split.h.
#include "model/weights/tensor_split.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <initializer_list>

#include "model/layers/sequence.h"
#include "model/tensor/kernel.h"
#include "model/weights/names.h"

namespace mortise {

at::Tensor TensorSplit::part_of(const at::Tensor& whole, int64_t rank) const {
  std::vector<at::Tensor> parts;
  for (const SplitRange& range : ranges)
    parts.push_back(whole.narrow(dim(), range.begin_on(rank), range.size_on(rank)));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim());
}

at::Tensor TensorSplit::range_of(const at::Tensor& part, size_t range) const {
  int64_t begin = 0;
  for (size_t i = 0; i < range; ++i) begin += ranges[i].size;
  return part.narrow(dim(), begin, ranges[range].size);
}

void TensorSplit::put_part(const at::Tensor& part, int64_t rank, const at::Tensor& whole) const {
  int64_t begin = 0;
  for (const SplitRange& range : ranges) {
    const int64_t size = range.size_on(rank);
    if (range.is_first(rank)) whole.narrow(dim(), range.begin_on(rank), size).copy_(part.narrow(dim(), begin, size));
    begin += range.size;
  }
}

void TensorSplit::put_parts(const at::Tensor& parts, const at::Tensor& whole) const {
  std::vector<int64_t> sizes = whole.sizes().vec();
  auto& shared = sizes[static_cast<size_t>(dim())];
  shared = 0;
  for (const SplitRange& range : ranges) shared += range.size;
  for (int64_t rank = 0; rank < parts.size(0); ++rank) put_part(parts.select(0, rank).view(sizes), rank, whole);
}

at::Tensor TensorSplit::counted(const at::Tensor& part, int64_t rank) const {
  return part.narrow(dim(), 0, counted_size(rank));
}

int64_t TensorSplit::counted_size(int64_t rank) const {
  int64_t size = 0;
  for (const SplitRange& range : ranges) size += range.is_first(rank) ? range.size_on(rank) : 0;
  return size;
}

int64_t TensorSplit::used_size(int64_t rank) const {
  int64_t size = 0;
  for (const SplitRange& range : ranges) size += range.size_on(rank);
  return size;
}

bool can_split_vocabulary(int64_t vocab_size, int64_t num_ranks) {
  return (num_ranks - 1) * ceil_div(vocab_size, num_ranks) < vocab_size;
}

bool can_split_layers(const ModelConfig& config, int64_t num_ranks) {
  const MoeConfig& moe = config.moe;
  const bool has_dense = moe.num_experts == 0 || config.num_expert_layers() < config.num_layers;
  return can_share_heads(config.num_heads, config.num_kv_heads, num_ranks) &&
         (!has_dense || config.intermediate_size % num_ranks == 0) && moe.expert_size % num_ranks == 0 &&
         moe.shared_size % num_ranks == 0 && can_split_vocabulary(config.vocab_size, num_ranks);
}

bool is_split_by_tokens(std::string_view name) { return name == kEmbeddingName || name == kHeadName; }

ModelConfig split_config(const ModelConfig& config, int64_t num_ranks) {
  ModelConfig out = config;
  out.num_heads = config.num_heads / num_ranks;
  out.num_kv_heads = std::max<int64_t>(1, config.num_kv_heads / num_ranks);
  out.intermediate_size = config.intermediate_size / num_ranks;
  out.moe.expert_size = config.moe.expert_size / num_ranks;
  out.moe.shared_size = config.moe.shared_size / num_ranks;
  out.vocab_size = ceil_div(config.vocab_size, num_ranks);
  return out;
}

TensorSplit split_of(const ModelConfig& config, std::string_view name, int64_t num_ranks) {
  const ModelConfig own = split_config(config, num_ranks);
  const int64_t repeats = own.num_kv_heads * num_ranks / config.num_kv_heads;
  const auto is_one_of = [name](std::initializer_list<std::string_view> modules) {
    return std::ranges::any_of(modules,
                               [name](std::string_view module) { return name.find(module) != std::string_view::npos; });
  };
  const auto rows = [](int64_t size) { return TensorSplit{SplitAxis::kRows, {{0, size, 1}}}; };
  const auto columns = [](int64_t size) { return TensorSplit{SplitAxis::kColumns, {{0, size, 1}}}; };
  if (is_split_by_tokens(name)) return {SplitAxis::kRows, {{0, own.vocab_size, 1, config.vocab_size, num_ranks}}};
  if (is_one_of({".self_attn.q_norm.", ".self_attn.k_norm."})) return {SplitAxis::kNone, {}, true};
  if (is_one_of({".self_attn.q_proj."})) return rows(own.q_size());
  if (is_one_of({".self_attn.k_proj.", ".self_attn.v_proj."})) return {SplitAxis::kRows, {{0, own.kv_size(), repeats}}};
  if (is_one_of({".self_attn.qkv_proj."})) {
    const int64_t k = config.q_size(), v = k + config.kv_size();
    return {SplitAxis::kRows, {{0, own.q_size(), 1}, {k, own.kv_size(), repeats}, {v, own.kv_size(), repeats}}};
  }
  if (is_one_of({".self_attn.sinks"})) return rows(own.num_heads);
  if (name.ends_with(".experts.gate_up_proj"))
    return {SplitAxis::kColumns, {{0, 2 * own.moe.expert_size, 1}}, false, 2};
  if (name.ends_with(".experts.gate_up_proj_bias")) return columns(2 * own.moe.expert_size);
  if (name.ends_with(".experts.down_proj")) return columns(own.moe.expert_size);
  if (name.ends_with(".experts.down_proj_bias")) return {SplitAxis::kNone, {}, true};  // added by the first rank
  const int64_t units = is_one_of({".shared_expert."}) ? own.moe.shared_size
                        : is_one_of({".experts."})     ? own.moe.expert_size
                                                       : own.intermediate_size;
  if (is_one_of({".gate_up_proj."})) return {SplitAxis::kRows, {{0, units, 1}, {units * num_ranks, units, 1}}};
  if (is_one_of({".gate_proj.", ".up_proj.", ".w1.", ".w3."})) return rows(units);
  // Their biases are added once, behind the sum over ranks.
  if (is_one_of({".self_attn.o_proj.weight"})) return columns(own.q_size());
  if (is_one_of({".down_proj.weight", ".w2.weight"})) return columns(units);
  return {};
}

}  // namespace mortise
