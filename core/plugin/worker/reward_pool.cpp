#include "plugin/worker/reward_pool.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/metrics/registry.h"

namespace mortise {
namespace {

constexpr int64_t kGraceMs = 50;      // for a plugin that asks for its deadline to stop by itself
constexpr int kSendTimeoutMs = 1000;  // a worker that does not read for so long is as good as dead
constexpr int kIdleTimeoutMs = 60'000;
constexpr int64_t kStopMs = 1000;  // for a plugin that asks whether the run is stopping
constexpr int kMaxTries = 3;
constexpr int64_t kMs = 1'000'000;

int64_t now_ns() { return default_env().monotonic_ns(); }
std::string seconds(int64_t ms) { return format_duration(static_cast<double>(ms) * 1e-3); }

}  // namespace

Result<std::unique_ptr<RewardFunction>> RewardPool::start(const PluginRef& ref, InstanceIdentity identity,
                                                          const RunKey& key, const WorkerLimits& limits,
                                                          const CrewOptions& options) {
  LoadMessage load;
  load.path = ref.pack->path;
  load.sha256 = ref.pack->sha256;
  load.kind = ref.plugin->kind;
  load.name = ref.plugin->name;
  load.identity = std::move(identity);
  load.limits = limits;
  load.check_writes = key.check_writes;
  std::unique_ptr<RewardPool> pool(new RewardPool);
  pool->label_ = load.identity.label;
  pool->key_ = key;
  pool->cpu_ms_ = limits.cpu_ms;
  pool->gives_tokens_ = gives_token_rewards(*ref.plugin);
  pool->crew_ = TRY(Crew::start(load, options));
  const ReadyMessage& ready = pool->crew_->ready();
  if (ready.has_state || pool->granularity() == Granularity::kBatch) pool->crew_->use_one_worker();
  pool->state_ = CarriedState(ready, pool->label_);
  TRY(pool->crew_->refill());
  const int workers = pool->crew_->num_workers();
  log_info(pool->label_ + ": runs in " + std::to_string(workers) + (workers == 1 ? " worker" : " workers") +
           (options.without.empty() ? "" : " (" + options.without + ")"));
  log_debug(pool->label_ + ": its workers have these limits: " + pool->crew_->limits_text());  // in log.txt
  return std::unique_ptr<RewardFunction>(std::move(pool));
}

Result<> RewardPool::begin(const ScoreRequest& request) {
  while (!at_work_.empty()) TRY(bury(*at_work_.front().seat, "given up"));  // of a batch that ended with an error
  TRY(crew_->refill());
  request_ = request;
  account_ = RowAccount(request.num_rows, gives_tokens_);
  metrics_.clear();
  todo_.begin(request.num_rows);
  deadline_ns_ = 0;
  last_seat_ = nullptr;
  return {};
}

Result<> RewardPool::add(const RewardBatch& rows) {
  TRY(todo_.add(rows, granularity(), crew_->num_workers(), label_));
  return turn(0);
}

// Hands out work, waits for news and takes it in, and ends what takes too long.
Result<> RewardPool::turn(int timeout_ms) {
  if (is_stopping()) {
    for (const Work& work : at_work_) work.seat->area.head->cancelled.store(true);
  }
  TRY(hand_out());
  if (const auto waited = crew_->wait(timeout_ms); !waited.ok()) TRY(recover(waited.error()));
  TRY(take_in());
  TRY(enforce_deadlines());
  return hand_out();
}

Result<> RewardPool::advance(int wait_ms) {
  if (is_idle()) return {};
  return turn(wait_ms == 0 ? 0 : std::min(wait_ms, time_to_next_deadline()));
}

void RewardPool::close() {
  if (request_.timeout_ms > 0 && deadline_ns_ == 0) deadline_ns_ = now_ns() + request_.timeout_ms * kMs;
}

Result<RewardOutput> RewardPool::finish(MetricSet* metrics) {
  close();
  while (account_.num_open() > 0) {
    if (is_stopping()) return stop();
    if (todo_.empty() && at_work_.empty()) {
      return Error{ErrorKind::kInternal, std::to_string(account_.num_open()) + " rows were never given to the reward",
                   label_, ""};
    }
    TRY(turn(time_to_next_deadline()));
  }
  while (!at_work_.empty()) TRY(turn(time_to_next_deadline()));
  if (is_stopping()) return stop();  // some rows may have been given up for it
  if (last_seat_ != nullptr) TRY(state_.keep(*crew_, *last_seat_));
  // In the order of rows, so that sums do not depend on which worker was first.
  std::stable_sort(metrics_.begin(), metrics_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<MetricRecord> ordered;
  for (auto& [row, metric] : metrics_) ordered.push_back(std::move(metric));
  TRY(add_plugin_metrics(label_, "score", request_.step, ordered, metrics));
  return account_.take();
}

// The run is stopping: the rows at hand have a moment to come back, the others are left.
Result<RewardOutput> RewardPool::stop() {
  const int64_t end = now_ns() + kStopMs * kMs;
  while (!at_work_.empty() && now_ns() < end) TRY(turn(10));
  while (!at_work_.empty()) TRY(bury(*at_work_.front().seat, "the run is stopping"));
  todo_.clear();
  return Error{ErrorKind::kSignal, "stopped before all rows were scored", label_, ""};
}

Result<> RewardPool::hand_out() {
  if (is_stopping()) todo_.clear();
  while (!todo_.empty()) {
    Seat* const seat = crew_->take_idle();
    if (seat == nullptr) return {};
    const RowPiece piece = todo_.take();
    const auto given = give(*seat, piece);
    if (given.ok()) continue;
    put_back(piece, /*blamed=*/false, given.error().what);
    TRY(bury(*seat, ""));
  }
  return {};
}

Result<> RewardPool::give(Seat& seat, const RowPiece& piece) {
  TRY(state_.bring(*crew_, seat));
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
  message.new_area = seat.area_number != piece.area;
  message.new_block = seat.block != range.block;
  if (message.new_block) fds.push_back(todo_.fd(piece));
  seat.area_number = piece.area;
  seat.block = range.block;
  const size_t num_tokens = gives_tokens_ ? todo_.tokens_before(piece, piece.count) : 0;
  if (seat.area.rows < static_cast<size_t>(piece.count) || seat.area.tokens < num_tokens) {
    TRY(make_output_area(seat, piece, num_tokens));
    message.new_output = true;
    fds.push_back(seat.output.fd());
  }
  message.output_rows = static_cast<int64_t>(seat.area.rows);
  message.output_bytes = seat.output.size();
  for (int64_t i = 0; i < piece.count; ++i) seat.area.done[i].store(0, std::memory_order_relaxed);
  seat.area.head->at_hand.store(-1);
  seat.area.head->cancelled.store(false);
  TRY(seat.channel.send(kPiece, encode(message), fds, kSendTimeoutMs));
  seat.output.close_file();  // the worker has it
  seat.busy = true;
  at_work_.push_back({&seat, piece, now_ns()});
  return {};
}

// A larger one than the seat has: of rows a usual piece, of tokens twice as many, so that it is made seldom.
Result<> RewardPool::make_output_area(Seat& seat, const RowPiece& piece, size_t num_tokens) {
  const size_t rows = std::max(static_cast<size_t>(std::max(piece.count, kMaxPieceRows)), seat.area.rows);
  const size_t tokens = num_tokens > seat.area.tokens ? 2 * num_tokens : seat.area.tokens;
  seat.output =
      TRY(SharedMemory::create("mortise-rewards", OutputArea::bytes(rows, tokens), SharedMemory::Peer::kWrites));
  seat.area = OutputArea(seat.output.data(), seat.output.size(), rows);
  return {};
}

Result<> RewardPool::take_in() {
  for (size_t i = 0; i < crew_->seats().size(); ++i) {
    Seat& seat = *crew_->seats()[i];
    while (true) {
      auto frame = seat.channel.receive(0);
      if (!frame.ok()) {
        TRY(bury(seat, frame.error().what));
        i = static_cast<size_t>(-1);
        break;
      }
      if (!*frame) {
        if (crew_->has_ended(seat)) {
          TRY(bury(seat, ""));
          i = static_cast<size_t>(-1);  // the list has changed: look at all again
        }
        break;
      }
      TRY(take_frame(seat, **frame));
    }
  }
  return {};
}

Result<> RewardPool::take_frame(Seat& seat, const Frame& frame) {
  Work* const work = work_of(seat);
  if (work == nullptr) return crew_->take_ready(seat, frame);
  if (frame.kind == kDone) {
    complete(seat);
    return {};
  }
  if (frame.kind == kRow) {
    RowMessage report;
    if (decode(frame.body, report).ok()) {
      take_report(work->piece, report);
    } else {
      fail_rows(work->piece, 0, work->piece.count, MORTISE_DATA_LOSS, "its worker sent what cannot be read");
    }
    return {};
  }
  if (frame.kind == kLog || frame.kind == kProgress) return crew_->take_ready(seat, frame);
  // An error of the worker itself: its rows are tried elsewhere when it ends, which it does next.
  if (frame.kind == kError) log_warn(label_ + ": " + decode_error(frame.body).to_string());
  return {};
}

void RewardPool::take_report(const RowPiece& piece, RowMessage& report) {
  if (report.first < 0 || report.count < 0 || report.first + report.count > piece.count) return;
  if (!report.call_error.empty()) {
    fail_rows(piece, report.first, report.count, MORTISE_UNKNOWN, report.call_error);
    return;
  }
  if (auto good = add_plugin_metrics(label_, "score", request_.step, report.metrics, nullptr); !good.ok()) {
    fail_rows(piece, report.first, report.count, MORTISE_INVALID_ARGUMENT, good.error().what);
    return;
  }
  const int64_t row = report.count > 0 ? todo_.row_of(piece, report.first) : 0;
  for (MetricRecord& metric : report.metrics) metrics_.emplace_back(row, std::move(metric));
  for (FailedRow& failed : report.failed_rows) {
    if (failed.row < 0 || failed.row >= report.count) continue;
    account_.fail(todo_.row_of(piece, report.first + failed.row), failed.code, std::move(failed.text));
  }
  for (RowValue& value : report.values) {
    if (value.row < 0 || value.row >= report.count) continue;
    account_.add_value(todo_.row_of(piece, report.first + value.row), std::move(value.name), value.value);
  }
}

// A copy of what the worker may still write to.
std::vector<float> RewardPool::tokens_of(const Work& work, int64_t row) const {
  const float* const first = work.seat->area.token_rewards;
  return {first + todo_.tokens_before(work.piece, row), first + todo_.tokens_before(work.piece, row + 1)};
}

// The rows of a piece that its worker has finished.
void RewardPool::take_rows(const Work& work) {
  const OutputArea& area = work.seat->area;
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

void RewardPool::complete(Seat& seat) {
  const Work work = *work_of(seat);
  take_rows(work);
  fail_rows(work.piece, 0, work.piece.count, MORTISE_DATA_LOSS, "its worker left it out");
  std::erase_if(at_work_, [&](const Work& other) { return other.seat == &seat; });
  seat.busy = false;
  last_seat_ = &seat;
}

// Ends a worker, blames the row at hand, and puts the rows that it had not come to back in the queue. `reason` "": it
// died by itself.
Result<> RewardPool::bury(Seat& seat, std::string reason) {
  const WorkerEnd ended = crew_->end(seat);
  if (reason.empty()) {
    const Work* const work = work_of(seat);
    const std::string unit = work == nullptr ? "the row" : unit_of(work->piece);
    reason = cpu_ms_ > 0 && ended.signal == SIGXCPU
                 ? unit + " used more CPU than plugins.worker_cpu_time = " + seconds(cpu_ms_) + "; its worker was ended"
                 : "its worker was ended by " + ended.text + " while it scored " + unit;
  }
  TRY(settle(seat, reason, /*may_blame=*/true));
  auto replaced = crew_->replace(seat);
  return replaced.ok() ? Result<>() : recover(replaced.error());  // the keeper may have ended with its workers
}

// Takes what an ended worker leaves behind.
Result<> RewardPool::settle(Seat& seat, const std::string& text, bool may_blame) {
  while (true) {  // what it said before it died
    auto frame = seat.channel.receive(0);
    if (!frame.ok() || !*frame) break;
    TRY(take_frame(seat, **frame));
  }
  ++num_replaced_;
  if (last_seat_ == &seat) last_seat_ = nullptr;
  const Work* const found = work_of(seat);
  if (found == nullptr) return {};
  const Work work = *found;
  std::erase_if(at_work_, [&](const Work& other) { return other.seat == &seat; });
  take_rows(work);
  const int64_t at_hand = seat.area.head->at_hand.load();
  const bool blamed = may_blame && at_hand >= 0 && at_hand < work.piece.count && seat.area.done[at_hand].load() == 0;
  const int64_t call_rows = granularity() == Granularity::kRow ? 1 : work.piece.count;
  if (blamed) fail_rows(work.piece, at_hand, call_rows, MORTISE_ABORTED, text);
  put_back(work.piece, blamed, text);
  return {};
}

// The rows of a piece that nobody has scored go to another worker, unless too many have ended at it.
void RewardPool::put_back(RowPiece piece, bool blamed, const std::string& text) {
  piece.num_tries += blamed ? 0 : 1;
  if (piece.num_tries >= kMaxTries) fail_rows(piece, 0, piece.count, MORTISE_ABORTED, text);
  while (piece.count > 0 && !account_.is_open(todo_.row_of(piece, 0))) ++piece.first, --piece.count;
  if (piece.count > 0) todo_.put_back(piece);
}

// What one call of the plugin is about, for messages.
std::string RewardPool::unit_of(const RowPiece& piece) const {
  if (granularity() == Granularity::kRow) return "the row";
  const std::optional<int64_t> group = todo_.group_of(piece);
  if (granularity() == Granularity::kBatch || !group) return "the batch";
  return "group " + std::to_string(*group) + " (" + std::to_string(piece.count) +
         (piece.count == 1 ? " row)" : " rows)");
}

// The keeper has ended, and all workers with it.
Result<> RewardPool::recover(const Error& cause) {
  log_warn(label_ + ": " + cause.to_string() + "; starting it again");
  while (!at_work_.empty()) TRY(settle(*at_work_.front().seat, cause.what, /*may_blame=*/false));
  last_seat_ = nullptr;
  return crew_->restart();
}

Result<> RewardPool::enforce_deadlines() {
  const int64_t now = now_ns();
  if (deadline_ns_ > 0 && now > deadline_ns_ + kGraceMs * kMs) {
    const std::string text = "the batch took longer than timeout = " + seconds(request_.timeout_ms);
    while (!at_work_.empty()) TRY(bury(*at_work_.front().seat, text));
    fail_the_rest(MORTISE_DEADLINE_EXCEEDED, "not scored: " + text);
    return {};
  }
  if (request_.row_timeout_ms == 0 || granularity() == Granularity::kBatch) return {};
  for (size_t i = 0; i < at_work_.size(); ++i) {
    const OutputHead& head = *at_work_[i].seat->area.head;
    if (head.at_hand.load(std::memory_order_acquire) < 0) continue;
    if (now - head.started_ns.load() < (request_.row_timeout_ms + kGraceMs) * kMs) continue;
    TRY(bury(*at_work_[i].seat, unit_of(at_work_[i].piece) + " took longer than row_timeout = " +
                                    seconds(request_.row_timeout_ms) + "; its worker was killed"));
    i = static_cast<size_t>(-1);
  }
  return {};
}

void RewardPool::fail_rows(const RowPiece& piece, int64_t first, int64_t count, int32_t code, const std::string& text) {
  for (int64_t i = first; i < first + count; ++i) account_.fail(todo_.row_of(piece, i), code, text);
}

void RewardPool::fail_the_rest(int32_t code, const std::string& text) {
  for (const RowPiece& piece : todo_.waiting()) fail_rows(piece, 0, piece.count, code, text);
  todo_.clear();
}

int RewardPool::time_to_next_deadline() const {
  const int64_t now = now_ns();
  int64_t wait_ms = 1000;  // now and then for a stop of the run
  if (deadline_ns_ > 0) wait_ms = std::min(wait_ms, (deadline_ns_ - now) / kMs + kGraceMs + 1);
  if (request_.row_timeout_ms > 0 && granularity() != Granularity::kBatch) {
    for (const Work& work : at_work_) {
      const int64_t started = std::max(work.seat->area.head->started_ns.load(), work.given_ns);
      wait_ms = std::min(wait_ms, (started - now) / kMs + request_.row_timeout_ms + kGraceMs + 1);
    }
  }
  return static_cast<int>(std::max<int64_t>(wait_ms, 0));
}

RewardPool::Work* RewardPool::work_of(const Seat& seat) {
  for (Work& work : at_work_) {
    if (work.seat == &seat) return &work;
  }
  return nullptr;
}

Result<std::optional<std::string>> RewardPool::save_state() { return state_.bytes(); }

Result<> RewardPool::load_state(std::string_view bytes) {
  Seat* const seat = TRY(crew_->wait_idle(kIdleTimeoutMs));
  return state_.replace(*crew_, *seat, bytes);
}

}  // namespace mortise
