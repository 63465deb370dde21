// See lora_config.h.
#include "model/adapters/lora_config.h"

#include <cmath>
#include <regex>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "model/weights/config_reader.h"

namespace mortise {
namespace {

// PEFT's rule: the pattern is a regular expression for the end of the module's name, from a dot on; with ^ for all.
bool matches(const std::string& pattern, const std::string& module) {
  const std::string whole = pattern.starts_with('^') ? pattern.substr(1) : "(.*\\.)?(" + pattern + ")";
  return std::regex_match(module, std::regex(whole));
}

template <class T>
T value_of(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module, T fallback) {
  for (const auto& [pattern, value] : patterns) {
    if (matches(pattern, module)) return value;
  }
  return fallback;
}

// Keys that must be absent, null, false or empty. (fan_in_fan_out is not among them: PEFT takes it as false for the
// linear layers of all these families.)
Result<> refuse_variants(const ConfigReader& reader) {
  for (const char* key : {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "layer_replication", "target_parameters",
                          "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "kasa_config",
                          "velora_config", "monteclora_config", "megatron_config", "use_lily", "tdlora_config"}) {
    const Json* value = reader.find(key);
    if (value == nullptr || *value == false || ((value->is_array() || value->is_object()) && value->empty())) continue;
    return reader.unsupported(key, "plain LoRA (absent, null, false or empty)");
  }
  // These ways to begin change the base weights too, so that the files alone do not say what was trained on.
  if (const Json* init = reader.find("init_lora_weights"); init != nullptr && !init->is_boolean()) {
    if (*init != "gaussian" && *init != "eva" && *init != "orthogonal") {
      return reader.unsupported("init_lora_weights", "true, false, gaussian, eva, orthogonal");
    }
  }
  return {};
}

// Models of these tasks have a head of another form, or are no decoders.
Result<std::string> read_task_type(const ConfigReader& reader) {
  const std::string type = TRY(reader.text_or("task_type", ""));
  if (type == "TOKEN_CLS" || type == "QUESTION_ANS" || type == "SEQ_2_SEQ_LM")
    return reader.unsupported("task_type", "CAUSAL_LM, SEQ_CLS");
  return type;
}

template <class T>
Result<std::vector<std::pair<std::string, T>>> read_pattern(const ConfigReader& reader, const char* key) {
  std::vector<std::pair<std::string, T>> out;
  const Json* object = reader.find(key);
  if (object == nullptr) return out;
  if (!object->is_object()) return reader.wrong(key, "an object");
  for (const auto& [pattern, value] : object->items()) {
    try {
      (void)std::regex(pattern);
    } catch (const std::regex_error&) {
      return reader.wrong(key, "an object whose keys are regular expressions");
    }
    if (!value.is_number() || value.template get<double>() <= 0.0)
      return reader.wrong(key, "an object of numbers above 0");
    out.emplace_back(pattern, value.template get<T>());
  }
  return out;
}

}  // namespace

int64_t LoraConfig::rank_of(const std::string& module) const { return value_of(rank_pattern, module, rank); }

double LoraConfig::scale_of(const std::string& module) const {
  const auto r = static_cast<double>(rank_of(module));
  return value_of(alpha_pattern, module, alpha) / (use_rslora ? std::sqrt(r) : r);
}

bool is_adapter_folder(Env& env, const Path& folder) {
  return env.exists(folder / kAdapterConfigFile) && !env.exists(folder / "config.json");
}

Result<LoraConfig> read_lora_config(Env& env, const Path& folder) {
  const Path path = folder / kAdapterConfigFile;
  LoraConfig config;
  config.text = TRY(env.read_file(path));
  const Json json = TRY(parse_json(config.text, path.string()));
  if (!json.is_object()) return Error{ErrorKind::kData, "the file must hold one JSON object", path.string(), {}};
  const ConfigReader reader(json, path.string());
  if (TRY(reader.text_or("peft_type", "")) != "LORA") return reader.unsupported("peft_type", "LORA");
  TRY(refuse_variants(reader));
  config.task_type = TRY(read_task_type(reader));
  config.base_model = TRY(reader.text_or("base_model_name_or_path", ""));
  if (config.base_model.empty()) return reader.wrong("base_model_name_or_path", "the base model's folder");
  config.rank = TRY(reader.positive("r"));
  if (!reader.has("lora_alpha")) return reader.wrong("lora_alpha", "a number");
  config.alpha = TRY(reader.number_or("lora_alpha", 8.0));
  config.dropout = TRY(reader.number_or("lora_dropout", 0.0));
  config.use_rslora = TRY(reader.flag_or("use_rslora", false));
  config.rank_pattern = TRY(read_pattern<int64_t>(reader, "rank_pattern"));
  config.alpha_pattern = TRY(read_pattern<double>(reader, "alpha_pattern"));
  return config;
}

Result<Path> find_base_folder(Env& env, const Path& adapter_folder, const LoraConfig& config) {
  const Path written = config.base_model;
  for (const Path& folder : {adapter_folder / written, written}) {
    if (env.exists(folder / "config.json")) return folder;
  }
  return Error{ErrorKind::kData,
               "the base model " + quote(config.base_model) + " is no folder with a config.json, neither beside the " +
                   "adapter nor as it is written",
               (adapter_folder / kAdapterConfigFile).string(),
               "download it and write its folder as base_model_name_or_path"};
}

Result<Path> find_model_folder(Env& env, const Path& folder) {
  if (!is_adapter_folder(env, folder)) return folder;
  const LoraConfig config = TRY(read_lora_config(env, folder));
  return find_base_folder(env, folder, config);
}

}  // namespace mortise
