// ms-swift's GRPO arguments: the settings that are read together (swift_rules.cpp says which).
//
// Its dapo, cispo and fipo divide by gradient_accumulation_steps once too often in some versions; here they are means
// over the update's tokens.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {
namespace {

struct Loss {
  std::string_view type;
  std::string_view aggregation;
  bool clips;  // takes part in the choice vanilla, gspo, gspo_token by level
};
constexpr Loss kLosses[] = {
    {"grpo", "seq-mean-token-mean", true}, {"bnpo", "token-mean", true},
    {"dapo", "token-mean", true},          {"dr_grpo", "seq-mean-token-sum-norm", true},
    {"cispo", "token-mean", false},        {"sapo", "seq-mean-token-mean", false},
    {"real", "prompt-mean", false},        {"fipo", "token-mean", false},
};

void copy_params(Translation& t, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (!t.is_null(name)) t.set("actor.policy_loss." + std::string(name), t.value(name), {name});
  }
}

void set_aggregation(Translation& t, const Loss& loss, const HfBatches& batches) {
  const std::string mode(loss.aggregation);
  const bool divides_batches = mode == "token-mean" && loss.type != "bnpo";
  if (divides_batches) warn_of_own_divisors(t, batches);
  if (divides_batches && t.flag("overlong_filter"))
    t.set("algorithm.mask_truncated_completions", true, {"overlong_filter"},
          "their tokens are not in the divisor here; in ms-swift they are");
  t.set("actor.loss_agg_mode", mode, {"loss_type"}, mode == "token-mean" ? "over all tokens of the update" : "");
  if (mode.starts_with("seq-mean")) t.set("actor.loss_agg_rows", "all", {"loss_type"}, "rows without tokens count");
  if (loss.type == "dr_grpo") t.set("actor.loss_scale_by_rows", true, {"loss_type"});
}

void set_loss(Translation& t, const HfBatches& batches) {
  // The command line gives one item as a list of one.
  const std::vector<std::string> types = t.texts("loss_type");
  const auto* loss = types.size() == 1 ? std::ranges::find(kLosses, types[0], &Loss::type) : std::end(kLosses);
  if (loss == std::end(kLosses)) {
    return t.problem("loss_type", fmt::format("loss_type {} is not known", quote(join(types, ", "))),
                     "use one of: grpo, bnpo, dr_grpo, dapo, cispo, sapo, real, fipo");
  }
  const std::string level = t.text("importance_sampling_level");
  if (level != "token" && level != "sequence" && level != "sequence_token") {
    return t.problem("importance_sampling_level",
                     fmt::format("importance_sampling_level {} is not known", quote(level)),
                     "use one of: token, sequence, sequence_token");
  }
  const bool has_own_row_form = (types[0] == "cispo" || types[0] == "sapo") && level == "sequence";
  if (level != "token" && !loss->clips && !has_own_row_form) {
    return t.problem(
        "importance_sampling_level", fmt::format("level {} with loss_type {} is not supported", level, types[0]),
        "use one of: token, sequence (grpo, bnpo, dr_grpo, dapo, cispo, sapo), sequence_token (the first four)");
  }
  if (loss->clips) {
    translate_clipped_loss(t, types[0], level);
  } else {
    t.set("actor.policy_loss.loss_mode", has_own_row_form ? types[0] + "_sequence" : types[0],
          {"loss_type", "importance_sampling_level"});
  }
  const std::string_view high = t.is_null("epsilon_high") ? "epsilon" : "epsilon_high";
  if (types[0] == "cispo") {
    t.set("actor.policy_loss.cap", t.number(high), {high}, "the cap itself in ms-swift, not 1 + it");
  } else if (types[0] == "sapo") {
    copy_params(t, {"tau_pos", "tau_neg"});
  } else if (types[0] == "real") {
    copy_params(t, {"real_tau"});
  } else if (types[0] == "fipo") {
    t.set("actor.clip_ratio_low", t.number("epsilon"), {"epsilon"});
    t.set("actor.clip_ratio_high", t.number(high), {high});
    copy_params(t, {"delta", "fipo_decay_rate", "fipo_clip_high_only"});
    const bool clips = !t.is_null("fipo_clip_range") && t.number("fipo_clip_range") != 0;
    const bool bounds = !t.is_null("fipo_safety_threshold");
    t.set("actor.policy_loss.fipo_clip_range", clips ? t.value("fipo_clip_range") : Json("inf"), {"fipo_clip_range"},
          clips ? "" : "not clipped");
    t.set("actor.policy_loss.fipo_safety_threshold", bounds ? t.value("fipo_safety_threshold") : Json("inf"),
          {"fipo_safety_threshold"}, bounds ? "" : "off");
  }
  set_aggregation(t, *loss, batches);
}

