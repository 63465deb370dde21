// Writing config.json and generation_config.json; see model_config.h.
#include "foundation/formats/json.h"
#include "model/families/families.h"
#include "model/weights/model_config.h"

namespace mortise {
namespace {

Json token_ids_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

Json optional_json(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(nullptr); }

Json rope_json(const RopeConfig& rope) {
  Json out;
  switch (rope.type) {
    case RopeType::kDefault:
      return nullptr;
    case RopeType::kLinear:
      out["rope_type"] = "linear";
      break;
    case RopeType::kDynamic:
      out["rope_type"] = "dynamic";
      break;
    case RopeType::kLlama3:
      out["rope_type"] = "llama3";
      out["low_freq_factor"] = rope.low_freq_factor;
      out["high_freq_factor"] = rope.high_freq_factor;
      break;
    case RopeType::kYarn:
      out["rope_type"] = "yarn";
      out["beta_fast"] = rope.beta_fast;
      out["beta_slow"] = rope.beta_slow;
      out["attention_factor"] = rope.attention_factor;
      out["truncate"] = rope.truncate;
      break;
    case RopeType::kLongrope:
      out["rope_type"] = "longrope";
      out["short_factor"] = rope.short_factor;
      out["long_factor"] = rope.long_factor;
      out["attention_factor"] = rope.attention_factor;
      break;
  }
  if (rope.type != RopeType::kLongrope) out["factor"] = rope.factor;
  if (rope.type == RopeType::kLlama3 || rope.type == RopeType::kYarn || rope.type == RopeType::kLongrope) {
    out["original_max_position_embeddings"] = static_cast<int64_t>(rope.original_max_position_embeddings);
  }
  return out;
}

void write_labels(int64_t num_labels, Json& json) {
  Json names = Json::object();
  Json ids = Json::object();
  for (int64_t i = 0; i < num_labels; ++i) {
    names[std::to_string(i)] = "LABEL_" + std::to_string(i);
    ids["LABEL_" + std::to_string(i)] = i;
  }
  json["id2label"] = std::move(names);
  json["label2id"] = std::move(ids);
}

Json fresh_config(const ModelConfig& config, const std::string& stored_dtype) {
  const FamilyInfo& info = *config.family;
  Json json;
  json["architectures"] = Json::array({config.is_classifier ? info.classifier_architecture : info.causal_architecture});
  json["model_type"] = info.model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = rope_json(config.rope);
  json["attention_dropout"] = 0.0;
  info.write(config, json);
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  if (config.is_classifier) write_labels(config.num_labels, json);
  json["bos_token_id"] = optional_json(config.bos_token_id);
  json["eos_token_id"] = token_ids_json(config.eos_token_ids);
  json["pad_token_id"] = optional_json(config.pad_token_id);
  json["torch_dtype"] = stored_dtype;
  json["use_cache"] = true;
  return json;
}

}  // namespace

Result<std::string> model_config_text(const ModelConfig& config, const std::string& stored_dtype) {
  if (config.config_text.empty()) return dump_json(fresh_config(config, stored_dtype), 2) + "\n";
  Json json = TRY(parse_json(config.config_text, "config.json"));
  bool changed = false;
  bool named = false;
  for (const char* key : {"torch_dtype", "dtype"}) {
    const Json* value = json_find(json, key);
    if (value == nullptr) continue;
    named = true;
    if (*value == stored_dtype) continue;
    json[key] = stored_dtype;
    changed = true;
  }
  if (!named && stored_dtype != "float32") {  // float32 is what transformers takes an absent key for
    json["torch_dtype"] = stored_dtype;
    changed = true;
  }
  return changed ? dump_json(json, 2) + "\n" : config.config_text;
}

std::string generation_config_text(const ModelConfig& config) {
  if (!config.generation_config_text.empty()) return config.generation_config_text;
  Json json;
  json["bos_token_id"] = optional_json(config.bos_token_id);
  json["eos_token_id"] = token_ids_json(config.eos_token_ids);
  json["pad_token_id"] = optional_json(config.pad_token_id);
  return dump_json(json, 2) + "\n";
}

Result<ModelConfig> as_classifier(ModelConfig config, int64_t num_labels) {
  config.is_classifier = true;
  config.num_labels = num_labels;
  if (config.config_text.empty()) return config;
  Json json = TRY(parse_json(config.config_text, "config.json"));
  json["architectures"] = Json::array({config.family->classifier_architecture});
  json.erase("num_labels");
  write_labels(num_labels, json);
  config.config_text = dump_json(json, 2) + "\n";
  return config;
}

Result<ModelConfig> make_qwen2_config(const Qwen2Shape& shape) {
  ModelConfig config;
  config.family = find_family("qwen2");
  config.vocab_size = shape.vocab_size;
  config.hidden_size = shape.hidden_size;
  config.intermediate_size = shape.intermediate_size;
  config.num_layers = shape.num_layers;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.max_position_embeddings = shape.max_position_embeddings;
  config.initializer_range = shape.initializer_range;
  config.tie_word_embeddings = shape.tie_word_embeddings;
  config.rope.theta = shape.rope_theta;
  config.qkv_bias = true;
  const bool positive = shape.vocab_size > 0 && shape.hidden_size > 0 && shape.intermediate_size > 0 &&
                        shape.num_layers > 0 && shape.num_heads > 0 && shape.num_kv_heads > 0;
  if (!positive || shape.hidden_size % shape.num_heads != 0 || shape.num_heads % shape.num_kv_heads != 0 ||
      shape.hidden_size / shape.num_heads % 2 != 0) {
    return Error{ErrorKind::kConfig,
                 "this shape is no Qwen2 model",
                 {},
                 "sizes must be above 0, hidden_size / num_heads whole and even, num_heads a multiple of num_kv_heads"};
  }
  config.head_dim = shape.hidden_size / shape.num_heads;
  return config;
}

}  // namespace mortise
