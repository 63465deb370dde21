// Rewards of the pack test.faulty in workers, and rows for them.
#pragma once

#include <cmath>
#include <filesystem>
#include <map>

#include "foundation/base/clock.h"
#include "foundation/metrics/registry.h"
#include "plugin/worker/reward_function.h"
#include "test_packs.h"

namespace mortise::test {

inline RewardBatch rows_of(const std::vector<std::string>& completions, int64_t rows_per_group = 1) {
  RewardBatch batch;
  batch.num_rows = static_cast<int64_t>(completions.size());
  for (int64_t i = 0; i < batch.num_rows; ++i) {
    batch.completion.append(completions[static_cast<size_t>(i)]);
    batch.row_id.push_back(i);
    batch.group_index.push_back(i / rows_per_group);
  }
  return batch;
}

// Descriptors of this process, the one of the count left out.
inline size_t num_open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count - 1;
}

class WorkerTest : public testing::Test {
 protected:
  std::unique_ptr<RewardFunction> make(const std::string& name, int num_workers = 2,
                                       const nlohmann::ordered_json& params = nlohmann::ordered_json::object()) {
    options_.mode = mode_;
    options_.num_workers = num_workers;
    auto made = make_reward_function(registry_, name, params, RunKey{7, nullptr}, options_);
    if (!made.ok()) {
      ADD_FAILURE() << made.error().to_string();
      std::abort();
    }
    return std::move(made).value();
  }
  // Every failed row with its reason.
  static std::map<int64_t, std::string> failures(const RewardOutput& out) {
    std::map<int64_t, std::string> texts;
    for (const FailedRow& failed : out.failed_rows) texts[failed.row] = failed.text;
    return texts;
  }
  static ScoreRequest request(int64_t num_rows, int64_t timeout_ms = 20'000, int64_t row_timeout_ms = 10'000) {
    return {num_rows, /*step=*/3, timeout_ms, row_timeout_ms};
  }

  PluginRegistry registry_ = open_registry({"faulty"});
  IsolationOptions options_;
  Isolation mode_ = Isolation::kProcess;
};

}  // namespace mortise::test