std::string scale_of(Translation& t, const std::string& estimator) {
  if (t.texts("loss_type") == std::vector<std::string>{"real"}) return "none";
  const Json scale = t.value("scale_rewards");
  if (scale.is_boolean()) return scale.get<bool>() ? "group" : "none";
  if (!scale.is_null()) return t.text("scale_rewards");
  return estimator == "grpo" ? "group" : estimator == "rloo" ? "none" : "batch";
}

bool swift_normalizes_batches(Translation& t) {
  const std::string scale = scale_of(t, t.text("advantage_estimator"));
  return scale == "batch" || scale == "gdpo";
}

// ms-swift removes the rows of its off-policy mask from the mask itself. Here they only leave the policy term.
void refuse_mask_of_more_than_the_loss(Translation& t, bool kl_in_loss) {
  const std::string_view name = "off_policy_sequence_mask_delta";
  const bool counts_tokens = t.texts("loss_type") == std::vector<std::string>{"bnpo"};
  if (t.is_null(name) || (!kl_in_loss && !counts_tokens)) return;
  t.problem(
      name,
      fmt::format("{}{} is not supported: ms-swift leaves the rows out of {} too, here they leave the policy term "
                  "alone",
                  name, (kl_in_loss ? " with a KL in the loss (beta)" : " with loss_type bnpo"),
                  kl_in_loss ? "that term" : "the divisor"),
      kl_in_loss ? "set beta to 0, or kl_in_reward to true" : "use loss_type dapo");
}

// ms-swift computes this loss from the rows' ratios, outside of the loss per token that its stages scale, and adds a KL
// that is a mean over the tokens of the batch. Here all stages act on it.
void translate_terms_of_real(Translation& t, bool kl_in_loss) {
  if (t.texts("loss_type") != std::vector<std::string>{"real"}) return;
  if (kl_in_loss) t.set("actor.kl_agg_mode", "token-mean", {"loss_type"}, "over all tokens of the update");
  const auto refuse = [&t](std::string_view name, std::string_view why, std::string_view next) {
    t.problem(name, fmt::format("{} with loss_type real is not supported: {}", name, why), std::string(next));
  };
  constexpr std::string_view kUnread = "ms-swift's real does not read it, here it would count";
  if (t.number("top_entropy_quantile") < 1) refuse("top_entropy_quantile", kUnread, "leave it out");
  if (!t.is_null("rollout_importance_sampling_mode"))
    refuse("rollout_importance_sampling_mode", kUnread, "leave it out");
  if (!t.is_null("off_policy_sequence_mask_delta"))
    refuse("off_policy_sequence_mask_delta", "ms-swift counts such rows as bad ones with ratio 1", "leave it out");
}

void set_kl(Translation& t) {
  const double beta = t.is_null("beta") ? 0.04 : t.number("beta");
  const std::string estimator = t.text("advantage_estimator");
  const bool asked = t.is_null("kl_in_reward") ? estimator != "grpo" : t.flag("kl_in_reward");
  const bool in_reward = asked && scale_of(t, estimator) != "gdpo";  // as ms-swift
  t.set("actor.use_kl_loss", beta != 0 && !in_reward, {"beta", "kl_in_reward", "advantage_estimator"});
  refuse_mask_of_more_than_the_loss(t, beta != 0 && !in_reward);
  translate_terms_of_real(t, beta != 0 && !in_reward);
  if (beta == 0) return;
  if (in_reward) {
    t.set("algorithm.use_kl_in_reward", true, {"kl_in_reward", "advantage_estimator"});
    t.set("algorithm.kl_penalty", "kl", {"kl_in_reward"});
    t.set("algorithm.kl_ctrl.type", "fixed", {"kl_in_reward"});
    t.set("algorithm.kl_ctrl.kl_coef", beta, {"beta"});
  } else {
    t.set("actor.kl_loss_coef", beta, {"beta"});
    t.set("actor.kl_loss_type", "low_var_kl", {"beta"});
  }
}

