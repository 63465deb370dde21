// KlController: the coefficient of the KL penalty in the reward.
//
// fixed: kl_coef. adaptive (Ziegler et al. 2019, arXiv 1909.08593, as in verl): after each step
//   kl_coef *= 1 + clip(kl / target_kl - 1, -0.2, 0.2) * rows / horizon
// with kl the mean over rows of the row's mean KL per token. Checkpoints save the coefficient.
#pragma once

#include <algorithm>
#include <string>

#include "config/run_config.h"
#include "foundation/base/stateful.h"

namespace mortise {

class KlController : public Stateful {
 public:
  explicit KlController(const KlControlConfig& config) : config_(config), kl_coef_(config.kl_coef) {}

  [[nodiscard]] double kl_coef() const { return kl_coef_; }
  void update(double current_kl, int64_t num_rows) {
    if (config_.type != Control::kAdaptive) return;
    const double error = std::clamp(current_kl / config_.target_kl - 1.0, -0.2, 0.2);
    kl_coef_ *= 1.0 + error * static_cast<double>(num_rows) / config_.horizon;
  }

  [[nodiscard]] std::string state_name() const override { return "algorithm.kl_ctrl"; }
  Result<> save_state(StateWriter& writer) const override {
    writer.put_double("kl_coef", kl_coef_);
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    const double saved = TRY(reader.get_double("kl_coef"));
    if (config_.type == Control::kAdaptive) kl_coef_ = saved;  // a fixed one is a setting, which a resume may change
    return {};
  }

 private:
  KlControlConfig config_;
  double kl_coef_;
};

}  // namespace mortise
