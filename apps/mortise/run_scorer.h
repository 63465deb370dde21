// RunScorer: scores single completions by the rewards of a run, as the run's settings have them, and reads rows of its
// data. For the playground of mortise serve.
//
// Rewards start as in a run: in workers, with its limits, and with types of data columns that its data decides. They do
// not get the state that they had in the run. Thread rule: one thread.
#pragma once

#include <memory>
#include <optional>

#include "config/load.h"
#include "experience/data/column_types.h"
#include "experience/data/prompt_encoder.h"
#include "experience/reward/reward_runner.h"
#include "plugin/host/registry.h"
#include "train/run/policy_folder.h"

namespace mortise {

class RunScorer {
 public:
  // `loaded`: the settings of the run, whose model.path has its tokenizer.
  static Result<std::unique_ptr<RunScorer>> create(Env& env, LoadedConfig loaded);
  RunScorer(const RunScorer&) = delete;
  RunScorer& operator=(const RunScorer&) = delete;

  // {"file", "number"} -> {"prompt" or "messages", "columns"}. The file must be one of the run's.
  Result<Json> data_row(const Json& body) const;
  // {"prompt": text or messages, "columns", "completion" or "token_ids", "finish_reason"} -> {"score", "rewards"}.
  // What has no score is null, with the reason.
  Result<Json> score(const Json& body);

 private:
  RunScorer(Env& env, LoadedConfig loaded, PolicyFolder folder);
  Result<> start_rewards();
  Result<ColumnTypes> column_types(const Json& columns) const;
  Result<Sample> sample_of(const Json& body) const;

  Env* env_;
  LoadedConfig loaded_;
  PolicyFolder folder_;
  PromptEncoder encoder_;
  PromptEncoder text_encoder_;       // the same for prompts that are not chats
  ColumnCensus census_;              // census of the run's data
  std::vector<std::string> places_;  // places of the rows that it has seen
  std::optional<PluginRegistry> registry_;
  std::optional<RewardRunner> rewards_;
};

// The data files of a run that are there.
std::vector<std::string> data_files_of(Env& env, const RunConfig& config);

}  // namespace mortise
