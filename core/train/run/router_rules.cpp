// See router_rules.h.
#include "train/run/router_rules.h"

#include <fmt/core.h>

#include <mortise/mortise.h>

#include <array>
#include <utility>

namespace mortise {

Result<> check_routers(const LoadedConfig& loaded, const ModelConfig& model) {
  if (model.num_expert_layers() > 0) return {};
  const ActorConfig& actor = loaded.config.actor;
  const std::array<std::pair<const char*, bool>, 3> uses{
      {{"actor.router_aux_loss_coef", actor.router_aux_loss_coef.value_or(0.0) > 0.0},
       {"actor.router_z_loss_coef", actor.router_z_loss_coef > 0.0},
       {"actor.router_replay.mode", actor.router_replay.mode != RouterReplay::kDisabled}}};
  for (const auto& [key, is_used] : uses) {
    if (!is_used) continue;
    return Error{ErrorKind::kConfig,
                 fmt::format("'{}' is for mixtures of experts, but no layer of this model has experts", key),
                 loaded.where(key), "remove the key, or name another model in model.path"};
  }
  return {};
}

Result<> check_replay_backend(const LoadedConfig& loaded, const PluginInfo& backend) {
  const bool is_wanted = loaded.config.actor.router_replay.mode == RouterReplay::kR3;
  if (!is_wanted || (backend.flags & MORTISE_FLAG_NEEDS_ENGINE) != 0) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'actor.router_replay.mode' is R3, but the rollout backend '{}' does not sample in this "
                           "process, so it does not tell which experts it took",
                           loaded.config.rollout.name),
               loaded.where("actor.router_replay.mode"), "set it to R2, or take the backend native"};
}

}  // namespace mortise
