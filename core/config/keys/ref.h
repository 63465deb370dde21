// [ref]: the reference model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/full_kl.h"
#include "config/keys/optim.h"
#include "config/keys/ranks.h"

namespace mortise {

struct RefConfig {                  // log_prob_* change memory and speed only; null = the actor's
  std::optional<std::string> path;  // folder it starts from; null = the initial policy
  std::optional<int64_t> log_prob_micro_batch_size_per_gpu;  // rows per pass
  std::optional<bool> log_prob_use_dynamic_bsz;              // cut by tokens even if a row count is given
  std::optional<int64_t> log_prob_max_token_len_per_gpu;     // tokens per pass, if cut by tokens
  std::optional<int64_t> ulysses_sequence_parallel_size;     // ranks that share the tokens of a pass
  std::optional<int64_t> sync_steps;             // sync_units between refreshes; null = the initial model stays
  ScheduleUnit sync_unit = ScheduleUnit::kStep;  // what sync_steps counts (TRL: updates)
  double mixup_alpha = 0.6;                      // share of the policy in a refresh; 1 = a copy
  Offloading offload = Offloading::kNone;        // whether files hold its weights
  // Does it have weights of its own even if an adapter is trained? Else it is then the adapter's base.
  [[nodiscard]] bool has_own_weights() const { return sync_steps.has_value() || path.has_value(); }
  bool operator==(const RefConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

// Whether the reference's passes are cut by tokens or by rows, and the keys that decide it.
inline constexpr auto cuts_reference_by_tokens = [](const auto& k) -> bool {
  return k.config.ref.log_prob_use_dynamic_bsz.value_or(k.config.actor.use_dynamic_bsz);
};

inline constexpr auto cuts_reference_by_rows = [](const auto& k) -> bool {
  return !cuts_reference_by_tokens(k) &&
         (k.config.ref.log_prob_micro_batch_size_per_gpu || k.config.actor.ppo_micro_batch_size_per_gpu);
};

inline constexpr auto why_reference_by_tokens = [](const auto& k) -> std::string {
  const bool own = k.config.ref.log_prob_use_dynamic_bsz.has_value();
  return std::string(own ? "ref.log_prob_use_dynamic_bsz" : "actor.use_dynamic_bsz") + " cuts passes by tokens";
};

inline constexpr auto why_reference_by_rows = [](const auto& k) -> std::string {
  const bool own = k.config.ref.log_prob_micro_batch_size_per_gpu.has_value();
  return std::string("passes are cut by ") +
         (own ? "ref.log_prob_micro_batch_size_per_gpu" : "actor.ppo_micro_batch_size_per_gpu") +
         " (set ref.log_prob_use_dynamic_bsz=true)";
};

// A KL or the policy loss compares with the reference.
inline constexpr auto has_no_reference = [](const auto& k) -> bool {
  return !k.config.actor.use_kl_loss && !k.config.algorithm.use_kl_in_reward && !k.plugins->loss_reads_reference;
};

// It has no passes of its own: there is none, or the KL over the whole vocabulary runs it in the policy's.
inline constexpr auto has_no_reference_passes = [](const auto& k) -> bool {
  const bool full = k.config.actor.kl_loss_type == kFullKl;
  return !k.config.algorithm.use_kl_in_reward && !k.plugins->loss_reads_reference &&
         (!k.config.actor.use_kl_loss || full);
};

inline constexpr const char* kNoReference =
    "there is no reference (actor.use_kl_loss and algorithm.use_kl_in_reward are false)";

inline constexpr auto why_no_reference_passes = [](const auto& k) -> std::string {
  return has_no_reference(k) ? kNoReference
                             : "the reference runs in the policy's own passes (actor.kl_loss_type is full)";
};

template <class Keys>
void describe_reference_start(Keys& keys) {
  keys.compared(
          "path", &RefConfig::path,
          "Folder of the reference, or its name on the hub: a model with the policy's shapes, or an adapter of it, which "
          "is merged. For example the supervised model, if the policy continues from a later checkpoint. null: the "
          "initial policy, or if an adapter is trained, the model without it. (ms-swift: ref_model, ref_adapters; verl: "
          "ref.model.path.)")
      .place()
      .no_effect_by_plugins(
          kInTrain, [](const auto& k) { return k.config.ref.path && has_no_reference(k); }, kNoReference);
}

template <class Keys>
void describe_reference(Keys& keys) {
  keys.free("log_prob_micro_batch_size_per_gpu", &RefConfig::log_prob_micro_batch_size_per_gpu,
            "Rows in one forward pass of the reference. null: actor.ppo_micro_batch_size_per_gpu.")
      .at_least(1)
      .as_in_verl("null")
      .no_effect(kInTrain, cuts_reference_by_tokens, why_reference_by_tokens)
      .no_effect_by_plugins(kInTrain, has_no_reference_passes, why_no_reference_passes);
  keys.free("log_prob_use_dynamic_bsz", &RefConfig::log_prob_use_dynamic_bsz,
            "Cut the reference's passes by tokens even if a number of rows is set. null: actor.use_dynamic_bsz.")
      .as_in_verl("null")
      .no_effect_by_plugins(kInTrain, has_no_reference_passes, why_no_reference_passes);
  keys.free("log_prob_max_token_len_per_gpu", &RefConfig::log_prob_max_token_len_per_gpu,
            "Tokens in one pass of the reference, if passes are cut by tokens. null: actor.ppo_max_token_len_per_gpu.")
      .at_least(1)
      .as_in_verl("null")
      .no_effect(kInTrain, cuts_reference_by_rows, why_reference_by_rows)
      .no_effect_by_plugins(kInTrain, has_no_reference_passes, why_no_reference_passes);
  keys.free("ulysses_sequence_parallel_size", &RefConfig::ulysses_sequence_parallel_size,
            "Ranks that share the tokens of each pass of the reference. null: actor.ulysses_sequence_parallel_size.")
      .at_least(1)
      .at_most(kMostRanks)
      .as_in_verl("null")
      .no_effect_by_plugins(kInTrain, has_no_reference_passes, why_no_reference_passes);
  keys.compared(
          "sync_steps", &RefConfig::sync_steps,
          "Steps, or updates as sync_unit says, between refreshes of the reference: ref = (1 - mixup_alpha) ref + "
          "mixup_alpha policy. null: the "
          "reference stays what it was at the start (TRL: sync_ref_model = false). With an adapter the reference is then "
          "a copy of its own.")
      .at_least(1)
      .trl("ref_model_sync_steps")
      .no_effect_by_plugins(kInTrain, has_no_reference, kNoReference);
  keys.compared("sync_unit", &RefConfig::sync_unit,
                "What sync_steps counts. step: the reference is refreshed behind the updates of a step. update: it may "
                "be refreshed between two updates of a step, as in TRL and ms-swift. Its log-probs of this step stay "
                "those that the step began with.")
      .no_effect(
          kInTrain, [](const auto& k) { return !k.config.ref.sync_steps; }, "ref.sync_steps is null")
      .no_effect_by_plugins(
          kInTrain, [](const auto& k) { return k.config.ref.sync_steps && has_no_reference(k); }, kNoReference);
  keys.compared(
          "mixup_alpha", &RefConfig::mixup_alpha,
          "Share of the policy in a refresh of the reference. 1 copies the policy. Small values in every step make a "
          "moving average.")
      .above(0)
      .at_most(1)
      .trl("ref_model_mixup_alpha")
      .no_effect(
          kInTrain, [](const auto& k) { return !k.config.ref.sync_steps; }, "ref.sync_steps is null")
      .no_effect_by_plugins(
          kInTrain, [](const auto& k) { return k.config.ref.sync_steps && has_no_reference(k); }, kNoReference);
}

inline constexpr auto shares_reference = [](const auto& k) -> bool {
  return k.config.model.trains_adapter() && !k.config.ref.has_own_weights();
};

template <class Keys>
void describe_reference_offload(Keys& keys) {
  keys.free("offload", &RefConfig::offload,
            "Where the reference's weights are. none: in memory. file: in files without names in trainer.offload_dir, "
            "from which a pass reads one layer after the other. The numbers are the same.")
      .no_effect(kInTrain, shares_reference, "the reference is the base of the adapter, which the policy needs too")
      .no_effect_by_plugins(
          kInTrain, [](const auto& k) { return !shares_reference(k) && has_no_reference(k); }, kNoReference);
}

template <class Catalog>
void describe_ref_section(Catalog& catalog) {
  auto keys = catalog.table(
      "ref",
      "The reference model: the initial policy, unless path names another or it is refreshed. A run has one if a KL needs it.",
      [](auto& run) -> RefConfig& { return run.ref; });
  keys.unread_by(kInSft);
  describe_reference_start(keys);
  describe_reference(keys);
  describe_reference_offload(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
