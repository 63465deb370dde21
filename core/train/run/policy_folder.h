// PolicyFolder: the contents of a Hugging Face folder without its weights: tokenizer, chat template, end ids.
// Thread rule: read-only after load.
#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "experience/data/prompt_encoder.h"
#include "foundation/base/env.h"
#include "foundation/batch/sampling.h"
#include "generate/engine.h"
#include "model/weights/model_config.h"
#include "text/tokenizer/chat_templates.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

struct PolicyFolder {
  Path tokenizer_path;  // model.path, or an adapter's base
  Tokenizer tokenizer;
  ChatTemplates chat_templates;

  // model.path of the config, with model.custom_chat_template instead of the folder's own template if it is set.
  static Result<PolicyFolder> load(Env& env, const RunConfig& config);

  // The encoder of this run's data rows. Borrows the tokenizer. `tools`: of rows with several turns, whose
  // prompts must be chats; those of rows without their own, which may be none. Null: a row is one turn.
  [[nodiscard]] PromptEncoder encoder(const RunConfig& config, const Json* tools = nullptr) const;
};

// An Error where the model of a folder cannot be trained as a policy. Reads no weights.
Result<> check_policy(Env& env, const Path& folder);

// The folder with the tokenizer of a model folder: the folder itself, or the base of an adapter's folder without one.
Result<Path> tokenizer_folder(Env& env, const Path& folder);

// The ids that end a completion: generation_config's, else config.json's, else the tokenizer's end token (null: there
// is none). Ids outside the vocabulary are left out, with a warning.
std::vector<int64_t> stop_ids_of(const ModelConfig& model, const Tokenizer* tokenizer);

// The engine behind [rollout]: rows, memory, numbers, path. The caller adds what does not come from the config.
EngineOptions rollout_engine_options(const RunConfig& config, const Tokenizer* tokenizer);

// The options of [rollout] for the sampler. `tokenizer` may be null if the folder has none; texts among the options
// (rollout.stop, rollout.bad_words) are then an error.
Result<Sampling> rollout_sampling(const RunConfig& config, const ModelConfig& model, const Tokenizer* tokenizer);

}  // namespace mortise
