// The folder that the reference starts from (ref.path).
#pragma once

#include <string>
#include <string_view>

#include "config/load.h"
#include "foundation/base/env.h"
#include "model/weights/model_config.h"

namespace mortise {

// Whether the settings ask for a KL to the reference. A loss may ask for a reference too, which its plugin declares.
inline bool has_kl_to_reference(const RunConfig& config) {
  return config.actor.use_kl_loss || config.algorithm.use_kl_in_reward;
}

// An Error if ref.path names a folder whose weights do not have the names and shapes of the policy's. Reads no weights.
Result<> check_reference(Env& env, const LoadedConfig& loaded, const ModelConfig& policy);

// The folder of the reference, and the key that names it.
[[nodiscard]] inline const std::string& reference_folder(const RunConfig& config) {
  return config.ref.path ? *config.ref.path : config.model.path;
}
[[nodiscard]] inline std::string_view reference_key(const RunConfig& config) {
  return config.ref.path ? "ref.path" : "model.path";
}

}  // namespace mortise
