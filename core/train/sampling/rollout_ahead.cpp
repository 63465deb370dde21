// See rollout_ahead.h.
#include "train/sampling/rollout_ahead.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace mortise {

namespace {

Error thrown(const std::string& what) {
  return {ErrorKind::kInternal, "sampling ahead ended: " + what, "rollout",
          "set trainer.mode to sync, and report this"};
}

std::string key_of(size_t index, const char* name) { return fmt::format("{}.{}", index, name); }

void save_rollout(const AheadRollout& rollout, size_t index, StateWriter& writer) {
  const auto& [step, first_round, num_pieces, is_whole, is_done, experience, metrics] = rollout;
  writer.put_int(key_of(index, "step"), step);
  writer.put_int(key_of(index, "first_round"), first_round);
  writer.put_int(key_of(index, "num_pieces"), num_pieces);
  writer.put_bool(key_of(index, "is_whole"), is_whole);
  writer.put_vector(key_of(index, "is_done"), is_done);
  writer.put_bytes(key_of(index, "experience"), encode_experience(experience));
  metrics.save(writer, key_of(index, "metrics"));
}

Result<AheadRollout> load_rollout(size_t index, StateReader& reader, const std::string& owner) {
  AheadRollout rollout;
  rollout.step = TRY(reader.get_int(key_of(index, "step")));
  rollout.first_round = TRY(reader.get_int(key_of(index, "first_round")));
  rollout.num_pieces = TRY(reader.get_int(key_of(index, "num_pieces")));
  rollout.is_whole = TRY(reader.get_bool(key_of(index, "is_whole")));
  rollout.is_done = TRY(reader.get_vector<uint8_t>(key_of(index, "is_done")));
  const std::string key = key_of(index, "experience");
  const std::string experience = TRY(reader.get_bytes(key));
  rollout.experience = TRY(decode_experience(experience, fmt::format("{}/{}", owner, key)));
  TRY(rollout.metrics.load(reader, key_of(index, "metrics")));
  return rollout;
}

}  // namespace

bool has_room(const AheadRollout& rollout, int64_t longest) {
  for (size_t row = 0; row < rollout.is_done.size(); ++row) {
    const auto num_tokens = static_cast<int64_t>(rollout.experience.samples.rows[row].token_ids.size());
    if (rollout.is_done[row] == 0 && num_tokens >= longest) return false;
  }
  return true;
}

void save_rollouts(const RolloutAhead::Rollouts& rollouts, StateWriter& writer) {
  writer.put_int("num_rollouts", static_cast<int64_t>(rollouts.size()));
  for (size_t i = 0; i < rollouts.size(); ++i) save_rollout(rollouts[i], i, writer);
}

Result<RolloutAhead::Rollouts> load_rollouts(StateReader& reader, const std::string& owner) {
  RolloutAhead::Rollouts rollouts;
  const int64_t num_rollouts = TRY(reader.get_int("num_rollouts"));
  for (int64_t i = 0; i < num_rollouts; ++i)
    rollouts.push_back(TRY(load_rollout(static_cast<size_t>(i), reader, owner)));
  return rollouts;
}

Result<> RolloutAhead::prepare() {
  wait();
  before_ = TRY(changing_.save());
  made_ = rollouts_;
  return {};
}

void RolloutAhead::work(const Round& round) {
  try {
    told_ = round(made_);
  } catch (const std::exception& error) {
    told_ = thrown(error.what());
  }
  told_ = agree_(told_);
}

void RolloutAhead::settle() {
  if (told_.ok()) {
    rollouts_ = std::move(made_);
  } else {
    const Result<> restored = changing_.load(before_, "the state before the rollout");
    if (!restored.ok()) told_ = restored.error();
  }
  made_.clear();
  before_ = {};
}

Result<> RolloutAhead::begin(Round round) {
  TRY(prepare());
  thread_ = std::thread([this, round = std::move(round)] { work(round); });
  return {};
}

void RolloutAhead::wait() {
  if (!thread_.joinable()) return;
  thread_.join();
  settle();
}

Result<> RolloutAhead::make_now(const Round& round) {
  TRY(prepare());
  work(round);
  settle();
  return told_;
}

Result<bool> RolloutAhead::has(int64_t step) const {
  TRY(told_);
  return std::ranges::any_of(rollouts_, [&](const AheadRollout& one) { return one.step == step && one.is_whole; });
}

void RolloutAhead::forget() {
  rollouts_.clear();
  told_ = {};
}

Result<Experience> RolloutAhead::take(int64_t step, MetricSet& metrics) {
  const auto found = std::ranges::find(rollouts_, step, &AheadRollout::step);
  TRY(metrics.merge(found->metrics));
  Experience experience = std::move(found->experience);
  rollouts_.erase(found);
  return experience;
}

Result<> RolloutAhead::save_state(StateWriter& writer) const {
  save_rollouts(rollouts_, writer);
  return {};
}

// Checkpoints once held at most the rollout of the next step, and step 0 if there was none.
Result<> RolloutAhead::load_only_one(StateReader& reader) {
  AheadRollout rollout;
  rollout.step = TRY(reader.get_int("step"));
  if (rollout.step == 0) return {};
  rollout.first_round = rollout.step - 1;
  rollout.is_whole = true;
  const std::string experience = TRY(reader.get_bytes("experience"));
  rollout.experience = TRY(decode_experience(experience, "trainer.rollout_ahead/experience"));
  TRY(rollout.metrics.load(reader, "metrics"));
  rollouts_.push_back(std::move(rollout));
  return {};
}

Result<> RolloutAhead::load_state(StateReader& reader) {
  wait();
  forget();
  if (!reader.has("num_rollouts")) return load_only_one(reader);
  rollouts_ = TRY(load_rollouts(reader, state_name()));
  return {};
}

}  // namespace mortise
