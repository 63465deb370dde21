// The scheduling loop: gives pieces to idle workers and takes results. reward_pool_faults.cpp handles crashes and deadlines.
#include "plugin/worker/reward_pool.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/metrics/registry.h"

namespace mortise {
namespace {

constexpr int kPieceSendTimeoutMs = 1000;  // a worker that does not read for so long is as good as dead
constexpr int kIdleTimeoutMs = 60'000;
constexpr int64_t kStopMs = 1000;        // for a plugin that asks whether the run is stopping
constexpr int64_t kNoMemoryMs = 10'000;  // without an output area; then the rows of a piece fail

}  // namespace

Result<std::unique_ptr<RewardFunction>> RewardPool::start(const PluginRef& ref, InstanceIdentity identity,
                                                          const RunKey& key, const WorkerLimits& limits,
                                                          const PoolOptions& options) {
  const LoadMessage load = load_message(ref, std::move(identity), limits, key);
  std::unique_ptr<RewardPool> pool(new RewardPool(*options.system));
  pool->label_ = load.identity.label;
  pool->key_ = key;
  pool->cpu_ms_ = limits.cpu_ms;
  pool->gives_tokens_ = gives_token_rewards(*ref.plugin);
  pool->supervisor_ = TRY(Supervisor::start(load, options));
  const ReadyMessage& ready = pool->supervisor_->ready();
  if (ready.has_state || pool->granularity() == Granularity::kBatch) pool->supervisor_->use_one_worker();
  pool->state_ = CarriedState(ready, pool->label_);
  TRY(pool->supervisor_->fill());
  const int workers = pool->supervisor_->num_workers();
  log_info(fmt::format("{}: runs in {}{}{}", pool->label_, workers, workers == 1 ? " worker" : " workers",
                       pool->supervisor_->without().empty() ? "" : fmt::format(" ({})", pool->supervisor_->without())));
  log_debug(fmt::format("{}: its workers have these limits: {}", pool->label_,
                        pool->supervisor_->limits_text()));  // in log.txt
  return std::unique_ptr<RewardFunction>(std::move(pool));
}

Result<> RewardPool::begin(const ScoreRequest& request) {
  while (!at_work_.empty()) TRY(end_worker(*at_work_.front().slot, "given up"));  // a failed batch left them
  memory_.succeed();
  TRY(supervisor_->fill());
  request_ = request;
  account_ = RowAccount(request.num_rows, gives_tokens_);
  metrics_.clear();
  num_added_ = 0;
  todo_.begin(request.num_rows);
  deadline_ns_ = 0;
  last_slot_ = nullptr;
  return {};
}

Result<> RewardPool::add(const RewardBatch& rows) {
  TRY(todo_.add(rows, granularity(), supervisor_->num_workers(), label_));
  num_added_ += rows.num_rows;
  return turn(0);
}

// Hands out work, waits for news and takes it in, and ends what takes too long.
Result<> RewardPool::turn(int timeout_ms) {
  if (is_stopping()) {
    for (const Work& work : at_work_) work.slot->area.head->cancelled.store(true);
  }
  TRY(hand_out());
  TRY(supervisor_->wait(timeout_ms));
  if (supervisor_->lost()) TRY(recover());
  TRY(take_in());
  TRY(enforce_deadlines());
  return hand_out();
}

Result<> RewardPool::advance(int wait_ms) {
  if (is_idle()) return {};
  return turn(wait_ms == 0 ? 0 : std::min(wait_ms, time_to_next_deadline()));
}

void RewardPool::close() {
  if (request_.timeout_ms > 0 && deadline_ns_ == 0)
    deadline_ns_ = system_.monotonic_ns() + request_.timeout_ms * kMsInNs;
}

Result<RewardOutput> RewardPool::finish(MetricSet* metrics) {
  close();
  const int64_t num_elsewhere = request_.is_part ? request_.num_rows - num_added_ : 0;
  while (account_.num_open() > num_elsewhere) {
    if (is_stopping()) return stop();
    if (todo_.empty() && at_work_.empty()) {
      return Error{ErrorKind::kInternal,
                   std::to_string(account_.num_open() - num_elsewhere) + " rows were never given to the reward", label_,
                   ""};
    }
    TRY(turn(time_to_next_deadline()));
  }
  while (!at_work_.empty()) TRY(turn(time_to_next_deadline()));
  if (is_stopping()) return stop();  // some rows may have been given up for it
  if (last_slot_ != nullptr) TRY(keep_state());
  // In the order of rows, so that sums do not depend on which worker was first.
  std::stable_sort(metrics_.begin(), metrics_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<MetricRecord> ordered;
  std::vector<int64_t> rows;
  for (auto& [row, metric] : metrics_) {
    ordered.push_back(std::move(metric));
    rows.push_back(row);
  }
  TRY(add_plugin_metrics(label_, "score", request_.step, ordered, metrics));
  todo_.end();
  RewardOutput output = account_.take();
  output.metrics = std::move(ordered);
  output.metric_rows = std::move(rows);
  return output;
}

// A worker that dies between its rows and its state takes what it learned from the batch along.
Result<> RewardPool::keep_state() {
  auto kept = state_.keep(*supervisor_, *last_slot_);
  if (kept.ok() || !supervisor_->has_ended(*last_slot_)) return kept;
  log_warn(fmt::format(
      "{}: its worker ended before it could tell its state ({}); it continues from the state before step {}", label_,
      kept.error().what, request_.step));
  return end_worker(*last_slot_, kept.error().what);
}

// The run is stopping: the rows in work have a moment to come back, the others are left.
Result<RewardOutput> RewardPool::stop() {
  const int64_t end = system_.monotonic_ns() + kStopMs * kMsInNs;
  while (!at_work_.empty() && system_.monotonic_ns() < end) TRY(turn(10));
  while (!at_work_.empty()) TRY(end_worker(*at_work_.front().slot, "the run is stopping"));
  todo_.clear();
  return Error{ErrorKind::kSignal, "stopped before all rows were scored", label_, ""};
}

Result<> RewardPool::hand_out() {
  if (is_stopping()) todo_.clear();
  while (!todo_.empty()) {
    Slot* const slot = supervisor_->idle_slot();
    if (slot == nullptr || !make_room(*slot, todo_.waiting().front())) return {};
    const RowPiece piece = todo_.take();
    const auto given = give(*slot, piece);
    if (given.ok()) continue;
    put_back(piece, /*blamed=*/false, given.error().what);
    TRY(end_worker(*slot, ""));
  }
  return {};
}

Result<> RewardPool::give(Slot& slot, const RowPiece& piece) {
  TRY(state_.bring(*supervisor_, slot));
  PieceMessage message;
  message.first = piece.first;
  message.count = piece.count;
  // The batch's own deadline is set when the last row is given, later than this call: it gets its time from now on.
  message.row_timeout_ms = granularity() == Granularity::kBatch ? request_.timeout_ms : request_.row_timeout_ms;
  message.deadline_ns = deadline_ns_;
  std::vector<int> fds;
  const RowArena::Range& range = todo_.range(piece);
  message.area_offset = range.offset;
  message.area_size = range.size;
  message.new_area = slot.area_number != piece.area;
  message.new_block = slot.block != range.block;
  if (message.new_block) fds.push_back(todo_.fd(piece));
  slot.area_number = piece.area;
  slot.block = range.block;
  message.new_output = slot.output.fd() >= 0;
  if (message.new_output) fds.push_back(slot.output.fd());
  message.output_rows = static_cast<int64_t>(slot.area.rows);
  message.output_bytes = slot.output.size();
  for (int64_t i = 0; i < piece.count; ++i) slot.area.done[i].store(0, std::memory_order_relaxed);
  slot.area.head->at_hand.store(-1);
  slot.area.head->cancelled.store(false);
  TRY(slot.channel.send(kPiece, encode(message), fds, kPieceSendTimeoutMs));
  slot.output.close_file();  // the worker has it
  slot.busy = true;
  at_work_.push_back({&slot, piece, system_.monotonic_ns(), {}, {}});
  return {};
}

size_t RewardPool::num_tokens(const RowPiece& piece) const {
  return gives_tokens_ ? todo_.tokens_before(piece, piece.count) : 0;
}

// Whether the slot's output area holds the piece. One that the machine does not allow is tried again later; the rows of
// the piece fail if that lasts too long.
bool RewardPool::make_room(Slot& slot, const RowPiece& piece) {
  if (slot.area.rows >= static_cast<size_t>(piece.count) && slot.area.tokens >= num_tokens(piece)) return true;
  const int64_t now = system_.monotonic_ns();
  if (!memory_.may_try(now)) return false;
  const auto made = make_output_area(slot, piece);
  if (made.ok()) {
    memory_.succeed();
    return true;
  }
  memory_.fail(now);
  if (memory_.failing_ms(now) >= kNoMemoryMs) {
    fail_rows(piece, 0, piece.count, MORTISE_RESOURCE_EXHAUSTED, made.error().to_string());
    todo_.take();
  }
  return false;
}

// A larger one than the slot has: of rows a usual piece, of tokens twice as many, so that it is made seldom.
Result<> RewardPool::make_output_area(Slot& slot, const RowPiece& piece) {
  const size_t rows = std::max(static_cast<size_t>(std::max(piece.count, kMaxPieceRows)), slot.area.rows);
  const size_t needed = num_tokens(piece);
  const size_t tokens = needed > slot.area.tokens ? 2 * needed : slot.area.tokens;
  slot.output = TRY(
      SharedMemory::create("mortise-rewards", OutputArea::bytes(rows, tokens), SharedMemory::Peer::kWrites, system_));
  slot.area = OutputArea(slot.output.data(), slot.output.size(), rows);
  return {};
}

Result<> RewardPool::take_in() {
  for (size_t i = 0; i < supervisor_->slots().size(); ++i) {
    Slot& slot = *supervisor_->slots()[i];
    while (true) {
      auto frame = supervisor_->receive(slot, 0);
      if (!frame.ok()) {
        TRY(end_worker(slot, failure_text(frame.error())));
        i = static_cast<size_t>(-1);
        break;
      }
      if (!*frame) {
        if (supervisor_->has_ended(slot)) {
          TRY(end_worker(slot, ""));
          i = static_cast<size_t>(-1);  // the list has changed: look at all again
        }
        break;
      }
      TRY(take_frame(slot, **frame));
    }
  }
  return {};
}

Result<> RewardPool::take_frame(Slot& slot, const Frame& frame) {
  Work* const work = work_of(slot);
  if (work == nullptr) return supervisor_->take_message(slot, frame);
  if (frame.kind == kDone) {
    complete(slot);
    return {};
  }
  if (frame.kind == kRow) {
    RowMessage report;
    if (decode(frame.body, report).ok()) {
      work->reports.push_back(std::move(report));
    } else {
      fail_rows(work->piece, 0, work->piece.count, MORTISE_DATA_LOSS, "its worker sent a message that cannot be read");
    }
    return {};
  }
  if (frame.kind != kError) return supervisor_->take_message(slot, frame);
  // An error of the worker itself: its rows are tried elsewhere when it ends, which it does next.
  work->error = decode_error(frame.body).to_string();
  log_warn(fmt::format("{}: {}", label_, work->error));
  return {};
}

void RewardPool::take_report(const RowPiece& piece, RowMessage& report) {
  if (!report.call_error.empty()) {
    fail_rows(piece, report.first, report.count, MORTISE_UNKNOWN, report.call_error);
    return;
  }
  if (auto good = add_plugin_metrics(label_, "score", request_.step, report.metrics, nullptr); !good.ok()) {
    fail_rows(piece, report.first, report.count, MORTISE_INVALID_ARGUMENT, good.error().what);
    return;
  }
  const int64_t row = todo_.row_of(piece, report.first);
  for (MetricRecord& metric : report.metrics) metrics_.emplace_back(row, std::move(metric));
  for (FailedRow& failed : report.failed_rows) {
    if (failed.row < 0 || failed.row >= report.count) continue;
    account_.fail(todo_.row_of(piece, report.first + failed.row), failed.code, std::move(failed.text));
  }
  for (RowValue& value : report.values) {
    if (value.row < 0 || value.row >= report.count) continue;
    account_.add_value(todo_.row_of(piece, report.first + value.row), std::move(value));
  }
}

// A copy of what the worker may still write to.
std::vector<float> RewardPool::tokens_of(const Work& work, int64_t row) const {
  const float* const first = work.slot->area.token_rewards;
  return {first + todo_.tokens_before(work.piece, row), first + todo_.tokens_before(work.piece, row + 1)};
}

// The rows of a piece that its worker has finished, and what it said about them. A call that it did not finish is made
// again or blamed: what was said about it does not count, or it would count twice.
void RewardPool::take_rows(Work& work) {
  const OutputArea& area = work.slot->area;
  for (RowMessage& report : work.reports) {
    if (report.first < 0 || report.count < 1 || report.count > work.piece.count - report.first) continue;
    if (area.done[report.first].load(std::memory_order_acquire) != 0) take_report(work.piece, report);
  }
  for (int64_t i = 0; i < work.piece.count; ++i) {
    if (area.done[i].load(std::memory_order_acquire) == 0) continue;
    const double reward = area.rewards[i];
    std::vector<float> tokens;
    if (gives_tokens_ && !std::isnan(reward)) tokens = tokens_of(work, i);
    if (std::isinf(reward)) {
      fail_rows(work.piece, i, 1, MORTISE_INVALID_ARGUMENT, "gave the reward " + format_f64(reward));
    } else if (std::string fault = token_reward_fault(reward, tokens); !fault.empty()) {
      fail_rows(work.piece, i, 1, MORTISE_INVALID_ARGUMENT, fault);
    } else {
      account_.score(todo_.row_of(work.piece, i), reward, std::move(tokens));
    }
  }
}

void RewardPool::complete(Slot& slot) {
  Work work = std::move(*work_of(slot));
  take_rows(work);
  fail_rows(work.piece, 0, work.piece.count, MORTISE_DATA_LOSS, "its worker left it out");
  std::erase_if(at_work_, [&](const Work& other) { return other.slot == &slot; });
  slot.busy = false;
  last_slot_ = &slot;
}

RewardPool::Work* RewardPool::work_of(const Slot& slot) {
  for (Work& work : at_work_) {
    if (work.slot == &slot) return &work;
  }
  return nullptr;
}

Result<std::optional<std::string>> RewardPool::save_state() { return state_.bytes(); }

Result<> RewardPool::load_state(std::string_view bytes) {
  Slot* const slot = TRY(supervisor_->wait_idle(kIdleTimeoutMs));
  return state_.replace(*supervisor_, *slot, bytes);
}

}  // namespace mortise
