// The model families: one file each, saying what its config keys mean and which defaults transformers gives it. The
// blocks themselves are the same code for all (layers/decoder.cpp), switched by ModelConfig.
// A new family is one file here, and its name in the table of families.cpp.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "model/weights/config_reader.h"
#include "model/weights/model_config.h"

namespace mortise {

// What transformers takes for keys that are not in the file.
struct FamilyDefaults {
  int64_t max_position_embeddings = 32768;
  double rms_norm_eps = 1e-6;
  int64_t num_kv_heads = 0;       // 0: as many as query heads
  int64_t intermediate_size = 0;  // 0: the key must be there
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  bool has_residual_dropout = false;  // looks at resid_pdrop and embd_pdrop
  std::optional<int64_t> bos_token_id = std::nullopt;
  std::optional<int64_t> eos_token_id = std::nullopt;
  std::optional<int64_t> pad_token_id = std::nullopt;
};

struct FamilyInfo {
  std::string_view model_type;               // config.json
  std::string_view causal_architecture;      // "Qwen2ForCausalLM"
  std::string_view classifier_architecture;  // "Qwen2ForSequenceClassification"
  FamilyDefaults defaults;
  // Fills what depends on the family (head_dim, biases, norms, activation, windows, rope); sizes are read before.
  Result<> (*read)(const ConfigReader& reader, ModelConfig& config);
  // Adds the keys that `read` looks at to a config.json that is written from scratch.
  void (*write)(const ModelConfig& config, Json& json);
  bool reads_mxfp4 = false;  // its files may hold the experts in MXFP4
};

std::span<const FamilyInfo* const> family_table();
const FamilyInfo* find_family(std::string_view model_type);  // null if there is none

// What several families share.

// What transformers takes for absent keys of a mixture of experts.
struct QwenMoeDefaults {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_size = 0;
  bool has_alias = false;  // num_local_experts is another name of num_experts
};

// The key of the gate's activation ("hidden_act", "hidden_activation"): silu or gelu_pytorch_tanh.
Result<> read_activation(const ConfigReader& reader, std::string_view key, Activation fallback, ModelConfig& config);
// Mistral and its mixtures of experts: the sizes of heads, silu, one rotation. Their windows differ.
Result<> read_mistral_block(const ConfigReader& reader, ModelConfig& config);
std::string_view activation_name(Activation activation);
// Layers that `layer_types` calls sliding_attention get `window`; without the key those for which slides(layer) holds.
Result<> read_windows(const ConfigReader& reader, std::optional<int64_t> window,
                      bool (*slides)(int64_t layer, int64_t n), int64_t n, ModelConfig& config);
// One window for every layer, or none.
void set_window(std::optional<int64_t> window, ModelConfig& config);
// Qwen: `sliding_window` counts only with `use_sliding_window`, and then from layer `max_window_layers` on.
Result<> read_qwen_windows(const ConfigReader& reader, ModelConfig& config);
void write_qwen_windows(const ModelConfig& config, Json& json);
// The keys of Qwen's mixtures of experts; sizes are checked. `num_experts` may be 0: every layer is dense.
Result<> read_qwen_experts(const ConfigReader& reader, const QwenMoeDefaults& defaults, ModelConfig& config);
void write_qwen_experts(const ModelConfig& config, Json& json);
// The number of experts has two keys: num_local_experts if the file has it, else num_experts. If both, they must agree.
Result<const char*> key_of_num_experts(const ConfigReader& reader);
// num_experts_per_tok, which must not be above the number of experts, and router_aux_loss_coef.
Result<> read_routing(const ConfigReader& reader, int64_t default_per_token, ModelConfig& config);
// layer_types of a config with windows.
Json layer_types_json(const ModelConfig& config);
// The largest window, or null.
Json window_json(const ModelConfig& config);

}  // namespace mortise
