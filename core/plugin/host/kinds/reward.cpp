// Calls a reward in this process, and collects its values, notes and failures.
#include "plugin/host/kinds/reward.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "mortise/ext/row_text.h"
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

std::string_view view_of(mortise_text text) {
  return text.data == nullptr ? std::string_view() : std::string_view(text.data, text.size);
}

void take_row_value(void* context, RowValue value) {
  auto& sink = *static_cast<RowValueSink*>(context);
  const std::lock_guard lock(sink.mutex);
  if (value.row < 0 || value.row >= sink.num_rows) {
    sink.misuse =
        fmt::format("gave the value {} for row {} of a batch of {}", quote(value.name), value.row, sink.num_rows);
  } else if (value.name.empty() || find_invalid_utf8(value.name)) {
    sink.misuse = "gave a row value under the name " + quote(value.name);
  } else {
    sink.values.push_back(std::move(value));
  }
}

void take_row_number(void* context, int64_t row, mortise_text name, double value) noexcept try {
  take_row_value(context, {row, std::string(view_of(name)), value, std::nullopt});
} catch (...) {  // out of memory: the value is lost, and the run continues
}

// Completions may end within a character, so a text that is not UTF-8 is kept as it can be shown.
void take_row_text(void* context, int64_t row, mortise_text name, mortise_text text) noexcept try {
  constexpr size_t kMostBytes = 4096;
  std::string_view kept = view_of(text).substr(0, kMostBytes);
  while (!kept.empty() && kept.size() < text.size && (static_cast<unsigned char>(kept.back()) & 0xC0) == 0x80)
    kept.remove_suffix(1);
  if (!kept.empty() && kept.size() < text.size && (static_cast<unsigned char>(kept.back()) & 0x80) != 0)
    kept.remove_suffix(1);  // no half character
  take_row_value(context,
                 {row, std::string(view_of(name)), 0.0, find_invalid_utf8(kept) ? quote(kept) : std::string(kept)});
} catch (...) {
}

constexpr mortise_row_text kRowText = {sizeof(mortise_row_text), 0, take_row_text};

// The outputs of a call.
struct Written {
  std::vector<double> rewards;
  std::vector<float> token_rewards;  // those of all rows, end to end
};

// The outputs of a call: those of `written` themselves, or between guard words and copied there after it.
class GuardedRewards {
 public:
  GuardedRewards(bool guarded, Written& written) : written_(&written) {
    if (!guarded) return;
    rewards_.emplace(written.rewards.size() * sizeof(double));
    tokens_.emplace(written.token_rewards.size() * sizeof(float));
    std::copy(written.rewards.begin(), written.rewards.end(), rewards());
    std::copy(written.token_rewards.begin(), written.token_rewards.end(), token_rewards());
  }
  [[nodiscard]] double* rewards() const {
    return rewards_ ? static_cast<double*>(rewards_->data()) : written_->rewards.data();
  }
  [[nodiscard]] float* token_rewards() const {
    return tokens_ ? static_cast<float*>(tokens_->data()) : written_->token_rewards.data();
  }
  // The fault of a write outside them, or nothing.
  [[nodiscard]] std::string finish() const {
    if (!rewards_) return "";
    if (const std::string damage = rewards_->damage(); !damage.empty()) return damage + " output 'rewards'";
    if (const std::string damage = tokens_->damage(); !damage.empty()) return damage + " output 'token_rewards'";
    std::copy_n(rewards(), written_->rewards.size(), written_->rewards.data());
    std::copy_n(token_rewards(), written_->token_rewards.size(), written_->token_rewards.data());
    return "";
  }

 private:
  Written* written_;
  std::optional<GuardedOutput> rewards_, tokens_;
};

void sort_by_row(std::vector<FailedRow>& failed) { std::ranges::sort(failed, {}, &FailedRow::row); }

// Only these rows fail: the others have their rewards.
void fail_infinite_rows(RewardOutput& result) {
  for (size_t row = 0; row < result.rewards.size(); ++row) {
    double& reward = result.rewards[row];
    if (!std::isinf(reward)) continue;
    result.failed_rows.push_back(
        {static_cast<int64_t>(row), MORTISE_INVALID_ARGUMENT,
         fmt::format("gave the reward {}; a reward is a number, or NaN where it does not apply", format_f64(reward))});
    reward = std::numeric_limits<double>::quiet_NaN();
  }
  sort_by_row(result.failed_rows);
}

