// TRL's GRPOConfig: the settings that depend on each other (trl_rules.cpp lists them).
//
// If TRL 1.16 and the exact formula differ, the exact one is kept and a remark says so. TRL's mean over tokens divides
// by the mean token count of a generation batch's updates, and bnpo by that of each micro-batch.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {
namespace {

struct Aggregation {
  std::string_view loss_type;
  std::string_view mode;
};
constexpr Aggregation kAggregations[] = {
    {"grpo", "seq-mean-token-mean"}, {"sapo", "seq-mean-token-mean"},
    {"bnpo", "token-mean"},          {"dapo", "token-mean"},
    {"cispo", "token-mean"},         {"vespo", "token-mean"},
    {"luspo", "seq-mean-token-sum"}, {"dr_grpo", "seq-mean-token-sum-norm"},
};

void set_aggregation(Translation& t, const std::string& type, const HfBatches& batches) {
  const auto* found = std::ranges::find(kAggregations, type, &Aggregation::loss_type);
  const std::string mode(found->mode);
  if (mode == "token-mean" && type != "bnpo") warn_of_own_divisors(t, batches);
  t.set("actor.loss_agg_mode", mode, {"loss_type"}, mode == "token-mean" ? "over all tokens of the update" : "");
  if (mode.starts_with("seq-mean")) t.set("actor.loss_agg_rows", "all", {"loss_type"}, "rows without tokens count");
  if (type == "dr_grpo") t.set("actor.loss_scale_by_rows", true, {"loss_type"});
}

void set_loss(Translation& t, const HfBatches& batches) {
  const std::string type = t.text("loss_type"), level = t.text("importance_sampling_level");
  if (std::ranges::find(kAggregations, type, &Aggregation::loss_type) == std::end(kAggregations)) {
    return t.problem("loss_type", fmt::format("loss_type {} is not known", quote(type)),
                     "use one of: grpo, dr_grpo, dapo, bnpo, cispo, sapo, luspo, vespo");
  }
  if (level != "token" && level != "sequence") {
    return t.problem("importance_sampling_level",
                     "importance_sampling_level must be token or sequence, but is " + quote(level), "");
  }
  if (type == "cispo" || type == "sapo" || type == "vespo") {
    const bool of_rows = level == "sequence" && type != "vespo";  // which computes rows' weights anyway
    t.set("actor.policy_loss.loss_mode", of_rows ? type + "_sequence" : type,
          {"loss_type", "importance_sampling_level"});
  }
  if (type == "cispo") {
    const std::string_view cap = t.is_null("epsilon_high") ? "epsilon" : "epsilon_high";
    t.set("actor.policy_loss.cap", t.number(cap), {cap}, "the cap itself in TRL, not 1 + it");
  } else if (type == "sapo") {
    t.set("actor.policy_loss.tau_pos", t.number("sapo_temperature_pos"), {"sapo_temperature_pos"});
    t.set("actor.policy_loss.tau_neg", t.number("sapo_temperature_neg"), {"sapo_temperature_neg"});
  } else if (type == "vespo") {
    for (const std::string_view name : {"vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"})
      t.set("actor.policy_loss." + std::string(name), t.number(name), {name});
  } else {
    translate_clipped_loss(t, type, level);
  }
  set_aggregation(t, type, batches);
}

// Settings that the chosen loss does not read.
void note_unused(Translation& t) {
  const std::string type = t.text("loss_type");
  const auto unused = [&t, &type](std::initializer_list<std::string_view> names) {
    t.note_given(names, "not read with loss_type " + type);
  };
  if (type != "sapo") unused({"sapo_temperature_pos", "sapo_temperature_neg"});
  if (type != "vespo") unused({"vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"});
  if (type == "sapo" || type == "vespo") unused({"epsilon", "epsilon_high", "delta"});
  if (type == "cispo") unused({"delta"});
  if (type == "cispo" && !t.is_null("epsilon_high")) unused({"epsilon"});
}

void set_kl(Translation& t) {
  const double beta = t.number("beta");
  if (beta == 0) {
    t.set("actor.use_kl_loss", false, {"beta"});
    if (t.is_given("use_bias_correction_kl")) t.note("use_bias_correction_kl", "beta is 0");
    return;
  }
  const bool corrected = t.flag("use_bias_correction_kl");
  const std::string_view ratio = t.text("importance_sampling_level") == "sequence" ? "k3_row_ratio" : "k3_ratio";
  t.set("actor.use_kl_loss", true, {"beta"});
  t.set("actor.kl_loss_coef", beta, {"beta"});
  t.set("actor.kl_loss_type", corrected ? std::string(ratio) : "low_var_kl", {"use_bias_correction_kl"});
  t.set("actor.kl_params.max_log_ratio", kNoCap, {"beta"}, "TRL clamps nothing");
  t.set("actor.kl_params.max_kl", kNoCap, {"beta"}, "TRL clamps nothing");
}

// TRL's experimental trainer takes the newest log-probs for the old ones, and also draws from the step itself.
void set_replay_buffer(Translation& t) {
  if (t.is_null("replay_buffer_size")) return;
  const int64_t size = t.integer("replay_buffer_size");
  if (size <= 0) return t.note("replay_buffer_size", "there is no buffer");
  t.set("algorithm.replay_buffer.enable", true, {"replay_buffer_size"},
        "old log-probs are those that a group was sampled with");
  t.set("algorithm.replay_buffer.size", size, {"replay_buffer_size"});
  t.set("algorithm.replay_buffer.max_age", 0, {"replay_buffer_size"}, "TRL drops no group for its age");
}

// TRL's bonus is a mean over the tokens that it acts on, whatever the loss is.
void set_bonus_aggregation(Translation& t) {
  const std::string type = t.text("loss_type");
  const auto* found = std::ranges::find(kAggregations, type, &Aggregation::loss_type);
  const bool is_as_loss = found != std::end(kAggregations) && found->mode == "token-mean";
  if (is_as_loss && t.number("top_entropy_quantile") >= 1) return;
  t.set("actor.entropy_agg_mode", "token-mean", {"loss_type", "top_entropy_quantile"},
        "TRL's bonus is a mean over its tokens");
}

void set_entropy(Translation& t) {
  constexpr std::pair<std::string_view, std::string_view> kAdaptive[] = {{"entropy_coef_min", "min_coeff"},
                                                                         {"entropy_coef_max", "max_coeff"},
                                                                         {"entropy_coef_delta", "delta"},
                                                                         {"entropy_target", "target_entropy"}};
  const bool adaptive = t.flag("use_adaptive_entropy");
  for (const auto& [name, key] : kAdaptive) {
    if (adaptive) t.set("actor.entropy_ctrl." + std::string(key), t.number(name), {name});
    if (!adaptive && t.is_given(name)) t.note(name, "only with use_adaptive_entropy");
  }
  const double coefficient = t.number("entropy_coef");
  if (coefficient == 0 && !adaptive) return;
  t.set("actor.entropy_coeff", coefficient, {"entropy_coef"});
  if (adaptive) t.set("actor.entropy_ctrl.type", "adaptive", {"use_adaptive_entropy"});
  set_bonus_aggregation(t);
}

std::string trl_std_of(Translation& t) {
  const Json scale = t.value("scale_rewards");
  if (scale.is_boolean()) return scale.get<bool>() ? "group" : "none";
  return t.text("scale_rewards");
}

bool trl_normalizes_batches(Translation& t) {
  return t.text("multi_objective_aggregation") == "normalize_then_sum" || trl_std_of(t) == "batch";
}

void set_advantages(Translation& t) {
  const std::string order = t.text("multi_objective_aggregation");
  const std::string std_of = trl_std_of(t);
  const auto param = [&t](std::string_view name, Json value, std::string_view from) {
    t.set("algorithm.adv_params." + std::string(name), std::move(value), {from});
  };
  if (order == "normalize_then_sum") {
    t.set("algorithm.adv_estimator", "gdpo", {"multi_objective_aggregation"});
    param("epsilon", 1e-4, "multi_objective_aggregation");
    param("whiten", "rows", "multi_objective_aggregation");
    param("whiten_epsilon", 1e-4, "multi_objective_aggregation");
    if (t.is_given("scale_rewards")) t.note("scale_rewards", "not read with normalize_then_sum");
  } else if (order != "sum_then_normalize") {
    t.problem("multi_objective_aggregation", fmt::format("multi_objective_aggregation {} is not known", quote(order)),
              "use one of: sum_then_normalize, normalize_then_sum");
  } else if (std_of == "none") {
    t.set("algorithm.adv_estimator", "dr_grpo", {"scale_rewards"});
  } else if (std_of == "group" || std_of == "batch") {
    t.set("algorithm.adv_estimator", "grpo", {"scale_rewards"});
    param("epsilon", 1e-4, "scale_rewards");
    if (std_of == "batch") param("std", "batch", "scale_rewards");
  } else {
    t.problem("scale_rewards", fmt::format("scale_rewards {} is not known", quote(std_of)),
              "use one of: group, batch, none");
  }
}

struct GenerationKey {
  std::string_view name;
  std::string_view target;
};
constexpr GenerationKey kGenerationKeys[] = {
    {"temperature", "rollout.temperature"},
    {"top_p", "rollout.top_p"},
    {"top_k", "rollout.top_k"},
    {"min_p", "rollout.min_p"},
    {"typical_p", "rollout.typical_p"},
    {"repetition_penalty", "rollout.repetition_penalty"},
    {"presence_penalty", "rollout.presence_penalty"},
    {"frequency_penalty", "rollout.frequency_penalty"},
    {"max_new_tokens", "rollout.response_length"},
    {"max_tokens", "rollout.response_length"},
    {"min_new_tokens", "rollout.min_new_tokens"},
    {"min_tokens", "rollout.min_new_tokens"},
    {"stop_strings", "rollout.stop"},
    {"stop", "rollout.stop"},
    {"stop_token_ids", "rollout.stop_token_ids"},
    {"bad_words", "rollout.bad_words"},
    {"ignore_eos", "rollout.ignore_eos"},
    {"seed", "rollout.seed"},
};

void set_generation(Translation& t) {
  const Json kwargs = t.table("generation_kwargs");
  for (const auto& [key, value] : kwargs.items()) {
    const auto* found = std::ranges::find(kGenerationKeys, key, &GenerationKey::name);
    const bool as_here =
        (key == "do_sample" && value == true) || (key == "num_beams" && value == 1) || key == "use_cache";
    if (as_here || value.is_null()) continue;
    if (found == std::end(kGenerationKeys)) {
      t.problem("generation_kwargs", fmt::format("generation_kwargs.{} = {} is not supported", key, dump_json(value)),
                "");
    } else if (key == "temperature" && value != t.value("temperature")) {
      // TRL divides logits by its own temperature, for every sampler.
      t.problem("generation_kwargs", "generation_kwargs.temperature differs from temperature, which divides the logits",
                "set temperature alone");
    } else {
      Json fitted = value;
      if (found->target == "rollout.stop" && value.is_string()) fitted = Json::array({value});
      t.set(found->target, fitted, {"generation_kwargs"});
    }
  }
}

void set_model(Translation& t) {
  if (!t.is_null("model_name_or_path")) {
    t.set("model.path", t.text("model_name_or_path"), {"model_name_or_path"});
  } else {
    t.ask("model", "path = \"...\"  # the model's folder");
  }
  for (const std::string_view name : {"dtype", "torch_dtype"}) {
    if (!t.is_given(name)) continue;
    if (t.text(name) == "float64") t.set("model.dtype", "float64", {name});
    t.note(name, "Mortise computes in model.dtype, float32 unless set");
  }
  constexpr LoraNames kLora{.rank = "lora_r",
                            .alpha = "lora_alpha",
                            .dropout = "lora_dropout",
                            .modules = "lora_target_modules",
                            .rslora = "use_rslora",
                            .dora = "use_dora",
                            .saved = "lora_modules_to_save",
                            .parameters = "lora_target_parameters"};
  if (t.flag("use_peft")) {
    translate_lora(t, kLora, Json::array({"q_proj", "v_proj"}));  // PEFT's own choice for these families
  } else {
    for (const std::string_view name : kLora.all()) t.note_given({name}, "only with use_peft");
  }
  constexpr std::string_view kHarmless[] = {"attn_implementation", "revision",          "device_map", "use_cache",
                                            "trust_remote_code",   "low_cpu_mem_usage", "use_kernels"};
  const Json kwargs = t.table("model_init_kwargs");
  for (const auto& [key, value] : kwargs.items()) {
    if (key == "dtype" || key == "torch_dtype") {
      if (value == "float64") t.set("model.dtype", "float64", {"model_init_kwargs"});
    } else if (std::ranges::find(kHarmless, key) == std::end(kHarmless)) {
      t.problem("model_init_kwargs", fmt::format("model_init_kwargs.{} is not supported", key),
                "change the model's folder instead");
    }
  }
  if (t.is_given("model_init_kwargs"))
    t.note("model_init_kwargs", "Mortise computes in model.dtype, float32 unless set");
}

constexpr const char* kNoFiles = "name the files or data sets in data.train_files";

// The rows of a data set on the hub. Without a configuration Mortise looks for the split in the places that are usual.
std::string hub_rows(const std::string& name, const std::string& configuration, const std::string& split) {
  return fmt::format("hf://datasets/{}/{}{}", name, configuration.empty() ? "" : configuration + "/", split);
}

std::string member_or(const Json& part, std::string_view key, const std::string& other) {
  const Json* value = json_find(part, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : other;
}

// The files of `datasets`, a mixture whose parts come one after another; empty: some are named in another way.
std::vector<std::string> files_of_mixture(const Json& parts) {
  std::vector<std::string> files;
  for (const Json& part : parts) {
    const Json* named = json_find(part, "data_files");
    if (named == nullptr || named->is_null()) named = json_find(part, "path");
    if (named == nullptr) return {};
    for (const Json& file : named->is_array() ? *named : Json::array({*named})) {
      if (!file.is_string()) return {};
      const auto text = file.get<std::string>();
      const bool is_name = json_find(part, "data_files") == nullptr && !is_local_data(text);
      if (!is_name && !is_local_data(text)) return {};
      files.push_back(is_name ? hub_rows(text, member_or(part, "name", ""), member_or(part, "split", "train")) : text);
    }
  }
  return files;
}

// TRL validates on the data set's other split.
void set_validation_split(Translation& t, const std::string& name, const std::string& configuration) {
  const bool is_older = !t.is_given("eval_strategy") && t.is_given("evaluation_strategy");
  const std::string_view strategy = is_older ? "evaluation_strategy" : "eval_strategy";
  const std::string when = t.text(strategy);  // anything else, as in YAML's null and false, is no validation
  if (when != "steps" && when != "epoch") return t.note_given({"dataset_test_split"}, "only with eval_strategy");
  t.set("data.val_files", Json::array({hub_rows(name, configuration, t.text("dataset_test_split"))}),
        {"dataset_name", "dataset_test_split", strategy});
}

// TRL lets `datasets` win over dataset_name.
void set_files(Translation& t) {
  const Json parts = t.value("datasets");
  const std::vector<std::string> files = parts.is_array() ? files_of_mixture(parts) : std::vector<std::string>();
  const std::string name = t.text("dataset_name");
  if (!files.empty()) {
    t.set("data.train_files", files, {"datasets"});
    t.note_given({"dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"}, "datasets is given");
  } else if (!parts.is_array() && is_local_data(name)) {
    t.set("data.train_files", Json::array({name}), {"dataset_name"});
    t.note_given({"dataset_config", "dataset_train_split", "dataset_test_split"},
                 "the rows are those of the files in data.train_files");
  } else if (!parts.is_array() && !name.empty()) {
    const std::string configuration = t.is_null("dataset_config") ? "" : t.text("dataset_config");
    t.set("data.train_files", Json::array({hub_rows(name, configuration, t.text("dataset_train_split"))}),
          {"dataset_name", "dataset_config", "dataset_train_split"});
    set_validation_split(t, name, configuration);
  } else {
    t.note_given({"dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "datasets"}, kNoFiles);
    t.ask("data", "train_files = [\"train.jsonl\"]  # rows with a prompt; other columns reach the rewards");
  }
  for (const std::string_view streaming : {"dataset_streaming", "streaming"}) {
    if (t.flag(streaming)) t.set("data.streaming", true, {streaming});
  }
}

void set_data(Translation& t) {
  set_files(t);
  if (!t.is_null("max_prompt_length")) {
    t.set("data.max_prompt_length", t.integer("max_prompt_length"), {"max_prompt_length"});
    t.set("data.truncation", "left", {"max_prompt_length"});
  } else {
    t.ask("data", "max_prompt_length = 512  # TRL has none; here a longer prompt stops the run");
  }
  if (!t.flag("shuffle_dataset")) t.set("data.shuffle", false, {"shuffle_dataset"});
}

// With servers the sampler is other code than the trainer, and TRL corrects for the difference by default.
void set_sampler(Translation& t) {
  const std::string_view asked = "vllm_importance_sampling_correction";
  const auto note_options = [&t](std::string_view reason) {
    t.note_given({"vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
                  "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap"},
                 reason);
  };
  if (!translate_servers(t)) {
    t.note_given({asked}, reasons::kMismatch);
    return note_options(reasons::kMismatch);
  }
  if (!t.flag(asked)) return note_options("vllm_importance_sampling_correction is false");
  const std::string mode = t.text("vllm_importance_sampling_mode");
  const bool is_token = mode.starts_with("token_"), masks = mode.ends_with("_mask");
  if (!(is_token || mode.starts_with("sequence_")) || !(masks || mode.ends_with("_truncate"))) {
    return t.problem("vllm_importance_sampling_mode",
                     fmt::format("vllm_importance_sampling_mode {} is not known", quote(mode)),
                     "use one of: token_truncate, token_mask, sequence_truncate, sequence_mask");
  }
  const std::string_view max_name =
      t.is_null("vllm_importance_sampling_cap") ? "vllm_importance_sampling_clip_max" : "vllm_importance_sampling_cap";
  constexpr std::string_view kMin = "vllm_importance_sampling_clip_min";
  const bool has_least = !t.is_null(kMin) && t.number(kMin) > 0, has_most = !t.is_null(max_name);
  if (!has_least && !has_most && !masks)
    return t.problem(max_name, fmt::format("{} needs one of clip_min and clip_max", mode), "give clip_max");
  const std::string most = has_most ? format_f64(t.number(max_name)) : "1e300";
  const std::string table = "algorithm.rollout_correction.";
  t.set(table + "rollout_is", is_token ? "token" : "sequence", {asked, "vllm_importance_sampling_mode"});
  t.set(table + "rollout_is_outside", masks ? "mask" : "truncate", {"vllm_importance_sampling_mode"});
  const std::string bounds = has_least ? fmt::format("{}_{}", format_f64(t.number(kMin)), most) : most;
  t.set(table + "rollout_is_threshold", bounds, {max_name, kMin}, has_most ? "" : "no upper bound");
}

}  // namespace

void translate_trl(Translation& t, const Processes& processes) {
  const HfBatches batches = translate_hf_batches(t, processes, trl_normalizes_batches, DealtRows::kAtRandom);
  translate_hf_schedule(t, batches, t.number("learning_rate"));
  translate_hf_optimizer(t);
  set_data(t);
  translate_hf_files(t, batches, false);
  set_loss(t, batches);
  note_unused(t);
  set_kl(t);
  translate_reference(t, batches);
  set_entropy(t);
  set_advantages(t);
  set_replay_buffer(t);
  set_generation(t);
  set_sampler(t);
  translate_hf_groups(t, processes);
  set_hf_sleep(t, "vllm_enable_sleep_mode");
  set_model(t);
  translate_trl_rewards(t);
}

}  // namespace mortise
