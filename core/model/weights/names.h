// Names of parameters that need special care.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mortise {

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";  // absent if it is the embedding

[[nodiscard]] constexpr bool is_bias(std::string_view name) { return name.ends_with("bias"); }

// A matrix that decides about experts: a router, or the gate of a shared expert.
[[nodiscard]] constexpr bool is_gate(std::string_view name) {
  return name.ends_with("gate.weight") || name.ends_with("router.weight");
}

// The layer that a parameter or an adapter's matrix belongs to; nothing for those of no layer.
[[nodiscard]] inline std::optional<int64_t> layer_of(std::string_view name) {
  constexpr std::string_view kLayer = "model.layers.";
  const size_t at = name.find(kLayer);
  if (at == std::string_view::npos) return std::nullopt;
  int64_t layer = 0;
  std::from_chars(name.data() + at + kLayer.size(), name.data() + name.size(), layer);
  return layer;
}

// The matrices of all experts in one tensor, [E, in, out] (gpt-oss).
[[nodiscard]] constexpr bool is_expert_stack(std::string_view name) {
  return name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj");
}

}  // namespace mortise