// Gives every row its token rewards. A row with invalid ones fails alone.
void take_token_rewards(const mortise_reward_in& in, std::span<const float> tokens, RewardOutput& result) {
  const uint64_t* const offsets = in.completion_ids.offsets;
  result.token_rewards.resize(result.rewards.size());
  std::vector<uint8_t> has_failed(result.rewards.size());
  for (const FailedRow& failed : result.failed_rows) has_failed[static_cast<size_t>(failed.row)] = 1;
  for (size_t row = 0; row < result.rewards.size(); ++row) {
    if (has_failed[row] != 0) continue;
    const std::span<const float> own = tokens.subspan(offsets[row] - offsets[0], offsets[row + 1] - offsets[row]);
    if (std::string fault = token_reward_fault(result.rewards[row], own); !fault.empty()) {
      result.rewards[row] = std::numeric_limits<double>::quiet_NaN();
      result.failed_rows.push_back({static_cast<int64_t>(row), MORTISE_INVALID_ARGUMENT, std::move(fault)});
    } else if (!std::isnan(result.rewards[row])) {
      result.token_rewards[row].assign(own.begin(), own.end());
    }
  }
  sort_by_row(result.failed_rows);
}

}  // namespace

void register_row_text() {
  register_host_extension(MORTISE_EXT_ROW_TEXT, &kRowText);
  register_host_extension("mortise.row_text/0", &kRowText);  // the draft of ABI 0.2 had the same table
}

bool gives_token_rewards(const PluginInfo& plugin) { return (plugin.flags & MORTISE_FLAG_TOKEN_REWARDS) != 0; }

std::string token_reward_fault(double reward, std::span<const float> tokens) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (!std::isfinite(tokens[t]))
      return fmt::format(
          "gave the token reward {} at token {} of the completion; a token reward is a finite number (rule "
          "R43)",
          format_f64(tokens[t]), t);
  }
  const bool any = std::any_of(tokens.begin(), tokens.end(), [](float x) { return x != 0.0F; });
  if (!any || !std::isnan(reward)) return "";
  return "gave token rewards, and no reward of the row, as if it did not apply; set that to 0 (rule R43)";
}

std::string failure_text(const Error& error) { return Error{error.kind, error.what, "", error.next}.to_string(); }

std::string failures_text(std::span<const FailedRow> failed) {
  constexpr size_t kMostReasons = 3;
  std::vector<std::string_view> seen;
  std::string text;
  for (const FailedRow& row : failed) {
    if (std::ranges::find(seen, row.text) != seen.end()) continue;
    if (seen.size() == kMostReasons) return text + "; others failed for other reasons";
    text += fmt::format("{}{}: {}", seen.empty() ? "row " : "; row ", row.row, one_line(row.text));
    seen.push_back(row.text);
  }
  return text;
}

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

Result<RewardOutput> Reward::score(const RewardBatch& batch, MetricSet* metrics, const CallOptions& options) {
  TRY(check_reward_batch(batch, instance_.label()));
  const RewardArgs args(batch);
  return score(args.in(), metrics, options);
}

Result<RewardOutput> Reward::score(const mortise_reward_in& in, MetricSet* metrics, const CallOptions& options) {
  const auto rows = static_cast<size_t>(in.num_rows);
  const bool gives_tokens = gives_token_rewards(info());
  Written written;
  written.rewards.assign(rows, std::numeric_limits<double>::quiet_NaN());
  if (gives_tokens) written.token_rewards.assign(in.completion_ids.offsets[rows] - in.completion_ids.offsets[0], 0.0F);
  RowValueSink sink;
  sink.num_rows = in.num_rows;
  GuardedRewards guarded(instance_.key().check_writes, written);
  auto out = make_abi_struct<mortise_reward_out>();
  out.rewards = guarded.rewards();
  out.token_rewards = gives_tokens ? guarded.token_rewards() : nullptr;
  out.row_value = take_row_number;
  out.sink = &sink;

  const auto slot = catchable(vtable_of<Vtable>(instance_).score);
  CallOptions with_rows = options;
  with_rows.num_rows = in.num_rows;
  CallReport report = TRY(instance_.call(kSlot, in.step, metrics, with_rows,
                                         [&](mortise_call* call) { return slot(instance_.self(), call, &in, &out); }));
  if (const std::string damage = guarded.finish(); !damage.empty()) {
    const std::string last =
        rows == 0 ? "" : fmt::format(", whose last row is row {} of the step", in.row_id[rows - 1]);
    return instance_.error(
        kSlot, in.step, damage + last,
        "rewards has num_rows elements, token_rewards those of completion_ids; tell the pack's author (rule R33)");
  }
  if (!sink.misuse.empty()) return instance_.error(kSlot, in.step, sink.misuse, "tell the pack's author");

  RewardOutput result;
  result.rewards = std::move(written.rewards);
  result.metrics = std::move(report.metrics);
  result.failed_rows = std::move(report.failed_rows);
  result.seconds = report.seconds;
  for (const FailedRow& failed : result.failed_rows)
    result.rewards[static_cast<size_t>(failed.row)] = std::numeric_limits<double>::quiet_NaN();
  fail_infinite_rows(result);
  if (gives_tokens) take_token_rewards(in, written.token_rewards, result);
  std::stable_sort(sink.values.begin(), sink.values.end(),
                   [](const RowValue& a, const RowValue& b) { return a.row < b.row; });
  result.row_values = std::move(sink.values);
  return result;
}

}  // namespace mortise
