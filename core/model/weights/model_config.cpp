// Reading config.json and generation_config.json; see model_config.h. Writing is in model_config_write.cpp.
#include "model/weights/model_config.h"

#include <cmath>

#include "foundation/base/text.h"
#include "model/families/families.h"
#include "model/weights/config_reader.h"

namespace mortise {
namespace {

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Result<> read_yarn(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  out.beta_fast = TRY(rope.number_or("beta_fast", 32.0));
  out.beta_slow = TRY(rope.number_or("beta_slow", 1.0));
  out.truncate = TRY(rope.flag_or("truncate", true));
  if (!rope.has("factor")) {
    out.factor = static_cast<double>(config.max_position_embeddings) / out.original_max_position_embeddings;
  }
  const double mscale = TRY(rope.number_or("mscale", 0.0));
  const double mscale_all = TRY(rope.number_or("mscale_all_dim", 0.0));
  const double derived = mscale != 0.0 && mscale_all != 0.0
                             ? yarn_attention_factor(out.factor, mscale) / yarn_attention_factor(out.factor, mscale_all)
                             : yarn_attention_factor(out.factor, 1.0);
  out.attention_factor = TRY(rope.number_or("attention_factor", derived));
  return {};
}

// `rope` is rope_parameters (transformers 5) or rope_scaling (4); it may hold rope_theta itself.
Result<> read_scaling(const ConfigReader& top, const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  const std::string old_key = TRY(rope.text_or("type", "default"));
  const std::string type = TRY(rope.text_or("rope_type", old_key));
  out.theta = TRY(rope.number_or("rope_theta", out.theta));
  if (TRY(rope.number_or("partial_rotary_factor", 1.0)) != 1.0) return rope.unsupported("partial_rotary_factor", "1.0");
  if (type == "default") return {};
  if (type == "linear") {
    out.type = RopeType::kLinear;
  } else if (type == "llama3") {
    out.type = RopeType::kLlama3;
  } else if (type == "yarn") {
    out.type = RopeType::kYarn;
  } else {
    return rope.unsupported(rope.has("rope_type") ? "rope_type" : "type", "default, linear, llama3, yarn");
  }
  if (!rope.has("factor") && out.type != RopeType::kYarn) return rope.wrong("factor", "a number");
  out.factor = TRY(rope.number_or("factor", 1.0));
  const double longest = static_cast<double>(config.max_position_embeddings);
  const double inner = TRY(rope.number_or("original_max_position_embeddings", longest));
  out.original_max_position_embeddings = TRY(top.number_or("original_max_position_embeddings", inner));
  if (out.type == RopeType::kLlama3) {
    if (!rope.has("low_freq_factor")) return rope.wrong("low_freq_factor", "a number");
    if (!rope.has("high_freq_factor")) return rope.wrong("high_freq_factor", "a number");
    out.low_freq_factor = TRY(rope.number_or("low_freq_factor", 1.0));
    out.high_freq_factor = TRY(rope.number_or("high_freq_factor", 4.0));
  }
  if (out.type == RopeType::kYarn) TRY(read_yarn(rope, config, out));
  return {};
}

Result<> read_rope(const Json& json, const ConfigReader& top, ModelConfig& config) {
  RopeConfig& out = config.rope;
  out.theta = TRY(top.number_or("rope_theta", 10000.0));
  if (TRY(top.number_or("partial_rotary_factor", 1.0)) != 1.0) return top.unsupported("partial_rotary_factor", "1.0");
  // rope_scaling goes first, as in transformers 5, where both are there.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = top.find(key);
    if (value == nullptr || (value->is_object() && value->empty())) continue;
    if (!value->is_object()) return top.wrong(key, "an object");
    for (const auto& [name, member] : value->items()) {
      if (member.is_object()) return top.unsupported(key, "one set of parameters for all layers");
    }
    TRY(read_scaling(top, ConfigReader(*json_find(json, key), top.where(), std::string(key) + "."), config, out));
    break;
  }
  if (out.theta <= 0.0) return top.wrong("rope_theta", "a number above 0");
  if (out.factor <= 0.0) return top.wrong("rope_scaling.factor", "a number above 0");
  return {};
}

// Keys whose other values would change the numbers.
Result<> refuse_unsupported(const ConfigReader& reader) {
  const std::string activation = TRY(reader.text_or("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") return reader.unsupported("hidden_act", "silu");
  if (TRY(reader.number_or("attention_dropout", 0.0)) != 0.0) return reader.unsupported("attention_dropout", "0.0");
  if (!TRY(reader.flag_or("is_causal", true))) return reader.unsupported("is_causal", "true");
  if (reader.has("quantization_config")) return reader.unsupported("quantization_config", "unquantised weights");
  if (const Json* types = reader.find("layer_types"); types != nullptr) {
    if (!types->is_array()) return reader.wrong("layer_types", "a list");
    for (const Json& type : *types) {
      if (type != "full_attention") return reader.unsupported("layer_types", "full_attention in every layer");
    }
  }
  return {};
}

Result<const FamilyInfo*> read_family(const ConfigReader& reader, ModelConfig& config) {
  const std::string type = TRY(reader.text_or("model_type", ""));
  const FamilyInfo* info = find_family(type);
  if (info == nullptr) {
    std::vector<std::string> known;
    for (const FamilyInfo& family : family_table()) known.emplace_back(family.model_type);
    return Error{ErrorKind::kData, "key 'model_type' = " + quote(type) + " is not supported", reader.where(),
                 "supported: " + join(known, ", ")};
  }
  config.family = info->family;
  const Json* architectures = reader.find("architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->empty()) return info;
  const Json& name = architectures->front();
  if (name == info->classifier_architecture) {
    config.is_classifier = true;
  } else if (name != info->causal_architecture) {
    return reader.unsupported(
        "architectures", std::string(info->causal_architecture) + ", " + std::string(info->classifier_architecture));
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

Result<> check_shape(const ConfigReader& reader, const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return reader.wrong("num_key_value_heads", "a divisor of num_attention_heads");
  }
  if (config.head_dim <= 0 || config.head_dim % 2 != 0) {
    return Error{ErrorKind::kData,
                 "the size of a head is " + std::to_string(config.head_dim) + ", must be even and above 0",
                 reader.where(), "check head_dim, hidden_size and num_attention_heads"};
  }
  if (config.rms_norm_eps < 0.0) return reader.wrong("rms_norm_eps", "at least 0");
  return {};
}

}  // namespace

int64_t ModelConfig::num_parameters() const {
  int64_t layer =
      2 * hidden_size + qkv_size() * hidden_size + hidden_size * q_size() + 3 * hidden_size * intermediate_size;
  if (qkv_bias) layer += qkv_size();
  if (o_bias) layer += hidden_size;
  if (mlp_bias) layer += 2 * intermediate_size + hidden_size;
  if (qk_norm) layer += 2 * head_dim;
  int64_t head = tie_word_embeddings ? 0 : vocab_size * hidden_size;
  if (is_classifier) head = num_labels * hidden_size;
  return num_layers * layer + hidden_size + vocab_size * hidden_size + head;
}

Result<ModelConfig> parse_model_config(const std::string& config_text, const std::string& generation_text,
                                       const std::string& where) {
  const Json json = TRY(parse_json(config_text, where));
  if (!json.is_object()) return Error{ErrorKind::kData, "the file must hold one JSON object", where, {}};
  const ConfigReader reader(json, where);
  ModelConfig config;
  const FamilyInfo* info = TRY(read_family(reader, config));
  config.vocab_size = TRY(reader.positive("vocab_size"));
  config.hidden_size = TRY(reader.positive("hidden_size"));
  config.intermediate_size = TRY(reader.positive("intermediate_size"));
  config.num_layers = TRY(reader.positive("num_hidden_layers"));
  config.num_heads = TRY(reader.positive("num_attention_heads"));
  config.num_kv_heads = TRY(reader.positive_or("num_key_value_heads", config.num_heads));
  config.max_position_embeddings = TRY(reader.positive_or("max_position_embeddings", 32768));
  config.rms_norm_eps = TRY(reader.number_or("rms_norm_eps", 1e-6));
  config.initializer_range = TRY(reader.number_or("initializer_range", 0.02));
  config.tie_word_embeddings = TRY(reader.flag_or("tie_word_embeddings", false));
  if (config.is_classifier) TRY(read_labels(reader, config));
  TRY(refuse_unsupported(reader));
  TRY(read_rope(json, reader, config));
  TRY(info->read(reader, config));
  TRY(check_shape(reader, config));
  config.bos_token_id = TRY(reader.token_id("bos_token_id"));
  config.pad_token_id = TRY(reader.token_id("pad_token_id"));
  config.eos_token_ids = TRY(reader.token_ids("eos_token_id"));
  config.config_text = config_text;
  config.generation_config_text = generation_text;
  if (!generation_text.empty()) {
    const std::string beside = (Path(where).parent_path() / "generation_config.json").string();
    const Json generation = TRY(parse_json(generation_text, beside));
    const std::vector<int64_t> ids = TRY(ConfigReader(generation, beside).token_ids("eos_token_id"));
    if (!ids.empty()) config.eos_token_ids = ids;
  }
  return config;
}

Result<ModelConfig> read_model_config(Env& env, const Path& folder) {
  const Path path = folder / "config.json";
  if (!env.exists(path)) {
    return Error{ErrorKind::kData, "no config.json in this folder", folder.string(),
                 "give a Hugging Face model folder"};
  }
  const std::string config = TRY(env.read_file(path));
  std::string generation;
  const Path generation_path = folder / "generation_config.json";
  if (env.exists(generation_path)) generation = TRY(env.read_file(generation_path));
  return parse_model_config(config, generation, path.string());
}

}  // namespace mortise
