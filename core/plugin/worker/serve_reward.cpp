// A worker of a reward: opens a piece, scores its rows, and sends the results.
//
// It writes the current row into shared memory before it scores it, so that a crash or a hang names its row.
#include <algorithm>
#include <cmath>
#include <optional>

#include "plugin/worker/batch_area.h"
#include "plugin/worker/serve.h"
#include "plugin/worker/shared_memory.h"

namespace mortise {
namespace {

class RewardServer : public PluginServer {
 public:
  RewardServer(Channel& channel, WorkerSystem& system) : channel_(channel), system_(system) {}

  Result<> create(const LoadedPlugin& plugin, const LoadMessage& load) override {
    reward_ = TRY(Reward::create(plugin, load.identity, RunKey{0, nullptr, load.check_writes}));
    return cpu_.start(load.limits.cpu_ms);
  }
  PluginInstance& instance() override { return reward_->instance(); }
  [[nodiscard]] int64_t granularity() const override { return static_cast<int64_t>(reward_->granularity()); }

  Result<> answer(Frame& frame) override {
    if (frame.kind != kPiece) return unknown_message(frame);
    return piece(frame);
  }

 private:
  Result<> piece(Frame& frame) {
    PieceMessage message;
    TRY(decode(frame.body, message));
    size_t next_fd = 0;
    if (message.new_block && next_fd < frame.fds.size()) block_ = std::move(frame.fds[next_fd++]);
    if (message.new_area) {
      rows_ =
          TRY(SharedMemory::map(block_, message.area_offset, message.area_size, SharedMemory::Peer::kReads, system_));
      view_ = TRY(BatchView::open({rows_.data(), message.area_size}));
    }
    if (message.new_output && next_fd < frame.fds.size()) {
      const Fd output = std::move(frame.fds[next_fd++]);
      output_ = TRY(SharedMemory::map(output, 0, message.output_bytes, SharedMemory::Peer::kWrites, system_));
      area_ = OutputArea(output_.data(), output_.size(), static_cast<size_t>(message.output_rows));
    }
    if (area_.head == nullptr || message.first < 0 || message.count < 0 ||
        message.count > static_cast<int64_t>(area_.rows) || message.first + message.count > view_.num_rows())
      return Error{ErrorKind::kPlugin, "asked for rows that are not there", "worker", ""};
    const mortise_id_column ids = view_.slice(message.first, message.count).completion_ids;
    if (gives_token_rewards(reward_->info()) && num_ids(ids, message.count) > area_.tokens)
      return Error{ErrorKind::kPlugin, "has no room for the token rewards of a piece", "worker", ""};
    first_id_ = ids.ids;
    const int64_t per_call = reward_->granularity() == Granularity::kRow ? 1 : message.count;
    for (int64_t row = 0; row < message.count; row += per_call) TRY(call(message, row, per_call));
    return send_to_trainer(channel_, kDone, {});
  }

  // Milliseconds for a call that starts now; 0: no limit, -1: the batch's time is over.
  static int64_t time_left_ms(const PieceMessage& message, int64_t now) {
    int64_t left = message.row_timeout_ms;
    if (message.deadline_ns > 0) {
      const int64_t of_batch = (message.deadline_ns - now) / 1'000'000;
      if (of_batch <= 0) return -1;
      left = left == 0 ? of_batch : std::min(left, of_batch);
    }
    return left;
  }

  Result<> call(const PieceMessage& message, int64_t row, int64_t count) {
    const int64_t now = system_.monotonic_ns();
    RowMessage report;
    report.first = row;
    report.count = count;
    CallOptions options;
    options.timeout_ms = time_left_ms(message, now);
    options.cancelled = &area_.head->cancelled;
    if (options.timeout_ms < 0 || area_.head->cancelled.load()) {
      report.call_error = options.timeout_ms < 0 ? "not scored: the batch took longer than its timeout"
                                                 : "not scored: the run is stopping";
      return finish_call(report, row, count);
    }
    area_.head->started_ns.store(now, std::memory_order_relaxed);
    area_.head->at_hand.store(row, std::memory_order_release);
    const mortise_reward_in& in = view_.slice(message.first + row, count);
    cpu_.begin_call();
    auto scored = reward_->score(in, nullptr, options);
    cpu_.end_call();
    if (scored.ok()) {
      std::copy(scored->rewards.begin(), scored->rewards.end(), area_.rewards + row);
      copy_tokens(in, *scored);
      report.failed_rows = std::move(scored->failed_rows);
      report.values = std::move(scored->row_values);
      report.metrics = std::move(scored->metrics);
    } else {
      report.call_error = failure_text(scored.error());
    }
    TRY(finish_call(report, row, count));
    area_.head->at_hand.store(-1, std::memory_order_release);
    return {};
  }

  static size_t num_ids(const mortise_id_column& column, int64_t rows) {
    return column.offsets == nullptr ? 0 : column.offsets[rows] - column.offsets[0];
  }

  // To the places of their ids in the piece. Rows without a reward have none, and nothing reads them.
  void copy_tokens(const mortise_reward_in& in, const RewardOutput& scored) {
    if (num_ids(in.completion_ids, in.num_rows) == 0) return;
    float* const first = area_.token_rewards + (in.completion_ids.ids - first_id_);
    for (size_t row = 0; row < scored.token_rewards.size(); ++row) {
      const std::vector<float>& own = scored.token_rewards[row];
      std::copy(own.begin(), own.end(), first + in.completion_ids.offsets[row]);
    }
  }

  Result<> finish_call(const RowMessage& report, int64_t row, int64_t count) {
    const bool plain =
        report.call_error.empty() && report.failed_rows.empty() && report.values.empty() && report.metrics.empty();
    if (!plain) TRY(send_to_trainer(channel_, kRow, encode(report)));
    for (int64_t i = row; i < row + count; ++i) area_.done[i].store(1, std::memory_order_release);
    return {};
  }

  Channel& channel_;
  WorkerSystem& system_;
  std::optional<Reward> reward_;
  CpuWatch cpu_;
  Fd block_;  // that rows_ is a part of
  SharedMemory rows_, output_;
  BatchView view_;
  OutputArea area_;
  const int64_t* first_id_ = nullptr;  // completion ids of the piece begin here
};

}  // namespace

std::unique_ptr<PluginServer> make_reward_server(Channel& channel, WorkerSystem& system) {
  return std::make_unique<RewardServer>(channel, system);
}

}  // namespace mortise