void set_advantages(Translation& t) {
  const std::string estimator = t.text("advantage_estimator");
  if (estimator != "grpo" && estimator != "rloo" && estimator != "reinforce_plus_plus") {
    return t.problem("advantage_estimator", fmt::format("advantage_estimator {} is not known", quote(estimator)),
                     "use one of: grpo, rloo, reinforce_plus_plus");
  }
  const std::string scale = scale_of(t, estimator);
  if (scale != "group" && scale != "batch" && scale != "none" && scale != "gdpo") {
    return t.problem("scale_rewards", fmt::format("scale_rewards {} is not known", quote(scale)),
                     "use one of: group, batch, none, gdpo");
  }
  const auto choose = [&t](std::string_view name) {
    t.set("algorithm.adv_estimator", std::string(name), {"advantage_estimator", "scale_rewards"});
  };
  const auto param = [&t](std::string_view name, Json value) {
    t.set("algorithm.adv_params." + std::string(name), std::move(value), {"scale_rewards"});
  };
  if (scale == "gdpo") {
    if (estimator == "reinforce_plus_plus")
      return t.problem("scale_rewards", "scale_rewards gdpo with reinforce_plus_plus is not supported", "use grpo");
    choose("gdpo");
    param("epsilon", 1e-8);
    param("whiten", "rows");
    param("whiten_epsilon", 1e-8);
  } else if (estimator == "rloo") {
    choose("rloo");
    if (scale != "none") {
      param("std", scale);
      param("epsilon", 1e-4);
    }
  } else if (scale == "none") {
    choose("dr_grpo");
  } else {
    choose("grpo");
    param("epsilon", 1e-4);
    if (scale == "batch") param("std", estimator == "grpo" ? "batch" : "batch_centred");
  }
}

constexpr LoraNames kLora{.rank = "lora_rank",
                          .alpha = "lora_alpha",
                          .dropout = "lora_dropout",
                          .modules = "target_modules",
                          .rslora = "use_rslora",
                          .dora = "use_dora",
                          .init = "init_weights",
                          .bias = "lora_bias",
                          .saved = "modules_to_save",
                          .parameters = "target_parameters"};

// ms-swift 3 calls it train_type.
std::string_view tuner_name(const Translation& t) {
  return t.is_given("train_type") && !t.is_given("tuner_type") ? "train_type" : "tuner_type";
}

// "lora" if the file does not say.
std::string tuner_of(Translation& t) { return t.is_null(tuner_name(t)) ? "lora" : t.text(tuner_name(t)); }

// ms-swift's default is ten times as large for an adapter as for all weights.
double set_learning_rate(Translation& t) {
  const std::string_view key = "actor.optim.lr", name = "learning_rate";
  if (!t.is_null(name)) {
    t.set(key, t.number(name), {name});
    return t.number(name);
  }
  const bool adapter = tuner_of(t) == "lora";
  const double rate = adapter ? 1e-4 : 1e-5;
  t.set(key, rate, {name}, adapter ? "of adapters" : "of all weights");
  return rate;
}

// An adapter to continue has its own settings. Its reference is the model without it, as there.
void set_adapter(Translation& t) {
  const std::vector<std::string> adapters = t.texts("adapters");
  if (adapters.empty()) return translate_lora(t, kLora, Json::array({"all-linear"}));
  if (adapters.size() > 1)
    return t.problem("adapters", fmt::format("{} adapters are named", adapters.size()), "name the one to continue");
  t.set("model.lora_adapter_path", adapters.front(), {"adapters"});
  for (const std::string_view one : kLora.all()) {
    if (t.is_given(one)) t.note(one, "the adapter has its own");
  }
}

void set_model(Translation& t) {
  if (t.is_null("model")) {
    t.ask("model", "path = \"...\"  # the model's folder");
  } else {
    t.set("model.path", t.text("model"), {"model"});
  }
  const std::string_view name = tuner_name(t);
  const std::string tuner = tuner_of(t);
  if (tuner == "lora") {
    if (t.is_null(name))
      t.warn(name, "not set, so a LoRA adapter is trained as in ms-swift; set it to full to train all weights");
    set_adapter(t);
  } else {
    if (tuner == "full") {
      t.note(name, "as here");
    } else {
      t.problem(name, fmt::format("{} {} is not supported", name, quote(tuner)), "use full or lora");
    }
    for (const std::string_view one : kLora.all()) {
      if (t.is_given(one)) t.note(one, fmt::format("only with {} lora", name));
    }
    if (!t.texts("adapters").empty())
      t.problem("adapters", fmt::format("adapters are named, but {} is not lora", name),
                fmt::format("set {} to lora, or merge them", name));
  }
  set_frozen(t, tuner == "full");
  set_lora_plus(t, tuner == "lora");
  if (t.is_given("torch_dtype")) t.note("torch_dtype", "Mortise computes in model.dtype, float32 unless set");
}

