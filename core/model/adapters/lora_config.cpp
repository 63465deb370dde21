// See lora_config.h.
#include "model/adapters/lora_config.h"

#include <fmt/core.h>
#include <cmath>
#include <utility>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "model/adapters/expert_names.h"
#include "model/weights/config_reader.h"

namespace mortise {
namespace {

constexpr int64_t kMaxRank = int64_t{1} << 20;  // ranks are below a matrix's sides
constexpr double kMaxAlpha = 1e9;
constexpr size_t kMaxModulePatterns = 10'000;     // PEFT writes one per module at most
constexpr uint32_t kMaxPatternSteps = 1'000'000;  // a module's name has some 50 characters

// PEFT's rule, re.match(rf"(.*\.)?({pattern})$", module): the end of the module's name, from a dot on; with ^ all of
// it.
Result<parse::Pattern> compile_module_pattern(const std::string& pattern, const ConfigReader& reader, const char* key) {
  parse::PatternOptions options;
  options.whole = true;
  options.unicode_classes = true;
  options.match_limit = kMaxPatternSteps;
  // By itself first: "a)(b" would be one in the parentheses below.
  auto compiled = parse::Pattern::compile(pattern, options);
  if (compiled) compiled = parse::Pattern::compile(fmt::format("(.*\\.)?({})", pattern), options);
  if (compiled) return *std::move(compiled);
  return Error{ErrorKind::kData,
               fmt::format("key {} has the pattern {}, which is not a regular expression: {}", quote(key),
                           quote(pattern), compiled.fault().what),
               reader.where(), "correct the pattern of module names"};
}

template <class T>
Result<T> value_of(const std::vector<ModuleValue<T>>& patterns, const std::string& module, T fallback,
                   const std::string& where) {
  for (const ModuleValue<T>& one : patterns) {
    const auto matched = one.pattern.matches(module);
    if (!matched) {
      return Error{ErrorKind::kData,
                   fmt::format("the pattern {} cannot be compared with the module {}: {}", quote(one.pattern.source()),
                               quote(module), matched.fault().what),
                   where, "write a pattern that backtracks less"};
    }
    if (*matched) return one.value;
  }
  return fallback;
}

// Keys that must be absent, null, false or empty. (fan_in_fan_out is not among them: PEFT takes it as false for the
// linear layers of all these families.)
Result<> refuse_variants(const ConfigReader& reader) {
  for (const char* key : {"use_qalora", "use_bdlora", "lora_bias", "layer_replication", "trainable_token_indices",
                          "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config",
                          "monteclora_config", "megatron_config", "use_lily", "tdlora_config"}) {
    const Json* value = reader.find(key);
    if (value == nullptr || *value == false || ((value->is_array() || value->is_object()) && value->empty())) continue;
    return reader.unsupported(key, "plain LoRA (absent, null, false or empty)");
  }
  return {};
}

// Other initialisations change the base weights in a way that the files do not tell, so that they do not say on which
// weights the adapter was trained. PEFT computes those of pissa and olora again when it loads the adapter.
Result<LoraInit> read_init(const ConfigReader& reader) {
  const Json* init = reader.find("init_lora_weights");
  if (init == nullptr || init->is_boolean() || *init == "eva" || *init == "orthogonal") return LoraInit::kDefault;
  if (*init == "gaussian") return LoraInit::kGaussian;
  if (*init == "pissa") return LoraInit::kPissa;
  if (*init == "olora") return LoraInit::kOlora;
  return reader.unsupported("init_lora_weights", "true, false, gaussian, eva, orthogonal, pissa, olora");
}

Result<LoraBias> read_bias(const ConfigReader& reader) {
  const std::string bias = TRY(reader.text_or("bias", "none"));
  if (bias == "none") return LoraBias::kNone;
  if (bias == "all") return LoraBias::kAll;
  if (bias == "lora_only") return LoraBias::kLoraOnly;
  return reader.wrong("bias", "none, all or lora_only");
}

Result<std::vector<std::string>> read_names(const ConfigReader& reader, const char* key) {
  std::vector<std::string> out;
  const Json* names = reader.find(key);
  if (names == nullptr) return out;
  if (!names->is_array()) return reader.wrong(key, "a list of names");
  for (const Json& name : *names) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) return reader.wrong(key, "a list of names");
    out.push_back(name.get<std::string>());
  }
  return out;
}

// Models of these tasks have a head of another form, or are no decoders.
Result<std::string> read_task_type(const ConfigReader& reader) {
  const std::string type = TRY(reader.text_or("task_type", ""));
  if (type == "TOKEN_CLS" || type == "QUESTION_ANS" || type == "SEQ_2_SEQ_LM")
    return reader.unsupported("task_type", "CAUSAL_LM, SEQ_CLS");
  return type;
}

Result<> check_alpha(const ConfigReader& reader, const char* key, double alpha) {
  if (std::abs(alpha) <= kMaxAlpha) return {};
  return reader.wrong(key, "a number between -1e9 and 1e9");
}

bool is_rank(const Json& value) { return value.is_number_integer() && value >= int64_t{1} && value <= kMaxRank; }
bool is_alpha(const Json& value) {
  return value.is_number() && value.get<double>() > 0.0 && value.get<double>() <= kMaxAlpha;
}

