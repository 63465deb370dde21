// Rewards of the pack test.faulty in workers, and rows for them.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>

#include "foundation/base/clock.h"
#include "foundation/metrics/registry.h"
#include "plugin/worker/launcher.h"
#include "plugin/worker/reward_pool.h"
#include "support/forwarding_system.h"
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

// Waits until somebody has made the file.
inline void wait_for_file(const Path& path) {
  for (int i = 0; i < 60'000 && !std::filesystem::exists(path); ++i) ::usleep(2'000);
  EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

// The system of a pool whose clock is 200 times slower than that of its workers. Its grace of 50 ms lasts 10 s and its
// patience with a stop 200 s, longer than any worker needs that listens. Time limits of a row and of a call are kept by
// the worker, and are not longer.
class PatientSystem final : public ForwardingSystem {
 public:
  int64_t monotonic_ns() override { return start_ns_ + (real_.monotonic_ns() - start_ns_) / 200; }

 private:
  const int64_t start_ns_ = real_.monotonic_ns();
};

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
  // One worker, under a PatientSystem.
  std::unique_ptr<RewardFunction> make_patient(const std::string& name,
                                               const nlohmann::ordered_json& params = nlohmann::ordered_json::object(),
                                               const std::atomic<bool>* cancelled = nullptr) {
    static PatientSystem system;
    const RunKey key{7, cancelled};
    PoolOptions options;
    options.system = &system;
    auto program = find_worker_program();
    auto ref = registry_.find(MORTISE_KIND_REWARD, name);
    EXPECT_OK(program);
    EXPECT_OK(ref);
    options.program = program.value();
    auto identity = PluginInstance::identify(*ref, params, key);
    EXPECT_OK(identity);
    auto made = RewardPool::start(*ref, std::move(identity).value(), key, WorkerLimits{}, options);
    EXPECT_OK(made);
    return std::move(made).value();
  }
  // Every failed row with its reason.
  static std::map<int64_t, std::string> failures(const RewardOutput& out) {
    std::map<int64_t, std::string> texts;
    for (const FailedRow& failed : out.failed_rows) texts[failed.row] = failed.text;
    return texts;
  }
  // The limits are for rows that hang. No machine is so slow that an honest row needs the default ones.
  static ScoreRequest request(int64_t num_rows, int64_t timeout_ms = 300'000, int64_t row_timeout_ms = 120'000) {
    return {num_rows, /*step=*/3, timeout_ms, row_timeout_ms};
  }

  PluginRegistry registry_ = open_registry({"faulty"});
  IsolationOptions options_;
  Isolation mode_ = Isolation::kProcess;
};

}  // namespace mortise::test
