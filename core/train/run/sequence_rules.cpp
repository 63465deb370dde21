// See sequence_rules.h.
#include "train/run/sequence_rules.h"

#include <fmt/core.h>

#include "foundation/base/text.h"
#include "model/layers/sequence.h"
#include "model/weights/tensor_split.h"

namespace mortise {

int64_t reference_sequence_size(const RunConfig& config) {
  return config.ref.ulysses_sequence_parallel_size.value_or(config.actor.ulysses_sequence_parallel_size);
}

namespace {

// `tensor_size`: ranks that share the layers, next to those of the key.
Result<> check_groups(const LoadedConfig& loaded, const std::string& key, int64_t size, int num_ranks,
                      int64_t tensor_size) {
  const int64_t all = size * tensor_size;
  if (num_ranks % all == 0) return {};
  const std::string why =
      tensor_size == 1 ? "" : fmt::format(" (with actor.tensor_model_parallel_size = {})", tensor_size);
  return Error{
      ErrorKind::kConfig,
      fmt::format("'{}' is {}, but {} cannot form groups of {}{}", key, size, counted(num_ranks, "rank"), all, why),
      loaded.where(key), fmt::format("start a multiple of {} ranks (mortise launch --nproc), or change the key", all)};
}

}  // namespace

Result<> check_sequence_parallel(const LoadedConfig& loaded, const std::string& key, int64_t size,
                                 const ModelConfig& model, const std::string& whose, int num_ranks,
                                 int64_t tensor_size) {
  if (size == 1) return {};
  TRY(check_groups(loaded, key, size, num_ranks, tensor_size));
  if (can_share_heads(model.num_heads, model.num_kv_heads, size)) return {};
  return Error{
      ErrorKind::kConfig,
      fmt::format("'{}' is {}, but the {} query heads and {} key-value heads of {} do not divide among so many "
                  "ranks",
                  key, size, model.num_heads, model.num_kv_heads, whose),
      loaded.where(key),
      "choose a number that divides the query heads, and divides or is a multiple of the key-value heads"};
}

namespace {

// `key`: actor.tensor_model_parallel_size or that of [rollout], whose value is `size`.
Result<> check_tensor_parallel(const LoadedConfig& loaded, const std::string& key, int64_t size,
                               const ModelConfig& model, int num_ranks) {
  if (size == 1) return {};
  TRY(check_groups(loaded, key, size, num_ranks, 1));
  const auto refuse = [&](const std::string& why, const std::string& next) {
    return Error{ErrorKind::kConfig, fmt::format("'{}' is {}, but {}", key, size, why), loaded.where(key), next};
  };
  if (can_split_layers(model, size)) return {};
  if (!can_split_vocabulary(model.vocab_size, size)) {
    return refuse(fmt::format("the {} tokens of the policy's vocabulary leave some of so many ranks without any",
                              model.vocab_size),
                  "choose a smaller number");
  }
  const std::string experts =
      model.moe.num_experts == 0 ? "" : fmt::format(" (an expert has {})", model.moe.expert_size);
  return refuse(fmt::format("the {} query heads, {} key-value heads and {} units of the policy's MLP{} do not divide "
                            "among so many ranks",
                            model.num_heads, model.num_kv_heads, model.intermediate_size, experts),
                "choose a number that divides the query heads and the MLP's units, and divides or is a multiple of the "
                "key-value heads");
}

}  // namespace

Result<> check_rollout_groups(Env& env, const LoadedConfig& loaded, int num_ranks) {
  const int64_t size = loaded.config.rollout.tensor_model_parallel_size;
  if (size == 1) return {};
  const ModelConfig model = TRY(read_model_folder_config(env, loaded.config.model.path));
  return check_tensor_parallel(loaded, "rollout.tensor_model_parallel_size", size, model, num_ranks);
}

Result<> check_policy_groups(Env& env, const LoadedConfig& loaded, int num_ranks, bool trains) {
  const int64_t actor = loaded.config.actor.ulysses_sequence_parallel_size;
  const int64_t reference = reference_sequence_size(loaded.config);
  const int64_t tensor = loaded.config.actor.tensor_model_parallel_size;
  if (actor == 1 && reference == 1 && tensor == 1) return {};
  const ModelConfig whole = TRY(read_model_folder_config(env, loaded.config.model.path));
  TRY(check_tensor_parallel(loaded, "actor.tensor_model_parallel_size", tensor, whole, num_ranks));
  const ModelConfig model = tensor == 1 ? whole : split_config(whole, tensor);
  const std::string part = tensor == 1 ? "" : "a rank's part of ";
  TRY(check_sequence_parallel(loaded, "actor.ulysses_sequence_parallel_size", actor, model, part + "the policy",
                              num_ranks, tensor));
  if (!trains) return {};
  return check_sequence_parallel(loaded, "ref.ulysses_sequence_parallel_size", reference, model, part + "the reference",
                                 num_ranks, tensor);
}

}  // namespace mortise
