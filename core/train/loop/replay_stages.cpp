// See replay_stages.h.
#include "train/loop/replay_stages.h"

#include <fmt/core.h>

#include <algorithm>

#include "train/report/source_metrics.h"
#include "train/report/step_metrics.h"

namespace mortise {

void add_sample_metrics(const RunSettings& run, const Experience& experience, MetricSet& metrics) {
  add_length_metrics(experience.prompts, experience.samples, run.config.data.max_prompt_length, metrics);
  add_reward_metrics(experience.samples, experience.scored, metrics);
  add_source_metrics(experience.prompts, experience.samples, experience.scored, metrics);
}

Result<> replay_stage(const RunSettings& run, DataParts& data, Experience& experience, MetricSet& metrics) {
  if (!data.replay_buffer) return {};
  add_sample_metrics(run, experience, metrics);
  experience = TRY(data.replay_buffer->exchange(experience, experience.prompts.step, metrics));
  return {};
}

Result<> replayed_log_prob_stage(const RunSettings& run, ActorObjective& objective, const PromptBatch& prompts,
                                 StepTable& table) {
  const RolloutCorrection& correction = objective.correction();
  const bool is_corrected = correction.weighs_loss() || correction.is_bypass() ||
                            objective.policy_loss().info().requires_input(column::RolloutLogProb::name);
  if (is_corrected || !run.config.algorithm.replay_buffer.enable || table.num_tokens() == 0) return {};
  if (!table.has<column::RolloutLogProb>()) {
    return Error{ErrorKind::kConfig,
                 fmt::format("'algorithm.replay_buffer' needs the log-probs of the sampler, and the rollout backend "
                             "'{}' gave none",
                             run.config.rollout.name),
                 run.loaded.where("algorithm.replay_buffer.enable"),
                 "take a backend that gives them (native does), or set it to false"};
  }
  const auto is_replayed = [](const Prompt& prompt) { return prompt.sampled_in_step > 0; };
  if (std::ranges::none_of(prompts.prompts, is_replayed)) return {};
  std::ranges::copy(table.get<column::OldLogProb>(), table.make<column::FirstLogProb>().begin());
  const auto sampled = table.get<column::RolloutLogProb>();
  const std::span<float> old = table.edit<column::OldLogProb>();
  for (int64_t row = 0; row < table.num_rows(); ++row) {
    if (!is_replayed(prompts.prompts[static_cast<size_t>(table.row(row).group)])) continue;
    const auto begin = static_cast<size_t>(table.row_offsets()[static_cast<size_t>(row)]);
    const auto count = static_cast<size_t>(table.row_tokens(row));
    std::ranges::copy(sampled.subspan(begin, count), old.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return {};
}

}  // namespace mortise
