// verl's ppo_trainer: the settings that depend on each other (verl_rules.cpp lists them).
//
// verl forces the aggregation of sapo and geo_mean (before version 0.9 of gspo too). Its YAML sets clip_ratio_low and
// _high to 0.2, so clip_ratio alone has no effect. Its schedule counts steps. The result spells all of this out.
#include <fmt/core.h>

#include <algorithm>

#include "config/full_kl.h"
#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

constexpr std::string_view kLosses[] = {"vanilla",  "gspo",   "sapo",    "cispo",   "geo_mean", "gpg",
                                        "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro"};
constexpr std::string_view kEstimators[] = {"gae",
                                            "grpo",
                                            "grpo_vectorized",
                                            "grpo_passk",
                                            "rloo",
                                            "rloo_vectorized",
                                            "opo",
                                            "reinforce_plus_plus",
                                            "reinforce_plus_plus_baseline",
                                            "remax",
                                            "gpg",
                                            "optimal_token_baseline",
                                            "tir_optimal_token_baseline",
                                            "gdpo"};
constexpr std::string_view kKlNames[] = {"kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"};

// verl makes a critic if the estimator is gae. With critic.enable alone it makes one that nothing reads.
bool has_critic(const Translation& t) { return t.value("algorithm.adv_estimator") == "gae"; }

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void set_policy_loss(Translation& t) {
  std::string mode = t.text("actor.policy_loss.loss_mode");
  std::replace(mode.begin(), mode.end(), '-', '_');  // as verl's comments spell them
  if (mode == "bypass_mode") {
    return t.problem("actor.policy_loss.loss_mode", "loss_mode bypass_mode is not supported",
                     "set algorithm.rollout_correction.bypass_mode=True and its loss_type instead");
  }
  if (!contains(kLosses, mode)) {
    return t.problem("actor.policy_loss.loss_mode",
                     fmt::format("loss_mode {} is not one of verl's losses", quote(mode)),
                     "write it as a plugin (docs/plugins/quickstart.md) and name that in actor.policy_loss.loss_mode");
  }
  const std::string_view loss_type = "algorithm.rollout_correction.loss_type";
  const bool by_type = t.flag("algorithm.rollout_correction.bypass_mode") && t.text(loss_type) == "reinforce";
  if (mode == "vanilla" && by_type) {
    t.set("actor.policy_loss.loss_mode", "reinforce", {loss_type}, "bypass mode's loss");
  } else {
    t.set("actor.policy_loss.loss_mode", mode, {"actor.policy_loss.loss_mode"});
  }
  const auto params = [&](std::string_view loss, std::string_view table,
                          std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      const std::string from = std::string(table) + std::string(name);
      if (mode == loss) {
        if (!t.is_null(from)) t.set("actor.policy_loss." + std::string(name), t.number(from), {from});
      } else if (t.is_given(from)) {
        t.note(from, "not read with loss_mode " + mode);
      }
    }
  };
  params("sapo", "actor.", {"tau_pos", "tau_neg"});
  params("clip_cov", "actor.policy_loss.", {"clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"});
  params("kl_cov", "actor.policy_loss.", {"kl_cov_ratio", "ppo_kl_coef"});
  params("dro", "actor.policy_loss.", {"dro_beta"});

  for (const std::string side : {"low", "high"}) {
    const std::string key = "actor.clip_ratio_" + side;
    const std::string_view from = t.is_null(key) ? std::string_view("actor.clip_ratio") : std::string_view(key);
    t.set(key, t.number(from), {from});
  }
  if (t.is_given("actor.clip_ratio") && !t.is_null("actor.clip_ratio_low") && !t.is_null("actor.clip_ratio_high"))
    t.note("actor.clip_ratio", "clip_ratio_low and clip_ratio_high are 0.2 unless set, also in verl");
}

// verl aggregates the KL and the entropy term by loss_agg_mode even if the loss does not read it. Here all
// terms of the objective have the weights of one aggregation.
void refuse_two_aggregations(Translation& t, const std::string& loss, const std::string& mode) {
  const bool kl = t.flag("actor.use_kl_loss") && t.number("actor.kl_loss_coef") != 0;
  const bool entropy = t.number("actor.entropy_coeff") != 0;
  if (mode == "seq-mean-token-mean" || (!kl && !entropy)) return;
  t.problem(kl ? "actor.use_kl_loss" : "actor.entropy_coeff",
            fmt::format("{} with loss_mode {} and loss_agg_mode {} is not supported: verl takes the loss by "
                        "seq-mean-token-mean and this term by {}, here both have one aggregation",
                        kl ? "use_kl_loss" : "entropy_coeff", loss, mode, mode),
            "set actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean");
}

