// The table of families and what they share; see families.h.
#include "model/families/families.h"

#include <algorithm>

#include "model/weights/rope_config.h"

namespace mortise {

// One per file in this folder.
extern const FamilyInfo kGemma2Family, kGemma3Family, kGptOssFamily, kLlamaFamily, kMistralFamily, kMixtralFamily,
    kPhi3Family, kQwen2Family, kQwen2MoeFamily, kQwen3Family, kQwen3MoeFamily;

namespace {

constexpr const FamilyInfo* kFamilies[] = {&kQwen2Family,    &kQwen3Family,   &kLlamaFamily, &kMistralFamily,
                                           &kGemma2Family,   &kGemma3Family,  &kPhi3Family,  &kQwen2MoeFamily,
                                           &kQwen3MoeFamily, &kMixtralFamily, &kGptOssFamily};

}  // namespace

std::span<const FamilyInfo* const> family_table() { return kFamilies; }

const FamilyInfo* find_family(std::string_view model_type) {
  for (const FamilyInfo* info : kFamilies) {
    if (info->model_type == model_type) return info;
  }
  return nullptr;
}

Result<> read_mistral_block(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config));
  return {};
}

Result<> read_activation(const ConfigReader& reader, std::string_view key, Activation fallback, ModelConfig& config) {
  const std::string name = TRY(reader.text_or(key, activation_name(fallback)));
  if (name == "silu" || name == "swish") {
    config.activation = Activation::kSilu;
  } else if (name == "gelu_pytorch_tanh") {
    config.activation = Activation::kGeluTanh;
  } else {
    return reader.unsupported(key, "silu, gelu_pytorch_tanh");
  }
  return {};
}

std::string_view activation_name(Activation activation) {
  return activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh";
}

Result<> read_windows(const ConfigReader& reader, std::optional<int64_t> window, bool (*slides)(int64_t, int64_t),
                      int64_t n, ModelConfig& config) {
  std::vector<int64_t> windows(static_cast<size_t>(config.num_layers), 0);
  const Json* types = reader.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != windows.size())) {
    return reader.wrong("layer_types", "a list with one entry for each of the num_hidden_layers");
  }
  for (size_t i = 0; i < windows.size(); ++i) {
    bool sliding = false;
    if (types == nullptr) {
      sliding = slides(static_cast<int64_t>(i), n);
    } else if ((*types)[i] == "sliding_attention") {
      sliding = true;
    } else if ((*types)[i] != "full_attention") {
      return reader.unsupported("layer_types", "full_attention, sliding_attention");
    }
    if (!sliding) continue;
    if (!window) return reader.wrong("sliding_window", "a number, for the layers of sliding_attention");
    windows[i] = *window;
  }
  if (std::ranges::any_of(windows, [](int64_t w) { return w > 0; })) config.windows = std::move(windows);
  return {};
}

void set_window(std::optional<int64_t> window, ModelConfig& config) {
  if (window) config.windows.assign(static_cast<size_t>(config.num_layers), *window);
}

Result<> read_qwen_windows(const ConfigReader& reader, ModelConfig& config) {
  std::optional<int64_t> window;
  if (TRY(reader.flag_or("use_sliding_window", false)) && !reader.is_null("sliding_window")) {
    window = TRY(reader.positive_or("sliding_window", 4096));
  }
  int64_t first = config.num_layers;
  if (window) first = reader.present("max_window_layers") ? TRY(reader.whole("max_window_layers")) : 28;
  return read_windows(
      reader, window, [](int64_t layer, int64_t from) { return layer >= from; }, first, config);
}

void write_qwen_windows(const ModelConfig& config, Json& json) {
  json["use_sliding_window"] = !config.windows.empty();
  if (config.windows.empty()) return;
  json["sliding_window"] = window_json(config);
  const auto first = std::ranges::find_if(config.windows, [](int64_t w) { return w > 0; });
  json["max_window_layers"] = static_cast<int64_t>(first - config.windows.begin());
  json["layer_types"] = layer_types_json(config);
}

Json layer_types_json(const ModelConfig& config) {
  Json types = Json::array();
  for (int64_t i = 0; i < config.num_layers; ++i) {
    types.push_back(config.window(i) > 0 ? "sliding_attention" : "full_attention");
  }
  return types;
}

Json window_json(const ModelConfig& config) {
  if (config.windows.empty()) return nullptr;
  return std::ranges::max(config.windows);
}

}  // namespace mortise
