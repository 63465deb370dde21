// The routers of a mixture of experts in updates: keys of [actor], and [actor.router_replay].
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace mortise {

// Whose experts training takes for a token: the router's own, those of the pass for old log-probs, or the sampler's.
enum class RouterReplay { kDisabled, kR2, kR3 };
constexpr auto choice_names(RouterReplay) { return std::array<std::string_view, 3>{"disabled", "R2", "R3"}; }

struct RouterReplayConfig {
  RouterReplay mode = RouterReplay::kDisabled;
  bool operator==(const RouterReplayConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

// `Section` is ActorConfig.
template <class Section, class Keys>
void describe_router_losses(Keys& keys) {
  keys.compared("router_aux_loss_coef", &Section::router_aux_loss_coef,
                "Coefficient of the load-balancing loss of a mixture of experts, which is added to the loss "
                "(load_balancing_loss_func of transformers). It is computed over all tokens of an update, prompts "
                "included. 0: no such loss. null: router_aux_loss_coef of the model's config.json, as in TRL; a dense "
                "model then has no such loss.")
      .at_least(0)
      .at_most(1e6)
      .unread_by(kInObjective)
      .trl("router_aux_loss_coef", "null")
      .swift("router_aux_loss_coef", "0.0");
  keys.compared("router_z_loss_coef", &Section::router_z_loss_coef,
                "Coefficient of the z-loss of a mixture of experts (arXiv 2202.08906), which keeps the router's logits "
                "small: the mean over tokens and layers of the squared logsumexp of the logits. 0: no such loss.")
      .at_least(0)
      .at_most(1e6)
      .unread_by(kInObjective);
}

template <class Catalog>
void describe_router_replay(Catalog& catalog) {
  auto keys = catalog.table("actor.router_replay", "Which experts updates take in a mixture of experts.",
                            [](auto& run) -> RouterReplayConfig& { return run.actor.router_replay; });
  keys.unread_by(kInSft | kInObjective);
  keys.compared(
          "mode", &RouterReplayConfig::mode,
          "Routing replay for mixtures of experts. disabled: the routers choose the experts of each pass. R2: "
          "updates take the experts of the pass that computes old log-probs; a step with one update needs no such pass, "
          "because the update has the same weights. R3: that pass and all updates take "
          "the experts that the sampler took. The weights of the experts come from the current router logits.")
      .as_in_verl("\"disabled\"");
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
