// Calls a reward in this process, on one thread or several.
#include "plugin/worker/local_reward.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "foundation/base/clock.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/reward_args.h"
#include "plugin/worker/batch_area.h"
#include "plugin/worker/row_account.h"

namespace mortise {
namespace {

// The rows from `first` on, and what one call gave for them.
struct ScoredPart {
  int64_t first = 0, count = 0;
  Result<RewardOutput> out;
};

class LocalReward : public RewardFunction {
 public:
  explicit LocalReward(Reward reward) : reward_(std::move(reward)) {}

  [[nodiscard]] const std::string& label() const override { return reward_.instance().label(); }
  [[nodiscard]] Granularity granularity() const override { return reward_.granularity(); }
  [[nodiscard]] bool works_ahead() const override { return false; }

  Result<> begin(const ScoreRequest& request) override {
    request_ = request;
    batch_ = nullptr;
    num_done_ = 0;
    return {};
  }
  Result<> add(const RewardBatch& rows) override {
    if (batch_ != nullptr)
      return Error{ErrorKind::kInternal, "rows were given in parts to a reward in this process", label(), ""};
    batch_ = &rows;
    return {};
  }
  Result<> advance(int /*wait_ms*/) override { return {}; }
  void close() override {}
  [[nodiscard]] bool is_idle() const override { return true; }
  [[nodiscard]] bool wants_more() const override { return false; }
  [[nodiscard]] bool has_free_worker() const override { return false; }
  [[nodiscard]] int64_t num_done() const override { return num_done_; }
  Result<RewardOutput> finish(MetricSet* metrics) override {
    if (batch_ == nullptr) return RewardOutput{};
    const RewardBatch& rows = *std::exchange(batch_, nullptr);
    TRY(check_reward_batch(rows, label()));
    num_done_ = rows.num_rows;
    return may_use_threads() && rows.num_rows > 1 ? score_on_threads(rows, metrics) : score_at_once(rows, metrics);
  }
  Result<std::optional<std::string>> save_state() override { return reward_.instance().save_state(); }
  Result<> load_state(std::string_view bytes) override { return reward_.instance().load_state(bytes); }

 private:
  [[nodiscard]] bool may_use_threads() const {
    return granularity() == Granularity::kRow && (reward_.info().flags & MORTISE_FLAG_CONCURRENT) != 0;
  }

  [[nodiscard]] int64_t deadline_from_now() const {
    return request_.timeout_ms > 0 ? now_ns() + request_.timeout_ms * kMsInNs : 0;
  }

  // All rows in one call, which may be faster. If that fails, calls it again as a worker would, so that a bad row or
  // group fails alone.
  Result<RewardOutput> score_at_once(const RewardBatch& rows, MetricSet* metrics) {
    const RewardArgs args(rows);
    const int64_t deadline_ns = deadline_from_now();
    std::vector<ScoredPart> parts;
    parts.push_back({0, rows.num_rows, score_before(args.in(), deadline_ns)});
    if (!parts.front().out.ok()) {
      std::vector<std::pair<int64_t, int64_t>> calls = smallest_calls(rows);
      if (!may_ask_again(parts.front().out.error(), calls.size(), deadline_ns))
        return std::move(parts.front().out).error();
      parts.clear();
      BatchView view = BatchView::over(args.in());
      for (const auto& [first, count] : calls)
        parts.push_back({first, count, score_before(view.slice(first, count), deadline_ns)});
    }
    return join(parts, rows, metrics);
  }

  // First row and number of rows of each.
  [[nodiscard]] std::vector<std::pair<int64_t, int64_t>> smallest_calls(const RewardBatch& rows) const {
    const bool by_group = granularity() == Granularity::kGroup && !rows.group_index.empty();
    if (granularity() != Granularity::kRow && !by_group) return {{0, rows.num_rows}};
    std::vector<std::pair<int64_t, int64_t>> calls;
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const auto at = static_cast<size_t>(row);
      if (by_group && row > 0 && rows.group_index[at] == rows.group_index[at - 1])
        ++calls.back().second;
      else
        calls.emplace_back(row, 1);
    }
    return calls;
  }

