// What the keys of sequence parallel and tensor parallel ask of the run and of its models. Reads only the models' config.json.
#pragma once

#include <string>

#include "config/load.h"
#include "foundation/base/env.h"
#include "model/weights/model_config.h"

namespace mortise {

// Ranks that share the tokens of a pass of the reference.
[[nodiscard]] int64_t reference_sequence_size(const RunConfig& config);

// An Error of kind kConfig if the ranks do not form groups of this size, or the model's heads do not divide among them.
// `key`: the one that says the size. `whose`: "the policy". `tensor_size`: how many ranks share its layers; `model` is then
// what one of them has.
Result<> check_sequence_parallel(const LoadedConfig& loaded, const std::string& key, int64_t size,
                                 const ModelConfig& model, const std::string& whose, int num_ranks,
                                 int64_t tensor_size = 1);
// All of these for the policy, with actor.tensor_model_parallel_size, and, if `trains`, for its reference.
Result<> check_policy_groups(Env& env, const LoadedConfig& loaded, int num_ranks, bool trains);
// The same of rollout.tensor_model_parallel_size.
Result<> check_rollout_groups(Env& env, const LoadedConfig& loaded, int num_ranks);

}  // namespace mortise