// An adapter of ref_adapters is merged into the base that it names.
void set_reference(Translation& t) {
  const std::vector<std::string> adapters = t.texts("ref_adapters");
  const bool is_used = t.is_set("actor.kl_loss_coef") || t.is_set("algorithm.use_kl_in_reward");
  if (!is_used) return t.note_given({"ref_model", "ref_adapters"}, "there is no KL, so there is no reference");
  const bool is_other = !t.is_null("ref_model") && t.text("ref_model") != t.text("model");
  if (adapters.size() > 1 || (is_other && !adapters.empty())) {
    return t.problem("ref_adapters", "ref_adapters with several adapters or a ref_model is not supported",
                     "merge them into one folder, and name that as ref_model");
  }
  if (!adapters.empty()) {
    t.set("ref.path", adapters.front(), {"ref_adapters"});
    return t.note_given({"ref_model"}, "the adapter names its base");
  }
  if (is_other) return t.set("ref.path", t.text("ref_model"), {"ref_model"});
  t.note_given({"ref_model"}, "the reference is the initial model");
}

void set_files(Translation& t, std::string_view name, std::string_view key) {
  const std::vector<std::string> files = t.texts(name);
  if (!files.empty() && std::ranges::all_of(files, is_local_data)) {
    t.set(key, files, {name});
  } else if (!files.empty() || name == "dataset") {
    if (!files.empty())
      t.note(name,
             fmt::format(
                 "name local files, or hf://datasets/ORGANISATION/NAME/SPLIT, in {}, without '#N' for a number of rows",
                 key));
    t.ask("data", fmt::format("{} = [\"{}.jsonl\"]", key.substr(5), name == "dataset" ? "train" : "val"));
  }
}

// Several files in shares, and rows that are not held in memory.
void set_mixture(Translation& t) {
  const std::vector<double> shares = t.numbers("interleave_prob");
  if (!shares.empty() && t.is_set("data.train_files")) {
    t.set("data.train_weights", shares, {"interleave_prob"}, "exact shares of each batch; ms-swift draws at random");
    t.set("data.stopping_strategy", t.value("stopping_strategy"), {"stopping_strategy"});
  } else if (!shares.empty()) {
    t.note("interleave_prob", "give the shares as data.train_weights, one for each entry of data.train_files");
  } else {
    t.note_given({"stopping_strategy"}, "only with interleave_prob");
  }
  if (t.flag("streaming")) {
    t.set("data.streaming", true, {"streaming"});
    t.set("data.shuffle_buffer_size", t.integer("shuffle_buffer_size"), {"shuffle_buffer_size"});
  } else {
    t.note_given({"shuffle_buffer_size"}, "only with streaming");
  }
}

void set_data(Translation& t) {
  set_files(t, "dataset", "data.train_files");
  set_files(t, "val_dataset", "data.val_files");
  set_mixture(t);
  const std::string_view length = swift_length_name(t);
  t.set("data.max_response_length", t.integer(length), {length});
  const std::string strategy = t.is_null("truncation_strategy") ? "left" : t.text("truncation_strategy");
  if (t.is_null("max_length")) {
    t.ask("data", "max_prompt_length = 512  # ms-swift: max_length; here a longer prompt stops the run");
    if (t.is_given("truncation_strategy")) t.note("truncation_strategy", "only with max_length");
  } else {
    t.set("data.max_prompt_length", t.integer("max_length"), {"max_length"});
    if (strategy == "left") {
      t.set("data.truncation", "left", {"truncation_strategy"});
    } else if (strategy == "delete") {
      t.set("data.filter_overlong_prompts", true, {"truncation_strategy"},
            "Mortise drops such rows; ms-swift draws others");
    } else {
      t.problem("truncation_strategy", fmt::format("truncation_strategy {} is not known", quote(strategy)),
                "use left or delete");
    }
  }
  if (!t.flag("dataset_shuffle") && !t.flag("train_dataloader_shuffle"))
    t.set("data.shuffle", false, {"dataset_shuffle", "train_dataloader_shuffle"});
  const std::string system = t.text("system");
  if (system.ends_with(".txt")) {
    t.problem("system", fmt::format("system names the file {}, which is not read", quote(system)),
              "give its text as system, or as data.system_prompt in the result");
  } else if (!system.empty()) {
    t.set("data.system_prompt", system, {"system"});
  }
  const std::vector<std::string> stop = t.texts("stop_words");
  if (!stop.empty()) t.set("rollout.stop", stop, {"stop_words"});
}

