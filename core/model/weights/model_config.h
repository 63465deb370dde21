// ModelConfig: what config.json and generation_config.json of a Hugging Face folder say, checked.
//
// Reads the form that transformers 4 wrote (rope_theta, rope_scaling, torch_dtype) and that of 5 (rope_parameters,
// dtype, layer_types). A field that would change numbers and is not supported is an error that names file and key; a
// key that transformers itself would not look at for this architecture has no effect here either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongrope };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;             // share of a head's dimensions that is rotated, from its first on
  double factor = 1.0;                            // all but default and longrope
  double low_freq_factor = 1.0;                   // llama3
  double high_freq_factor = 4.0;                  // llama3
  double original_max_position_embeddings = 0.0;  // llama3, yarn, longrope; dynamic: max_position_embeddings
  double beta_fast = 32.0;                        // yarn
  double beta_slow = 1.0;                         // yarn
  double attention_factor = 1.0;                  // yarn, longrope: cos and sin are multiplied by it
  bool truncate = true;                           // yarn: correction range rounded to whole dimensions
  std::vector<double> short_factor;               // longrope, by pair: up to original_max_position_embeddings tokens
  std::vector<double> long_factor;                // longrope, by pair: of longer sequences, for all their tokens
  [[nodiscard]] int64_t rotary_dim(int64_t head_dim) const;
  bool operator==(const RopeConfig&) const = default;
};

struct FamilyInfo;  // families/families.h

enum class Activation { kSilu, kGeluTanh };  // activation of the gate in the MLP

// Layers whose MLP is a mixture of experts: a router sends each token to some of them (layers/router.h).
struct MoeConfig {
  int64_t num_experts = 0;        // 0: every layer is dense
  int64_t experts_per_token = 0;  // 1 to num_experts
  int64_t expert_size = 0;        // intermediate size of one expert
  int64_t shared_size = 0;        // size of the expert that every token passes, behind a gate of its own; 0: none
  bool normalizes = false;        // the weights of a token's experts are divided by their sum
  bool mixtral_names = false;     // block_sparse_moe.experts.N.w1, w3, w2 in the files
  // All that gpt-oss does in its own way: one tensor for all experts of a layer, [E, in, out], with units as pairs (gate,
  // up), and biases for experts and router, which chooses by its logits. Units are clamped (layers/clamped_gate.h).
  bool is_gpt_oss = false;
  double swiglu_alpha = 1.702;
  double swiglu_limit = 7.0;
  double aux_loss_coef = 0.001;  // router_aux_loss_coef
  std::vector<bool> is_dense;    // by layer
};

struct ModelConfig {
  const FamilyInfo* family = nullptr;  // never null in a config that was read or made
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 32768;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // by family, or attention_bias
  bool o_bias = false;
  bool mlp_bias = false;
  bool attention_sinks = false;    // a trained score for each head, which takes probability and has no value
  bool qk_norm = false;            // RMSNorm over each head of q and k
  bool norm_plus_one = false;      // norms multiply with 1 + weight
  bool sandwich_norm = false;      // a norm behind attention and MLP too, before the residual sum
  bool fused_projections = false;  // files hold qkv_proj and gate_up_proj, not their parts
  Activation activation = Activation::kSilu;
  double embedding_scale = 1.0;
  double attention_scale = 0.0;    // scores are multiplied by it; 0 means 1 / sqrt(head_dim)
  double attention_softcap = 0.0;  // scores become cap tanh(score / cap); 0: they do not
  double final_softcap = 0.0;      // the same for the logits of the vocabulary head
  bool is_classifier = false;      // ...ForSequenceClassification: `score.weight` instead of a vocabulary head
  int64_t num_labels = 0;          // labels of a classifier
  RopeConfig rope;
  // By layer: a token sees that many tokens, itself being one of them; 0: all before it. Empty: 0 in every layer.
  std::vector<int64_t> windows;
  std::optional<RopeConfig> window_rope;  // for layers with a window, where it is not `rope`
  MoeConfig moe;
  // Not in the files: the longest sequence that will be computed. It chooses among rotations that depend on a
  // sequence's length (dynamic, longrope) once for all sequences, so that sampling and training agree. 0: by the
  // longest of the batch.
  int64_t rope_length = 0;

  std::vector<int64_t> eos_token_ids;  // generation_config.json before config.json; may be empty
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;

  // The weight files hold matrices in four bits, in bitsandbytes' form or in MXFP4. A save writes plain numbers:
  // `config_text` does not have the key any more.
  bool four_bit = false;

  // Keys of dropout that are not 0, as "'attention_dropout' = 0.1": nothing to inference, and refused for training.
  std::string dropout;

  // The files as read, so that a save gives the same bytes where nothing changed. Empty for a model made here.
  std::string config_text;
  std::string generation_config_text;

  [[nodiscard]] int64_t q_size() const { return num_heads * head_dim; }
  [[nodiscard]] int64_t kv_size() const { return num_kv_heads * head_dim; }
  [[nodiscard]] int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  [[nodiscard]] int64_t window(int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  [[nodiscard]] bool has_experts(int64_t layer) const {
    return moe.num_experts > 0 && !moe.is_dense[static_cast<size_t>(layer)];
  }
  [[nodiscard]] int64_t num_expert_layers() const;
  [[nodiscard]] bool uses_window_rope(int64_t layer) const { return window_rope && window(layer) > 0; }
  // Tokens beyond which another rotation holds for the whole sequence (longrope); 0: there is one.
  [[nodiscard]] int64_t rope_switch() const {
    return rope.type == RopeType::kLongrope ? static_cast<int64_t>(rope.original_max_position_embeddings) : 0;
  }
  // Most tokens of a sequence: max_position_embeddings. If the file still has the trained length there, it is the
  // length to which a rotation that slows down for all lengths (linear, yarn, llama3) stretches it.
  [[nodiscard]] int64_t max_length() const;
  [[nodiscard]] double score_scale() const;
  [[nodiscard]] int64_t num_parameters() const;  // tied embeddings counted once
};

// For a path that is no model folder: what it is, and the model folder that was probably meant (the huggingface/ of a
// checkpoint, the latest one of a run's folder, or the nearest name).
Error no_model_folder(Env& env, const Path& folder);
// From a folder's config.json and, where present, generation_config.json.
Result<ModelConfig> read_model_config(Env& env, const Path& folder);
// The same on texts; `where` names config.json in errors. An empty generation text means there is no such file.
Result<ModelConfig> parse_model_config(const std::string& config_text, const std::string& generation_text,
                                       const std::string& where);

// The written text. It is the text as read with only the dtype key changed if `stored_dtype` ("float32", "bfloat16",
// "float16", "float64") differs from it, or a new classic file that transformers 4 and 5 read alike.
Result<std::string> model_config_text(const ModelConfig& config, const std::string& stored_dtype);
std::string generation_config_text(const ModelConfig& config);

// The same decoder with a head of so many labels, in the written file too.
Result<ModelConfig> as_classifier(ModelConfig config, int64_t num_labels);
// An Error (kData) where training would not be what `config`, of the config.json in `folder`, asks for: dropout.
Result<> check_trainable(const ModelConfig& config, const Path& folder);

struct Qwen2Shape {
  int64_t vocab_size = 512;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 256;
  int64_t num_layers = 2;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 32768;
  double rope_theta = 1e6;
  double initializer_range = 0.02;
};
// A Qwen2 config from scratch (head_dim = hidden / heads); refuses shapes that do not divide.
Result<ModelConfig> make_qwen2_config(const Qwen2Shape& shape);

}  // namespace mortise
