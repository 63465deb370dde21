// adapter_config.json of a LoRA adapter, and the name of a module behind the first zero byte: rank and scale of any
// module are found, or there is an error.
#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"
#include "model/adapters/lora_config.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view bytes = fuzz::as_text(data, size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  fuzz::MemoryEnv env;
  env.add("adapter/adapter_config.json", std::string(bytes.substr(0, cut)));
  const auto config = read_lora_config(env, "adapter");
  if (!config.ok()) {
    fuzz::require(!config.error().what.empty(), "an error says what");
    return;
  }
  const std::string given(bytes.substr(std::min(cut + 1, bytes.size())));
  for (const std::string& module : {std::string("model.layers.0.self_attn.q_proj"), given}) {
    (void)config->rank_of(module);  // and its scale
  }
}

}  // namespace mortise
