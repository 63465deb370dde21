// Reading config.json and generation_config.json; see model_config.h. Writing is in model_config_write.cpp.
#include "model/weights/model_config.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>
#include <tuple>

#include "foundation/base/text.h"
#include "model/families/families.h"
#include "model/weights/config_reader.h"

namespace mortise {
namespace {

// Keys for every family whose other values would change the numbers.
Result<> refuse_unsupported(const ConfigReader& reader) {
  if (!TRY(reader.flag_or("is_causal", true))) return reader.unsupported("is_causal", "true");
  return {};
}

constexpr const char* kQuantization = "quantization_config";

// bitsandbytes in four bits, and MXFP4 for the experts of gpt-oss, whose other matrices are plain.
Result<> read_quantization(const ConfigReader& reader, ModelConfig& config) {
  const Json* quantization = reader.find(kQuantization);
  if (quantization == nullptr) return {};
  if (!quantization->is_object()) return reader.wrong(kQuantization, "an object");
  const ConfigReader inner(*quantization, reader.where(), fmt::format("{}.", kQuantization));
  constexpr const char* kSupported =
      "unquantised weights, bitsandbytes with load_in_4bit, and mxfp4 for the experts of gpt-oss";
  const std::string method = TRY(inner.text_or("quant_method", "bitsandbytes"));
  if (method == "mxfp4" && config.family->reads_mxfp4) {
    config.four_bit = true;
    return {};
  }
  if (method != "bitsandbytes") return inner.unsupported("quant_method", kSupported);
  if (!TRY(inner.flag_or("load_in_4bit", false))) return inner.unsupported("load_in_4bit", kSupported);
  config.four_bit = true;
  return {};
}

// What a save of the plain numbers says of the model.
Result<std::string> text_without_quantization(const ModelConfig& config, const std::string& text, Json json) {
  if (!config.four_bit) return text;
  json.erase(kQuantization);
  return dump_json(json, 2) + "\n";
}

// num_key_value_heads: null is as many as query heads; absent is the family's default.
Result<int64_t> read_kv_heads(const ConfigReader& reader, const FamilyDefaults& defaults, int64_t num_heads) {
  if (reader.has("num_key_value_heads")) return reader.positive("num_key_value_heads");
  if (reader.is_null("num_key_value_heads") || defaults.num_kv_heads == 0) return num_heads;
  return defaults.num_kv_heads;
}

Result<const FamilyInfo*> read_family(const ConfigReader& reader, ModelConfig& config) {
  const std::string type = TRY(reader.text_or("model_type", ""));
  const FamilyInfo* info = find_family(type);
  if (info == nullptr) {
    std::vector<std::string> known;
    for (const FamilyInfo* family : family_table()) known.emplace_back(family->model_type);
    if (type.empty()) return reader.wrong("model_type", "one of " + join(known, ", "));
    return Error{ErrorKind::kData, fmt::format("key 'model_type' = {} is not supported", quote(type)), reader.where(),
                 "supported: " + join(known, ", ")};
  }
  config.family = info;
  const Json* architectures = reader.find("architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->empty()) return info;
  const Json& name = architectures->front();
  if (name == info->classifier_architecture) {
    config.is_classifier = true;
  } else if (name != info->causal_architecture) {
    return reader.unsupported("architectures",
                              fmt::format("{}, {}", info->causal_architecture, info->classifier_architecture));
  }
  return info;
}

Result<> read_labels(const ConfigReader& reader, ModelConfig& config) {
  const Json* labels = reader.find("id2label");
  config.num_labels = TRY(reader.positive_or("num_labels", labels != nullptr && labels->is_object() && !labels->empty()
                                                               ? static_cast<int64_t>(labels->size())
                                                               : 2));
  return {};
}

// Sizes beyond those of any model. Their products would not fit in 64 bits.
Result<> check_sizes(const ConfigReader& reader, const ModelConfig& config) {
  constexpr int64_t kMaxSize = int64_t{1} << 20;
  const std::tuple<const char*, int64_t, int64_t> sizes[] = {
      {"vocab_size", config.vocab_size, int64_t{1} << 30},
      {"num_hidden_layers", config.num_layers, 10000},
      {"hidden_size", config.hidden_size, kMaxSize},
      {"intermediate_size", config.intermediate_size, kMaxSize},
      {"num_attention_heads", config.num_heads, kMaxSize},
      {"head_dim", config.num_heads <= kMaxSize ? config.head_dim * config.num_heads : 0, kMaxSize}};
  for (const auto& [key, size, most] : sizes) {
    if (size > most) return reader.wrong(key, "of a size that a model can have");
  }
  return {};
}

Result<> read_dropout(const ConfigReader& reader, const FamilyDefaults& defaults, ModelConfig& config) {
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    if (key != std::string_view("attention_dropout") && !defaults.has_residual_dropout) continue;
    if (TRY(reader.number_or(key, 0.0)) == 0.0) continue;
    if (!config.dropout.empty()) config.dropout += ", ";
    config.dropout += fmt::format("{} = {}", quote(key), dump_json(*reader.find(key)));
  }
  return {};
}

Result<> check_shape(const ConfigReader& reader, const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return reader.wrong("num_key_value_heads", "a divisor of num_attention_heads");
  }
  if (config.head_dim <= 0 || config.head_dim % 2 != 0) {
    return Error{ErrorKind::kData, fmt::format("the size of a head is {}, must be even and above 0", config.head_dim),
                 reader.where(), "check head_dim, hidden_size and num_attention_heads"};
  }
  if (config.rms_norm_eps < 0.0) return reader.wrong("rms_norm_eps", "at least 0");
  const int64_t rotated = config.rope.rotary_dim(config.head_dim);
  if (rotated <= 0 || rotated % 2 != 0) {
    return Error{
        ErrorKind::kData,
        fmt::format(
            "key 'partial_rotary_factor' rotates {} of the {} dimensions of a head, must be an even number above 0",
            rotated, config.head_dim),
        reader.where(), "check partial_rotary_factor and head_dim"};
  }
  if (config.rope.type == RopeType::kDynamic && rotated <= 2) {
    return Error{ErrorKind::kData, "dynamic rope needs heads of more than 2", reader.where(), "check head_dim"};
  }
  return {};
}

Result<> read_sizes(const ConfigReader& reader, const FamilyDefaults& defaults, ModelConfig& config) {
  config.vocab_size = TRY(reader.positive("vocab_size"));
  config.hidden_size = TRY(reader.positive("hidden_size"));
  config.intermediate_size = reader.has("intermediate_size") || defaults.intermediate_size == 0
                                 ? TRY(reader.positive("intermediate_size"))
                                 : defaults.intermediate_size;
  config.num_layers = TRY(reader.positive("num_hidden_layers"));
  config.num_heads = TRY(reader.positive("num_attention_heads"));
  config.num_kv_heads = TRY(read_kv_heads(reader, defaults, config.num_heads));
  config.max_position_embeddings = TRY(reader.positive_or("max_position_embeddings", defaults.max_position_embeddings));
  config.rms_norm_eps = TRY(reader.number_or("rms_norm_eps", defaults.rms_norm_eps));
  config.initializer_range = TRY(reader.number_or("initializer_range", 0.02));
  config.tie_word_embeddings = TRY(reader.flag_or("tie_word_embeddings", defaults.tie_word_embeddings));
  return {};
}

Result<> read_token_ids(const ConfigReader& reader, const FamilyDefaults& defaults, ModelConfig& config) {
  config.bos_token_id = reader.present("bos_token_id") ? TRY(reader.token_id("bos_token_id")) : defaults.bos_token_id;
  config.pad_token_id = reader.present("pad_token_id") ? TRY(reader.token_id("pad_token_id")) : defaults.pad_token_id;
  config.eos_token_ids = TRY(reader.token_ids("eos_token_id"));
  if (!reader.present("eos_token_id") && defaults.eos_token_id) config.eos_token_ids.push_back(*defaults.eos_token_id);
  return {};
}

}  // namespace

