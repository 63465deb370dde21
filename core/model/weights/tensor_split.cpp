// See tensor_split.h.
#include "model/weights/tensor_split.h"

#include <algorithm>
#include <initializer_list>

#include "model/layers/sequence.h"

namespace mortise {

bool can_split_layers(const ModelConfig& config, int64_t num_ranks) {
  const MoeConfig& moe = config.moe;
  const bool has_dense = moe.num_experts == 0 || config.num_expert_layers() < config.num_layers;
  return can_share_heads(config.num_heads, config.num_kv_heads, num_ranks) &&
         (!has_dense || config.intermediate_size % num_ranks == 0) && moe.expert_size % num_ranks == 0 &&
         moe.shared_size % num_ranks == 0;
}

ModelConfig split_config(const ModelConfig& config, int64_t num_ranks) {
  ModelConfig out = config;
  out.num_heads = config.num_heads / num_ranks;
  out.num_kv_heads = std::max<int64_t>(1, config.num_kv_heads / num_ranks);
  out.intermediate_size = config.intermediate_size / num_ranks;
  out.moe.expert_size = config.moe.expert_size / num_ranks;
  out.moe.shared_size = config.moe.shared_size / num_ranks;
  return out;
}

TensorSplit split_of(const ModelConfig& config, std::string_view name, int64_t num_ranks) {
  const ModelConfig own = split_config(config, num_ranks);
  const int64_t repeats = own.num_kv_heads * num_ranks / config.num_kv_heads;
  const auto is_one_of = [name](std::initializer_list<std::string_view> modules) {
    return std::ranges::any_of(modules,
                               [name](std::string_view module) { return name.find(module) != std::string_view::npos; });
  };
  if (is_one_of({".self_attn.q_norm.", ".self_attn.k_norm."})) return {SplitAxis::kNone, 0, 1, true};
  if (is_one_of({".self_attn.q_proj."})) return {SplitAxis::kRows, own.q_size(), 1, false};
  if (is_one_of({".self_attn.k_proj.", ".self_attn.v_proj."}))
    return {SplitAxis::kRows, own.kv_size(), repeats, repeats > 1};
  if (is_one_of({".self_attn.sinks"})) return {SplitAxis::kRows, own.num_heads, 1, false};
  const int64_t units = is_one_of({".shared_expert."}) ? own.moe.shared_size
                        : is_one_of({".experts."})     ? own.moe.expert_size
                                                       : own.intermediate_size;
  if (is_one_of({".gate_proj.", ".up_proj.", ".w1.", ".w3."})) return {SplitAxis::kRows, units, 1, false};
  // Their biases are added once, behind the sum over ranks.
  if (is_one_of({".self_attn.o_proj.weight"})) return {SplitAxis::kColumns, own.q_size(), 1, false};
  if (is_one_of({".down_proj.weight", ".w2.weight"})) return {SplitAxis::kColumns, units, 1, false};
  return {};
}

}  // namespace mortise