void set_aggregation(Translation& t) {
  const std::string_view key = "actor.loss_agg_mode", loss = "actor.policy_loss.loss_mode";
  const std::string loss_mode = t.text(loss);
  std::string mode = t.text(key);
  std::string_view from = key;
  std::string remark;
  if (loss_mode == "gspo" && !t.is_given(key)) {
    mode = "seq-mean-token-mean";
    from = loss;
    remark = "GSPO's own, and verl's before 0.9";
    t.warn(key,
           "gspo without it is a mean over rows (seq-mean-token-mean), as in its paper and in verl before 0.9; "
           "verl takes token-mean since: name it");
  }
  if (loss_mode == "sapo" || loss_mode == "geo_mean") {
    if (t.is_given(key) && mode != "seq-mean-token-mean")
      t.note(key, "verl does not read it with loss_mode " + loss_mode);
    refuse_two_aggregations(t, loss_mode, mode);
    mode = "seq-mean-token-mean";
    from = loss;
    remark = "verl ignores loss_agg_mode here";
  }
  t.set(key, mode, {from}, remark);
  if (mode.starts_with("seq-mean")) t.set("actor.loss_agg_rows", "all", {from}, "rows without tokens count");
  if (mode == "seq-mean-token-sum-norm") {
    t.set("actor.loss_scale_by_rows", true, {key}, "verl before March 2026: false");
    if (!t.is_null("actor.loss_scale_factor"))
      t.set("actor.loss_scale_factor", t.number("actor.loss_scale_factor"), {"actor.loss_scale_factor"});
  } else {
    t.note_given({"actor.loss_scale_factor"}, "only with seq-mean-token-sum-norm");
  }
}

std::string kl_name(Translation& t, std::string_view key) {
  std::string name = t.text(key);
  // A name that verl's own estimators do not accept; it exists as a KL of the loss.
  if (name == kFullKl && key == "actor.kl_loss_type") return name;
  const std::string_view plain = std::string_view(name).substr(0, name.find('+'));
  if (!contains(kKlNames, plain))
    t.problem(key, quote(name) + " is not supported", "use one of: kl, abs, mse, low_var_kl (each also with a +)");
  return name;
}

void set_kl(Translation& t) {
  if (t.flag("actor.use_kl_loss")) {
    t.set("actor.kl_loss_coef", t.number("actor.kl_loss_coef"), {"actor.kl_loss_coef"});
    t.set("actor.kl_loss_type", kl_name(t, "actor.kl_loss_type"), {"actor.kl_loss_type"});
  } else {
    t.note_given({"actor.kl_loss_coef", "actor.kl_loss_type"}, "actor.use_kl_loss is false");
  }
  if (!t.flag("algorithm.use_kl_in_reward")) {
    return t.note_given({"algorithm.kl_penalty", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.kl_coef",
                         "algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"},
                        "algorithm.use_kl_in_reward is false");
  }
  t.set("algorithm.kl_penalty", kl_name(t, "algorithm.kl_penalty"), {"algorithm.kl_penalty"});
  const std::string type = t.text("algorithm.kl_ctrl.type");
  t.set("algorithm.kl_ctrl.type", type, {"algorithm.kl_ctrl.type"});
  t.set("algorithm.kl_ctrl.kl_coef", t.number("algorithm.kl_ctrl.kl_coef"), {"algorithm.kl_ctrl.kl_coef"});
  for (const std::string_view name : {"algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"}) {
    if (type == "adaptive") {
      t.set(name, t.number(name), {name});
    } else {
      t.note_given({name}, "algorithm.kl_ctrl.type is fixed");
    }
  }
}

