// Names of parameters that need special care.
#pragma once

namespace mortise {

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";  // absent if it is the embedding

}  // namespace mortise
