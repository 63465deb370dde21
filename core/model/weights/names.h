// Names of parameters that need special care.
#pragma once

#include <string_view>

namespace mortise {

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";  // absent if it is the embedding

[[nodiscard]] constexpr bool is_bias(std::string_view name) { return name.ends_with("bias"); }

// The matrices of all experts in one tensor, [E, in, out] (gpt-oss).
[[nodiscard]] constexpr bool is_expert_stack(std::string_view name) {
  return name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj");
}

}  // namespace mortise