void set_advantages(Translation& t) {
  const std::string name = t.text("algorithm.adv_estimator");
  if (!contains(kEstimators, name)) {
    return t.problem("algorithm.adv_estimator", fmt::format("adv_estimator {} is none of verl's own", quote(name)),
                     "write it as a plugin (docs/plugins/advantage_estimator.md)");
  }
  t.set("algorithm.adv_estimator", name, {"algorithm.adv_estimator"});
  // Changes of verl after January 2026, which our estimators have as parameters.
  struct Newer {
    std::string_view estimator, parameter;
    Json value;
    std::string_view before;
  };
  const Newer kNewer[] = {{"grpo_vectorized", "min_variance", 0.0, "verl of January 2026: 1e-6"},
                          {"reinforce_plus_plus", "masked_tokens", "skip", "verl of January 2026: reset"},
                          {"optimal_token_baseline", "handle_zero_tail", true, "verl of January 2026: false"}};
  for (const Newer& newer : kNewer) {
    if (name == newer.estimator)
      t.set("algorithm.adv_params." + std::string(newer.parameter), newer.value, {"algorithm.adv_estimator"},
            newer.before);
  }
  const bool gamma = name == "gae" || name == "reinforce_plus_plus";
  if (gamma) {
    t.set("algorithm.gamma", t.number("algorithm.gamma"), {"algorithm.gamma"});
  } else {
    t.note_given({"algorithm.gamma"}, "not read with adv_estimator " + name);
  }
  if (name == "grpo_vectorized" && !t.flag("algorithm.norm_adv_by_std_in_grpo")) {
    t.set("algorithm.norm_adv_by_std_in_grpo", true, {"algorithm.norm_adv_by_std_in_grpo"},
          "verl's grpo_vectorized does not read it");
  }
  if (name == "gae") {
    t.set("algorithm.lam", t.number("algorithm.lam"), {"algorithm.lam"});
  } else {
    t.note_given({"algorithm.lam"}, "not read with adv_estimator " + name);
  }
}

// Rollout correction and dynamic sampling: a key is kept if the key that switches it on is set.
void set_correction(Translation& t) {
  const std::string correction = "algorithm.rollout_correction.", groups = "algorithm.filter_groups.";
  const bool weighs = !t.is_null(correction + "rollout_is"), rejects = !t.is_null(correction + "rollout_rs");
  const bool bypasses = t.flag(correction + "bypass_mode"), filters = t.flag(groups + "enable");
  struct Part {
    std::string key;
    bool is_used;
    bool is_text;
  };
  const Part parts[] = {{correction + "rollout_is_threshold", weighs, true},
                        {correction + "rollout_is_batch_normalize", weighs, false},
                        {correction + "rollout_rs_threshold", rejects, true},
                        {correction + "loss_type", bypasses, true},
                        {groups + "metric", filters, true}};
  for (const Part& part : parts) {
    if (!t.is_given(part.key) || t.is_null(part.key)) continue;
    if (!part.is_used) {
      t.note(part.key, "what it belongs to is off");
    } else if (part.is_text) {
      t.set(part.key, t.text(part.key), {part.key});
    } else {
      t.set(part.key, t.flag(part.key), {part.key});
    }
  }
  const std::string draws = groups + "max_num_gen_batches";
  if (filters) {
    t.set(draws, t.integer(draws), {draws});
    if (!t.is_null("data.gen_batch_size"))
      t.set("data.gen_batch_size", t.integer("data.gen_batch_size"), {"data.gen_batch_size"});
  } else {
    t.note_given({draws}, "algorithm.filter_groups.enable is false");
  }
}

// verl draws rows by their scores only for gae.
void set_row_draw(Translation& t) {
  const std::string_view use = "algorithm.use_pf_ppo", method = "algorithm.pf_ppo.reweight_method";
  const std::string_view power = "algorithm.pf_ppo.weight_pow";
  if (!t.flag(use) || t.text("algorithm.adv_estimator") != "gae") {
    t.note_given({use}, "verl reads it only with adv_estimator gae");
    return t.note_given({method, power}, "only with use_pf_ppo and adv_estimator gae");
  }
  t.set(use, true, {use}, "Mortise draws with its own random numbers");
  t.set(method, t.text(method), {method});
  if (t.text(method) == "pow")
    t.set(power, t.number(power), {power});
  else
    t.note_given({power}, "only with reweight_method pow");
}

