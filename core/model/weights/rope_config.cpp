// See rope_config.h.
#include "model/weights/rope_config.h"

#include <fmt/core.h>
#include <cmath>

#include "model/families/families.h"

namespace mortise {
namespace {

Result<> read_yarn(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  // 0 counts as absent for both, as in transformers.
  const double beta_fast = TRY(rope.number_or("beta_fast", 32.0));
  const double beta_slow = TRY(rope.number_or("beta_slow", 1.0));
  out.beta_fast = beta_fast == 0.0 ? 32.0 : beta_fast;
  out.beta_slow = beta_slow == 0.0 ? 1.0 : beta_slow;
  out.truncate = TRY(rope.flag_or("truncate", true));
  if (!rope.has("factor")) {
    out.factor = static_cast<double>(config.max_position_embeddings) / out.original_max_position_embeddings;
  }
  const double mscale = TRY(rope.number_or("mscale", 0.0));
  const double mscale_all = TRY(rope.number_or("mscale_all_dim", 0.0));
  const double derived = mscale != 0.0 && mscale_all != 0.0
                             ? yarn_attention_factor(out.factor, mscale) / yarn_attention_factor(out.factor, mscale_all)
                             : yarn_attention_factor(out.factor);
  out.attention_factor = TRY(rope.number_or("attention_factor", derived));
  return {};
}

// The factors of one length, one for each rotated pair.
Result<std::vector<double>> read_pair_factors(const ConfigReader& rope, const char* key, int64_t num_pairs) {
  const std::string must_be = fmt::format("a list of {} numbers above 0, one for each rotated pair", num_pairs);
  const Json* list = rope.find(key);
  if (list == nullptr || !list->is_array() || static_cast<int64_t>(list->size()) != num_pairs) {
    return rope.wrong(key, must_be);
  }
  std::vector<double> out;
  for (const Json& item : *list) {
    if (!item.is_number() || !(item.get<double>() > 0.0)) return rope.wrong(key, must_be);
    out.push_back(item.get<double>());
  }
  return out;
}

// Ding et al. 2024 (LongRoPE). `factor` affects only the scale of attention.
Result<> read_longrope(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  const int64_t num_pairs = out.rotary_dim(config.head_dim) / 2;
  out.short_factor = TRY(read_pair_factors(rope, "short_factor", num_pairs));
  out.long_factor = TRY(read_pair_factors(rope, "long_factor", num_pairs));
  const double original = out.original_max_position_embeddings;
  const double longer =
      rope.has("factor") ? out.factor : static_cast<double>(config.max_position_embeddings) / original;
  out.factor = 1.0;
  const double derived = longer <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(longer) / std::log(original));
  out.attention_factor = TRY(rope.number_or("attention_factor", derived));
  return {};
}

Result<> read_type(const ConfigReader& rope, RopeDialect dialect, RopeConfig& out) {
  const std::string old_key = TRY(rope.text_or("type", "default"));
  const std::string type = TRY(rope.text_or("rope_type", old_key));
  const bool is_phi3 = dialect == RopeDialect::kPhi3;
  if (type == "longrope" || (is_phi3 && (type == "su" || type == "yarn"))) {
    out.type = RopeType::kLongrope;
  } else if (type == "default") {
    out.type = RopeType::kDefault;
  } else if (type == "linear") {
    out.type = RopeType::kLinear;
  } else if (type == "dynamic") {
    out.type = RopeType::kDynamic;
  } else if (type == "llama3") {
    out.type = RopeType::kLlama3;
  } else if (type == "yarn") {
    out.type = RopeType::kYarn;
  } else {
    return rope.unsupported(rope.has("rope_type") ? "rope_type" : "type",
                            "default, linear, dynamic, llama3, yarn, longrope");
  }
  // transformers' Phi-3 refuses the others too.
  if (is_phi3 && out.type != RopeType::kDefault && out.type != RopeType::kLongrope) {
    return rope.unsupported(rope.has("rope_type") ? "rope_type" : "type", "default, longrope");
  }
  return {};
}

// Only Phi-3 has heads rotated in part. Other families of transformers ignore the key, or refuse it.
Result<double> read_partial_factor(const ConfigReader& reader, RopeDialect dialect, double fallback) {
  const double factor = TRY(reader.number_or("partial_rotary_factor", fallback));
  if (factor != 1.0 && dialect != RopeDialect::kPhi3) return reader.unsupported("partial_rotary_factor", "1.0");
  if (factor <= 0.0 || factor > 1.0) return reader.wrong("partial_rotary_factor", "a number above 0, at most 1");
  return factor;
}

// `rope` is one set of parameters; it may hold rope_theta itself.
Result<> read_scaling(const ConfigReader& top, const ConfigReader& rope, const ModelConfig& config, RopeDialect dialect,
                      RopeConfig& out) {
  out.theta = TRY(rope.number_or("rope_theta", out.theta));
  if (out.theta <= 0.0) return rope.wrong("rope_theta", "a number above 0");
  out.partial_rotary_factor = TRY(read_partial_factor(rope, dialect, out.partial_rotary_factor));
  TRY(read_type(rope, dialect, out));
  if (out.type == RopeType::kDefault) return {};
  const bool needs_factor = out.type != RopeType::kYarn && out.type != RopeType::kLongrope;
  if (!rope.has("factor") && needs_factor) return rope.wrong("factor", "a number");
  out.factor = TRY(rope.number_or("factor", 1.0));
  if (out.factor <= 0.0) return rope.wrong("factor", "a number above 0");
  const auto longest = static_cast<double>(config.max_position_embeddings);
  const double inner =
      dialect == RopeDialect::kPhi3 ? 4096.0 : TRY(rope.number_or("original_max_position_embeddings", longest));
  out.original_max_position_embeddings =
      out.type == RopeType::kDynamic ? longest : TRY(top.number_or("original_max_position_embeddings", inner));
  if (out.original_max_position_embeddings <= 0.0) {
    return rope.wrong("original_max_position_embeddings", "a number above 0");
  }
  if (out.type == RopeType::kLlama3) {
    if (!rope.has("low_freq_factor")) return rope.wrong("low_freq_factor", "a number");
    if (!rope.has("high_freq_factor")) return rope.wrong("high_freq_factor", "a number");
    out.low_freq_factor = TRY(rope.number_or("low_freq_factor", 1.0));
    out.high_freq_factor = TRY(rope.number_or("high_freq_factor", 4.0));
  }
  if (out.type == RopeType::kYarn) TRY(read_yarn(rope, config, out));
  if (out.type == RopeType::kLongrope) TRY(read_longrope(rope, config, out));
  return {};
}

Result<double> read_theta(const ConfigReader& top, const char* key, double fallback) {
  const double theta = TRY(top.number_or(key, fallback));
  if (theta <= 0.0) return top.wrong(key, "a number above 0");
  return theta;
}

// The object under `key`; null where it is absent, null or empty.
Result<const Json*> object_or_null(const ConfigReader& reader, const char* key) {
  const Json* value = reader.find(key);
  if (value == nullptr) return value;
  if (!value->is_object()) return reader.wrong(key, "an object");
  return value->empty() ? nullptr : value;
}

ConfigReader inner_reader(const ConfigReader& top, const Json& object, const std::string& name) {
  return ConfigReader(object, top.where(), name + ".");
}

}  // namespace

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Result<> read_rope(const ConfigReader& top, ModelConfig& config, RopeDialect dialect) {
  config.rope.theta = TRY(read_theta(top, "rope_theta", config.family->defaults.rope_theta));
  config.rope.partial_rotary_factor = TRY(read_partial_factor(top, dialect, 1.0));
  // rope_scaling wins if both are there, as in transformers 5.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = TRY(object_or_null(top, key));
    if (value == nullptr) continue;
    for (const auto& [name, member] : value->items()) {
      if (member.is_object()) return top.unsupported(key, "one set of parameters for all layers");
    }
    return read_scaling(top, inner_reader(top, *value, key), config, dialect, config.rope);
  }
  return {};
}

