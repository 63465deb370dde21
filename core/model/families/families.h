// The model families: one file each, saying what its config keys mean and which defaults transformers gives it. The
// blocks themselves are the same code for all (layers/decoder.cpp), switched by ModelConfig.
// A new family is one file, one line in the table, and its names in Family.
#pragma once

#include <span>
#include <string_view>

#include "model/weights/config_reader.h"
#include "model/weights/model_config.h"

namespace mortise {

struct FamilyInfo {
  Family family;
  std::string_view model_type;               // config.json
  std::string_view causal_architecture;      // "Qwen2ForCausalLM"
  std::string_view classifier_architecture;  // "Qwen2ForSequenceClassification"
  // Fills what depends on the family (head_dim, biases, qk_norm, attention windows); common keys are read before.
  Result<> (*read)(const ConfigReader& reader, ModelConfig& config);
};

Result<> read_qwen2(const ConfigReader& reader, ModelConfig& config);
Result<> read_qwen3(const ConfigReader& reader, ModelConfig& config);
Result<> read_llama(const ConfigReader& reader, ModelConfig& config);
Result<> read_mistral(const ConfigReader& reader, ModelConfig& config);

std::span<const FamilyInfo> family_table();
const FamilyInfo& family_info(Family family);
const FamilyInfo* find_family(std::string_view model_type);  // null if there is none

// Qwen's pair of keys: `sliding_window` counts only with `use_sliding_window`, and then from `max_window_layers` on.
Result<> refuse_qwen_windows(const ConfigReader& reader, const ModelConfig& config);

}  // namespace mortise