void set_batches(Translation& t) {
  const bool by_tokens = t.flag("actor.use_dynamic_bsz");
  if (by_tokens) t.set("actor.use_dynamic_bsz", true, {"actor.use_dynamic_bsz"});
  const std::string_view rows = "actor.ppo_micro_batch_size_per_gpu", tokens = "actor.ppo_max_token_len_per_gpu";
  if (!t.is_null(rows) && !by_tokens) t.set(rows, t.integer(rows), {rows}, "changes memory and speed only");
  if (!t.is_null(rows) && by_tokens) t.note(rows, "actor.use_dynamic_bsz is true");
  if (!t.is_null(tokens) && by_tokens) t.set(tokens, t.integer(tokens), {tokens}, "changes memory and speed only");
  if (!t.is_null(tokens) && !by_tokens) t.note(tokens, "actor.use_dynamic_bsz is false");

  const auto same = [&t](std::string_view name, std::string_view other) {
    if (t.is_null(name) || !t.is_given(name) || t.number(name) == t.number(other)) return;
    t.problem(name, fmt::format("{} differs from {}", quote(name), other),
              "make them equal, because Mortise has only one of them");
  };
  if (!t.flag("algorithm.filter_groups.enable")) same("data.gen_batch_size", "data.train_batch_size");
  same("rollout.prompt_length", "data.max_prompt_length");
  same("actor.optim.clip_grad", "actor.grad_clip");
  if (has_critic(t)) same("critic.optim.clip_grad", "critic.grad_clip");
}

// `part`: "actor" or "critic".
void set_schedule(Translation& t, const std::string& part) {
  const std::string table = part + ".optim.", type_key = table + "lr_scheduler_type", style = table + "warmup_style";
  t.set(table + "schedule_unit", "step", {type_key}, "verl's schedule counts steps");
  const std::string& name = t.is_null(style) ? type_key : style;  // the older name wins, as in verl
  if (name == style && t.is_given(type_key)) t.note(type_key, "warmup_style wins");
  const std::string type = t.text(name);
  if (type != "constant" && type != "cosine")
    t.problem(name, quote(type) + " is not one of verl's schedules", "use constant or cosine");
  t.set(type_key, type, {name});
  for (const std::string leaf : {"min_lr_ratio", "num_cycles"}) {
    const std::string key = table + leaf;
    if (type == "cosine") {
      if (!t.is_null(key)) t.set(key, t.number(key), {key});
    } else if (t.is_given(key)) {
      t.note(key, "only with cosine");
    }
  }
  const std::string ratio = table + "lr_warmup_steps_ratio", steps = table + "lr_warmup_steps";
  if (!t.is_null(steps) && t.integer(steps) >= 0) {
    if (t.is_given(ratio)) t.note(ratio, "lr_warmup_steps is given");
  } else if (!t.is_null(ratio)) {
    t.set(ratio, t.number(ratio), {ratio});
  }
}

void set_run_length(Translation& t) {
  if (t.is_null("trainer.total_training_steps")) {
    t.set("trainer.total_epochs", t.integer("trainer.total_epochs"), {"trainer.total_epochs"});
  } else {
    t.note_given({"trainer.total_epochs"}, "trainer.total_training_steps is given");
  }
}

// The rows have the same columns here, in the same formats.
void set_files(Translation& t, std::string_view name) {
  const std::vector<std::string> files = t.texts(name);
  if (!files.empty()) {
    t.set(name, files, {name});
  } else if (name == "data.train_files") {
    t.ask("data", "train_files = [\"train.parquet\"]");
  }
}

// Files of tools that nobody reads are a mistake, also in a run with one turn.
bool names_tool_files(const Translation& t) {
  for (const char* leaf : {"tool_config_path", "function_tool_path", "interaction_config_path"})
    if (!t.is_null(fmt::format("rollout.multi_turn.{}", leaf))) return true;
  return false;
}

// verl drops all but the first call of a turn by default. In a run with one turn there is nothing to say.
void set_turns(Translation& t) {
  const std::string_view calls = "rollout.multi_turn.max_parallel_calls";
  if (t.flag("rollout.multi_turn.enable")) t.set(calls, t.integer(calls), {calls});
}

void set_validation(Translation& t) {
  // verl gives the temperature to its sampler, and ignores do_sample.
  const std::string_view temperature = "rollout.val_kwargs.temperature";
  const bool samples = t.number(temperature) > 0;
  if (samples) t.set("rollout.val_kwargs.do_sample", true, {temperature}, "verl reads the temperature alone");
  t.note_given({"rollout.val_kwargs.do_sample"}, "verl reads rollout.val_kwargs.temperature alone");
  for (const std::string_view key :
       {temperature, std::string_view("rollout.val_kwargs.top_k"), std::string_view("rollout.val_kwargs.top_p")}) {
    if (samples) {
      t.set(key, t.value(key), {key});
    } else {
      t.note_given({key}, "rollout.val_kwargs.temperature is 0: validation is greedy");
    }
  }
  const bool has_rows = !t.texts("data.val_files").empty();
  for (const std::string_view key : {"trainer.test_freq", "trainer.val_before_train"}) {
    if (!t.is_given(key)) continue;
    if (has_rows) {
      t.set(key, t.value(key), {key});
    } else {
      t.note(key, "data.val_files is not given");
    }
  }
}

