#include "plugin/host/kinds/reward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/guarded_output.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/reward_args.h"
#include "plugin/host/kinds/slots.h"

namespace mortise {
namespace {

using Vtable = mortise_reward_vtable;
constexpr std::string_view kSlot = "score";

struct RowValueSink {
  std::mutex mutex;
  int64_t num_rows = 0;
  std::vector<RowValue> values;
  std::string misuse;
};

void take_row_value(void* context, int64_t row, mortise_text name, double value) noexcept try {
  auto& sink = *static_cast<RowValueSink*>(context);
  const std::lock_guard lock(sink.mutex);
  const std::string_view text = name.data == nullptr ? std::string_view() : std::string_view(name.data, name.size);
  if (row < 0 || row >= sink.num_rows) {
    sink.misuse = "gave the value " + quote(text) + " for row " + std::to_string(row) + " of a batch of " +
                  std::to_string(sink.num_rows);
  } else if (text.empty() || find_invalid_utf8(text)) {
    sink.misuse = "gave a row value under the name " + quote(text);
  } else {
    sink.values.push_back({row, std::string(text), value});
  }
} catch (...) {  // out of memory: the value is lost, the run goes on
}

// The outputs of a call: those of `result` themselves, or between guard words and copied there after it.
class GuardedRewards {
 public:
  GuardedRewards(bool guarded, RewardOutput& result) : result_(&result) {
    if (!guarded) return;
    rewards_.emplace(result.rewards.size() * sizeof(double));
    tokens_.emplace(result.token_rewards.size() * sizeof(float));
    std::copy(result.rewards.begin(), result.rewards.end(), rewards());
    std::copy(result.token_rewards.begin(), result.token_rewards.end(), token_rewards());
  }
  [[nodiscard]] double* rewards() const {
    return rewards_ ? static_cast<double*>(rewards_->data()) : result_->rewards.data();
  }
  [[nodiscard]] float* token_rewards() const {
    return tokens_ ? static_cast<float*>(tokens_->data()) : result_->token_rewards.data();
  }
  // What was written beside them, or nothing.
  [[nodiscard]] std::string finish() const {
    if (!rewards_) return "";
    if (const std::string damage = rewards_->damage(); !damage.empty()) return damage + " output 'rewards'";
    if (const std::string damage = tokens_->damage(); !damage.empty()) return damage + " output 'token_rewards'";
    std::copy_n(rewards(), result_->rewards.size(), result_->rewards.data());
    std::copy_n(token_rewards(), result_->token_rewards.size(), result_->token_rewards.data());
    return "";
  }

 private:
  RewardOutput* result_;
  std::optional<GuardedOutput> rewards_, tokens_;
};

}  // namespace

Result<Reward> Reward::create(PluginRegistry& registry, std::string_view name, const Json& params, const RunKey& key) {
  return checked(TRY(PluginInstance::create(registry, MORTISE_KIND_REWARD, name, params, key)));
}

Result<Reward> Reward::create(const LoadedPlugin& plugin, InstanceIdentity identity, const RunKey& key) {
  return checked(TRY(PluginInstance::create(plugin, std::move(identity), key)));
}

Result<Reward> Reward::checked(PluginInstance instance) {
  Reward made(std::move(instance));
  const auto vtable = vtable_of<Vtable>(made.instance_);
  TRY(check_slots(made.instance_, {{"score", vtable.score != nullptr}}));
  if (vtable.granularity < MORTISE_REWARD_ROW || vtable.granularity > MORTISE_REWARD_BATCH) {
    return made.instance_.error("create", 0,
                                "its vtable has the unknown granularity " + std::to_string(vtable.granularity),
                                "build the pack again");
  }
  return made;
}

Granularity Reward::granularity() const { return static_cast<Granularity>(vtable_of<Vtable>(instance_).granularity); }

Result<RewardOutput> Reward::score(const RewardBatch& batch, bool want_token_rewards, MetricSet* metrics,
                                   const CallOptions& options) {
  TRY(check_reward_batch(batch, instance_.label()));
  const RewardArgs args(batch);
  return score(args.in(), want_token_rewards, metrics, options);
}

Result<RewardOutput> Reward::score(const mortise_reward_in& in, bool want_token_rewards, MetricSet* metrics,
                                   const CallOptions& options) {
  const auto rows = static_cast<size_t>(in.num_rows);
  RewardOutput result;
  result.rewards.assign(rows, std::numeric_limits<double>::quiet_NaN());
  if (want_token_rewards)
    result.token_rewards.assign(in.completion_ids.offsets[rows] - in.completion_ids.offsets[0], 0.0F);
  RowValueSink sink;
  sink.num_rows = in.num_rows;
  GuardedRewards guarded(instance_.checks_writes(), result);
  auto out = make_abi_struct<mortise_reward_out>();
  out.rewards = guarded.rewards();
  out.token_rewards = want_token_rewards ? guarded.token_rewards() : nullptr;
  out.row_value = take_row_value;
  out.sink = &sink;

  const auto slot = catchable(vtable_of<Vtable>(instance_).score);
  CallOptions with_rows = options;
  with_rows.num_rows = in.num_rows;
  CallReport report = TRY(instance_.call(kSlot, in.step, metrics, with_rows,
                                         [&](mortise_call* call) { return slot(instance_.self(), call, &in, &out); }));
  if (const std::string damage = guarded.finish(); !damage.empty()) {
    const std::string last =
        rows == 0 ? "" : ", whose last row is row " + std::to_string(in.row_id[rows - 1]) + " of the step";
    return instance_.error(
        kSlot, in.step, damage + last,
        "rewards has num_rows elements, token_rewards those of completion_ids; tell the pack's author (rule R33)");
  }
  if (!sink.misuse.empty()) return instance_.error(kSlot, in.step, sink.misuse, "tell the pack's author");

  result.metrics = std::move(report.metrics);
  result.failed_rows = std::move(report.failed_rows);
  result.seconds = report.seconds;
  for (const FailedRow& failed : result.failed_rows)
    result.rewards[static_cast<size_t>(failed.row)] = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < result.rewards.size(); ++i) {
    if (std::isinf(result.rewards[i]))
      return instance_.error(kSlot, in.step,
                             "gave the reward " + format_f64(result.rewards[i]) +
                                 (rows > 1 ? " to row " + std::to_string(i) : std::string()),
                             "a reward is a number, or NaN where it does not apply");
  }
  for (size_t i = 0; i < result.token_rewards.size(); ++i) {
    if (!std::isfinite(result.token_rewards[i]))
      return instance_.error(
          kSlot, in.step,
          "gave the token reward " + format_f64(result.token_rewards[i]) + " at token " + std::to_string(i),
          "a token reward is a finite number");
  }
  std::stable_sort(sink.values.begin(), sink.values.end(),
                   [](const RowValue& a, const RowValue& b) { return a.row < b.row; });
  result.row_values = std::move(sink.values);
  return result;
}

}  // namespace mortise
