// See over_sampling.h.
#include "train/sampling/over_sampling.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "foundation/base/log.h"
#include "train/sampling/ahead_round.h"

namespace mortise {

namespace {

bool is_finished(const AheadRollout& rollout, int64_t group) {
  const int64_t n = rollout.experience.samples.num_samples_per_prompt;
  const auto first = rollout.is_done.begin() + group * n;
  return std::all_of(first, first + n, [](uint8_t done) { return done != 0; });
}

// These groups of the rollout, and which of their rows are done.
AheadRollout part_of(const AheadRollout& rollout, const std::vector<int64_t>& groups) {
  AheadRollout part = rollout;
  part.experience = take_groups(rollout.experience, groups);
  part.is_done.clear();
  const int64_t n = rollout.experience.samples.num_samples_per_prompt;
  for (const int64_t group : groups) {
    const auto first = rollout.is_done.begin() + group * n;
    part.is_done.insert(part.is_done.end(), first, first + n);
  }
  return part;
}

}  // namespace

OverSampling::OverSampling(double rate, int64_t groups_per_step)
    : groups_per_step_(groups_per_step),
      // 1.1 x 100 is a little above 110 in floating point.
      num_groups_(std::min(static_cast<int64_t>(std::ceil(rate * static_cast<double>(groups_per_step) - 1e-9)),
                           2 * groups_per_step - 1)) {}

// Rollouts that --allow-change has made too long, or of another rollout.n.
void OverSampling::leave_out_misfits(const RolloutPlan& plan) {
  const size_t num_left_out = std::erase_if(next_.rollouts, [&](const AheadRollout& rollout) {
    return rollout.experience.samples.num_samples_per_prompt != plan.num_samples ||
           !has_room(rollout, plan.sampling.max_new_tokens);
  });
  if (num_left_out == 0) return;
  log_warn(
      "the checkpoint holds completions that do not fit the new settings. The run leaves them out, and their prompts "
      "come again in the next epoch");
}

Result<> OverSampling::begin_groups(PromptSource& source, const Sampler& sampler, int64_t step) {
  int64_t missing = num_groups_;
  for (const AheadRollout& rollout : next_.rollouts) missing -= rollout.experience.num_groups();
  if (missing <= 0) return {};  // --allow-change
  std::vector<Prompt>& waiting = next_.waiting.prompts;
  while (std::ssize(waiting) < missing) {
    PromptBatch more = TRY(source.next(step));
    std::ranges::move(more.prompts, std::back_inserter(waiting));
  }
  AheadRollout begun;
  begun.step = step;
  PromptBatch& prompts = begun.experience.prompts;
  prompts.step = step;
  prompts.epoch = source.epoch();
  const auto end = waiting.begin() + missing;
  prompts.prompts.assign(std::make_move_iterator(waiting.begin()), std::make_move_iterator(end));
  waiting.erase(waiting.begin(), end);
  begun.experience.samples = sampler.unsampled(prompts);
  begun.is_done.assign(begun.experience.samples.rows.size(), 0);
  next_.rollouts.push_back(std::move(begun));
  return {};
}

Result<> OverSampling::sample_round(Sampler& sampler, int64_t weight_version, MetricSet& metrics) {
  const int64_t longest = sampler.plan().sampling.max_new_tokens;
  std::vector<OpenRows> pieces;
  for (AheadRollout& rollout : next_.rollouts) {
    if (std::ranges::find(rollout.is_done, uint8_t{0}) == rollout.is_done.end()) continue;
    OpenRows piece = next_piece(rollout, longest);
    piece.max_tokens = std::min(piece.max_tokens, share_of(longest, kRounds));
    pieces.push_back(piece);
  }
  return sampler.sample_pieces(pieces, weight_version, metrics);
}

void OverSampling::note_finished(std::vector<Place>& finished) const {
  for (size_t i = 0; i < next_.rollouts.size(); ++i) {
    const AheadRollout& rollout = next_.rollouts[i];
    for (int64_t group = 0; group < rollout.experience.num_groups(); ++group) {
      const Place place{i, group};
      if (is_finished(rollout, group) && std::ranges::find(finished, place) == finished.end())
        finished.push_back(place);
    }
  }
}

Experience OverSampling::take(const std::vector<Place>& finished) {
  Experience taken;
  for (const auto& [rollout, group] : finished)
    append_groups(taken, take_groups(next_.rollouts[rollout].experience, std::vector<int64_t>{group}));
  RolloutAhead::Rollouts rest;
  for (size_t i = 0; i < next_.rollouts.size(); ++i) {
    std::vector<int64_t> groups;
    for (int64_t group = 0; group < next_.rollouts[i].experience.num_groups(); ++group) {
      if (std::ranges::find(finished, Place{i, group}) == finished.end()) groups.push_back(group);
    }
    if (!groups.empty()) rest.push_back(part_of(next_.rollouts[i], groups));
  }
  next_.rollouts = std::move(rest);
  return taken;
}

void OverSampling::add_metrics(MetricSet& metrics) const {
  int64_t num_groups = 0;
  size_t num_tokens = 0;
  for (const AheadRollout& rollout : next_.rollouts) {
    num_groups += rollout.experience.num_groups();
    for (const Sample& sample : rollout.experience.samples.rows) num_tokens += sample.token_ids.size();
  }
  metrics.add("training/over_sampling/carried", static_cast<double>(num_groups));
  metrics.add("training/over_sampling/carried_tokens", static_cast<double>(num_tokens));
}

Result<Experience> OverSampling::sample(PromptSource& source, Sampler& sampler, int64_t step, int64_t weight_version,
                                        MetricSet& metrics) {
  next_ = open_;
  leave_out_misfits(sampler.plan());
  TRY(begin_groups(source, sampler, step));
  std::vector<Place> finished;
  note_finished(finished);
  while (std::ssize(finished) < groups_per_step_) {
    TRY(sample_round(sampler, weight_version, metrics));
    note_finished(finished);
  }
  finished.resize(static_cast<size_t>(groups_per_step_));
  Experience taken = take(finished);
  taken.prompts.step = step;
  taken.prompts.epoch = source.epoch();
  add_metrics(metrics);
  return taken;
}

Result<> OverSampling::save_state(StateWriter& writer) const {
  save_rollouts(open_.rollouts, writer);
  Experience waiting;
  waiting.prompts = open_.waiting;
  writer.put_bytes("waiting", encode_experience(waiting));
  return {};
}

Result<> OverSampling::load_state(StateReader& reader) {
  open_ = {};
  open_.rollouts = TRY(load_rollouts(reader, state_name()));
  const std::string waiting = TRY(reader.get_bytes("waiting"));
  open_.waiting = TRY(decode_experience(waiting, state_name())).prompts;
  return {};
}

}  // namespace mortise
