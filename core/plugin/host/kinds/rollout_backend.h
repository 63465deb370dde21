// A rollout backend by name: completions for prompts.
//
// Sequences are checked before they reach the sink: a known request, a sample index in range, one sequence per sample,
// ids within the asked length, finite log-probs. Threading: one call at a time per object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/batch/sampling.h"
#include "plugin/host/instance.h"

namespace mortise {

struct RolloutRequest {
  int64_t request_id = 0;
  std::span<const int64_t> prompt_ids{};
  int64_t num_samples = 1;
  int64_t first_row_id = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  const Sampling* sampling = nullptr;  // not null
};

// Borrowed: valid inside the sink only.
struct RolloutSequence {
  int64_t request_id = 0;
  int64_t sample_index = 0;
  int32_t finish_reason = 0;  // MORTISE_FINISH_*
  int64_t weight_version = 0;
  std::span<const int64_t> ids{};
  std::span<const float> log_prob{};           // empty: the backend has none
  std::span<const float> filtered_log_prob{};  // empty: not computed
  std::span<const uint16_t> experts{};         // that prompt and completion took (expert_choices.h); empty: not given
};

// Takes one sequence. False: deliver no more now (this one is taken); the rest comes with the next poll.
using RolloutSink = std::function<bool(const RolloutSequence&)>;

struct WeightShard {
  std::string_view name{};
  std::span<const float> data{};     // row-major
  std::span<const int64_t> shape{};  // shape of the shard
  std::span<const int64_t> global_shape{};
  std::span<const int64_t> offset{};
};

class RolloutBackend {
 public:
  static Result<RolloutBackend> create(PluginRegistry& registry, std::string_view name,
                                       const nlohmann::ordered_json& params, const RunKey& key);
  RolloutBackend(RolloutBackend&&) noexcept;
  RolloutBackend& operator=(RolloutBackend&&) noexcept;
  ~RolloutBackend();

  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  Result<void> set_version(int64_t version);
  // Does the backend hold copies of the weights (begin_update, update_weight, end_update)?
  [[nodiscard]] bool holds_weights() const;
  Result<void> begin_update(int64_t version);
  Result<void> update_weight(const WeightShard& shard);
  Result<void> end_update();

  // Returns how many of `requests`, from the first on, it accepted. Offer the rest again after a poll.
  Result<size_t> submit(std::span<const RolloutRequest> requests);
  // Works or waits up to timeout_ms, gives finished sequences to `sink`; returns how many are outstanding. An Error is
  // of kind kNumerics where the backend says that the weights have diverged.
  Result<uint64_t> poll(int64_t timeout_ms, const RolloutSink& sink, MetricSet* metrics = nullptr);
  // Gives up a request (-1: all); partial sequences come through the next poll. Nothing if the backend cannot.
  Result<void> abort(int64_t request_id);
  Result<void> sleep(int level);
  Result<void> wake();

 private:
  struct Ledger;
  RolloutBackend(PluginInstance instance, std::unique_ptr<Ledger> ledger);
  PluginInstance instance_;
  std::unique_ptr<Ledger> ledger_;
};

}  // namespace mortise
