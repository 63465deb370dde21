// Calls the policy loss and the KL estimator, applies masks and weights, and adds the terms.
#include "learn/objective/actor_objective.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "config/full_kl.h"
#include "experience/plugin_settings.h"
#include "foundation/base/at_place.h"
#include "foundation/base/choice.h"
#include "learn/objective/entropy_mask.h"
#include "learn/objective/loss_settings.h"
#include "learn/objective/off_policy_mask.h"
#include "mortise/kinds/policy_loss.h"

namespace mortise {

void ObjectiveSums::add(const ObjectiveSums& other) {
  loss += other.loss;
  pg_loss += other.pg_loss;
  kl_loss += other.kl_loss;
  kl += other.kl;
  entropy += other.entropy;
  entropy_loss += other.entropy_loss;
  num_tokens += other.num_tokens;
  bonus_entropy += other.bonus_entropy;
  num_bonus_tokens += other.num_bonus_tokens;
}

Result<TokenWeightOptions> aggregation_of(const RunConfig& config, const PluginInfo& loss) {
  TokenWeightOptions options;
  if (const OrAuto<LossAggMode>& mode = config.actor.loss_agg_mode; !mode.is_auto()) {
    options.mode = *mode.value;
  } else {
    const Json* own = json_find(config.actor.policy_loss.params, "loss_agg_mode");
    options.mode = TRY(parse_loss_agg_mode(own != nullptr && own->is_string() ? own->get<std::string>()
                                                                              : default_loss_agg_mode(loss)));
  }
  options.rows = config.actor.loss_agg_rows;
  options.loss_scale_factor =
      config.actor.loss_scale_factor.value_or(static_cast<double>(config.data.max_response_length));
  options.loss_scale_by_rows = config.actor.loss_scale_by_rows;
  return options;
}

namespace {

// The aggregation of a term by `mode`; nothing if the term is aggregated as the loss is.
std::optional<TokenWeightOptions> aggregation_of_term(const OrAuto<LossAggMode>& mode, TokenWeightOptions loss) {
  if (mode.is_auto()) return std::nullopt;
  loss.mode = *mode.value;
  return loss;
}

}  // namespace

ActorObjective::ActorObjective(PolicyLoss policy_loss, std::optional<KlEstimator> kl)
    : policy_loss_(std::move(policy_loss)), kl_(std::move(kl)) {}

Result<ActorObjective> ActorObjective::create(PluginRegistry& registry, const LoadedConfig& loaded, const RunKey& key) {
  const RunConfig& config = loaded.config;
  const ActorConfig& actor = config.actor;
  const std::string loss_where = loaded.where("actor.policy_loss.loss_mode");
  const PluginRef ref = TRY(at_place(loss_where, registry.find("policy_loss", actor.policy_loss.loss_mode)));
  const Json loss_params = policy_loss_params(*ref.plugin, config);
  PolicyLoss loss = TRY(at_place(loss_where, PolicyLoss::create(registry, actor.policy_loss.loss_mode, loss_params, key,
                                                                policy_loss_workers(loaded))));
  std::optional<KlEstimator> kl;
  const bool full_kl = actor.use_kl_loss && actor.kl_loss_type == kFullKl;
  if (actor.use_kl_loss && !full_kl) {
    kl =
        TRY(at_place(loaded.where("actor.kl_loss_type"),
                     KlEstimator::create(registry, actor.kl_loss_type, actor.kl_params, key, kl_loss_workers(loaded))));
  }
  const TokenWeightOptions aggregation = TRY(aggregation_of(config, loss.info()));
  ActorObjective objective(std::move(loss), std::move(kl));
  objective.full_kl_ = full_kl;
  objective.kl_loss_coef_ = actor.kl_loss_coef;
  objective.entropy_coeff_ = actor.entropy_coeff;
  objective.top_entropy_quantile_ = actor.top_entropy_quantile;
  objective.off_policy_mask_threshold_ = actor.off_policy_mask_threshold;
  objective.aggregation_ = aggregation;
  if (actor.use_kl_loss) objective.kl_aggregation_ = aggregation_of_term(actor.kl_agg_mode, aggregation);
  objective.entropy_aggregation_ = aggregation_of_term(actor.entropy_agg_mode, aggregation);
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
  return kl_.has_value() || policy_loss_.info().requires_input(column::RefLogProb::name);
}

Result<> ActorObjective::check_inputs(const StepView& input) const {
  if (input.layout.num_tokens() == 0) return {};
  const auto missing = [](std::string_view name, std::string_view setting, const std::string& otherwise) {
    return Error{ErrorKind::kData, fmt::format("the input '{}' is missing, and {} needs it", name, setting), "",
                 "add it, or " + otherwise};
  };
  for (const std::string& name : policy_loss_.info().requires_inputs) {
    if (input.has(name)) continue;
    return missing(name, fmt::format("actor.policy_loss.loss_mode ({})", policy_loss_.instance().label()),
                   "choose another loss");
  }
  if (kl_ && !input.has<column::RefLogProb>())
    return missing(column::RefLogProb::name, "actor.use_kl_loss", "set actor.use_kl_loss=false");
  if (kl_ && kl_aggregation_ && !input.has<column::KlWeight>())
    return missing(column::KlWeight::name, "actor.kl_agg_mode", "set actor.kl_agg_mode=auto");
  const std::string_view entropy = column::Entropy::name;
  if (input.has(entropy)) return {};
  if (entropy_coeff_ != 0.0) return missing(entropy, "actor.entropy_coeff", "set actor.entropy_coeff=0");
  if (masks_by_entropy()) return missing(entropy, "actor.top_entropy_quantile", "set actor.top_entropy_quantile=1");
  return {};
}

Result<HeldColumns> ActorObjective::hold(const StepView& of_loss, const StepView& of_kl) const {
  return hold_columns({{&policy_loss_.instance(), &of_loss}, {kl_ ? &kl_->instance() : nullptr, &of_kl}});
}

StepView ActorObjective::kl_input_of(const StepView& input) const {
  StepView out = input;
  if (kl_aggregation_) out.set<column::Weight>(input.get<column::KlWeight>());
  return out;
}

namespace {

// The ratio of a row holds the log-probs of all its tokens, also of those that a mask takes out. Where others of the row
// count, the loss is told so (mortise/kinds/policy_loss.h).
void keep_in_ratio(std::span<const int64_t> row_offsets, std::span<const float> before, std::span<float> weight) {
  for (size_t row = 0; row + 1 < row_offsets.size(); ++row) {
    const auto begin = static_cast<size_t>(row_offsets[row]), end = static_cast<size_t>(row_offsets[row + 1]);
    const auto of_row = weight.subspan(begin, end - begin);
    if (std::ranges::all_of(of_row, [](float w) { return w == 0.0F; })) continue;
    for (size_t t = begin; t < end; ++t) {
      if (weight[t] == 0.0F && before[t] != 0.0F) weight[t] = MORTISE_RATIO_ONLY_WEIGHT;
    }
  }
}

}  // namespace

// What scales the policy term, and it alone: the correction's weights, which are the engine's but for losses that apply
// them themselves, and the masks.
void ActorObjective::weigh_and_mask(const StepView& input, StepView& loss_input) {
  const bool own = policy_loss_.info().consumes_stage(column::RolloutIsWeights::name);
  const auto correction = own ? std::span<const float>{} : loss_input.get<column::RolloutIsWeights>();
  if (!own) loss_input.set<column::RolloutIsWeights>({});
  if (correction.empty() && entropy_mask_.empty() && !off_policy_mask_threshold_) return;
  const auto weight = loss_input.get<column::Weight>();
  policy_weight_.assign(weight.begin(), weight.end());
  for (size_t t = 0; t < policy_weight_.size(); ++t) {
    if (!correction.empty()) policy_weight_[t] *= correction[t];
    if (!entropy_mask_.empty() && entropy_mask_[t] == 0) policy_weight_[t] = 0.0F;
  }
  if (off_policy_mask_threshold_) off_policy_mask(input, *off_policy_mask_threshold_, policy_weight_);
  if (policy_loss_.coupling() == Coupling::kRow) keep_in_ratio(input.layout.row_offsets, weight, policy_weight_);
  loss_input.set<column::Weight>(policy_weight_);
}

Result<ObjectiveSums> ActorObjective::evaluate(const StepView& input, const ObjectiveGrad& grad, MetricSet* metrics) {
  TRY(check_inputs(input));
  const auto num_tokens = static_cast<size_t>(input.layout.num_tokens());
  scratch_.resize(num_tokens);
  scratch_grad_.resize(num_tokens);

  const auto mask = input.get<column::ResponseMask>();
  const auto entropy = input.get<column::Entropy>();
  entropy_mask_.resize(masks_by_entropy() ? num_tokens : 0);
  if (masks_by_entropy()) entropy_mask(entropy, mask, top_entropy_quantile_, entropy_mask_);

  StepView loss_input = input;
  if (correction_.is_bypass() && correction_.is_active()) TRY(correct_by_current_policy(input, loss_input, metrics));
  weigh_and_mask(input, loss_input);
  const StepView kl_input = kl_input_of(input);
  const HeldColumns held = TRY(hold(loss_input, kl_input));
  TRY(policy_loss_.compute(loss_input, {scratch_, grad.log_prob, grad.entropy}, metrics));
  if (!grad.clipped.empty()) note_clipped(loss_input, grad);

  ObjectiveSums sums;
  const auto weight = loss_input.get<column::Weight>();
  for (size_t t = 0; t < num_tokens; ++t) {
    if (mask[t] == 0) continue;
    ++sums.num_tokens;
    sums.pg_loss += static_cast<double>(weight[t]) * static_cast<double>(scratch_[t]);
  }
  if (kl_) TRY(add_kl(kl_input, grad, metrics, sums));
  if (!entropy.empty()) TRY(add_entropy(input, grad, sums));
  sums.loss = sums.pg_loss + kl_loss_coef_ * sums.kl_loss - entropy_coeff_ * sums.entropy_loss;
  return sums;
}

// Before other terms add to the gradient. A token without weight is masked, not clipped.
void ActorObjective::note_clipped(const StepView& loss_input, const ObjectiveGrad& grad) {
  const auto mask = loss_input.get<column::ResponseMask>();
  const auto weight = loss_input.get<column::Weight>(), advantages = loss_input.get<column::Advantages>();
  for (size_t t = 0; t < grad.clipped.size(); ++t) {
    const bool counts = mask[t] != 0 && std::abs(weight[t]) > MORTISE_RATIO_ONLY_WEIGHT && advantages[t] != 0.0F;
    grad.clipped[t] = counts && grad.log_prob[t] == 0.0F ? 1.0F : 0.0F;
  }
}

Result<> ActorObjective::correct_by_current_policy(const StepView& input, StepView& loss_input, MetricSet* metrics) {
  const auto& [offsets, row_id, groups] = input.layout;
  const auto mask = input.get<column::ResponseMask>();
  const LogRatios ratios{offsets, mask, input.get<column::LogProb>(), input.get<column::OldLogProb>()};
  corrected_ = correction_.apply(ratios, metrics);
  if (!correction_.weighs_loss()) corrected_.weights.clear();
  bypass_weight_.resize(corrected_.mask.size());
  const UpdateCounts counts = count_update(offsets, corrected_.mask, groups);
  TRY(token_weights(aggregation_, counts, offsets, corrected_.mask, groups, bypass_weight_));
  loss_input.set<column::ResponseMask>(corrected_.mask);
  loss_input.set<column::Weight>(bypass_weight_);
  loss_input.set<column::RolloutIsWeights>(corrected_.weights);
  return {};
}

Result<> ActorObjective::add_kl(const StepView& input, const ObjectiveGrad& grad, MetricSet* metrics,
                                ObjectiveSums& sums) {
  TRY(kl_->compute(input, {scratch_, scratch_grad_}, metrics));
  const auto mask = input.get<column::ResponseMask>();
  const auto weight = input.get<column::Weight>();
  for (size_t t = 0; t < scratch_.size(); ++t) {
    if (mask[t] == 0) continue;
    sums.kl += static_cast<double>(scratch_[t]);
    sums.kl_loss += static_cast<double>(weight[t]) * static_cast<double>(scratch_[t]);
    if (!grad.log_prob.empty())
      grad.log_prob[t] += static_cast<float>(kl_loss_coef_ * static_cast<double>(scratch_grad_[t]));
  }
  return {};
}

// A mask comes with Coupling::kUpdate, so its tokens are those of the whole update.
Result<std::span<const float>> ActorObjective::entropy_weights(const StepView& input) {
  if (!entropy_aggregation_) return input.get<column::Weight>();
  if (!masks_by_entropy()) {
    if (input.has<column::EntropyWeight>()) return input.get<column::EntropyWeight>();
    return Error{
        ErrorKind::kData,
        fmt::format("the input '{}' is missing, and actor.entropy_agg_mode needs it", column::EntropyWeight::name), "",
        "add it, or set actor.entropy_agg_mode=auto"};
  }
  const auto& [offsets, row_id, groups] = input.layout;
  bonus_weight_.resize(entropy_mask_.size());
  TRY(token_weights(*entropy_aggregation_, count_update(offsets, entropy_mask_, groups), offsets, entropy_mask_, groups,
                    bonus_weight_));
  return std::span<const float>(bonus_weight_);
}

Result<> ActorObjective::add_entropy(const StepView& input, const ObjectiveGrad& grad, ObjectiveSums& sums) {
  const auto entropy = input.get<column::Entropy>(), weights = TRY(entropy_weights(input));
  const auto mask = input.get<column::ResponseMask>();
  for (size_t t = 0; t < entropy.size(); ++t) {
    if (mask[t] == 0) continue;
    const bool counts = entropy_mask_.empty() || entropy_mask_[t] != 0;
    const double weight = counts ? static_cast<double>(weights[t]) : 0.0;
    const auto value = static_cast<double>(entropy[t]);
    sums.entropy += value;
    sums.entropy_loss += weight * value;
    sums.bonus_entropy += counts ? value : 0.0;
    sums.num_bonus_tokens += counts ? 1 : 0;
    if (!grad.entropy.empty()) grad.entropy[t] -= static_cast<float>(entropy_coeff_ * weight);
  }
  return {};
}

}  // namespace mortise