int64_t RopeConfig::rotary_dim(int64_t head_dim) const {
  return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
}

int64_t ModelConfig::max_length() const {
  constexpr double kMost = 1e12;  // beyond any sequence, and a whole number
  double stretched = 0.0;
  if (rope.type == RopeType::kLinear) stretched = rope.factor * static_cast<double>(max_position_embeddings);
  if (rope.type == RopeType::kYarn || rope.type == RopeType::kLlama3)
    stretched = rope.factor * rope.original_max_position_embeddings;
  return std::max(max_position_embeddings, static_cast<int64_t>(std::min(stretched, kMost)));
}

double ModelConfig::score_scale() const {
  return attention_scale > 0.0 ? attention_scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

int64_t ModelConfig::num_expert_layers() const {
  return moe.num_experts == 0 ? 0 : std::ranges::count(moe.is_dense, false);
}

int64_t ModelConfig::num_parameters() const {
  int64_t layer = 2 * hidden_size + qkv_size() * hidden_size + hidden_size * q_size();
  if (qkv_bias) layer += qkv_size();
  if (o_bias) layer += hidden_size;
  int64_t dense = 3 * hidden_size * intermediate_size;
  if (mlp_bias) dense += 2 * intermediate_size + hidden_size;
  // The router, the experts, and the shared one with its gate.
  int64_t mixture = hidden_size * moe.num_experts * (1 + 3 * moe.expert_size);
  if (moe.shared_size > 0) mixture += hidden_size * (1 + 3 * moe.shared_size);
  if (moe.is_gpt_oss) mixture += moe.num_experts * (1 + 2 * moe.expert_size + hidden_size);  // biases
  if (attention_sinks) layer += num_heads;
  if (qk_norm) layer += 2 * head_dim;
  if (sandwich_norm) layer += 2 * hidden_size;
  int64_t head = tie_word_embeddings ? 0 : vocab_size * hidden_size;
  if (is_classifier) head = num_labels * hidden_size;
  const int64_t mlps = (num_layers - num_expert_layers()) * dense + num_expert_layers() * mixture;
  return num_layers * layer + mlps + hidden_size + vocab_size * hidden_size + head;
}

Result<ModelConfig> parse_model_config(const std::string& config_text, const std::string& generation_text,
                                       const std::string& where) {
  const Json json = TRY(parse_json(config_text, where));
  if (!json.is_object())
    return Error{ErrorKind::kData, "the file must hold one JSON object", where,
                 "download the folder again, or correct the file"};
  const ConfigReader reader(json, where);
  ModelConfig config;
  const FamilyInfo* info = TRY(read_family(reader, config));
  TRY(read_sizes(reader, info->defaults, config));
  if (config.is_classifier) TRY(read_labels(reader, config));
  TRY(refuse_unsupported(reader));
  TRY(read_quantization(reader, config));
  TRY(read_dropout(reader, info->defaults, config));
  TRY(check_sizes(reader, config));
  TRY(info->read(reader, config));
  TRY(check_sizes(reader, config));  // what the family adds: head_dim
  TRY(check_shape(reader, config));
  TRY(read_token_ids(reader, info->defaults, config));
  config.config_text = TRY(text_without_quantization(config, config_text, json));
  config.generation_config_text = generation_text;
  if (!generation_text.empty()) {
    const std::string generation_path = (Path(where).parent_path() / "generation_config.json").string();
    const Json generation = TRY(parse_json(generation_text, generation_path));
    const std::vector<int64_t> ids = TRY(ConfigReader(generation, generation_path).token_ids("eos_token_id"));
    if (!ids.empty()) config.eos_token_ids = ids;
  }
  return config;
}

Result<> check_trainable(const ModelConfig& config, const Path& folder) {
  if (config.dropout.empty()) return {};
  return Error{ErrorKind::kData,
               fmt::format("key {} asks for dropout in training, which is done without", config.dropout),
               (folder / "config.json").string(),
               "set it to 0.0 there: sampling, log-probs and scores stay the same, and every update is exact"};
}

namespace {

// The model inside a checkpoint or a run's folder, or the folder with the nearest name; empty if there is none.
std::string nearest_model_folder(Env& env, const Path& folder) {
  const auto is_model = [&env](const Path& path) {
    return env.exists(path / "config.json") || env.exists(path / "adapter_config.json");
  };
  constexpr const char* kInCheckpoint = "huggingface";
  if (is_model(folder / kInCheckpoint))
    return fmt::format("did you mean {}?", quote((folder / kInCheckpoint).string()));
  if (const auto latest = env.read_file(folder / "latest"); latest.ok()) {
    const Path model = folder / std::string(trim(*latest)) / kInCheckpoint;
    if (is_model(model)) return fmt::format("did you mean {}?", quote(model.string()));
  }
  const Path whole = folder.has_filename() ? folder : folder.parent_path();  // "models/a/"
  const Path parent = whole.parent_path();
  const auto siblings = env.list_dir(parent.empty() ? Path(".") : parent);
  if (env.exists(folder) || !siblings.ok()) return "";
  std::vector<std::string> models;
  for (const std::string& name : *siblings) {
    if (is_model(parent / name)) models.push_back((parent / name).string());
  }
  return did_you_mean(whole.string(), models);
}

}  // namespace

Error no_model_folder(Env& env, const Path& folder) {
  std::string next = nearest_model_folder(env, folder);
  if (next.empty()) next = "give a Hugging Face model folder";
  return {ErrorKind::kData, "there is no model folder (no config.json)", folder.string(), std::move(next)};
}

Result<ModelConfig> read_model_config(Env& env, const Path& folder) {
  const Path path = folder / "config.json";
  if (!env.exists(path)) return no_model_folder(env, folder);
  const std::string config = TRY(env.read_file(path));
  std::string generation;
  const Path generation_path = folder / "generation_config.json";
  if (env.exists(generation_path)) generation = TRY(env.read_file(generation_path));
  return parse_model_config(config, generation, path.string());
}

}  // namespace mortise