Result<> read_rope_by_layer_type(const ConfigReader& top, double full_theta, double window_theta, ModelConfig& config) {
  RopeConfig& window = config.window_rope.emplace();
  const Json* parameters = TRY(object_or_null(top, "rope_parameters"));
  const Json* scaling = TRY(object_or_null(top, "rope_scaling"));
  config.rope.theta = TRY(read_theta(top, "rope_theta", full_theta));
  window.theta = TRY(read_theta(top, "rope_local_base_freq", window_theta));
  constexpr RopeDialect kCommon = RopeDialect::kCommon;
  TRY(read_partial_factor(top, kCommon, 1.0));
  if (parameters != nullptr) {
    if (scaling != nullptr) return top.unsupported("rope_scaling", "rope_parameters alone");
    for (const auto& [name, member] : parameters->items()) {
      const bool known = name == "full_attention" || name == "sliding_attention";
      if (known && member.is_null()) continue;
      if (!known || !member.is_object()) {
        return top.unsupported("rope_parameters", "an object for full_attention and one for sliding_attention");
      }
      const ConfigReader inner = inner_reader(top, member, "rope_parameters." + name);
      TRY(read_scaling(top, inner, config, kCommon, name == "full_attention" ? config.rope : window));
    }
  }
  if (scaling != nullptr) {
    TRY(read_scaling(top, inner_reader(top, *scaling, "rope_scaling"), config, kCommon, config.rope));
  }
  if (config.rope.type == RopeType::kLongrope || window.type == RopeType::kLongrope) {
    return top.unsupported(parameters != nullptr ? "rope_parameters" : "rope_scaling", "longrope for all layers alike");
  }
  return {};
}

}  // namespace mortise
