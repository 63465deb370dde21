// A reward function as the engine uses it, in this process or in its own workers.
//
// Rows may arrive in parts while others are still being sampled: begin(), add() whenever rows arrive, finish(). score()
// is for a batch in one part. Results do not depend on the parts, on the number of workers or on their speed (except
// time-outs). Threading: one thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/host/kinds/reward.h"
#include "plugin/worker/placement.h"

namespace mortise {

struct ScoreRequest {
  int64_t num_rows = 0;  // rows of the batch
  int64_t step = 0;
  int64_t timeout_ms = 0;      // for the whole batch, from the last add() on; 0: none
  int64_t row_timeout_ms = 0;  // for a row, or a group; 0: none. In this process only the batch's limit holds
  bool is_part = false;        // other processes score rows of the batch too: rows that are never added come out NaN
};

class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  [[nodiscard]] virtual const std::string& label() const = 0;
  [[nodiscard]] virtual Granularity granularity() const = 0;
  // Whether add() sets workers to work at once; where not, rows are better given in one part.
  [[nodiscard]] virtual bool works_ahead() const = 0;

  virtual Result<> begin(const ScoreRequest& request) = 0;
  // Adds rows of the batch: row i of `rows` is row row_id[i] of it. Whole groups, or the whole batch, if the
  // granularity requires it. Errors are the engine's; finish() reports failures of the reward.
  virtual Result<> add(const RewardBatch& rows) = 0;
  // Hands out work, collects results, and ends rows beyond their deadline. Waits up to `wait_ms` for messages of the
  // workers. Between add() and finish(), row deadlines are as precise as the interval of these calls.
  virtual Result<> advance(int wait_ms) = 0;
  // No row waits for a worker: more may be added. False for a reward in this process.
  [[nodiscard]] virtual bool wants_more() const = 0;
  // A worker has nothing to do. False for a reward in this process.
  [[nodiscard]] virtual bool has_free_worker() const = 0;
  // No more rows come: the time for the batch begins. finish() does it where it was not done.
  virtual void close() = 0;
  // Whether advance() has nothing left to do for the rows that were added.
  [[nodiscard]] virtual bool is_idle() const = 0;
  // Rows of the batch that have their result.
  [[nodiscard]] virtual int64_t num_done() const = 0;
  // The records of RewardOutput::metrics are in the set already, if there is one.
  virtual Result<RewardOutput> finish(MetricSet* metrics) = 0;

  // mortise.state/1: nothing when the plugin keeps no state.
  virtual Result<std::optional<std::string>> save_state() = 0;
  virtual Result<> load_state(std::string_view bytes) = 0;

  Result<RewardOutput> score(const ScoreRequest& request, const RewardBatch& rows, MetricSet* metrics);
};

// The reward `name` of the registry. `auto` is `process` where the machine can; the log says where it cannot, and what
// limits are in force.
Result<std::unique_ptr<RewardFunction>> make_reward_function(PluginRegistry& registry, std::string_view name,
                                                             const nlohmann::ordered_json& params, const RunKey& key,
                                                             const IsolationOptions& options);

}  // namespace mortise
