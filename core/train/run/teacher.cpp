// See teacher.h.
#include "train/run/teacher.h"

#include <fmt/core.h>

#include "config/check.h"
#include "foundation/base/at_place.h"
#include "foundation/base/choice.h"
#include "train/run/sequence_rules.h"

namespace mortise {

Result<std::optional<ModelConfig>> teacher_config(Env& env, const LoadedConfig& loaded, int64_t vocab_size,
                                                  int num_ranks) {
  const TeacherConfig& teacher = loaded.config.teacher;
  if (!teacher.path || (teacher.loss_coef == 0 && teacher.advantage_coef == 0)) return std::optional<ModelConfig>();
  const std::string where = loaded.where("teacher.path");
  ModelConfig config = TRY(at_place(where, read_model_folder_config(env, *teacher.path)));
  if (config.is_classifier) {
    return Error{ErrorKind::kData, "the teacher is a classifier: " + *teacher.path, where,
                 "name a causal language model in teacher.path"};
  }
  if (config.vocab_size != vocab_size) {
    return Error{ErrorKind::kData,
                 fmt::format("the teacher's vocabulary has {} tokens, the policy's {}", config.vocab_size, vocab_size),
                 where, "take a teacher with the policy's tokenizer"};
  }
  TRY(check_sequence_parallel(loaded, "actor.ulysses_sequence_parallel_size",
                              loaded.config.actor.ulysses_sequence_parallel_size, config, "the teacher", num_ranks));
  return std::optional(std::move(config));
}

Result<std::optional<Model>> load_teacher(Env& env, const LoadedConfig& loaded, const ComputeDevice& device,
                                          int64_t vocab_size, int num_ranks) {
  const auto known = TRY(teacher_config(env, loaded, vocab_size, num_ranks));
  if (!known) return std::optional<Model>();
  const RunConfig& config = loaded.config;
  const std::string dtype(choice_name(config.model.dtype));
  Model stored = TRY(at_place(loaded.where("teacher.path"), Model::load(env, *config.teacher.path, dtype)));
  TRY(stored.move_to(device));
  Model teacher = stored.clone_frozen();
  if (teacher.has_rounded_matrices()) teacher.drop_masters();
  if (teacher.config().rope_switch() > 0)
    teacher.set_rope_length(config.data.max_prompt_length + response_length(config));
  return std::optional(std::move(teacher));
}

}  // namespace mortise
