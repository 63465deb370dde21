// See ahead_round.h.
#include "train/sampling/ahead_round.h"

#include <algorithm>
#include <utility>

#include "train/loop/stages.h"

namespace mortise {

namespace {

AheadRollout whole_rollout(Experience experience, MetricSet metrics) {
  AheadRollout out;
  out.is_whole = true;
  out.experience = std::move(experience);
  out.metrics = std::move(metrics);
  return out;
}

// What the round begins. A rollout that has no other round is sampled like one of a run in turn.
Result<AheadRollout> begin_rollout(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                                   const AheadRound& round, int64_t step) {
  if (step == round.number + 1) {
    MetricSet metrics;
    Experience made = TRY(experience_ahead(run, data, sampler, reward, step, round.weight_version, metrics));
    return whole_rollout(std::move(made), std::move(metrics));
  }
  AheadRollout out;
  out.experience.prompts = TRY(data.source->next(step));
  out.experience.samples = sampler.unsampled(out.experience.prompts);
  out.is_done.assign(out.experience.samples.rows.size(), 0);
  return out;
}

Result<> score_finished(const RunSettings& run, DataParts& data, RewardRunner& reward, AheadRollout& rollout) {
  if (std::ranges::find(rollout.is_done, uint8_t{0}) != rollout.is_done.end()) return {};
  TRY(reward_stage(run, *data.source, reward, rollout.experience, rollout.step, rollout.metrics));
  rollout.is_whole = true;
  rollout.is_done.clear();
  return {};
}

}  // namespace

OpenRows next_piece(AheadRollout& rollout, int64_t longest) {
  SampleBatch& samples = rollout.experience.samples;
  const auto open = std::ranges::find(rollout.is_done, uint8_t{0});
  const auto row = static_cast<size_t>(open - rollout.is_done.begin());
  const int64_t room = longest - static_cast<int64_t>(samples.rows[row].token_ids.size());
  return {&rollout.experience.prompts, &samples, &rollout.is_done, rollout.num_pieces++, room};
}

Result<> sample_round(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                      const AheadRound& round, RolloutAhead::Rollouts& rollouts) {
  for (int64_t step = round.number + 1; step <= round.last_step; ++step) {
    if (std::ranges::find(rollouts, step, &AheadRollout::step) != rollouts.end()) continue;
    AheadRollout begun = TRY(begin_rollout(run, data, sampler, reward, round, step));
    begun.step = step;
    begun.first_round = round.number;
    rollouts.push_back(std::move(begun));
  }
  const int64_t longest = sampler.plan().sampling.max_new_tokens;
  const int64_t share = share_of(longest, run.config.trainer.steps_ahead());
  std::vector<AheadRollout*> open;
  std::vector<OpenRows> pieces;
  for (AheadRollout& rollout : rollouts) {
    if (rollout.is_whole || rollout.step > round.last_step) continue;
    open.push_back(&rollout);
    OpenRows piece = next_piece(rollout, longest);
    if (rollout.step > round.number + 1) piece.max_tokens = std::min(piece.max_tokens, share);
    pieces.push_back(piece);
  }
  if (open.empty()) return {};
  // The next step is the one that waits for the round.
  MetricSet& metrics = std::ranges::find(rollouts, round.number + 1, &AheadRollout::step)->metrics;
  TRY(sampler.sample_pieces(pieces, round.weight_version, metrics));
  for (AheadRollout* rollout : open) TRY(score_finished(run, data, reward, *rollout));
  return {};
}

}  // namespace mortise