template <class T>
Result<std::vector<ModuleValue<T>>> read_pattern(const ConfigReader& reader, const char* key,
                                                 bool (*is_good)(const Json&), const std::string& must_be) {
  std::vector<ModuleValue<T>> out;
  const Json* object = reader.find(key);
  if (object == nullptr) return out;
  if (!object->is_object() || object->size() > kMaxModulePatterns) return reader.wrong(key, must_be);
  for (const auto& [pattern, value] : object->items()) {
    if (!is_good(value)) return reader.wrong(key, must_be);
    auto compiled = TRY(compile_module_pattern(pattern, reader, key));
    out.push_back(ModuleValue<T>{std::move(compiled), value.template get<T>()});
  }
  return out;
}

}  // namespace

Result<LoraRank> LoraConfig::rank_of(const std::string& module) const {
  // PEFT compares the patterns with the name of what is adapted: a module, or a parameter.
  const std::string name = names_parameter(target_parameters, module + ".weight") ? module + ".weight" : module;
  LoraRank out;
  out.rank = TRY(value_of(rank_pattern, name, rank, where));
  const auto r = static_cast<double>(out.rank);
  out.scale = TRY(value_of(alpha_pattern, name, alpha, where)) / (use_rslora ? std::sqrt(r) : r);
  return out;
}

Result<std::vector<LoraRank>> LoraConfig::ranks_of(std::span<const std::string> modules) const {
  std::vector<LoraRank> out;
  for (const std::string& module : modules) out.push_back(TRY(rank_of(module)));
  return out;
}

bool is_adapter_folder(Env& env, const Path& folder) {
  return env.exists(folder / kAdapterConfigFile) && !env.exists(folder / "config.json");
}

Result<LoraConfig> read_lora_config(Env& env, const Path& folder) {
  const Path path = folder / kAdapterConfigFile;
  return parse_lora_config(TRY(env.read_file(path)), path.string());
}

Result<LoraConfig> parse_lora_config(std::string text, const std::string& where) {
  LoraConfig config;
  config.text = std::move(text);
  const Json json = TRY(parse_json(config.text, where));
  if (!json.is_object())
    return Error{ErrorKind::kData, "the file must hold one JSON object", where, "save the adapter again"};
  const ConfigReader reader(json, where);
  if (TRY(reader.text_or("peft_type", "")) != "LORA") return reader.unsupported("peft_type", "LORA");
  TRY(refuse_variants(reader));
  config.task_type = TRY(read_task_type(reader));
  config.base_model = TRY(reader.text_or("base_model_name_or_path", ""));
  if (config.base_model.empty() && !where.empty())
    return reader.wrong("base_model_name_or_path", "the base model's folder");
  config.where = where;
  config.rank = TRY(reader.positive("r"));
  if (config.rank > kMaxRank) return reader.wrong("r", fmt::format("a whole number from 1 to {}", kMaxRank));
  if (!reader.has("lora_alpha")) return reader.wrong("lora_alpha", "a number");
  config.alpha = TRY(reader.number_or("lora_alpha", 8.0));
  TRY(check_alpha(reader, "lora_alpha", config.alpha));
  config.dropout = TRY(reader.number_or("lora_dropout", 0.0));
  if (!(config.dropout >= 0.0 && config.dropout < 1.0))
    return reader.wrong("lora_dropout", "a number from 0 to below 1");
  config.use_rslora = TRY(reader.flag_or("use_rslora", false));
  config.use_dora = TRY(reader.flag_or("use_dora", false));
  config.init = TRY(read_init(reader));
  config.bias = TRY(read_bias(reader));
  config.modules_to_save = TRY(read_names(reader, "modules_to_save"));
  config.target_parameters = TRY(read_names(reader, "target_parameters"));
  config.ties_weights = TRY(reader.flag_or("ensure_weight_tying", false));
  config.rank_pattern = TRY(read_pattern<int64_t>(reader, "rank_pattern", is_rank,
                                                  fmt::format("an object of whole numbers from 1 to {}", kMaxRank)));
  config.alpha_pattern =
      TRY(read_pattern<double>(reader, "alpha_pattern", is_alpha, "an object of numbers above 0, at most 1e9"));
  return config;
}

Result<Path> find_base_folder(Env& env, const Path& adapter_folder, const LoraConfig& config) {
  const Path written = config.base_model;
  for (const Path& folder : {adapter_folder / written, written}) {
    if (env.exists(folder / "config.json")) return folder;
  }
  return Error{ErrorKind::kData,
               fmt::format("the base model {} was not found, neither relative to the adapter nor as a path",
                           quote(config.base_model)),
               (adapter_folder / kAdapterConfigFile).string(),
               "download it and write its folder as base_model_name_or_path"};
}

Result<Path> find_model_folder(Env& env, const Path& folder) {
  if (!is_adapter_folder(env, folder)) return folder;
  const LoraConfig config = TRY(read_lora_config(env, folder));
  return find_base_folder(env, folder, config);
}

}  // namespace mortise
