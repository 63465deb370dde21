// EntropyController: the coefficient of the entropy bonus from update to update.
//
// fixed: actor.entropy_coeff. adaptive (Skywork-OR1, arXiv 2505.22312, as in TRL): after each update with mean entropy
// E over the tokens that may get the bonus, coeff += delta if E <= target, else coeff -= delta, limited to [min, max]. The
// next update applies it only if E <= target. The first update of a run applies none. Checkpoints save it.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "config/run_config.h"
#include "foundation/base/stateful.h"

namespace mortise {

class EntropyController : public Stateful {
 public:
  explicit EntropyController(const ActorConfig& config) : config_(config.entropy_ctrl), coeff_(config.entropy_coeff) {}

  [[nodiscard]] bool is_adaptive() const { return config_.type == Control::kAdaptive; }
  // Is there a bonus at all? Also where the next update applies none.
  [[nodiscard]] bool is_on() const { return is_adaptive() || coeff_ != 0.0; }
  [[nodiscard]] double coeff() const { return coeff_; }
  // What the next update subtracts.
  [[nodiscard]] double applied_coeff() const {
    return !is_adaptive() || last_entropy_ <= config_.target_entropy ? coeff_ : 0.0;
  }
  void update(double mean_entropy) {
    if (!is_adaptive()) return;
    last_entropy_ = mean_entropy;
    const double step = mean_entropy <= config_.target_entropy ? config_.delta : -config_.delta;
    coeff_ = std::clamp(coeff_ + step, config_.min_coeff, config_.max_coeff);
  }

  [[nodiscard]] std::string state_name() const override { return "actor.entropy_ctrl"; }
  Result<> save_state(StateWriter& writer) const override {
    writer.put_double("coeff", coeff_);
    writer.put_double("last_entropy", last_entropy_);
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    coeff_ = TRY(reader.get_double("coeff"));
    last_entropy_ = TRY(reader.get_double("last_entropy"));
    return {};
  }

 private:
  EntropyControlConfig config_;
  double coeff_;
  double last_entropy_ = std::numeric_limits<double>::infinity();
};

}  // namespace mortise
