// ActorObjective: the actor's whole loss as configured, per token, with its gradient. One loss path: training,
// `objective eval` and the tests all come through here.
//
//   L = sum_t w_t m_t is_t loss_t + kl_coef sum_t w_t kl_t - entropy_coeff sum_t w_t e_t H_t
// w is the aggregation (foundation/batch/token_weight.h), from the counts of the whole update over all ranks; the KL and
// the entropy have w of their own if the settings say so. That of the entropy then counts the tokens of e alone. e is the
// entropy mask (entropy_mask.h), m that and the off-policy mask (off_policy_mask.h), is the rollout correction. A masked
// token of a row whose ratio is one for all its tokens still gets its part of the gradient of the others. loss
// comes from the policy loss plugin, kl from the KL plugin, H is the full-vocabulary entropy. A KL over the whole
// vocabulary is no function of log-probs: the learner adds it (learn/update/vocabulary_terms.h), and it is no part of
// evaluate(). Terms that are switched off cost nothing. Shapes: N tokens of B rows, flat
// (foundation/batch/prompt_batch.h). Thread rule: one call at a time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/load.h"
#include "experience/correction/rollout_correction.h"
#include "foundation/batch/step_view.h"
#include "foundation/batch/token_weight.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/held_columns.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"

namespace mortise {

// Written whole.
struct ObjectiveGrad {
  std::span<float> log_prob;  // [N] dL / d log_prob
  std::span<float> entropy;   // [N] dL / d entropy, or empty when the caller has no entropy
  // [N] 1 for a token that counts and has an advantage, but whose policy term has no gradient: the loss clips it. Or
  // empty.
  std::span<float> clipped = {};
};

// Sums over tokens; parts of an update add up to the update's.
struct ObjectiveSums {
  double loss = 0.0;             // L
  double pg_loss = 0.0;          // sum w loss
  double kl_loss = 0.0;          // sum w kl, before its coefficient
  double kl = 0.0;               // sum over unmasked tokens
  double entropy = 0.0;          // sum over unmasked tokens
  double entropy_loss = 0.0;     // sum w e H, before its coefficient
  int64_t num_tokens = 0;        // unmasked
  double bonus_entropy = 0.0;    // sum e H over unmasked tokens
  int64_t num_bonus_tokens = 0;  // unmasked, with e = 1

  void add(const ObjectiveSums& other);
};

class ActorObjective {
 public:
  // Loads the plugins that the config names and checks their parameters; an error names the key that names the plugin.
  static Result<ActorObjective> create(PluginRegistry& registry, const LoadedConfig& loaded, const RunKey& key);

  // `input` has log_prob, old_log_prob, advantages, response_mask and weight, and what else the settings ask for:
  // kl_weight and entropy_weight, if these terms have aggregations of their own.
  Result<ObjectiveSums> evaluate(const StepView& input, const ObjectiveGrad& grad, MetricSet* metrics);

  // Holds columns of `input` on the device for all calls of evaluate() on them, if its plugins compute there.
  [[nodiscard]] Result<HeldColumns> hold(const StepView& input) const { return hold(input, kl_input_of(input)); }

  // How far tokens depend on one another: the furthest of the loss, the KL estimator, the masks and a correction by the
  // current policy.
  [[nodiscard]] Coupling coupling() const;
  [[nodiscard]] const RolloutCorrection& correction() const { return correction_; }
  [[nodiscard]] bool needs_ref_log_prob() const;
  [[nodiscard]] bool needs_reference() const { return full_kl_ || needs_ref_log_prob(); }
  [[nodiscard]] bool uses_kl_loss() const { return full_kl_ || kl_.has_value(); }
  [[nodiscard]] bool uses_full_kl() const { return full_kl_; }
  // Does the loss depend on the entropy, so that its gradient is wanted?
  [[nodiscard]] bool uses_entropy_gradient() const {
    return entropy_coeff_ != 0.0 || policy_loss_.info().requires_input(column::Entropy::name);
  }
  [[nodiscard]] double kl_loss_coef() const { return kl_loss_coef_; }
  [[nodiscard]] double entropy_coeff() const { return entropy_coeff_; }
  void set_entropy_coeff(double coeff) { entropy_coeff_ = coeff; }  // between updates
  [[nodiscard]] const TokenWeightOptions& aggregation() const { return aggregation_; }
  // Nothing: the term is aggregated as the loss is, or there is no such term.
  [[nodiscard]] const std::optional<TokenWeightOptions>& kl_aggregation() const { return kl_aggregation_; }
  [[nodiscard]] const std::optional<TokenWeightOptions>& entropy_aggregation() const { return entropy_aggregation_; }
  [[nodiscard]] PolicyLoss& policy_loss() { return policy_loss_; }
  [[nodiscard]] const PluginInfo& loss_info() const { return policy_loss_.info(); }
  [[nodiscard]] KlEstimator* kl() { return kl_ ? &*kl_ : nullptr; }  // null: no estimator in the loss

 private:
  ActorObjective(PolicyLoss policy_loss, std::optional<KlEstimator> kl);
  Result<> check_inputs(const StepView& input) const;
  [[nodiscard]] Result<HeldColumns> hold(const StepView& of_loss, const StepView& of_kl) const;
  [[nodiscard]] StepView kl_input_of(const StepView& input) const;  // with the weights of the KL term
  [[nodiscard]] bool masks_by_entropy() const { return top_entropy_quantile_ < 1.0; }
  // Bypass mode: mask and weights of the policy loss by the policy of this very update.
  Result<> correct_by_current_policy(const StepView& input, StepView& loss_input, MetricSet* metrics);
  void weigh_and_mask(const StepView& input, StepView& loss_input);
  Result<> add_kl(const StepView& input, const ObjectiveGrad& grad, MetricSet* metrics, ObjectiveSums& sums);
  static void note_clipped(const StepView& loss_input, const ObjectiveGrad& grad);
  // The tokens' shares of the bonus, as if the entropy mask kept all of them where nothing else is said.
  Result<std::span<const float>> entropy_weights(const StepView& input);
  Result<> add_entropy(const StepView& input, const ObjectiveGrad& grad, ObjectiveSums& sums);

  PolicyLoss policy_loss_;
  std::optional<KlEstimator> kl_;
  bool full_kl_ = false;
  double kl_loss_coef_ = 0.0;
  double entropy_coeff_ = 0.0;
  double top_entropy_quantile_ = 1.0;
  std::optional<double> off_policy_mask_threshold_;
  RolloutCorrection correction_;
  TokenWeightOptions aggregation_;
  std::optional<TokenWeightOptions> kl_aggregation_, entropy_aggregation_;
  std::vector<float> scratch_, scratch_grad_, policy_weight_, bypass_weight_, bonus_weight_;  // [N], kept between calls
  std::vector<uint8_t> entropy_mask_;  // [N]; empty: every token counts
  CorrectedBatch corrected_;           // for bypass mode
};

// The aggregation that the config asks for; "auto" is the loss's own habit. The norm mode's default factor is the
// longest response.
Result<TokenWeightOptions> aggregation_of(const RunConfig& config, const PluginInfo& loss);

}  // namespace mortise
