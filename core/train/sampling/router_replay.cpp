// See router_replay.h.
#include "train/sampling/router_replay.h"

#include <fmt/core.h>

#include <algorithm>

namespace mortise {

Result<> replay_stage(const RunSettings& run, const ModelConfig& model, Experience& experience, StepTable& table) {
  if (run.config.actor.router_replay.mode != RouterReplay::kR3) return {};
  const int64_t width = model.num_expert_layers() * model.moe.experts_per_token;
  ExpertChoices choices;
  for (size_t i = 0; i < experience.samples.rows.size(); ++i) {
    std::vector<uint16_t>& experts = experience.samples.rows[i].experts;
    const TableRow& row = table.row(static_cast<int64_t>(i));
    const auto num_tokens = static_cast<int64_t>(row.prompt_ids.size() + row.response_ids.size());
    const bool fits = static_cast<int64_t>(experts.size()) == num_tokens * width;
    const bool known = std::ranges::all_of(
        experts, [&](uint16_t expert) { return expert == kNoExpert || expert < model.moe.num_experts; });
    if (!fits || !known) {
      return Error{
          ErrorKind::kPlugin,
          fmt::format("'actor.router_replay.mode' is R3, but the rollout backend '{}' gave {} of a completion",
                      run.config.rollout.name, experts.empty() ? "no experts" : "the experts of another model"),
          run.loaded.where("actor.router_replay.mode"), "set it to R2, or take the backend native"};
    }
    choices.append(experts, num_tokens);
    experts = {};  // the table has them now
  }
  table.replay(std::move(choices));
  return {};
}

}  // namespace mortise
