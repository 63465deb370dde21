#include "learn/objective/actor_objective.h"

#include <algorithm>

#include "config/full_kl.h"
#include "foundation/base/at_place.h"
#include "learn/objective/entropy_mask.h"
#include "learn/objective/loss_settings.h"
#include "learn/objective/off_policy_mask.h"

namespace mortise {

namespace {

bool lists(const std::vector<std::string>& names, std::string_view name) {
  for (const std::string& entry : names) {
    if (entry == name) return true;
  }
  return false;
}

}  // namespace

void ObjectiveSums::add(const ObjectiveSums& other) {
  loss += other.loss;
  pg_loss += other.pg_loss;
  kl_loss += other.kl_loss;
  kl += other.kl;
  entropy += other.entropy;
  entropy_loss += other.entropy_loss;
  num_tokens += other.num_tokens;
}

Result<TokenWeightOptions> aggregation_of(const RunConfig& config, const PluginInfo& loss) {
  TokenWeightOptions options;
  std::string mode = config.actor.loss_agg_mode;
  if (mode == "auto") {
    const Json* own = json_find(config.actor.policy_loss.params, "loss_agg_mode");
    mode = own != nullptr && own->is_string() ? own->get<std::string>() : default_loss_agg_mode(loss);
  }
  options.mode = TRY(parse_loss_agg_mode(mode));
  options.rows = TRY(parse_loss_agg_rows(config.actor.loss_agg_rows));
  options.loss_scale_factor =
      config.actor.loss_scale_factor.value_or(static_cast<double>(config.data.max_response_length));
  options.loss_scale_by_rows = config.actor.loss_scale_by_rows;
  return options;
}

ActorObjective::ActorObjective(PolicyLoss policy_loss, std::optional<KlEstimator> kl)
    : policy_loss_(std::move(policy_loss)), kl_(std::move(kl)) {}

Result<ActorObjective> ActorObjective::create(PluginRegistry& registry, const LoadedConfig& loaded, const RunKey& key) {
  const RunConfig& config = loaded.config;
  const ActorConfig& actor = config.actor;
  const std::string loss_where = loaded.where("actor.policy_loss.loss_mode");
  const PluginRef ref = TRY(at_place(loss_where, registry.find("policy_loss", actor.policy_loss.loss_mode)));
  const Json loss_params = policy_loss_params(*ref.plugin, actor);
  PolicyLoss loss =
      TRY(at_place(loss_where, PolicyLoss::create(registry, actor.policy_loss.loss_mode, loss_params, key)));
  std::optional<KlEstimator> kl;
  const bool full_kl = actor.use_kl_loss && actor.kl_loss_type == kFullKl;
  if (actor.use_kl_loss && !full_kl) {
    kl = TRY(at_place(loaded.where("actor.kl_loss_type"),
                      KlEstimator::create(registry, actor.kl_loss_type, actor.kl_params, key)));
  }
  const TokenWeightOptions aggregation = TRY(aggregation_of(config, loss.info()));
  ActorObjective objective(std::move(loss), std::move(kl));
  objective.full_kl_ = full_kl;
  objective.kl_loss_coef_ = actor.kl_loss_coef;
  objective.entropy_coeff_ = actor.entropy_coeff;
  objective.top_entropy_quantile_ = actor.top_entropy_quantile;
  objective.off_policy_mask_threshold_ = actor.off_policy_mask_threshold;
  objective.aggregation_ = aggregation;
  objective.correction_ = TRY(RolloutCorrection::create(config.algorithm.rollout_correction));
  return objective;
}

Coupling ActorObjective::coupling() const {
  Coupling furthest = policy_loss_.coupling();
  if (kl_) furthest = std::max(furthest, kl_->coupling());
  if (off_policy_mask_threshold_) furthest = std::max(furthest, Coupling::kRow);
  const bool corrects_now = correction_.is_bypass() && correction_.is_active();
  if (masks_by_entropy() || corrects_now) furthest = Coupling::kUpdate;
  return furthest;
}

bool ActorObjective::needs_ref_log_prob() const {
  return kl_.has_value() || lists(policy_loss_.info().requires_inputs, "ref_log_prob");
}

Result<> ActorObjective::check_inputs(const ObjectiveInput& input) const {
  if (input.layout.num_tokens() == 0) return {};
  const auto missing = [](std::string_view name, std::string_view setting, const std::string& otherwise) {
    return Error{ErrorKind::kData,
                 "the input '" + std::string(name) + "' is missing, and " + std::string(setting) + " needs it", "",
                 "add it, or " + otherwise};
  };
  for (const std::string& name : policy_loss_.info().requires_inputs) {
    const bool given = name == "ref_log_prob"         ? !input.ref_log_prob.empty()
                       : name == "rollout_log_prob"   ? !input.rollout_log_prob.empty()
                       : name == "rollout_is_weights" ? !input.rollout_is_weights.empty()
                       : name == "entropy"            ? !input.entropy.empty()
                                           : name == "old_log_prob" || name == "log_prob" || name == "advantages";
    if (given) continue;
    return missing(name, "actor.policy_loss.loss_mode (" + policy_loss_.instance().label() + ")",
                   "choose another loss");
  }
  if (kl_ && input.ref_log_prob.empty())
    return missing("ref_log_prob", "actor.use_kl_loss", "set actor.use_kl_loss=false");
  if (!input.entropy.empty()) return {};
  if (entropy_coeff_ != 0.0) return missing("entropy", "actor.entropy_coeff", "set actor.entropy_coeff=0");
  if (masks_by_entropy()) return missing("entropy", "actor.top_entropy_quantile", "set actor.top_entropy_quantile=1");
  return {};
}

// What scales the policy term, and it alone: the correction's weights, which are the engine's but for losses that apply
// them themselves, and the masks.
void ActorObjective::weigh_and_mask(const ObjectiveInput& input, PolicyLossInput& loss_input) {
  const bool own = policy_loss_.info().consumes_stage("rollout_is_weights");
  const std::span<const float> correction = own ? std::span<const float>{} : loss_input.rollout_is_weights;
  if (!own) loss_input.rollout_is_weights = {};
  if (correction.empty() && entropy_mask_.empty() && !off_policy_mask_threshold_) return;
  policy_weight_.assign(loss_input.weight.begin(), loss_input.weight.end());
  for (size_t t = 0; t < policy_weight_.size(); ++t) {
    if (!correction.empty()) policy_weight_[t] *= correction[t];
    if (!entropy_mask_.empty() && entropy_mask_[t] == 0) policy_weight_[t] = 0.0F;
  }
  if (off_policy_mask_threshold_) {
    const auto behaviour = input.rollout_log_prob.empty() ? input.old_log_prob : input.rollout_log_prob;
    off_policy_mask(input.layout, behaviour, input.log_prob, input.advantages, input.response_mask,
                    *off_policy_mask_threshold_, policy_weight_);
  }
  loss_input.weight = policy_weight_;
}

Result<ObjectiveSums> ActorObjective::evaluate(const ObjectiveInput& input, const ObjectiveGrad& grad,
                                               MetricSet* metrics) {
  TRY(check_inputs(input));
  const auto num_tokens = static_cast<size_t>(input.layout.num_tokens());
  scratch_.resize(num_tokens);
  scratch_grad_.resize(num_tokens);

  entropy_mask_.resize(masks_by_entropy() ? num_tokens : 0);
  if (masks_by_entropy()) entropy_mask(input.entropy, input.response_mask, top_entropy_quantile_, entropy_mask_);

  PolicyLossInput loss_input;
  loss_input.layout = input.layout;
  loss_input.log_prob = input.log_prob;
  loss_input.old_log_prob = input.old_log_prob;
  loss_input.advantages = input.advantages;
  loss_input.response_mask = input.response_mask;
  loss_input.weight = input.weight;
  loss_input.ref_log_prob = input.ref_log_prob;
  loss_input.rollout_log_prob = input.rollout_log_prob;
  loss_input.rollout_is_weights = input.rollout_is_weights;
  loss_input.entropy = input.entropy;
  loss_input.step = input.step;
  loss_input.update_index = input.update_index;
  if (correction_.is_bypass() && correction_.is_active()) TRY(correct_by_current_policy(input, loss_input, metrics));
  weigh_and_mask(input, loss_input);
  TRY(policy_loss_.compute(loss_input, {scratch_, grad.log_prob, grad.entropy}, metrics));

  ObjectiveSums sums;
  for (size_t t = 0; t < num_tokens; ++t) {
    if (input.response_mask[t] == 0) continue;
    ++sums.num_tokens;
    sums.pg_loss += static_cast<double>(loss_input.weight[t]) * static_cast<double>(scratch_[t]);
  }
  if (kl_) TRY(add_kl(input, grad, metrics, sums));
  if (!input.entropy.empty()) add_entropy(input, grad, sums);
  sums.loss = sums.pg_loss + kl_loss_coef_ * sums.kl_loss - entropy_coeff_ * sums.entropy_loss;
  return sums;
}

Result<> ActorObjective::correct_by_current_policy(const ObjectiveInput& input, PolicyLossInput& loss_input,
                                                   MetricSet* metrics) {
  const std::span<const int64_t> offsets = input.layout.row_offsets;
  corrected_ = correction_.apply({offsets, input.response_mask, input.log_prob, input.old_log_prob}, metrics);
  if (!correction_.weighs_loss()) corrected_.weights.clear();
  bypass_weight_.resize(corrected_.mask.size());
  const UpdateCounts counts = count_update(offsets, corrected_.mask, input.layout.group_index);
  TRY(token_weights(aggregation_, counts, offsets, corrected_.mask, input.layout.group_index, bypass_weight_));
  loss_input.response_mask = corrected_.mask;
  loss_input.weight = bypass_weight_;
  loss_input.rollout_is_weights = corrected_.weights;
  return {};
}

Result<> ActorObjective::add_kl(const ObjectiveInput& input, const ObjectiveGrad& grad, MetricSet* metrics,
                                ObjectiveSums& sums) {
  KlEstimatorInput kl_input;
  kl_input.layout = input.layout;
  kl_input.log_prob = input.log_prob;
  kl_input.ref_log_prob = input.ref_log_prob;
  kl_input.response_mask = input.response_mask;
  kl_input.weight = input.weight;
  kl_input.old_log_prob = input.old_log_prob;
  kl_input.step = input.step;
  TRY(kl_->compute(kl_input, {scratch_, scratch_grad_}, metrics));
  for (size_t t = 0; t < scratch_.size(); ++t) {
    if (input.response_mask[t] == 0) continue;
    sums.kl += static_cast<double>(scratch_[t]);
    sums.kl_loss += static_cast<double>(input.weight[t]) * static_cast<double>(scratch_[t]);
    if (!grad.log_prob.empty())
      grad.log_prob[t] += static_cast<float>(kl_loss_coef_ * static_cast<double>(scratch_grad_[t]));
  }
  return {};
}

void ActorObjective::add_entropy(const ObjectiveInput& input, const ObjectiveGrad& grad, ObjectiveSums& sums) const {
  for (size_t t = 0; t < input.entropy.size(); ++t) {
    if (input.response_mask[t] == 0) continue;
    const bool counts = entropy_mask_.empty() || entropy_mask_[t] != 0;
    const double weight = counts ? static_cast<double>(input.weight[t]) : 0.0;
    sums.entropy += static_cast<double>(input.entropy[t]);
    sums.entropy_loss += weight * static_cast<double>(input.entropy[t]);
    if (!grad.entropy.empty()) grad.entropy[t] -= static_cast<float>(entropy_coeff_ * weight);
  }
}

}  // namespace mortise