// On-policy distillation: the teacher's log-ratio is added to the advantages.
void set_teacher(Translation& t) {
  const std::string_view model = "teacher_model", coef = "teacher_kl_coef";
  if (t.is_null(model)) return t.note_given({coef}, "only with teacher_model");
  t.set("teacher.path", t.text(model), {model});
  t.set("teacher.advantage_coef", t.number(coef), {coef});
}

// Settings that the chosen loss and rewards do not read.
void note_unused(Translation& t) {
  const std::vector<std::string> types = t.texts("loss_type");
  const std::vector<std::string> rewards = t.texts("reward_funcs");
  const auto unless = [&t](const std::vector<std::string>& chosen, std::string_view wanted,
                           std::initializer_list<std::string_view> names) {
    if (std::ranges::find(chosen, wanted) != chosen.end()) return;
    for (const std::string_view name : names) {
      if (t.is_given(name)) t.note(name, "only with " + std::string(wanted));
    }
  };
  unless(types, "sapo", {"tau_pos", "tau_neg"});
  unless(types, "real", {"real_tau"});
  unless(types, "fipo", {"fipo_decay_rate", "fipo_clip_range", "fipo_clip_high_only", "fipo_safety_threshold"});
  unless(rewards, "cosine",
         {"cosine_min_len_value_wrong", "cosine_max_len_value_wrong", "cosine_min_len_value_correct",
          "cosine_max_len_value_correct", "cosine_max_len"});
  unless(rewards, "repetition", {"repetition_n_grams", "repetition_max_penalty"});
  unless(rewards, "soft_overlong", {"soft_max_length", "soft_cache_length"});
  if (!t.texts("external_plugins").empty()) {
    t.note("external_plugins", "a reward of a Python file is called by a [[reward]] table with use = \"python\"");
  }
}

// With servers ms-swift's correction would count. Its weights are not those of algorithm.rollout_correction.
void set_sampler(Translation& t) {
  const std::string_view mode = "rollout_importance_sampling_mode";
  const bool has_servers = translate_servers(t);
  if ((has_servers || t.flag("async_generate")) && !t.is_null(mode)) {
    return t.problem(mode, fmt::format("{} with {} is not supported", mode, has_servers ? "servers" : "async_generate"),
                     "leave it out, and set algorithm.rollout_correction in the imported file");
  }
  t.note_given({mode, "rollout_importance_sampling_threshold"},
               has_servers ? "only with its mode" : reasons::kMismatch);
}

// A step learns from what was sampled while the step before it learned.
void set_swift_mode(Translation& t) {
  if (!t.flag("async_generate")) return t.note_given({"async_generate"}, "as here");
  t.set("trainer.mode", "one_step_off", {"async_generate"},
        "ms-swift samples its first prompts twice, and leaves out the last ones; docs/async.md");
}

// ms-swift's own engine gets the memory of the optimizer's state while it samples.
void set_swift_offload(Translation& t) {
  const std::string_view name = "offload_optimizer";
  if (!t.is_given(name)) return;
  if (!t.flag(name)) return t.note(name, "the optimizer's state stays in memory, as here");
  if (!t.flag("use_vllm")) return t.note(name, "only with use_vllm");
  if (t.is_set("rollout.name")) return t.note(name, reasons::kServersEngine);
  if (t.is_set("trainer.mode")) return t.note(name, "sampling ahead runs next to the updates, which need the state");
  if (!t.is_set("rollout.sleep_while_training"))
    return t.note(name, "keys and values stay in memory while the run trains, so it would give no room");
  t.set("actor.optim.offload", "while_sampling", {name}, reasons::kSpeed);
}

}  // namespace

void translate_swift(Translation& t, const Processes& processes) {
  const HfBatches batches = translate_hf_batches(t, processes, swift_normalizes_batches, DealtRows::kInOrder);
  translate_hf_schedule(t, batches, set_learning_rate(t));
  translate_swift_optimizer(t);
  set_data(t);
  translate_hf_files(t, batches, !t.texts("val_dataset").empty());
  set_loss(t, batches);
  note_unused(t);
  set_kl(t);
  translate_reference(t, batches);
  set_advantages(t);
  set_sampler(t);
  set_swift_mode(t);
  translate_hf_groups(t, processes);
  set_hf_sleep(t, "sleep_level");
  set_swift_offload(t);
  set_teacher(t);
  translate_swift_chord(t, batches);
  set_model(t);
  set_reference(t);
  translate_swift_rewards(t);
}

}  // namespace mortise
