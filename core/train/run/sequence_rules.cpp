// See sequence_rules.h.
#include "train/run/sequence_rules.h"

#include <fmt/core.h>

#include "foundation/base/shown_text.h"
#include "model/adapters/lora.h"
#include "model/layers/sequence.h"

namespace mortise {

int64_t reference_sequence_size(const RunConfig& config) {
  return config.ref.ulysses_sequence_parallel_size.value_or(config.actor.ulysses_sequence_parallel_size);
}

Result<> check_sequence_parallel(const LoadedConfig& loaded, const std::string& key, int64_t size,
                                 const ModelConfig& model, const std::string& whose, int num_ranks) {
  if (size == 1) return {};
  if (num_ranks % size != 0) {
    return Error{
        ErrorKind::kConfig,
        fmt::format("'{}' is {}, but {} cannot form groups of {}", key, size, counted(num_ranks, "rank"), size),
        loaded.where(key),
        fmt::format("start a multiple of {} ranks (mortise launch --nproc), or change the key", size)};
  }
  if (can_share_heads(model.num_heads, model.num_kv_heads, size)) return {};
  return Error{
      ErrorKind::kConfig,
      fmt::format("'{}' is {}, but the {} query heads and {} key-value heads of {} do not divide among so many "
                  "ranks",
                  key, size, model.num_heads, model.num_kv_heads, whose),
      loaded.where(key),
      "choose a number that divides the query heads, and divides or is a multiple of the key-value heads"};
}

Result<> check_policy_sequence(Env& env, const LoadedConfig& loaded, int num_ranks, bool trains) {
  const int64_t actor = loaded.config.actor.ulysses_sequence_parallel_size;
  const int64_t reference = reference_sequence_size(loaded.config);
  if (actor == 1 && reference == 1) return {};
  const ModelConfig model = TRY(read_model_folder_config(env, loaded.config.model.path));
  TRY(check_sequence_parallel(loaded, "actor.ulysses_sequence_parallel_size", actor, model, "the policy", num_ranks));
  if (!trains) return {};
  return check_sequence_parallel(loaded, "ref.ulysses_sequence_parallel_size", reference, model, "the reference",
                                 num_ranks);
}

}  // namespace mortise
