// See rollout_ahead.h.
#include "train/loop/rollout_ahead.h"

#include <exception>
#include <utility>

namespace mortise {

namespace {

Error thrown(const std::string& what) {
  return {ErrorKind::kInternal, "sampling ahead ended: " + what, "rollout",
          "set trainer.mode to sync, and report this"};
}

}  // namespace

Result<> RolloutAhead::begin(int64_t step, Make make) {
  wait();
  forget();
  before_ = TRY(changing_.save());
  step_ = step;
  thread_ = std::thread([this, make = std::move(make)] { make_it(make); });
  return {};
}

void RolloutAhead::make_it(const Make& make) {
  try {
    made_ = make(metrics_);
  } catch (const std::exception& error) {
    made_ = thrown(error.what());
  }
}

void RolloutAhead::wait() {
  if (!thread_.joinable()) return;
  thread_.join();
  if (!made_.ok()) {
    const Result<> restored = changing_.load(before_, "the state before the rollout");
    if (!restored.ok()) made_ = restored.error();
  }
  before_ = {};
}

void RolloutAhead::forget() {
  step_ = 0;
  made_ = Experience{};
  metrics_ = {};
}

Result<Experience> RolloutAhead::take(MetricSet& metrics) {
  Result<Experience> made = std::move(made_);
  if (made.ok()) TRY(metrics.merge(metrics_));
  forget();
  return made;
}

// A failed one is not saved: a resume samples the step with its newest weights.
Result<> RolloutAhead::save_state(StateWriter& writer) const {
  const bool has_one = step_ > 0 && made_.ok();
  writer.put_int("step", has_one ? step_ : 0);
  if (!has_one) return {};
  writer.put_bytes("experience", encode_experience(*made_));
  metrics_.save(writer, "metrics");
  return {};
}

Result<> RolloutAhead::load_state(StateReader& reader) {
  wait();
  forget();
  const int64_t step = TRY(reader.get_int("step"));
  if (step == 0) return {};
  const std::string experience = TRY(reader.get_bytes("experience"));
  made_ = TRY(decode_experience(experience, "trainer.rollout_ahead/experience"));
  TRY(metrics_.load(reader, "metrics"));
  step_ = step;
  return {};
}

}  // namespace mortise
