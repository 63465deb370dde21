// RolloutAhead: the experience of the next step, made by a thread of its own while the policy learns from this one's
// (trainer.mode = "one_step_off").
//
// Which weights sample a step does not depend on how long anything takes, so that a run has the same bits every time. A
// checkpoint after a step holds the experience of the next one, and a resume learns from it. If making it fails, what it
// changed is set back, and the step that it was for fails: the run then ends as if nothing had been sampled.
// Thread rule: one thread calls it. Between begin() and wait() nobody else may touch what `make` uses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "experience/selection/experience.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

class RolloutAhead : public Stateful {
 public:
  using Make = std::function<Result<Experience>(MetricSet& metrics)>;

  RolloutAhead() = default;
  RolloutAhead(const RolloutAhead&) = delete;
  RolloutAhead& operator=(const RolloutAhead&) = delete;
  ~RolloutAhead() override { wait(); }

  // `object` changes while an experience is made. Borrowed.
  Result<> add_changing(Stateful& object) { return changing_.add(object); }

  // Makes the experience of this step in a thread.
  Result<> begin(int64_t step, Make make);
  // Until the thread has ended. Nothing to do if there is none.
  void wait();
  // Is there one for this step, or an error of making it? Precondition: no thread.
  [[nodiscard]] bool has(int64_t step) const { return step_ == step; }
  // Rows of what there is; 0: there is none. Precondition: no thread.
  [[nodiscard]] int64_t num_rows() const {
    return step_ > 0 && made_.ok() ? static_cast<int64_t>(made_->samples.rows.size()) : 0;
  }
  // Leaves out what there is. Precondition: no thread.
  void forget();
  // It, with the metrics of making it; or that error. It is gone then.
  Result<Experience> take(MetricSet& metrics);

  [[nodiscard]] std::string state_name() const override { return "trainer.rollout_ahead"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  void make_it(const Make& make);

  StatefulRegistry changing_;
  StateSnapshot before_;  // state of changing_ when the thread began
  std::thread thread_;
  int64_t step_ = 0;  // 0: there is nothing
  Result<Experience> made_ = Experience{};
  MetricSet metrics_;
};

}  // namespace mortise
