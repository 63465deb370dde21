// See policy_parts.h.
#include "train/run/policy_parts.h"

#include <fmt/core.h>

#include "foundation/base/at_place.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "train/loop/reference_refresh.h"
#include "train/run/admission.h"
#include "train/run/offloading.h"
#include "train/run/reference.h"
#include "train/run/router_rules.h"
#include "train/run/run_device.h"
#include "train/run/run_options.h"
#include "train/run/sequence_rules.h"
#include "train/run/threads.h"

namespace mortise {
namespace {

std::string dtype_of(const RunConfig& config) { return std::string(choice_name(config.model.dtype)); }

Result<> load_adapter(const RunSettings& run, Model& policy) {
  const ModelSection& model = run.config.model;
  if (policy.has_adapter() && model.trains_adapter()) {
    return Error{ErrorKind::kConfig, "model.path is an adapter, and the settings ask for a new one",
                 run.loaded.where("model.path"),
                 "set model.path to the base model, and model.lora_adapter_path to the adapter to continue it"};
  }
  if (model.lora_adapter_path) {
    auto loaded = policy.train_lora(run.env, *model.lora_adapter_path);
    if (!loaded.ok() && loaded.error().where.empty())
      loaded.error().where = run.loaded.where("model.lora_adapter_path");
    return loaded;
  }
  if (model.lora_rank == 0) return {};
  auto made = policy.train_lora(lora_choice(model), run.key.seed);
  if (!made.ok()) made.error().where = lora_place(run.loaded, made.error());
  return made;
}

bool by_parts(const RunSettings& run) { return run.kind != RunKind::kEval && reads_by_parts(run.config, run.ranks); }

// What it has of matrices comes with share_weights(), if ranks share them.
Result<Model> open_model(const RunSettings& run, const Path& folder) {
  Model model = TRY(Model::open(run.env, folder, dtype_of(run.config)));
  if (!by_parts(run)) TRY(model.read_parts());
  return model;
}

// Keeps what this rank has of a policy or of its reference.
Result<> share_weights(const RunSettings& run, Model& model) {
  if (run.kind == RunKind::kEval) return {};
  split_layers(run.config, run.ranks, model);
  Communicator* const ranks = TRY(ranks_with_weights(run.config, run.ranks, model));
  return spread_weights(run.config, *ranks, run.config.actor.optim, model);
}

// `weights_from` is a checkpoint's folder. What save_dtype "stored" means, model.path says.
Result<Model> open_policy(const RunSettings& run, const std::optional<Path>& weights_from) {
  const RunConfig& config = run.config;
  if (!weights_from) return open_model(run, config.model.path);
  if (config.trainer.save_dtype != SaveDtype::kStored) return open_model(run, *weights_from);
  Model model = TRY(open_model(run, config.model.path));
  TRY(model.read_weights(run.env, *weights_from));
  return model;
}

}  // namespace

Result<> load_reference(const RunSettings& run, bool has_moved, PolicyParts& parts) {
  const Model& policy = *parts.model;
  const WeightShards* const shards = shards_of(policy);
  if (policy.trains_lora() && !run.config.ref.path) {
    parts.reference = policy.base_view();
    if (!run.config.ref.sync_steps) {
      if (shards != nullptr) shards->spread_base(*parts.reference);
      return {};
    }
    parts.reference = shards == nullptr ? parts.reference->clone_frozen() : parts.reference->frozen_shape();
    if (shards != nullptr) shards->spread_copy(*parts.reference);
    if (policy.model_part() != nullptr) policy.model_part()->base()->forget_rounded();  // those of the copy are read
    return offload_reference(run.env, run.loaded, *parts.reference);
  }
  TRY(check_reference(run.env, run.loaded, policy.config()));
  std::optional<Model> initial;
  if (has_moved || run.config.ref.path) {
    initial = TRY(at_place(run.config.ref.path ? run.loaded.where("ref.path") : "",
                           open_model(run, reference_folder(run.config))));
    TRY(initial->move_to(run.device));
    TRY(share_weights(run, *initial));
  }
  const Model& from = initial ? *initial : policy;
  parts.reference = shards == nullptr ? from.clone_frozen() : from.frozen_shape();
  parts.reference->set_rope_length(policy.config().rope_length);
  if (policy.has_rounded_matrices() && !run.config.ref.sync_steps) parts.reference->drop_masters();
  if (shards == nullptr) return offload_reference(run.env, run.loaded, *parts.reference);
  shards_of(from)->spread_copy(*parts.reference);
  return offload_reference(run.env, run.loaded, *parts.reference);
}

Result<> load_model(const RunSettings& run, const std::optional<Path>& weights_from, PolicyParts& policy,
                    StatefulRegistry& stateful) {
  const RunConfig& config = run.config;
  use_threads(config.trainer);
  // Whole layers come and go.
  if (run.kind != RunKind::kEval && tensor_size(config, run.ranks) > 1) give_freed_pages_back();
  if (run.kind != RunKind::kEval && spreads_weights(config, run.ranks)) give_freed_matrices_back();
  TRY(check_rollout_groups(run.env, run.loaded, run.ranks.size()));
  policy.folder = TRY(PolicyFolder::load(run.env, config));
  policy.encoder = policy.folder->encoder(config);
  if (run.kind != RunKind::kEval) {
    TRY(check_policy(run.env, config.model.path));
    TRY(check_policy_groups(run.env, run.loaded, run.ranks.size(), run.kind == RunKind::kTrain));
  }
  log_device(config, run.device);
  Model& model = policy.model.emplace(TRY(open_policy(run, weights_from)));
  if (run.kind != RunKind::kEval) TRY(check_routers(run.loaded, model.config()));
  TRY(model.move_to(run.device));
  // Sampling and training turn all sequences of the run alike, whatever their length.
  if (model.config().rope_switch() > 0) model.set_rope_length(config.data.max_prompt_length + response_length(config));
  TRY(load_adapter(run, model));
  if (run.kind != RunKind::kEval) policy.groups = TRY(group_and_freeze(run.loaded, "actor.optim", model));
  if (model.trains_lora() || !TRY(model.saves_exactly(save_options(config)))) {
    policy.model_state.emplace(ModelState::kPolicy, model);
    TRY(stateful.add(*policy.model_state));
  }
  const bool wants_reference =
      run.kind == RunKind::kTrain && (config.actor.use_kl_loss || config.algorithm.use_kl_in_reward);
  TRY(share_weights(run, model));  // before the reference is copied, so that no rank ever has both whole
  if (wants_reference) TRY(load_reference(run, weights_from.has_value(), policy));
  return {};
}

Result<> make_sampled(const RunConfig& config, PolicyParts& policy) {
  const auto whole = TRY(weights_to_sample(config, *policy.model));
  Model& copy = policy.sampled.emplace(policy.model->clone_frozen(Model::Layers::kWhole));
  if (copy.has_rounded_matrices()) copy.drop_masters();
  return {};
}

Result<> refresh_sampled(const RunConfig& config, PolicyParts& policy) {
  if (!policy.sampled) return {};
  const auto whole = TRY(weights_to_sample(config, *policy.model));
  copy_weights(*policy.model, *policy.sampled);
  return {};
}

}  // namespace mortise
