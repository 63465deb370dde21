// config.json of a model, and generation_config.json after the first zero byte. An accepted config can be written, and
// reads as the same model again.
#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "model/weights/model_config.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view bytes = fuzz::as_text(data, size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  const std::string config_text(bytes.substr(0, cut));
  const std::string generation_text(bytes.substr(std::min(cut + 1, bytes.size())));
  const auto config = parse_model_config(config_text, generation_text, "model");
  if (!config.ok()) {
    fuzz::require(!config.error().what.empty(), "an error says what");
    return;
  }
  fuzz::require(config->hidden_size > 0 && config->num_layers > 0 && config->num_heads > 0, "sizes are positive");
  const auto text = model_config_text(*config, "float32");
  if (!text.ok()) return;
  const auto again = parse_model_config(*text, "", "written");
  fuzz::require(again.ok(), "what is written is read");
  fuzz::require(again->hidden_size == config->hidden_size && again->num_layers == config->num_layers &&
                    again->vocab_size == config->vocab_size,
                "what is written is the same model");
}

}  // namespace mortise