  // Not a plugin that counts what it has seen, because it would count twice.
  bool may_ask_again(const Error& error, size_t num_calls, int64_t deadline_ns) {
    if (error.kind == ErrorKind::kSignal || num_calls < 2 || (deadline_ns > 0 && now_ns() >= deadline_ns)) return false;
    const auto state = reward_.instance().save_state();
    return state.ok() && !state->has_value();  // an error of it would hide the call's own
  }

  Result<RewardOutput> score_on_threads(const RewardBatch& rows, MetricSet* metrics) {
    const RewardArgs args(rows);
    const int64_t deadline_ns = deadline_from_now();
    std::mutex mutex;
    std::vector<ScoredPart> parts;
    auto score_part = [&](int64_t begin, int64_t end) {
      BatchView view = BatchView::over(args.in());
      ScoredPart part{begin, end - begin, score_before(view.slice(begin, end - begin), deadline_ns)};
      const std::lock_guard lock(mutex);
      parts.push_back(std::move(part));
    };
    const auto run_part = [](void* work, int64_t begin, int64_t end) {
      (*static_cast<decltype(score_part)*>(work))(begin, end);
    };
    host_table()->parallel_for(nullptr, rows.num_rows, 1, run_part, &score_part);
    std::sort(parts.begin(), parts.end(), [](const ScoredPart& a, const ScoredPart& b) { return a.first < b.first; });
    return join(parts, rows, metrics);
  }

  Result<RewardOutput> score_before(const mortise_reward_in& in, int64_t deadline_ns) {
    CallOptions options;
    if (deadline_ns > 0) {
      options.timeout_ms = (deadline_ns - now_ns()) / kMsInNs;
      if (options.timeout_ms <= 0)
        return Error{ErrorKind::kPlugin, "not scored: the batch took longer than its timeout", label(), ""};
    }
    return reward_.score(in, nullptr, options);
  }

  // A call that failed fails its own rows.
  Result<RewardOutput> join(std::vector<ScoredPart>& parts, const RewardBatch& rows, MetricSet* metrics) {
    const auto place_of = [&](int64_t row) { return request_.is_part ? rows.row_id[static_cast<size_t>(row)] : row; };
    RowAccount account(request_.is_part ? request_.num_rows : rows.num_rows, gives_token_rewards(reward_.info()));
    std::vector<MetricRecord> records;
    std::vector<int64_t> record_rows;
    for (ScoredPart& part : parts) {
      if (!part.out.ok()) {
        if (part.out.error().kind == ErrorKind::kSignal) return std::move(part.out).error();
        for (int64_t i = 0; i < part.count; ++i)
          account.fail(place_of(part.first + i), MORTISE_UNKNOWN, failure_text(part.out.error()));
        continue;
      }
      RewardOutput& out = *part.out;
      for (FailedRow& failed : out.failed_rows)
        account.fail(place_of(part.first + failed.row), failed.code, std::move(failed.text));
      for (int64_t i = 0; i < part.count; ++i) {
        const auto row = static_cast<size_t>(i);
        account.score(place_of(part.first + i), out.rewards[row],
                      out.token_rewards.empty() ? std::vector<float>() : std::move(out.token_rewards[row]));
      }
      for (RowValue& value : out.row_values) account.add_value(place_of(part.first + value.row), std::move(value));
      record_rows.resize(record_rows.size() + out.metrics.size(), place_of(part.first));
      std::move(out.metrics.begin(), out.metrics.end(), std::back_inserter(records));
    }
    TRY(add_plugin_metrics(label(), "score", request_.step, records, metrics));
    RewardOutput output = account.take();
    output.metrics = std::move(records);
    output.metric_rows = std::move(record_rows);
    return output;
  }

  static int64_t now_ns() { return default_env().monotonic_ns(); }

  Reward reward_;
  ScoreRequest request_;
  const RewardBatch* batch_ = nullptr;
  int64_t num_done_ = 0;
};

}  // namespace

std::unique_ptr<RewardFunction> make_local_reward(Reward reward) {
  return std::make_unique<LocalReward>(std::move(reward));
}

}  // namespace mortise
