// The table of families; see families.h.
#include "model/families/families.h"

namespace mortise {
namespace {

constexpr FamilyInfo kFamilies[] = {
    {Family::kQwen2, "qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification", read_qwen2},
    {Family::kQwen3, "qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification", read_qwen3},
    {Family::kLlama, "llama", "LlamaForCausalLM", "LlamaForSequenceClassification", read_llama},
    {Family::kMistral, "mistral", "MistralForCausalLM", "MistralForSequenceClassification", read_mistral},
};

}  // namespace

std::span<const FamilyInfo> family_table() { return kFamilies; }

const FamilyInfo& family_info(Family family) {
  for (const FamilyInfo& info : kFamilies) {
    if (info.family == family) return info;
  }
  return kFamilies[0];  // every Family is in the table
}

const FamilyInfo* find_family(std::string_view model_type) {
  for (const FamilyInfo& info : kFamilies) {
    if (info.model_type == model_type) return &info;
  }
  return nullptr;
}

Result<> refuse_qwen_windows(const ConfigReader& reader, const ModelConfig& config) {
  if (!TRY(reader.flag_or("use_sliding_window", false))) return {};
  if (reader.has("layer_types")) return {};  // read with the common keys: only full attention passes
  if (!reader.has("sliding_window") || TRY(reader.positive_or("max_window_layers", 28)) >= config.num_layers) return {};
  return reader.unsupported("use_sliding_window", "false, or max_window_layers >= num_hidden_layers");
}

}  // namespace mortise
