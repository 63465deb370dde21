// RewardRunner: all reward functions of the config over a SampleBatch, weighted and summed.
//
// A function that does not apply to a row gives NaN and is left out of that row's sum; a row to which none applies is
// not valid and is left out of its group's statistics. A failure is NaN too, never 0, and is counted: above
// plugins.max_failed_fraction of the rows the run stops. Thread rule: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {

struct RewardSpec {
  std::string use;    // plugin name
  std::string label;  // column name
  double weight = 1.0;
  int64_t timeout_ms = 0;  // of one call; 0 = none
  Json params = Json::object();
};

struct ScoreContext {
  int64_t step = 0;
  int64_t max_response_length = 0;
  bool is_validation = false;
};

class RewardRunner {
 public:
  static Result<RewardRunner> create(PluginRegistry& registry, const std::vector<RewardSpec>& specs, const RunKey& key,
                                     double max_failed_fraction);

  Result<ScoredBatch> score(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context,
                            MetricSet* metrics);

  [[nodiscard]] size_t num_functions() const { return functions_.size(); }
  // The functions that keep state across a resume, with the names their state is saved under.
  std::vector<std::pair<std::string, PluginInstance*>> instances();

 private:
  struct Function {
    RewardSpec spec;
    Reward reward;
  };
  RewardRunner(std::vector<Function> functions, double max_failed_fraction);

  std::vector<Function> functions_;
  double max_failed_fraction_;
};

// The typed columns of B rows: prompt and completion as text and ids, and every column of the data rows.
RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context);

}  // namespace mortise