void set_trainer(Translation& t) {
  if (t.is_given("trainer.logger")) {
    Json logger = Json::array();
    for (const std::string& name : t.texts("trainer.logger")) {
      if (name == "console" || name == "tensorboard" || name == "wandb" || name == "mlflow") logger.push_back(name);
    }
    t.set("trainer.logger", logger, {"trainer.logger"}, "metrics.jsonl is always written");
  }
  const Json path = t.value("trainer.resume_from_path");
  if (path.is_string() && t.text("trainer.resume_mode") == "resume_path") {
    t.set("trainer.resume_from_path", path, {"trainer.resume_from_path"});
    t.warn("trainer.resume_from_path", "a checkpoint of verl cannot be resumed: name one of `mortise train`");
  } else {
    t.note_given({"trainer.resume_from_path"}, "only with resume_mode resume_path");
  }
}

// The file whose settings the overrides change. The import does not have it, and uses verl's own defaults for the rest.
void warn_of_other_defaults(Translation& t) {
  const std::string_view key = "hydra.config_name";
  const std::string name = t.text(key);
  if (name == "ppo_trainer" || name == "ppo_trainer.yaml") return t.note_given({key}, "its defaults are those here");
  t.warn(key, fmt::format("the file {} is not read: what is not on the command line is taken as in verl's ppo_trainer; "
                          "import the resolved file where it says otherwise",
                          quote(name)));
}

void set_model(Translation& t) {
  if (t.is_null("model.path")) {
    t.ask("model", "path = \"...\"  # the model's folder");
  } else {
    t.set("model.path", t.text("model.path"), {"model.path"});
  }
  const Json overrides = t.table("model.override_config");
  constexpr LoraNames kLora{"model.lora_rank", "model.lora_alpha", "", "model.target_modules", ""};
  if (t.integer("model.lora_rank") > 0) {
    translate_lora(t, kLora, "all-linear");
    if (!t.is_null("model.exclude_modules"))
      t.set("model.exclude_modules", t.texts("model.exclude_modules"), {"model.exclude_modules"});
  } else {
    t.note_given({"model.lora_rank"}, "as here");
    t.note_given({"model.lora_alpha", "model.target_modules", "model.exclude_modules"}, "only with lora_rank");
  }
  for (const auto& [key, value] : overrides.items()) {
    const bool dropout = key.find("drop") != std::string::npos && value.is_number() && value.get<double>() == 0;
    // Megatron's tables. The model must not change, and there are no experts.
    const bool empty = key == "model_config" && (value.is_null() || (value.is_object() && value.empty()));
    if (dropout || empty || key == "attn_implementation" || key == "moe_config" || key == "use_cache") continue;
    t.problem("model.override_config", fmt::format("model.override_config.{} would change the model", key),
              "change the model's config.json instead");
  }
  if (t.is_given("model.override_config")) t.note("model.override_config", "nothing in it changes the model here");
}

}  // namespace

void prepare_verl(Translation& t) {
  if (!t.flag("rollout.multi_turn.enable") && !names_tool_files(t))
    t.leave_out("rollout.multi_turn", "rollout.multi_turn.enable is false, so a completion is one turn");
  if (!has_critic(t)) t.leave_out("critic", "algorithm.adv_estimator asks for no values: there is no critic");
}

void translate_verl(Translation& t) {
  set_policy_loss(t);
  set_aggregation(t);
  set_kl(t);
  set_advantages(t);
  set_row_draw(t);
  set_correction(t);
  set_batches(t);
  set_schedule(t, "actor");
  translate_verl_optimizer(t, "actor");
  set_run_length(t);
  set_files(t, "data.train_files");
  set_files(t, "data.val_files");
  set_validation(t);
  set_turns(t);
  set_trainer(t);
  set_model(t);
  warn_of_other_defaults(t);
  translate_verl_rewards(t);
  if (!has_critic(t)) return;
  set_schedule(t, "critic");
  translate_verl_optimizer(t, "critic");
  const std::string_view mode = t.is_null("critic.loss_agg_mode") ? "actor.loss_agg_mode" : "critic.loss_agg_mode";
  t.set("critic.loss_agg_mode", t.text(mode), {mode});
}

}  // namespace mortise
