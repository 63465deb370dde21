// verl's policy loss, aggregation, KL, advantages and rollout correction.
//
// verl forces the aggregation of sapo and geo_mean (before version 0.9 of gspo too). Its YAML sets clip_ratio_low and
// _high to 0.2, so clip_ratio alone has no effect. The result spells all of this out.
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

// verl aggregates the KL and the entropy term by loss_agg_mode even if the loss does not read it. Returns whether a term
// does so.
bool set_aggregation_of_terms(Translation& t, const std::string& mode) {
  constexpr std::string_view kFrom = "actor.loss_agg_mode", kRemark = "verl's loss alone ignores loss_agg_mode";
  const bool kl = t.flag("actor.use_kl_loss"), entropy = t.number("actor.entropy_coeff") != 0;
  if (mode == "seq-mean-token-mean") return false;
  if (kl) t.set("actor.kl_agg_mode", mode, {kFrom}, kRemark);
  if (entropy) t.set("actor.entropy_agg_mode", mode, {kFrom}, kRemark);
  return kl || entropy;
}

void set_scale_factor(Translation& t, std::string_view mode_key) {
  t.set("actor.loss_scale_by_rows", true, {mode_key}, "verl before March 2026: false");
  if (!t.is_null("actor.loss_scale_factor"))
    t.set("actor.loss_scale_factor", t.number("actor.loss_scale_factor"), {"actor.loss_scale_factor"});
}

void set_aggregation(Translation& t) {
  const std::string_view key = "actor.loss_agg_mode", loss = "actor.policy_loss.loss_mode";
  const std::string loss_mode = t.text(loss);
  std::string mode = t.text(key);
  std::string_view from = key;
  std::string remark;
  bool divides = mode == "seq-mean-token-sum-norm";
  if (loss_mode == "gspo" && !t.is_given(key)) {
    mode = "seq-mean-token-mean";
    from = loss;
    remark = "GSPO's own, and verl's before 0.9";
    t.warn(key,
           "gspo without it is a mean over rows (seq-mean-token-mean), as in its paper and in verl before 0.9; "
           "verl takes token-mean since: name it");
  }
  if (loss_mode == "sapo" || loss_mode == "geo_mean") {
    if (!set_aggregation_of_terms(t, mode)) {
      divides = false;
      if (t.is_given(key) && mode != "seq-mean-token-mean")
        t.note(key, "verl does not read it with loss_mode " + loss_mode);
    }
    mode = "seq-mean-token-mean";
    from = loss;
    remark = "verl ignores loss_agg_mode here";
  }
  t.set(key, mode, {from}, remark);
  if (mode.starts_with("seq-mean")) t.set("actor.loss_agg_rows", "all", {from}, "rows without tokens count");
  if (divides) {
    set_scale_factor(t, key);
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

// verl's name of September 2025 for token weights with an upper bound.
void set_tis_cap(Translation& t) {
  constexpr std::string_view kCap = "actor.tis_imp_ratio_cap";
  constexpr std::string_view kWeights = "algorithm.rollout_correction.rollout_is";
  if (!t.is_given(kCap) || t.is_null(kCap) || t.number(kCap) <= 0) return t.note_given({kCap}, "as here");
  if (!t.is_null(kWeights))
    return t.problem(kCap, fmt::format("{} and {} both weight tokens", kCap, kWeights), "remove the older one");
  t.set(kWeights, "token", {kCap});
  t.set("algorithm.rollout_correction.rollout_is_threshold", format_f64(t.number(kCap)), {kCap});
}

// Rollout correction and dynamic sampling: a key is kept if the key that switches it on is set.
void set_correction(Translation& t) {
  set_tis_cap(t);
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

}  // namespace

void translate_verl_objective(Translation& t) {
  set_policy_loss(t);
  set_aggregation(t);
  set_kl(t);
  set_advantages(t);
  set_row_draw(t);
  set_correction(t);
}

}  // namespace mortise
